//! Transactions of several pages: operations on each page, and the facts of a page that its master keeps.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    engine::Row,
    record::{
        Key, Operation, Outcome, Page, Phase, Record, Rejection, Reply, Sequenced, Slot, Stamp, TxState, Verdict,
        page_refusal,
    },
    sequencer::{
        SequencerError,
        handler::{EventContext, Handler, distinct},
    },
    store::{
        create::PagedTx,
        into_page,
        recovery::{CompleteError, Recovery, RestoreError},
    },
    tx::{Outpoint, Txid},
};

/// Pages of one transaction in memory at once.
const PAGES_AT_ONCE: u32 = 8;
/// Pages of one transaction changed in one request: rows of a few bytes.
const CHANGED_AT_ONCE: usize = 1_024;

impl Handler {
    /// Completes half-created transactions. Their masters exist, so that they count as live.
    pub(super) async fn complete(&self, txids: &[Txid]) -> Result<(), SequencerError> {
        for txid in txids {
            self.halt_if_incomplete(Recovery::of(&self.parts.store).complete(*txid)).await?;
        }
        Ok(())
    }

    /// Runs the completion of a transaction. A missing page halts the chain, unless a node has restarted since the
    /// baseline: then the result is `NodeRestarted`, and the events of the lost writes are handled again.
    async fn halt_if_incomplete<T>(
        &self,
        work: impl Future<Output = Result<T, CompleteError>>,
    ) -> Result<T, SequencerError> {
        match self.wait_for("the store", work).await {
            Ok(done) => Ok(done),
            Err(CompleteError::Engine(error)) => Err(error.into()),
            Err(missing @ CompleteError::MissingPage { .. }) => {
                if self.wait_for("the nodes of the store", self.parts.nodes.has_restarted()).await? {
                    return Err(SequencerError::NodeRestarted);
                }
                Err(SequencerError::Halt(format!("the store is damaged: {missing}")))
            }
        }
    }

    /// Creates a transaction of several pages, or completes it. Returns the outcome as for a transaction of one page.
    pub(super) async fn create_paged(&self, work: &PagedTx) -> Result<Outcome, SequencerError> {
        self.halt_if_incomplete(Box::pin(self.parts.creator.create_without_lock_record(work))).await
    }

    /// Applies rows that take or free slots. The reason of a refusal by another page than the master is read from the
    /// master. The master is updated when a row takes the last slot of a page, or frees a slot of a page without free
    /// slots.
    pub(super) async fn apply_to_slots(&self, rows: Vec<Row>) -> Result<Vec<Outcome>, SequencerError> {
        if rows.iter().all(|row| matches!(row.key, Key::Page(_, 0))) {
            return self.apply(rows).await;
        }
        let mut outcomes = self.apply(rows.clone()).await?;
        self.update_masters(&rows, &outcomes).await?;
        let unclear = rows.iter().zip(&outcomes).filter_map(|(row, outcome)| match (row.key, outcome) {
            (Key::Page(txid, number), Outcome::Rejected(rejection))
                if page_refusal::is_explained_by_master(number, rejection) =>
            {
                Some(txid)
            }
            _ => None,
        });
        let masters = self.masters_by_id(unclear.collect()).await?;
        for (row, outcome) in rows.iter().zip(&mut outcomes) {
            if let (Key::Page(txid, number), Outcome::Rejected(rejection)) = (row.key, &outcome) {
                let master = masters.get(&txid).map(Arc::as_ref);
                let explained = page_refusal::explain_by_master(rejection.clone(), number, first_offset(row), master);
                *outcome = Outcome::Rejected(explained);
            }
        }
        Ok(outcomes)
    }

