//! Transactions over several pages: what the handlers do to each page of one, and what a page leaves to its master.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    engine::Row,
    record::{
        Key, Operation, Outcome, Page, Phase, Record, Rejection, Reply, Sequenced, Slot, Stamp, TxState, Verdict,
        beyond,
    },
    sequencer::{
        Stop,
        handler::{At, Handler, distinct},
    },
    store::{
        create::Paged,
        into_page,
        recovery::{CompleteError, NotRestored},
    },
    tx::{Outpoint, Txid},
};

/// Pages of one transaction that are held at once.
const PAGES_AT_ONCE: u32 = 8;
/// Pages of one transaction that are changed at once: rows of a few bytes.
const CHANGED_AT_ONCE: usize = 1_024;

impl Handler {
    /// Completes transactions that are half created: their masters are there, so they are as good as live.
    pub(super) async fn complete(&self, txids: &[Txid]) -> Result<(), Stop> {
        for txid in txids {
            self.completed(self.parts.store.complete(*txid)).await?;
        }
        Ok(())
    }

    /// The answer of the store to who completes a transaction. What is missing of it halts the chain, unless a node has restarted
    /// since the nodes were met: then everything that it may have forgotten is done again.
    async fn completed<T>(&self, work: impl Future<Output = Result<T, CompleteError>>) -> Result<T, Stop> {
        match self.answer("the store", work).await {
            Ok(done) => Ok(done),
            Err(CompleteError::Engine(error)) => Err(error.into()),
            Err(missing @ CompleteError::MissingPage { .. }) => {
                if self.answer("the nodes of the store", self.parts.nodes.have_restarted()).await? {
                    return Err(Stop::NodeRestarted);
                }
                Err(Stop::Halt(format!("the store is damaged: {missing}")))
            }
        }
    }

    /// Creates a transaction of several pages, or completes it. The answer is that of one page.
    pub(super) async fn create_paged(&self, work: &Paged) -> Result<Outcome, Stop> {
        self.completed(Box::pin(self.parts.creator.create_now(work))).await
    }

    /// Applies rows that take or free slots. What a page leaves to its master is asked there: why it refuses; and it is told when all
    /// slots of the page are spent, by who takes the last one, and when no longer, by who frees one.
    pub(super) async fn apply_to_slots(&self, rows: Vec<Row>) -> Result<Vec<Outcome>, Stop> {
        if rows.iter().all(|row| matches!(row.key, Key::Page(_, 0))) {
            return self.apply(rows).await;
        }
        let mut outcomes = self.apply(rows.clone()).await?;
        self.tell_masters(&rows, &outcomes).await?;
        let asked = rows.iter().zip(&outcomes).filter_map(|(row, outcome)| match (row.key, outcome) {
            (Key::Page(txid, number), Outcome::Rejected(rejection)) if beyond::needs_master(number, rejection) => {
                Some(txid)
            }
            _ => None,
        });
        let asked = asked.collect();
        let masters = self.masters_by_id(asked).await?;
        for (row, outcome) in rows.iter().zip(&mut outcomes) {
            if let (Key::Page(txid, number), Outcome::Rejected(rejection)) = (row.key, &outcome) {
                let master = masters.get(&txid).map(Arc::as_ref);
                let told = beyond::by_master(rejection.clone(), number, first_offset(row), master);
                *outcome = Outcome::Rejected(told);
            }
        }
        Ok(outcomes)
    }

    /// Tells the masters of other pages whether all slots of those are spent. One that is not there hears it from whose event took the
    /// last slot, once it comes (again).
    pub(super) async fn tell_masters(&self, rows: &[Row], outcomes: &[Outcome]) -> Result<(), Stop> {
        let mut told = BTreeMap::new();
        for (row, outcome) in rows.iter().zip(outcomes) {
            if let (Key::Page(_, 1..), Operation::Sequenced(stamp, operation)) = (row.key, &row.operation)
                && let Outcome::Applied(Reply::Slots { all_spent, .. })
                | Outcome::AlreadyApplied(Reply::Slots { all_spent, .. }) = outcome
                && *all_spent == takes(operation)
            {
                // What is freed in the same call bars the page's being all spent, in whatever order they were done.
                let (_, said) = told.entry(row.key).or_insert((*stamp, *all_spent));
                *said &= *all_spent;
            }
        }
        self.say_of_pages(&told).await?;
        told.retain(|_, (_, all_spent)| !*all_spent);
        if told.is_empty() {
            return Ok(());
        }
        // A spend of what was left of the page may have come before that, and have said so before us.
        let pages = self.answer("the store", self.parts.store.read(told.keys().copied().collect())).await?;
        let since = told.into_iter().zip(pages);
        let since = since.filter(|(_, page)| page.as_ref().and_then(Record::page).is_some_and(Page::all_spent));
        self.say_of_pages(&since.map(|((key, (stamp, _)), _)| (key, (stamp, true))).collect()).await
    }

