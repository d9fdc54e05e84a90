//! Lists of unmined and of conflicting transactions, in bounded memory and in parts that a reader can continue.
//!
//! | list | sections: ranges of an index |
//! |---|---|
//! | unmined | `unminedSince` up to a height |
//! | conflicting | `verdict` 0 (contested, without a decision), then `verdict` 2 (conflicting) |

use std::{fmt, str::FromStr, vec};

use strum::{EnumString, IntoStaticStr};

use crate::{
    engine::{Cursor, EngineError, Index},
    record::{Key, Page, Reason, SelectedPage, Selection, TxState, Verdict},
    text::one_line,
    tx::Txid,
};

use super::{StateStore, queries::UnminedTx};

/// Transactions that are read at the same time.
const AT_A_TIME: usize = 256;

/// Selection of the transactions of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TxSelection {
    /// Transactions that no block of the longest chain lists.
    Unmined {
        /// Greatest height since which a listed transaction is unmined.
        until: u32,
    },
    /// Conflicting transactions, and contested ones without a verdict.
    Conflicting,
}

impl TxSelection {
    /// Returns the queries of the list. A transaction whose verdict comes while the list is read moves to a later
    /// query, so that none is missed.
    fn queries(self) -> Vec<ListQuery> {
        let verdict = |section, verdict: Verdict| {
            let number = verdict.number().into();
            ListQuery { section, index: Index::Verdict, range: (number, number) }
        };
        match self {
            TxSelection::Unmined { until } => {
                vec![ListQuery { section: ListSection::Unmined, index: Index::UnminedSince, range: (0, until.into()) }]
            }
            // The number of a conflicting verdict does not depend on the reason.
            TxSelection::Conflicting => vec![
                verdict(ListSection::Undecided, Verdict::Pending),
                verdict(ListSection::Conflicting, Verdict::Conflicting(Reason::Found)),
            ],
        }
    }
}

/// Range of an index that a list reads.
#[derive(Debug, Clone, Copy)]
struct ListQuery {
    section: ListSection,
    index: Index,
    range: (u64, u64),
}

impl ListQuery {
    /// Returns what the list says of a master; `None`: the transaction has left the section since the query.
    fn find(&self, page: &Page) -> Option<TxListEntry> {
        match self.section {
            ListSection::Unmined => {
                let unmined = find_unmined(page).filter(|unmined| u64::from(unmined.unmined_since) <= self.range.1);
                unmined.map(TxListEntry::Unmined)
            }
            ListSection::Undecided => {
                find_conflicting(page).filter(|found| found.reason.is_none()).map(TxListEntry::Conflicting)
            }
            ListSection::Conflicting => {
                find_conflicting(page).filter(|found| found.reason.is_some()).map(TxListEntry::Conflicting)
            }
        }
    }
}

/// Names of the queries in cursors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, IntoStaticStr)]
enum ListSection {
    #[strum(serialize = "u")]
    Unmined,
    #[strum(serialize = "d")]
    Undecided,
    #[strum(serialize = "c")]
    Conflicting,
}

/// A transaction of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TxListEntry {
    /// An entry of the list of unmined transactions.
    Unmined(UnminedTx),
    /// An entry of the list of conflicting transactions.
    Conflicting(ConflictingEntry),
}

/// A conflicting transaction, or a contested one without a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConflictingEntry {
    /// Txid of the transaction.
    pub txid: Txid,
    /// Reason of the verdict; `None`: no verdict yet.
    pub reason: Option<Reason>,
    /// Time of the transaction's event, ms since the epoch; `None`: the store has a stub, and no event.
    pub created_at: Option<u64>,
    /// Height from which the transaction may be pruned; `None`: not known yet.
    pub delete_at_height: Option<u32>,
}

/// Position in a list: the section and the position in its index. An index without an order has the position of a part,
/// and the last transaction of the part that was returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TxListCursor {
    section: ListSection,
    /// Position in the index; `None`: the first part.
    part: Option<Cursor>,
    /// Last transaction that was returned; `None`: the index has an order.
    after: Option<Txid>,
}

/// Error of a text that is no cursor of the list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cursor: `{}` is no cursor of this list", one_line(.0))]
pub struct InvalidCursor(pub String);

impl fmt::Display for TxListCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let section: &'static str = self.section.into();
        let part = self.part.as_ref().map(|Cursor(bytes)| hex::encode(bytes)).unwrap_or_default();
        let after = self.after.map(|txid| txid.to_string()).unwrap_or_default();
        write!(f, "{section}.{part}.{after}")
    }
}