    /// Writes into the masters whether all slots of their other pages are spent. An absent master gets the fact from
    /// the event that took the last slot, once that event comes (again).
    pub(super) async fn update_masters(&self, rows: &[Row], outcomes: &[Outcome]) -> Result<(), SequencerError> {
        let mut page_states = BTreeMap::new();
        for (row, outcome) in rows.iter().zip(outcomes) {
            if let (Key::Page(_, 1..), Operation::Sequenced(stamp, operation)) = (row.key, &row.operation)
                && let Outcome::Applied(Reply::Slots { all_spent, .. })
                | Outcome::AlreadyApplied(Reply::Slots { all_spent, .. }) = outcome
                && *all_spent == is_respend(operation)
            {
                // A slot that is freed in the same request keeps the page from being all spent, in any order of the
                // rows.
                let (_, spent) = page_states.entry(row.key).or_insert((*stamp, *all_spent));
                *spent &= *all_spent;
            }
        }
        self.set_pages_spent(&page_states).await?;
        page_states.retain(|_, (_, all_spent)| !*all_spent);
        if page_states.is_empty() {
            return Ok(());
        }
        // A spend of the freed slot can have written "all spent" before this "not all spent" arrived: read the pages
        // again.
        let pages = self.wait_for("the store", self.parts.store.read(page_states.keys().copied().collect())).await?;
        let since = page_states.into_iter().zip(pages);
        let since = since.filter(|(_, page)| page.as_ref().and_then(Record::page).is_some_and(Page::is_all_spent));
        self.set_pages_spent(&since.map(|((key, (stamp, _)), _)| (key, (stamp, true))).collect()).await
    }

    async fn set_pages_spent(&self, page_states: &BTreeMap<Key, (Stamp, bool)>) -> Result<(), SequencerError> {
        let rows = page_states.iter().filter_map(|(key, (stamp, spent))| {
            let Key::Page(txid, page) = *key else { return None };
            let set_spent = Sequenced::SetPageSpent { page, spent: *spent };
            Some(Row { key: Key::master(txid), operation: Operation::Sequenced(*stamp, set_spent) })
        });
        let rows: Vec<Row> = rows.collect();
        if !rows.is_empty() {
            self.apply(rows).await?;
        }
        Ok(())
    }

    async fn masters_by_id(&self, txids: Vec<Txid>) -> Result<BTreeMap<Txid, Arc<Page>>, SequencerError> {
        let txids = distinct(txids);
        if txids.is_empty() {
            return Ok(BTreeMap::new());
        }
        let masters = self.masters(&txids).await?;
        Ok(txids.into_iter().zip(masters).filter_map(|(txid, master)| Some((txid, master?))).collect())
    }

    /// Calls `each` with every page of a transaction, a few in memory at once. An absent page is skipped.
    pub(super) async fn for_each_page(&self, master: &Page, mut each: impl FnMut(&Page)) -> Result<(), SequencerError> {
        each(master);
        let end = extra_pages(master) + 1;
        let mut next = 1;
        while next < end {
            let to = end.min(next.saturating_add(PAGES_AT_ONCE));
            let pages = self.wait_for("the store", self.parts.store.pages(master.txid, next, to)).await?;
            pages.iter().flatten().for_each(|page| each(page));
            next = to;
        }
        Ok(())
    }

    /// Applies one operation to every page but the master. Returns the pages that are absent or half created.
    async fn apply_to_extra_pages(
        &self,
        ctx: EventContext,
        master: &Page,
        operation: &Sequenced,
    ) -> Result<Vec<u32>, SequencerError> {
        let numbers: Vec<u32> = (1..=extra_pages(master)).collect();
        self.apply_to_pages(ctx, master.txid, &numbers, operation).await
    }

    /// Applies one operation to these pages. Returns the pages that are absent, or half created because a node lost the
    /// write that cleared `creating`.
    async fn apply_to_pages(
        &self,
        ctx: EventContext,
        txid: Txid,
        pages: &[u32],
        operation: &Sequenced,
    ) -> Result<Vec<u32>, SequencerError> {
        let mut missing = Vec::new();
        for numbers in pages.chunks(CHANGED_AT_ONCE) {
            let rows = numbers.iter().map(|number| ctx.row(Phase::Apply, Key::Page(txid, *number), operation.clone()));
            for (outcome, number) in self.apply(rows.collect()).await?.into_iter().zip(numbers) {
                match outcome {
                    Outcome::Rejected(Rejection::NotFound | Rejection::Creating) => missing.push(*number),
                    Outcome::Applied(_) | Outcome::AlreadyApplied(_) => {}
                    // A later event has changed the page, or the page was pruned since.
                    Outcome::Rejected(Rejection::StaleStamp(_) | Rejection::Pruned(_)) => {}
                    Outcome::Rejected(rejection) => {
                        let (offset, code) = (ctx.offset, rejection.code());
                        let what = format!("page {number} of {txid} refuses what was decided: {code}");
                        return Err(SequencerError::Halt(format!("chain offset {offset}: {what}")));
                    }
                }
            }
        }
        Ok(missing)
    }

