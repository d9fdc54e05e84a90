//! The store under the eyes of the observer: every row, with the record before and after it.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use utxo_store::{
    engine::{Cursor, EngineError, Incarnation, Index, RecordEngine, Row, ScanPage, Set, memory::MemoryEngine},
    record::{Body, Key, Operation, Outcome, Page, Record, Sequenced, TxState},
    store::Store,
    tx::Txid,
};

use super::{checks, trace::Observer};

/// A decorator that lets everything through.
pub struct Watched {
    pub inner: Arc<MemoryEngine>,
    /// The same, with its blob store.
    pub store: Store,
    pub observer: Arc<Observer>,
    /// Slots a page.
    pub page_size: u32,
}

impl Watched {
    async fn look(&self, key: Key) -> Option<Record> {
        self.inner.read(&[key]).await.into_iter().next()?.ok()?
    }

    async fn master(&self, txid: Txid) -> Option<Arc<Page>> {
        utxo_store::store::into_page(self.look(Key::master(txid)).await)
    }

    /// What does not show in the record alone. Once a node has forgotten, records need not agree until everything since
    /// has been applied again; at the end they do.
    async fn check_others(&self, by: &Operation, before: Option<&Page>, after: &Page) -> Result<(), String> {
        if self.inner.restarts() > 0 {
            return Ok(());
        }
        let forgotten = |page: &&Page| page.pruned.is_none() && after.pruned.is_some() && !page.conflicting;
        if let Some(before) = before.filter(forgotten) {
            return self.check_forgotten(before).await;
        }
        for change in checks::changed_holders(before, after) {
            // A partial one spends nothing: what its name was on is given back.
            let whole = |page: &Page| page.state() == TxState::Live && !page.is_partial();
            if self.master(change.from.txid).await.is_some_and(|page| whole(&page)) {
                return Err(format!("{change}, though its holder is live"));
            }
        }
        if matches!(after.body(), Some(Body::External(_))) {
            // Written and acknowledged before the record that refers to it.
            self.store.body(after).await.map_err(|error| error.to_string())?;
        }
        if checks::was_opened(before, after) {
            self.check_whole(by, after).await?;
        }
        let became_live = after.state() == TxState::Live && before.is_none_or(|page| page.state() != TxState::Live);
        if became_live && after.master.is_some() {
            let body = self.store.body(after).await.map_err(|error| error.to_string())?;
            for (outpoint, input) in checks::inputs_of(&body) {
                let (number, offset) = outpoint.place(self.page_size);
                let parent = utxo_store::store::into_page(self.look(Key::Page(outpoint.txid, number)).await);
                if !checks::names(parent.as_deref(), offset, after.txid, input) {
                    return Err(format!("{} became live, though {outpoint} does not name it", after.txid));
                }
            }
        }
        Ok(())
    }

    /// No page of a transaction is open before all are there, nor while it is contested; and its master is the last.
    async fn check_whole(&self, by: &Operation, opened: &Page) -> Result<(), String> {
        let txid = opened.txid;
        let Some(master) = self.master(txid).await else {
            return Err(format!("page {} of {txid} can be spent, which has no master", opened.number));
        };
        let others = master.master.as_ref().map_or(0, |bins| bins.total_extra_recs);
        for number in 1..=others {
            let page = utxo_store::store::into_page(self.look(Key::Page(txid, number)).await);
            let closed = page.as_ref().is_none_or(|page| page.state() != TxState::Live);
            if page.is_none_or(|page| page.utxos.is_none()) {
                return Err(format!("page {} of {txid} can be spent, and page {number} is not there", opened.number));
            }
            if closed && opened.number == 0 {
                return Err(format!("the master of {txid} is live, and page {number} is not"));
            }
        }
        let accepted = matches!(by, Operation::Sequenced(_, Sequenced::Accept));
        if accepted || matches!(master.state(), TxState::Creating | TxState::Live) {
            Ok(())
        } else {
            Err(format!("page {} of {txid} can be spent, though its master is {:?}", opened.number, master.state()))
        }
    }