impl FromStr for TxListCursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let invalid = || InvalidCursor(text.to_owned());
        let (section, rest) = text.split_once('.').ok_or_else(invalid)?;
        let (part, after) = rest.split_once('.').ok_or_else(invalid)?;
        let part = hex::decode(part).map_err(|_| invalid())?;
        Ok(TxListCursor {
            section: section.parse().map_err(|_| invalid())?,
            part: (!part.is_empty()).then_some(Cursor(part)),
            after: (!after.is_empty()).then(|| after.parse()).transpose().map_err(|_| invalid())?,
        })
    }
}

/// Reader of a list, in no particular order.
pub struct TxList {
    store: StateStore,
    query: ListQuery,
    later_queries: vec::IntoIter<ListQuery>,
    part: Option<Cursor>,
    /// Masters of the part that are not read yet, each with the position after itself where the index has an order;
    /// `None`: the part is not queried yet.
    unread: Option<vec::IntoIter<(Txid, Option<Cursor>)>>,
    /// Position of the next part.
    next_part: Option<Cursor>,
    after: Option<Txid>,
    has_ended: bool,
}

impl TxList {
    /// Begins the list, or continues the list after a cursor.
    ///
    /// # Errors
    /// The cursor is one of another list.
    pub fn new(store: StateStore, selection: TxSelection, cursor: Option<TxListCursor>) -> Result<Self, InvalidCursor> {
        let mut later_queries = selection.queries().into_iter();
        let query = later_queries.find(|query| cursor.as_ref().is_none_or(|cursor| cursor.section == query.section));
        let query = query.ok_or_else(|| InvalidCursor(cursor.as_ref().map(ToString::to_string).unwrap_or_default()))?;
        let (part, after) = cursor.map_or((None, None), |cursor| (cursor.part, cursor.after));
        Ok(TxList { store, query, later_queries, part, unread: None, next_part: None, after, has_ended: false })
    }