    /// Applies one operation to every page but the master. A page that a node lost is restored first.
    pub(super) async fn apply_to_every_extra_page(
        &self,
        ctx: EventContext,
        master: &Page,
        operation: &Sequenced,
    ) -> Result<(), SequencerError> {
        let missing = self.apply_to_extra_pages(ctx, master, operation).await?;
        self.restore_and_apply(ctx, master, &missing, operation).await
    }

    /// Restores a page that a node lost. Does nothing for a page that exists.
    pub(super) async fn restore_page(&self, txid: Txid, number: u32) -> Result<(), SequencerError> {
        self.complete(&[txid]).await?;
        let Some(master) = self.master(txid).await? else { return Ok(()) };
        if number == 0 || number > extra_pages(&master) {
            return Ok(());
        }
        let there = self.wait_for("the store", self.parts.store.read(vec![Key::Page(txid, number)])).await?;
        if there.into_iter().flatten().next().is_some() {
            return Ok(());
        }
        self.halt_if_incomplete(Recovery::of(&self.parts.store).restore_pages(&master, &[number])).await
    }

    /// Flags the other pages of a transaction that is conflicting by verdict. An absent page is created later as
    /// `creating`, and its master bars its slots.
    pub(super) async fn flag_extra_pages(&self, ctx: EventContext, master: &Page) -> Result<(), SequencerError> {
        let is_flagged = matches!(master.state(), TxState::Conflicting(_) | TxState::Pruned(_));
        if let Some(Verdict::Conflicting(reason)) = master.verdict().filter(|_| is_flagged)
            && extra_pages(master) > 0
        {
            let height = self.height();
            self.apply_to_extra_pages(ctx, master, &Sequenced::MarkConflicting { reason, height }).await?;
        }
        Ok(())
    }

    /// Accepts the other pages of a transaction, before its master.
    pub(super) async fn accept_extra_pages(&self, ctx: EventContext, master: &Page) -> Result<(), SequencerError> {
        let missing = self.apply_to_extra_pages(ctx, master, &Sequenced::Accept).await?;
        self.restore_and_apply(ctx, master, &missing, &Sequenced::Accept).await
    }

    /// Sets the other pages of a transaction mined after its master. A page can be `creating` under a live master when
    /// a node lost the write that cleared it: the transaction is completed first.
    pub(super) async fn set_extra_pages_mined(
        &self,
        ctx: EventContext,
        txid: Txid,
        set_mined: &Sequenced,
    ) -> Result<(), SequencerError> {
        loop {
            self.complete(&[txid]).await?;
            let Some(master) = self.master(txid).await? else { return Ok(()) };
            let missing = self.apply_to_extra_pages(ctx, &master, set_mined).await?;
            if missing.is_empty() {
                return Ok(());
            }
            if master.state() != TxState::Live {
                return self.restore_and_apply(ctx, &master, &missing, set_mined).await;
            }
        }
    }

    /// Restores pages that a node lost, then applies the operation to them.
    async fn restore_and_apply(
        &self,
        ctx: EventContext,
        master: &Page,
        missing: &[u32],
        operation: &Sequenced,
    ) -> Result<(), SequencerError> {
        if missing.is_empty() {
            return Ok(());
        }
        let txid = master.txid;
        self.halt_if_incomplete(Recovery::of(&self.parts.store).restore_pages(master, missing)).await?;
        match self.apply_to_pages(ctx, txid, missing, operation).await?.first() {
            None => Ok(()),
            Some(page) => {
                let missing_again = CompleteError::MissingPage { txid, page: *page, why: RestoreError::LostAgain };
                self.halt_if_incomplete(std::future::ready(Err(missing_again))).await
            }
        }
    }

