//! Transactions of several pages: operations on each page, and the facts of a page that its master keeps.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    engine::Row,
    record::{
        Key, Operation, Outcome, Page, Phase, Record, Rejection, Sequenced, Slot, TxState, Verdict, build::OtherPages,
        page_refusal,
    },
    sequencer::{
        SequencerError,
        added_slots::add_slots_to_extra_pages,
        context::{HandlerContext, distinct},
    },
    store::{
        create::{InitialState, PagedTx},
        into_page,
        page_reports::PageReports,
        pages::{ExtraPages, PAGES_AT_A_TIME},
        recovery::{CompleteError, Recovery, RestoreError},
    },
    tx::{Outpoint, Txid},
};

/// Pages of one transaction changed in one request: rows of a few bytes.
const CHANGED_AT_ONCE: usize = 1_024;

/// Completes half-created transactions. Their masters exist, so that they count as live.
pub async fn complete(cx: &HandlerContext<'_>, txids: &[Txid]) -> Result<(), SequencerError> {
    match txids {
        [] => Ok(()),
        // Boxed: rare, and else a part of every future here.
        txids => Box::pin(complete_each(cx, txids)).await,
    }
}

async fn complete_each(cx: &HandlerContext<'_>, txids: &[Txid]) -> Result<(), SequencerError> {
    for txid in txids {
        let conflicting = halt_if_incomplete(cx, Recovery::of(&cx.parts.store).complete(*txid)).await?;
        if !conflicting.is_empty() {
            accept_left_pages(cx, *txid, &conflicting).await?;
        }
    }
    Ok(())
}

/// Accepts pages of a live transaction that are conflicting, over a store that can lose writes. A node has lost the
/// master with the verdict, and not these pages; the event of the transaction has made the master live again. The chain
/// will repeat the verdict, and handles the events before as over a live transaction.
async fn accept_left_pages(cx: &HandlerContext<'_>, txid: Txid, pages: &[u32]) -> Result<(), SequencerError> {
    if !cx.parts.nodes.can_lose_writes() {
        return Ok(());
    }
    let keys: Vec<Key> = pages.iter().map(|page| Key::Page(txid, *page)).collect();
    let read = cx.read(keys).await?;
    // The master is read after the pages. A verdict flags the master first, and an acceptance the master last: a flag
    // that was read before a live master is left over.
    if cx.master(txid).await?.is_none_or(|master| master.state() != TxState::Live) {
        return Ok(());
    }
    let left = pages.iter().zip(&read).filter_map(|(number, record)| {
        let page = record.as_ref().and_then(Record::page).filter(|page| page.conflicting)?;
        // The event can have changed the page in its later phase, in which an earlier phase is refused.
        let of_this_event = page.chain_pos.filter(|stamp| stamp.offset == cx.stamp(Phase::Evaluate).offset);
        let phase = of_this_event.map_or(Phase::Evaluate, |stamp| stamp.phase);
        Some(cx.row(phase, Key::Page(txid, *number), Sequenced::Accept))
    });
    let rows: Vec<Row> = left.collect();
    if !rows.is_empty() {
        tracing::info!(%txid, pages = rows.len(), "sequencer: accepting pages that a lost verdict left conflicting");
        // A refusal means that a later event, or another sequencer, has changed the page.
        cx.apply(rows).await?;
    }
    Ok(())
}

/// Runs the completion of a transaction. A missing page halts the chain, unless a node has restarted since the
/// baseline: then the result is `NodeRestarted`, and the events of the lost writes are handled again.
async fn halt_if_incomplete<T>(
    cx: &HandlerContext<'_>,
    work: impl Future<Output = Result<T, CompleteError>>,
) -> Result<T, SequencerError> {
    match cx.wait_for("the store", work).await {
        Ok(done) => Ok(done),
        Err(CompleteError::Engine(error)) => Err(error.into()),
        Err(missing @ CompleteError::MissingPage { .. }) => {
            if cx.has_node_restarted().await? {
                return Err(SequencerError::NodeRestarted);
            }
            Err(SequencerError::Halt(format!("the store is damaged: {missing}")))
        }
    }
}