    async fn say_of_pages(&self, told: &BTreeMap<Key, (Stamp, bool)>) -> Result<(), Stop> {
        let rows = told.iter().filter_map(|(key, (stamp, spent))| {
            let Key::Page(txid, page) = *key else { return None };
            let said = Sequenced::SetPageSpent { page, spent: *spent };
            Some(Row { key: Key::master(txid), operation: Operation::Sequenced(*stamp, said) })
        });
        let rows: Vec<Row> = rows.collect();
        if !rows.is_empty() {
            self.apply(rows).await?;
        }
        Ok(())
    }

    async fn masters_by_id(&self, txids: Vec<Txid>) -> Result<BTreeMap<Txid, Arc<Page>>, Stop> {
        let txids = distinct(txids);
        if txids.is_empty() {
            return Ok(BTreeMap::new());
        }
        let masters = self.masters(&txids).await?;
        Ok(txids.into_iter().zip(masters).filter_map(|(txid, master)| Some((txid, master?))).collect())
    }

    /// Calls `each` with every page of a transaction, a few of them in memory at once; one that is not there is passed over.
    pub(super) async fn each_page(&self, master: &Page, mut each: impl FnMut(&Page)) -> Result<(), Stop> {
        each(master);
        let end = others(master) + 1;
        let mut next = 1;
        while next < end {
            let to = end.min(next.saturating_add(PAGES_AT_ONCE));
            let pages = self.answer("the store", self.parts.store.pages(master.txid, next, to)).await?;
            pages.iter().flatten().for_each(|page| each(page));
            next = to;
        }
        Ok(())
    }

    /// Applies the same operation to every page but the master; those that are not there, or not known to be complete.
    async fn apply_to_others(&self, at: At, master: &Page, operation: &Sequenced) -> Result<Vec<u32>, Stop> {
        let numbers: Vec<u32> = (1..=others(master)).collect();
        self.apply_to(at, master.txid, &numbers, operation).await
    }

    /// Those that are not there; or are half created, since a node forgot that they were cleared.
    async fn apply_to(&self, at: At, txid: Txid, pages: &[u32], operation: &Sequenced) -> Result<Vec<u32>, Stop> {
        let mut missing = Vec::new();
        for numbers in pages.chunks(CHANGED_AT_ONCE) {
            let rows = numbers.iter().map(|number| at.row(Phase::Apply, Key::Page(txid, *number), operation.clone()));
            for (outcome, number) in self.apply(rows.collect()).await?.into_iter().zip(numbers) {
                match outcome {
                    Outcome::Rejected(Rejection::NotFound | Rejection::Creating) => missing.push(*number),
                    Outcome::Applied(_) | Outcome::AlreadyApplied(_) => {}
                    // A later event has seen to it; or it was pruned since.
                    Outcome::Rejected(Rejection::StaleStamp(_) | Rejection::Pruned(_)) => {}
                    Outcome::Rejected(rejection) => {
                        let (offset, code) = (at.offset, rejection.code());
                        let what = format!("page {number} of {txid} refuses what was decided: {code}");
                        return Err(Stop::Halt(format!("chain offset {offset}: {what}")));
                    }
                }
            }
        }
        Ok(missing)
    }

    /// The same to every page but the master; one that a node forgot is made again first.
    pub(super) async fn apply_to_all_others(&self, at: At, master: &Page, operation: &Sequenced) -> Result<(), Stop> {
        let missing = self.apply_to_others(at, master, operation).await?;
        self.once_restored(at, master, &missing, operation).await
    }

    /// Makes a page again that a node forgot.
    pub(super) async fn restore_page(&self, txid: Txid, number: u32) -> Result<(), Stop> {
        self.complete(&[txid]).await?;
        let Some(master) = self.master(txid).await? else { return Ok(()) };
        if number == 0 || number > others(&master) {
            return Ok(());
        }
        let there = self.answer("the store", self.parts.store.read(vec![Key::Page(txid, number)])).await?;
        if there.into_iter().flatten().next().is_some() {
            return Ok(());
        }
        self.completed(self.parts.store.restore_pages(&master, &[number])).await
    }

    /// Flags the other pages of those that are conflicting by verdict. One that is not there is written `creating`, and barred by its master.
    pub(super) async fn flag_others(&self, at: At, master: &Page) -> Result<(), Stop> {
        let is_flagged = matches!(master.state(), TxState::Conflicting(_) | TxState::Pruned(_));
        if let Some(Verdict::Conflicting(reason)) = master.verdict().filter(|_| is_flagged)
            && others(master) > 0
        {
            let height = self.height();
            self.apply_to_others(at, master, &Sequenced::MarkConflicting { reason, height }).await?;
        }
        Ok(())
    }

