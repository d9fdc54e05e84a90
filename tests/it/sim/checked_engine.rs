//! Engine decorator that checks the effect of every row against the records before and after.

use std::sync::Arc;

use utxo_store::{
    engine::{self, EngineError, RecordEngine, Row, memory::MemoryEngine},
    record::{self, Body, Key, Operation, Outcome, Page, Record, Sequenced, TxState},
    store::StateStore,
    tx::Txid,
};

use super::{checks, trace::Observer};

/// Engine that passes every call on and reports violations to the observer.
pub struct CheckedEngine {
    pub inner: Arc<MemoryEngine>,
    /// The store over `inner`, with its blob store.
    pub store: StateStore,
    pub observer: Arc<Observer>,
    /// Slots per page.
    pub page_size: u32,
}

impl CheckedEngine {
    async fn read_record(&self, key: Key) -> Option<Record> {
        self.inner.read(&[key]).await.into_iter().next()?.ok()?
    }

    async fn master(&self, txid: Txid) -> Option<Arc<Page>> {
        utxo_store::store::into_page(self.read_record(Key::master(txid)).await)
    }

    /// Checks a changed record against other records. Once a node has lost writes, records need not agree until every
    /// event since has been applied again; the checks at the end cover that.
    async fn check_neighbours(&self, by: &Operation, before: Option<&Page>, after: &Page) -> Result<(), String> {
        if self.inner.restart_count() > 0 {
            return Ok(());
        }
        let is_pruned_now = |page: &&Page| page.pruned.is_none() && after.pruned.is_some() && !page.conflicting;
        if let Some(before) = before.filter(is_pruned_now) {
            return self.check_pruned(before).await;
        }
        for change in checks::changed_holders(before, after) {
            // A partial transaction spends nothing: slots that name its txid are released.
            let whole = |page: &Page| page.state() == TxState::Live && !page.is_partial();
            if self.master(change.from.txid).await.is_some_and(|page| whole(&page)) {
                return Err(format!("{change}, although the old spender is live"));
            }
        }
        if matches!(after.body(), Some(Body::External(_))) {
            // The blob must be written and acknowledged before the record that refers to it.
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
                let parent = utxo_store::store::into_page(self.read_record(Key::Page(outpoint.txid, number)).await);
                if !checks::names(parent.as_deref(), offset, after.txid, input) {
                    return Err(format!("{} became live, although {outpoint} does not name it", after.txid));
                }
            }
        }
        Ok(())
    }

    /// No page of a transaction becomes spendable before all pages exist, nor while the transaction is contested; the
    /// master becomes spendable last.
    async fn check_whole(&self, by: &Operation, opened: &Page) -> Result<(), String> {
        let txid = opened.txid;
        let Some(master) = self.master(txid).await else {
            return Err(format!("page {} of {txid} is spendable, but there is no master", opened.number));
        };
        let others = master.master.as_ref().map_or(0, |bins| bins.total_extra_recs);
        for number in 1..=others {
            let page = utxo_store::store::into_page(self.read_record(Key::Page(txid, number)).await);
            let closed = page.as_ref().is_none_or(|page| page.state() != TxState::Live);
            if page.is_none_or(|page| page.utxos.is_none()) {
                return Err(format!("page {} of {txid} is spendable, but page {number} is absent", opened.number));
            }
            if closed && opened.number == 0 {
                return Err(format!("the master of {txid} is live, but page {number} is not"));
            }
        }
        let accepted = matches!(by, Operation::Sequenced(_, Sequenced::Accept));
        if accepted || matches!(master.state(), TxState::Creating | TxState::Live) {
            Ok(())
        } else {
            Err(format!("page {} of {txid} is spendable, although its master is {:?}", opened.number, master.state()))
        }
    }

    /// Every output of a pruned transaction that was not conflicting is spent by a mined or pruned transaction, and its
    /// parents record the pruning.
    async fn check_pruned(&self, page: &Page) -> Result<(), String> {
        let txid = page.txid;
        for slot in page.utxos.iter().flatten().filter(|slot| slot.hash().is_some()) {
            let Some(holder) = slot.spender() else { return Err(format!("{txid} is pruned, but not all spent")) };
            let Some(spender) = self.master(holder.txid).await else {
                return Err(format!("{txid} is pruned, but its spender {} is absent", holder.txid));
            };
            let unmined = spender.master.as_ref().is_some_and(|master| master.unmined_since.is_some());
            let spends = matches!(spender.state(), TxState::Live if !unmined)
                || (spender.pruned.is_some() && !spender.conflicting);
            if !spends {
                return Err(format!("{txid} is pruned, but its spender {} is {:?}", holder.txid, spender.state()));
            }
        }
        let Some(master) = page.master.as_ref() else { return Ok(()) };
        for number in 1..=master.total_extra_recs {
            let other = utxo_store::store::into_page(self.read_record(Key::Page(txid, number)).await);
            if other.is_some_and(|other| other.pruned.is_none()) {
                return Err(format!("the master of {txid} is pruned, but page {number} is not"));
            }
        }
        let body = self.store.body(page).await.map_err(|error| error.to_string())?;
        for (outpoint, _) in checks::inputs_of(&body) {
            let (number, offset) = outpoint.place(self.page_size);
            let parent = utxo_store::store::into_page(self.read_record(Key::Page(outpoint.txid, number)).await);
            let known = |parent: &Arc<Page>| parent.pruned.is_some() || parent.pruned_spenders.contains(&offset);
            if !parent.as_ref().is_some_and(known) {
                return Err(format!("{txid} is pruned, but the page of {outpoint} does not record that"));
            }
        }
        Ok(())
    }

    async fn apply_row(&self, row: &Row) -> Result<Outcome, EngineError> {
        let before = self.read_record(row.key).await;
        let answer = self.inner.apply(std::slice::from_ref(row)).await.remove(0);
        let after = self.read_record(row.key).await;
        let Ok(outcome) = &answer else { return answer };
        self.observer.trace(format!("{} {} {outcome:?}", row.key, checks::name_of(&row.operation)));
        if let Outcome::Rejected(rejection) = outcome {
            let is_sequenced = matches!(row.operation, Operation::Sequenced(..) | Operation::SequencedAll(_));
            let source = if is_sequenced { "sequencer" } else { "fast path" };
            self.observer.count("refusals", &format!("{source}: {}", rejection.code()));
        }
        for Step { row, before, outcome, after } in self.steps(row, before, outcome, after) {
            let mut found = checks::check_row(&row, before.as_ref(), &outcome, after.as_ref());
            if let (None, Some(Record::Page(after))) = (&found, &after) {
                let before = before.as_ref().and_then(Record::page);
                if before != Some(&**after) {
                    found = self.check_neighbours(&row.operation, before, after).await.err();
                }
            }
            if let Some(what) = found {
                self.observer.record_violation(format!("{} of {}: {what}", checks::name_of(&row.operation), row.key));
            }
        }
        answer
    }

    /// Returns the steps of a row: operations of several events are checked one by one, in between by the pure
    /// function.
    fn steps(&self, row: &Row, before: Option<Record>, outcome: &Outcome, after: Option<Record>) -> Vec<Step> {
        let Operation::SequencedAll(operations) = &row.operation else {
            return vec![Step { row: row.clone(), before, outcome: outcome.clone(), after }];
        };
        let mut record = before.clone();
        let stored = before.as_ref().and_then(Record::page).and_then(|page| page.chain_pos);
        let known = stored.filter(|stored| operations.iter().any(|(stamp, _)| stamp == stored));
        let due = operations.iter().filter(|(stamp, _)| known.is_none_or(|known| *stamp >= known));
        let mut steps = Vec::new();
        for (stamp, operation) in due.filter(|_| outcome.is_done()) {
            let row = Row { key: row.key, operation: Operation::Sequenced(*stamp, operation.clone()) };
            let before = record.clone();
            let effect = record::apply(&self.store.settings.rules, &row.key, &mut record, &row.operation);
            steps.push(Step { row, before, outcome: effect.outcome, after: record.clone() });
        }
        if record != after {
            let several = checks::name_of(&row.operation);
            self.observer.record_violation(format!("{several} of {}: not the effect of the single ones", row.key));
        }
        steps
    }
}

/// A record before and after one operation.
struct Step {
    row: Row,
    before: Option<Record>,
    outcome: Outcome,
    after: Option<Record>,
}

impl engine::EngineDecorator for CheckedEngine {
    fn inner(&self) -> &dyn RecordEngine {
        &*self.inner
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
}