    /// Reads the slots of these outpoints, given the masters of their transactions. An absent slot is left out. A few
    /// pages besides the masters are in memory at once.
    pub(super) async fn read_slots(
        &self,
        masters: &[Arc<Page>],
        outpoints: impl Iterator<Item = Outpoint>,
    ) -> Result<BTreeMap<Outpoint, Slot>, SequencerError> {
        let masters: BTreeMap<Txid, &Arc<Page>> = masters.iter().map(|master| (master.txid, master)).collect();
        let mut by_page: BTreeMap<Key, Vec<(u32, Outpoint)>> = BTreeMap::new();
        for outpoint in outpoints.filter(|outpoint| masters.contains_key(&outpoint.txid)) {
            let (key, offset) = self.locate(outpoint);
            by_page.entry(key).or_default().push((offset, outpoint));
        }
        let mut slots = BTreeMap::new();
        let mut take = |key: &Key, page: &Page| {
            let slot_at = |offset: u32| page.utxos.as_ref()?.get(offset as usize).copied();
            let wanted = by_page[key].iter();
            slots.extend(wanted.filter_map(|(offset, outpoint)| Some((*outpoint, slot_at(*offset)?))));
        };
        let mut beyond = Vec::new();
        for key in by_page.keys() {
            match key {
                Key::Page(txid, 0) => take(key, masters[txid]),
                _ => beyond.push(*key),
            }
        }
        for keys in beyond.chunks(PAGES_AT_ONCE as usize) {
            let records = self.wait_for("the store", self.parts.store.read(keys.to_vec())).await?;
            for (key, record) in keys.iter().zip(records) {
                if let Some(page) = into_page(record) {
                    take(key, &page);
                }
            }
        }
        Ok(slots)
    }
}

/// Returns the number of pages besides the master.
pub(super) fn extra_pages(master: &Page) -> u32 {
    master.master.as_ref().map_or(0, |bins| bins.total_extra_recs)
}

fn is_respend(operation: &Sequenced) -> bool {
    matches!(operation, Sequenced::Respend(_))
}

fn first_offset(row: &Row) -> u32 {
    match &row.operation {
        Operation::Sequenced(_, Sequenced::Respend(respend)) => respend.slots.first().map_or(0, |it| it.slot.offset),
        Operation::Sequenced(_, Sequenced::Settle(held)) => held.first().map_or(0, |held| held.offset),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::Clock,
        engine::{conformance::RULES, fault::FaultEngine, memory::MemoryEngine},
        record::{Blob, Body, build::NewTxState},
        sequencer::{SequencerParts, state::ChainState, tests::parts},
        store::{Store, restart_detector::RestartDetector, testing},
    };

    /// The page cannot be restored, because the body is missing, too.
    #[tokio::test(start_paused = true)]
    async fn a_missing_page_halts_the_chain_unless_a_node_has_restarted() {
        let clock = Clock::simulated(1_000);
        let second = std::time::Duration::from_secs(1);
        let memory = Arc::new(MemoryEngine::with_loss_window(RULES, clock.clone(), second));
        let engine = Arc::new(FaultEngine::with_restarts(memory, clock, 1));
        let mut nodes = RestartDetector::new(engine.clone(), 5 * second);
        nodes.baseline().await.unwrap();
        let parts = parts().await;
        let store = Store { engine: engine.clone(), ..parts.store.clone() };
        let bytes = testing::transaction(&[(testing::outpoint(Txid([9; 32]), 0), 1_000)], &[100; 3]);
        let mut master = testing::pages(&bytes, &NewTxState::default(), 2).remove(0);
        testing::master(&mut master).body = Some(Body::External(Blob::First));
        store.plant(master).await;
        let handler = Handler::new(SequencerParts { store, nodes, ..parts }, ChainState::default());
        let txid = testing::txid(&bytes);
        let stop = handler.complete(&[txid]).await.unwrap_err();
        assert!(matches!(&stop, SequencerError::Halt(why) if why.contains(&format!("page 1 of {txid}"))), "{stop}");
        engine.restart_nodes(second, |_| false);
        assert!(matches!(handler.complete(&[txid]).await, Err(SequencerError::NodeRestarted)));
    }
}