    /// Makes the other pages of an accepted transaction live, before its master.
    pub(super) async fn accept_others(&self, at: At, master: &Page) -> Result<(), Stop> {
        let missing = self.apply_to_others(at, master, &Sequenced::Accept).await?;
        self.once_restored(at, master, &missing, &Sequenced::Accept).await
    }

    /// Sets the other pages of a transaction mined whose master has been. A page of it can be `creating`, though its master is live, where
    /// a node forgot that it was cleared: it is completed first.
    pub(super) async fn set_others_mined(&self, at: At, txid: Txid, set_mined: &Sequenced) -> Result<(), Stop> {
        loop {
            self.complete(&[txid]).await?;
            let Some(master) = self.master(txid).await? else { return Ok(()) };
            let missing = self.apply_to_others(at, &master, set_mined).await?;
            if missing.is_empty() {
                return Ok(());
            }
            if master.state() != TxState::Live {
                return self.once_restored(at, &master, &missing, set_mined).await;
            }
        }
    }

    /// The same to pages that a node forgot, once they are made again.
    async fn once_restored(&self, at: At, master: &Page, missing: &[u32], operation: &Sequenced) -> Result<(), Stop> {
        if missing.is_empty() {
            return Ok(());
        }
        let txid = master.txid;
        self.completed(self.parts.store.restore_pages(master, missing)).await?;
        match self.apply_to(at, txid, missing, operation).await?.first() {
            None => Ok(()),
            Some(page) => {
                let gone = CompleteError::MissingPage { txid, page: *page, why: NotRestored::GoneAgain };
                self.completed(std::future::ready(Err(gone))).await
            }
        }
    }

    /// The slots of these outpoints, given the masters of their transactions; those that are there. A few pages beyond the first are in memory at
    /// once.
    pub(super) async fn slots_of(
        &self,
        masters: &[Arc<Page>],
        outpoints: impl Iterator<Item = Outpoint>,
    ) -> Result<BTreeMap<Outpoint, Slot>, Stop> {
        let masters: BTreeMap<Txid, &Arc<Page>> = masters.iter().map(|master| (master.txid, master)).collect();
        let mut by_page: BTreeMap<Key, Vec<(u32, Outpoint)>> = BTreeMap::new();
        for outpoint in outpoints.filter(|outpoint| masters.contains_key(&outpoint.txid)) {
            let (key, offset) = self.place(outpoint);
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
            let records = self.answer("the store", self.parts.store.read(keys.to_vec())).await?;
            for (key, record) in keys.iter().zip(records) {
                if let Some(page) = into_page(record) {
                    take(key, &page);
                }
            }
        }
        Ok(slots)
    }
}

/// How many pages it has besides its master.
pub(super) fn others(master: &Page) -> u32 {
    master.master.as_ref().map_or(0, |bins| bins.total_extra_recs)
}

fn takes(operation: &Sequenced) -> bool {
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
        record::{Blob, Body, build::Start},
        sequencer::{SequencerParts, state::ChainState, tests::parts},
        store::{Store, nodes::Nodes, testing},
    };

    /// Its page cannot be made again, since its body is not to be had either.
    #[tokio::test(start_paused = true)]
    async fn what_is_missing_halts_the_chain_unless_a_node_has_restarted() {
        let clock = Clock::simulated(1_000);
        let second = std::time::Duration::from_secs(1);
        let memory = Arc::new(MemoryEngine::forgetful(RULES, clock.clone(), second));
        let engine = Arc::new(FaultEngine::forgetful(memory, clock, 1));
        let mut nodes = Nodes::new(engine.clone(), 5 * second);
        nodes.meet().await.unwrap();
        let parts = parts().await;
        let store = Store { engine: engine.clone(), ..parts.store.clone() };
        let bytes = testing::transaction(&[(testing::outpoint(Txid([9; 32]), 0), 1_000)], &[100; 3]);
        let mut master = testing::pages(&bytes, &Start::default(), 2).remove(0);
        testing::master(&mut master).body = Some(Body::External(Blob::First));
        store.plant(master).await;
        let handler = Handler::new(SequencerParts { store, nodes, ..parts }, ChainState::default());
        let txid = testing::txid(&bytes);
        let stop = handler.complete(&[txid]).await.unwrap_err();
        assert!(matches!(&stop, Stop::Halt(why) if why.contains(&format!("page 1 of {txid}"))), "{stop}");
        engine.forget(second, |_| false);
        assert!(matches!(handler.complete(&[txid]).await, Err(Stop::NodeRestarted)));
    }
}