    /// Reads the next transactions, each with the cursor after itself; none at the end.
    ///
    /// # Errors
    /// The engine answers with an error that no retry heals, or the cursor is not one of this store.
    pub async fn next(&mut self) -> Result<Vec<(TxListEntry, TxListCursor)>, EngineError> {
        while !self.has_ended {
            if self.unread.is_none() {
                self.query_part().await?;
            }
            let masters: Vec<_> = self.unread.iter_mut().flatten().take(AT_A_TIME).collect();
            if masters.is_empty() {
                self.enter_next_part();
                continue;
            }
            let pages = masters.iter().map(|(txid, _)| (Key::master(*txid), Selection::META)).collect();
            let selected: Result<Vec<_>, _> = self.store.read_selected(pages).await.into_iter().collect();
            let section = self.query.section;
            let cursor = |(txid, position)| match position {
                Some(position) => TxListCursor { section, part: Some(position), after: None },
                None => TxListCursor { section, part: self.part.clone(), after: Some(txid) },
            };
            let find = |(selected, master): (Option<SelectedPage>, _)| {
                self.query.find(&selected?.page).map(|listed| (listed, cursor(master)))
            };
            let found: Vec<_> = selected?.into_iter().zip(masters).filter_map(find).collect();
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }

    /// Returns the memory of the ids that were queried and are not read yet, bytes.
    pub fn unread_bytes(&self) -> u64 {
        let size = |(_, position): &(Txid, Option<Cursor>)| position.as_ref().map_or(0, |Cursor(bytes)| bytes.len());
        let bytes = |unread: &[(Txid, Option<Cursor>)]| size_of_val(unread) + unread.iter().map(size).sum::<usize>();
        self.unread.as_ref().map_or(0, |unread| bytes(unread.as_slice()) as u64)
    }

    /// Continues with the next part of the index, or with the next query.
    fn enter_next_part(&mut self) {
        (self.part, self.unread) = (self.next_part.take(), None);
        if self.part.is_none() {
            match self.later_queries.next() {
                Some(query) => self.query = query,
                None => self.has_ended = true,
            }
        }
    }

    /// Queries the next part of the index. Without an order in the index the txids are sorted, so that a cursor finds
    /// its place again.
    async fn query_part(&mut self) -> Result<(), EngineError> {
        let engine = &self.store.engine;
        let ListQuery { index, range, .. } = self.query;
        let query = || engine.query_part(index, range, self.part.clone());
        let part = self.store.new_backoff(None).retry(EngineError::may_be_retried, query).await?;
        let txids = part.keys.iter().filter_map(Key::txid);
        let after = self.after.take();
        let unread = if part.after.is_empty() {
            let mut txids: Vec<Txid> = txids.collect();
            txids.sort_unstable();
            txids.dedup();
            txids.into_iter().filter(|txid| after.is_none_or(|after| *txid > after)).map(|txid| (txid, None)).collect()
        } else {
            // Only masters are in these indexes: each key has a txid of its own.
            txids.zip(part.after.into_iter().map(Some)).collect::<Vec<_>>()
        };
        (self.unread, self.next_part) = (Some(unread.into_iter()), part.next);
        Ok(())
    }
}

/// Returns what the list says of a master; `None`: the transaction is conflicting, or mined since the query.
pub fn find_unmined(page: &Page) -> Option<UnminedTx> {
    let creating = match page.state() {
        TxState::Live => false,
        TxState::Creating => true,
        TxState::Stub(_) | TxState::Conflicting(_) | TxState::Pruned(_) => return None,
    };
    let bins = page.master.as_deref()?;
    Some(UnminedTx { created_at: bins.created_at, txid: page.txid, unmined_since: bins.unmined_since?, creating })
}

/// Returns what the list says of a master; `None`: the transaction is live, or pruned.
fn find_conflicting(page: &Page) -> Option<ConflictingEntry> {
    let (verdict, has_event) = match page.state() {
        TxState::Conflicting(verdict) => (verdict, true),
        TxState::Stub(verdict) => (verdict, false),
        TxState::Live | TxState::Creating | TxState::Pruned(_) => return None,
    };
    let reason = match verdict {
        Verdict::Conflicting(reason) => Some(reason),
        Verdict::Pending => None,
        Verdict::Accepted => return None,
    };
    Some(ConflictingEntry {
        txid: page.txid,
        reason,
        created_at: page.master.as_deref().filter(|_| has_event).map(|bins| bins.created_at),
        delete_at_height: page.delete_at_height,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{
        engine::{
            Row,
            fjall::{FjallEngine, FjallOptions},
        },
        record::{Operation, Sequenced},
        store::testing::*,
    };

    const UNMINED: TxSelection = TxSelection::Unmined { until: u32::MAX };

    async fn list(
        store: &StateStore,
        selection: TxSelection,
        cursor: Option<TxListCursor>,
    ) -> Vec<(TxListEntry, TxListCursor)> {
        let mut list = TxList::new(store.clone(), selection, cursor).unwrap();
        let mut all = Vec::new();
        loop {
            let found = list.next().await.unwrap();
            if found.is_empty() {
                return all;
            }
            all.extend(found);
        }
    }

    /// The list continues after each of its cursors.
    async fn check_cursors(store: &StateStore, selection: TxSelection, all: &[(TxListEntry, TxListCursor)]) {
        for (index, (_, cursor)) in all.iter().enumerate() {
            let cursor: TxListCursor = cursor.to_string().parse().unwrap();
            assert_eq!(list(store, selection, Some(cursor)).await, all[index + 1..]);
        }
    }

    #[tokio::test]
    async fn the_list_continues_after_each_of_its_cursors() {
        let store = store(100);
        store.plant(seeded(1, 9)).await;
        let transactions: Vec<_> =
            (0..6).map(|vout| transaction(&[(outpoint(Txid([1; 32]), vout), 1_000)], &[900])).collect();
        for bytes in &transactions {
            store.accept(bytes).await;
        }
        store.mine(txid(&transactions[0]), 3).await;
        let all = list(&store, UNMINED, None).await;
        assert_eq!(all.len(), 5);
        check_cursors(&store, UNMINED, &all).await;
        let early = TxSelection::Unmined { until: HEIGHT - 1 };
        assert_eq!(list(&store, early, None).await, []);
        assert!(TxList::new(store, TxSelection::Conflicting, Some(all[0].1.clone())).is_err(), "another list");
        for text in ["", "x.y", "00", ".zz", "u.zz.", "x..", &format!("x..{}", Txid([1; 32]))] {
            assert!(text.parse::<TxListCursor>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn undecided_transactions_come_before_conflicting_ones_and_others_not_at_all() {
        let store = store(100);
        let [live, mined, lost, won] =
            [1, 2, 3, 4].map(|id| transaction(&[(outpoint(Txid([id; 32]), 0), 1_000)], &[900]));
        for (id, bytes) in (1..).zip([&live, &mined, &lost, &won]) {
            store.plant(seeded(id, 1)).await;
            store.accept(bytes).await;
        }
        store.mine(txid(&mined), 3).await;
        let (stub, undecided) = (Txid([9; 32]), Txid([8; 32]));
        let reason = Reason::DoubleSpend { input: 0, winner: txid(&live) };
        store.sequenced(Key::master(txid(&lost)), Sequenced::MarkConflicting { reason, height: 110 }).await;
        store.sequenced(Key::master(txid(&won)), Sequenced::MarkConflicting { reason, height: 110 }).await;
        store.sequenced(Key::master(txid(&won)), Sequenced::Accept).await;
        store.sequenced(Key::master(stub), Sequenced::MarkConflicting { reason: Reason::Command, height: 111 }).await;
        store.sequenced(Key::master(undecided), Sequenced::MarkContested).await;
        let all = list(&store, TxSelection::Conflicting, None).await;
        let mut listed: Vec<ConflictingEntry> = Vec::new();
        for (found, _) in &all {
            let TxListEntry::Conflicting(found) = found else { panic!("{found:?}") };
            listed.push(*found);
        }
        assert_eq!((listed.len(), listed[0].txid, listed[0].reason), (3, undecided, None), "{listed:?}");
        listed.remove(0);
        listed.sort_by_key(|listed| listed.txid == stub);
        let of = |txid, reason, created_at, height: u32| ConflictingEntry {
            txid,
            reason: Some(reason),
            created_at,
            delete_at_height: Some(height + 288),
        };
        assert_eq!(listed, [of(txid(&lost), reason, Some(5), 110), of(stub, Reason::Command, None, 111)]);
        check_cursors(&store, TxSelection::Conflicting, &all).await;

        let mut while_decided = TxList::new(store.clone(), TxSelection::Conflicting, None).unwrap();
        assert_eq!(while_decided.next().await.unwrap().len(), 1);
        store.sequenced(Key::master(undecided), Sequenced::MarkConflicting { reason, height: 112 }).await;
        let rest = while_decided.next().await.unwrap();
        assert_eq!(rest.len(), 3, "a verdict that comes while the list is read is not missed: {rest:?}");
        store.sequenced(Key::master(txid(&lost)), Sequenced::Prune { height: 600, keep_until: Some(900) }).await;
        assert_eq!(list(&store, TxSelection::Conflicting, None).await.len(), 2, "a tombstone is not listed");
    }

    /// An index with an order is cut by count: keys that leave it move the bounds of its parts.
    #[tokio::test]
    async fn transactions_that_are_mined_meanwhile_hide_no_others() {
        const COUNT: u32 = 6_000;
        let directory = tempfile::tempdir().unwrap();
        let options = FjallOptions { cache_bytes: 1 << 20 };
        let engine = FjallEngine::open(directory.path(), store(100).settings.rules, options).unwrap();
        let store = StateStore { engine: std::sync::Arc::new(engine), ..store(100) };
        // The heights ascend, and the txids descend.
        let id = |number: u32| {
            let mut id = [0; 32];
            id[..4].copy_from_slice(&(COUNT - number).to_be_bytes());
            Txid(id)
        };
        let plain = page(&transaction(&[(outpoint(Txid([1; 32]), 0), 1_000)], &[900]));
        let row = |number| {
            let mut page = Page { txid: id(number), ..plain.clone() };
            master(&mut page).unmined_since = Some(number);
            Row { key: Key::master(page.txid), operation: Operation::Create(page.into()) }
        };
        let rows: Vec<Row> = (0..COUNT).map(row).collect();
        store.apply(rows).await.unwrap();
        let mut first = TxList::new(store.clone(), UNMINED, None).unwrap();
        let mut listed = first.next().await.unwrap();
        let cursor = listed.last().unwrap().1.to_string().parse().unwrap();
        for number in 0..200 {
            store.mine(id(number), 3).await;
        }
        listed.extend(list(&store, UNMINED, Some(cursor)).await);
        let listed: BTreeSet<Txid> = listed
            .into_iter()
            .map(|(entry, _)| match entry {
                TxListEntry::Unmined(unmined) => unmined.txid,
                TxListEntry::Conflicting(entry) => panic!("{entry:?}"),
            })
            .collect();
        let missed: Vec<u32> = (200..COUNT).filter(|number| !listed.contains(&id(*number))).collect();
        assert!(missed.is_empty(), "{missed:?}");
    }
}