/// Creates a transaction of several pages, or completes it. Returns the outcome as for a transaction of one page.
pub async fn create_paged(cx: &HandlerContext<'_>, work: &PagedTx) -> Result<Outcome, SequencerError> {
    halt_if_incomplete(cx, Box::pin(cx.parts.creator.create_without_lock_record(work))).await
}

/// Stores a transaction as contested, of one page or several. `master` is as of a live transaction.
pub async fn create_contested(
    cx: &HandlerContext<'_>,
    master: Arc<Page>,
    others: Option<Arc<OtherPages>>,
) -> Result<Outcome, SequencerError> {
    match others {
        Some(others) => create_paged(cx, &PagedTx { master, others, initial_state: InitialState::Contested }).await,
        None => {
            let txid = master.txid;
            let contested = Operation::CreateContested(Arc::new(Arc::unwrap_or_clone(master).contested()));
            cx.apply_row(Row { key: Key::master(txid), operation: contested }).await
        }
    }
}

/// Applies rows that take or free slots. The reason of a refusal by another page than the master is read from the
/// master. The master is updated where a row leaves a page without free slots, or can have freed a slot.
pub async fn apply_to_slots(cx: &HandlerContext<'_>, rows: Vec<Row>) -> Result<Vec<Outcome>, SequencerError> {
    if rows.iter().all(|row| matches!(row.key, Key::Page(_, 0))) {
        return cx.apply(rows).await;
    }
    let mut outcomes = cx.apply(rows.clone()).await?;
    update_masters(cx, &rows, &outcomes).await?;
    let unclear = rows.iter().zip(&outcomes).filter_map(|(row, outcome)| match (row.key, outcome) {
        (Key::Page(txid, number), Outcome::Rejected(rejection))
            if page_refusal::is_explained_by_master(number, rejection) =>
        {
            Some(txid)
        }
        _ => None,
    });
    let masters = masters_by_id(cx, unclear.collect()).await?;
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
pub async fn update_masters(cx: &HandlerContext<'_>, rows: &[Row], outcomes: &[Outcome]) -> Result<(), SequencerError> {
    let reports = PageReports::of(rows, outcomes);
    apply_reports(cx, reports.rows()).await?;
    let pages = reports.pages_to_read_again();
    if pages.is_empty() {
        return Ok(());
    }
    apply_reports(cx, reports.rows_since(&cx.read(pages).await?)).await
}

async fn apply_reports(cx: &HandlerContext<'_>, rows: Vec<Row>) -> Result<(), SequencerError> {
    cx.apply(rows).await.map(drop)
}

async fn masters_by_id(cx: &HandlerContext<'_>, txids: Vec<Txid>) -> Result<BTreeMap<Txid, Arc<Page>>, SequencerError> {
    let txids = distinct(txids);
    if txids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let masters = cx.masters(&txids).await?;
    Ok(txids.into_iter().zip(masters).filter_map(|(txid, master)| Some((txid, master?))).collect())
}

/// Calls `each` with every page of a transaction, a few in memory at once. An absent page is skipped.
pub async fn for_each_page(
    cx: &HandlerContext<'_>,
    master: &Page,
    mut each: impl FnMut(&Page),
) -> Result<(), SequencerError> {
    each(master);
    let mut extra = ExtraPages::of(&cx.parts.store, master);
    while let Some((_, page)) = cx.wait_for("the store", extra.next()).await? {
        page.iter().for_each(|page| each(page));
    }
    Ok(())
}

/// Pages to which an operation could not be applied.
#[derive(Debug, Default)]
struct UnfinishedPages {
    /// Pages that are absent, or half created because a node lost the write that cleared `creating`.
    missing: Vec<u32>,
    /// A page lacks slots that its outputs have in the block.
    lacks_slots: bool,
}

/// Applies one operation to every page but the master.
async fn apply_to_extra_pages(
    cx: &HandlerContext<'_>,
    master: &Page,
    operation: &Sequenced,
) -> Result<UnfinishedPages, SequencerError> {
    let numbers: Vec<u32> = (1..=master.extra_pages()).collect();
    apply_to_pages(cx, master.txid, &numbers, operation).await
}

/// Applies one operation to these pages.
async fn apply_to_pages(
    cx: &HandlerContext<'_>,
    txid: Txid,
    pages: &[u32],
    operation: &Sequenced,
) -> Result<UnfinishedPages, SequencerError> {
    let mut unfinished = UnfinishedPages::default();
    for numbers in pages.chunks(CHANGED_AT_ONCE) {
        let rows = numbers.iter().map(|number| cx.row(Phase::Apply, Key::Page(txid, *number), operation.clone()));
        for (outcome, number) in cx.apply(rows.collect()).await?.into_iter().zip(numbers) {
            match outcome {
                Outcome::Rejected(Rejection::NotFound | Rejection::Creating) => unfinished.missing.push(*number),
                Outcome::Rejected(Rejection::MissingSlots(_)) => unfinished.lacks_slots = true,
                Outcome::Applied(_) | Outcome::AlreadyApplied(_) => {}
                // A later event has changed the page, or the page was pruned since.
                Outcome::Rejected(Rejection::StaleStamp(_) | Rejection::Pruned(_)) => {}
                // A verdict that a node has lost with the master can have flagged the page since the last look at
                // nodes.
                Outcome::Rejected(Rejection::Conflicting(_)) if cx.has_node_restarted().await? => {
                    return Err(SequencerError::NodeRestarted);
                }
                Outcome::Rejected(rejection) => {
                    return Err(cx.halt_refused(format_args!("page {number} of {txid}"), &rejection));
                }
            }
        }
    }
    Ok(unfinished)
}

/// Applies one operation to every page but the master. A page that a node lost is restored first.
pub async fn apply_to_every_extra_page(
    cx: &HandlerContext<'_>,
    master: &Page,
    operation: &Sequenced,
) -> Result<(), SequencerError> {
    let unfinished = apply_to_extra_pages(cx, master, operation).await?;
    restore_and_apply(cx, master, &unfinished.missing, operation).await
}

/// Restores a page that a node lost. Does nothing for a page that exists.
pub async fn restore_page(cx: &HandlerContext<'_>, txid: Txid, number: u32) -> Result<(), SequencerError> {
    complete(cx, &[txid]).await?;
    let Some(master) = cx.master(txid).await? else { return Ok(()) };
    if number == 0 || number > master.extra_pages() {
        return Ok(());
    }
    let there = cx.read(vec![Key::Page(txid, number)]).await?;
    if there.into_iter().flatten().next().is_some() {
        return Ok(());
    }
    halt_if_incomplete(cx, Recovery::of(&cx.parts.store).restore_pages(&master, &[number])).await
}

/// Flags the other pages of a transaction that is conflicting by verdict. An absent page is created later as
/// `creating`, and its master bars its slots.
pub async fn flag_extra_pages(cx: &HandlerContext<'_>, master: &Page) -> Result<(), SequencerError> {
    let is_flagged = matches!(master.state(), TxState::Conflicting(_) | TxState::Pruned(_));
    if let Some(Verdict::Conflicting(reason)) = master.verdict().filter(|_| is_flagged)
        && master.extra_pages() > 0
    {
        let height = cx.state.height();
        apply_to_extra_pages(cx, master, &Sequenced::MarkConflicting { reason, height }).await?;
    }
    Ok(())
}

/// Makes a transaction live: the other pages before the master.
pub async fn accept(cx: &HandlerContext<'_>, master: &Page) -> Result<(), SequencerError> {
    apply_to_every_extra_page(cx, master, &Sequenced::Accept).await?;
    cx.apply_to_master(master.txid, Sequenced::Accept).await
}

/// Sets the other pages of a transaction mined after its master, in a block of this height. A node can have lost a
/// page, the write that cleared `creating` on a page, or the slots that the block added, and not those of the master:
/// the transaction is completed first.
pub async fn set_extra_pages_mined(
    cx: &HandlerContext<'_>,
    txid: Txid,
    set_mined: &Sequenced,
    height: u32,
) -> Result<(), SequencerError> {
    loop {
        complete(cx, &[txid]).await?;
        let Some(master) = cx.master(txid).await? else { return Ok(()) };
        let UnfinishedPages { missing, lacks_slots } = apply_to_extra_pages(cx, &master, set_mined).await?;
        if lacks_slots {
            // Boxed: rare, and else a part of every future here.
            Box::pin(add_slots_to_extra_pages(cx, &master, height)).await?;
            continue;
        }
        if missing.is_empty() {
            return Ok(());
        }
        if master.state() != TxState::Live {
            return restore_and_apply(cx, &master, &missing, set_mined).await;
        }
    }
}

/// Restores pages that a node lost, then applies the operation to them.
async fn restore_and_apply(
    cx: &HandlerContext<'_>,
    master: &Page,
    missing: &[u32],
    operation: &Sequenced,
) -> Result<(), SequencerError> {
    if missing.is_empty() {
        return Ok(());
    }
    let txid = master.txid;
    halt_if_incomplete(cx, Recovery::of(&cx.parts.store).restore_pages(master, missing)).await?;
    match apply_to_pages(cx, txid, missing, operation).await?.missing.first() {
        None => Ok(()),
        Some(page) => {
            let missing_again = CompleteError::MissingPage { txid, page: *page, why: RestoreError::LostAgain };
            halt_if_incomplete(cx, std::future::ready(Err(missing_again))).await
        }
    }
}

/// Reads the slots of these outpoints, given the masters of their transactions. An absent slot is left out. A few
/// pages besides the masters are in memory at once.
pub async fn read_slots(
    cx: &HandlerContext<'_>,
    masters: &[Arc<Page>],
    outpoints: impl Iterator<Item = Outpoint>,
) -> Result<BTreeMap<Outpoint, Slot>, SequencerError> {
    let masters: BTreeMap<Txid, &Arc<Page>> = masters.iter().map(|master| (master.txid, master)).collect();
    let mut by_page: BTreeMap<Key, Vec<(u32, Outpoint)>> = BTreeMap::new();
    for outpoint in outpoints.filter(|outpoint| masters.contains_key(&outpoint.txid)) {
        let (key, offset) = cx.locate(outpoint);
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
    for keys in beyond.chunks(PAGES_AT_A_TIME as usize) {
        let records = cx.read(keys.to_vec()).await?;
        for (key, record) in keys.iter().zip(records) {
            if let Some(page) = into_page(record) {
                take(key, &page);
            }
        }
    }
    Ok(slots)
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
        sequencer::{SequencerParts, handler::Handler, state::ChainState, steps::DecisionMode, tests::parts},
        store::{StateStore, restart_detector::RestartDetector, testing},
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
        let store = StateStore { engine: engine.clone(), ..parts.store.clone() };
        let bytes = testing::transaction(&[(testing::outpoint(Txid([9; 32]), 0), 1_000)], &[100; 3]);
        let mut master = testing::pages(&bytes, &NewTxState::default(), 2).remove(0);
        testing::master(&mut master).body = Some(Body::External(Blob::First(None)));
        store.plant(master).await;
        let handler = Handler::new(SequencerParts { store, nodes, ..parts }, ChainState::default());
        let txid = testing::txid(&bytes);
        let cx = &handler.context(0, DecisionMode::Live);
        let stop = complete(cx, &[txid]).await.unwrap_err();
        assert!(matches!(&stop, SequencerError::Halt(why) if why.contains(&format!("page 1 of {txid}"))), "{stop}");
        engine.restart_nodes(second, |_| false);
        assert!(matches!(complete(cx, &[txid]).await, Err(SequencerError::NodeRestarted)));
    }
}