    /// All of what is pruned and was not conflicting is spent by what is mined or was pruned before, and its parents know of it.
    async fn check_forgotten(&self, page: &Page) -> Result<(), String> {
        let txid = page.txid;
        for slot in page.utxos.iter().flatten().filter(|slot| slot.hash().is_some()) {
            let Some(holder) = slot.spender() else { return Err(format!("{txid} is pruned, and not all spent")) };
            let Some(spender) = self.master(holder.txid).await else {
                return Err(format!("{txid} is pruned, and {}, which spends it, is not there", holder.txid));
            };
            let unmined = spender.master.as_ref().is_some_and(|master| master.unmined_since.is_some());
            let spends = matches!(spender.state(), TxState::Live if !unmined)
                || (spender.pruned.is_some() && !spender.conflicting);
            if !spends {
                return Err(format!(
                    "{txid} is pruned, and {}, which spends it, is {:?}",
                    holder.txid,
                    spender.state()
                ));
            }
        }
        let Some(master) = page.master.as_ref() else { return Ok(()) };
        for number in 1..=master.total_extra_recs {
            let other = utxo_store::store::into_page(self.look(Key::Page(txid, number)).await);
            if other.is_some_and(|other| other.pruned.is_none()) {
                return Err(format!("the master of {txid} is pruned, and page {number} is not"));
            }
        }
        let body = self.store.body(page).await.map_err(|error| error.to_string())?;
        for (outpoint, _) in checks::inputs_of(&body) {
            let (number, offset) = outpoint.place(self.page_size);
            let parent = utxo_store::store::into_page(self.look(Key::Page(outpoint.txid, number)).await);
            let known = |parent: &Arc<Page>| parent.pruned.is_some() || parent.pruned_spenders.contains(&offset);
            if !parent.as_ref().is_some_and(known) {
                return Err(format!("{txid} is pruned, and {outpoint} does not know that"));
            }
        }
        Ok(())
    }

    async fn apply_row(&self, row: &Row) -> Result<Outcome, EngineError> {
        let before = self.look(row.key).await;
        let answer = self.inner.apply(std::slice::from_ref(row)).await.remove(0);
        let after = self.look(row.key).await;
        let Ok(outcome) = &answer else { return answer };
        self.observer.trace(format!("{} {} {outcome:?}", row.key, checks::name_of(&row.operation)));
        if let Outcome::Rejected(rejection) = outcome {
            let who = if matches!(row.operation, Operation::Sequenced(..)) { "sequencer" } else { "fast path" };
            self.observer.count("refusals", &format!("{who}: {}", rejection.code()));
        }
        let mut found = checks::row(row, before.as_ref(), outcome, after.as_ref());
        if let (None, Some(Record::Page(after))) = (&found, &after) {
            let before = before.as_ref().and_then(Record::page);
            if before != Some(&**after) {
                found = self.check_others(&row.operation, before, after).await.err();
            }
        }
        if let Some(what) = found {
            self.observer.violation(format!("{} of {}: {what}", checks::name_of(&row.operation), row.key));
        }
        answer
    }
}

#[async_trait]
impl RecordEngine for Watched {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    async fn apply(&self, rows: &[Row]) -> Vec<Result<Outcome, EngineError>> {
        let mut answers = Vec::with_capacity(rows.len());
        for row in rows {
            answers.push(self.apply_row(row).await);
        }
        answers
    }

    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>> {
        let answers = self.inner.read(keys).await;
        for (key, answer) in keys.iter().zip(&answers) {
            let state = answer.as_ref().ok().and_then(|record| record.as_ref()?.page().map(Page::state));
            self.observer.trace(format!("{key} read {state:?}"));
        }
        answers
    }

    async fn query(&self, index: Index, from: u64, to: u64, limit: usize) -> Result<Vec<Key>, EngineError> {
        self.inner.query(index, from, to, limit).await
    }

    async fn scan(&self, set: Set, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
        self.inner.scan(set, cursor, limit).await
    }

    fn may_forget(&self) -> Duration {
        self.inner.may_forget()
    }

    async fn incarnation(&self) -> Result<Incarnation, EngineError> {
        self.inner.incarnation().await
    }

    async fn close(&self) -> Result<(), EngineError> {
        self.inner.close().await
    }
}
