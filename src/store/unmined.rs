//! The list of unmined transactions in bounded memory, in parts that a reader can continue.

use std::{fmt, str::FromStr, vec};

use crate::{
    engine::{Cursor, EngineError, Index},
    record::{Key, Page, Selection, TxState},
    text::one_line,
    tx::Txid,
};

use super::{StateStore, queries::UnminedTx};

/// Transactions that are read at the same time.
const AT_A_TIME: usize = 256;

/// Position in the list: the part of the index, and the last transaction of the part that was returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnminedCursor {
    /// Position of the part in the index; `None`: the first part.
    part: Option<Cursor>,
    after: Txid,
}

/// Error of a text that is no cursor of the list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no cursor of the list of unmined transactions", one_line(.0))]
pub struct InvalidCursor(pub String);

impl fmt::Display for UnminedCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = self.part.as_ref().map(|Cursor(bytes)| hex::encode(bytes)).unwrap_or_default();
        write!(f, "{part}.{}", self.after)
    }
}

impl FromStr for UnminedCursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let invalid = || InvalidCursor(text.to_owned());
        let (part, after) = text.split_once('.').ok_or_else(invalid)?;
        let part = hex::decode(part).map_err(|_| invalid())?;
        let part = (!part.is_empty()).then_some(Cursor(part));
        Ok(UnminedCursor { part, after: after.parse().map_err(|_| invalid())? })
    }
}

/// Reader of the transactions that no block of the longest chain lists, in no particular order.
pub struct UnminedList {
    store: StateStore,
    /// Greatest height since which a listed transaction is unmined.
    until: u32,
    part: Option<Cursor>,
    /// Masters of the part that are not read yet; `None`: the part is not queried yet.
    unread: Option<vec::IntoIter<Txid>>,
    /// Position of the next part.
    next_part: Option<Cursor>,
    after: Option<Txid>,
    has_ended: bool,
}

impl UnminedList {
    /// Begins the list, or continues the list after a cursor.
    pub fn new(store: StateStore, cursor: Option<UnminedCursor>, until: u32) -> Self {
        let (part, after) = cursor.map_or((None, None), |cursor| (cursor.part, Some(cursor.after)));
        UnminedList { store, until, part, unread: None, next_part: None, after, has_ended: false }
    }

    /// Reads the next transactions, each with the cursor after itself; none at the end.
    ///
    /// # Errors
    /// The engine answers with an error that no retry heals, or the cursor is not one of this store.
    pub async fn next(&mut self) -> Result<Vec<(UnminedTx, UnminedCursor)>, EngineError> {
        while !self.has_ended {
            if self.unread.is_none() {
                self.query_part().await?;
            }
            let txids: Vec<Txid> = self.unread.iter_mut().flatten().take(AT_A_TIME).collect();
            if txids.is_empty() {
                self.part = self.next_part.take();
                (self.unread, self.has_ended) = (None, self.part.is_none());
                continue;
            }
            let pages = txids.iter().map(|txid| (Key::master(*txid), Selection::META)).collect();
            let selected: Result<Vec<_>, _> = self.store.read_selected(pages).await.into_iter().collect();
            let selected = selected?.into_iter().flatten();
            let cursor = |txid| UnminedCursor { part: self.part.clone(), after: txid };
            let found: Vec<_> = selected
                .filter_map(|selected| find_unmined(&selected.page))
                .filter(|unmined| unmined.unmined_since <= self.until)
                .map(|unmined| (unmined, cursor(unmined.txid)))
                .collect();
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }

    /// Queries the next part of the index. The txids are sorted, so that a cursor finds its place again.
    async fn query_part(&mut self) -> Result<(), EngineError> {
        let engine = &self.store.engine;
        let query = || engine.query_part(Index::UnminedSince, (0, self.until.into()), self.part.clone());
        let part = self.store.new_backoff(None).retry(EngineError::may_be_retried, query).await?;
        let mut txids: Vec<Txid> = part.keys.iter().filter_map(Key::txid).collect();
        txids.sort_unstable();
        txids.dedup();
        if let Some(after) = self.after.take() {
            txids.retain(|txid| *txid > after);
        }
        (self.unread, self.next_part) = (Some(txids.into_iter()), part.next);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::testing::*;

    async fn list(store: &StateStore, cursor: Option<UnminedCursor>) -> Vec<(UnminedTx, UnminedCursor)> {
        let mut list = UnminedList::new(store.clone(), cursor, u32::MAX);
        let mut all = Vec::new();
        loop {
            let found = list.next().await.unwrap();
            if found.is_empty() {
                return all;
            }
            all.extend(found);
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
        let all = list(&store, None).await;
        assert_eq!(all.len(), 5);
        for (index, (_, cursor)) in all.iter().enumerate() {
            let cursor: UnminedCursor = cursor.to_string().parse().unwrap();
            assert_eq!(list(&store, Some(cursor)).await, all[index + 1..]);
        }
        let early = UnminedList::new(store, None, HEIGHT - 1).next().await.unwrap();
        assert_eq!(early, []);
        for text in ["", "x.y", "00", ".zz"] {
            assert!(text.parse::<UnminedCursor>().is_err(), "{text}");
        }
    }
}
