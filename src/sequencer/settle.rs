//! Settles the slots of conflicting transactions, and lists these transactions in `conflictingCs` of their parents.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    engine::Row,
    record::{
        HeldSlot, Key, Outcome, Page, Phase, Reason, Rejection, Reply, Sequenced, SpendSlot, SpendingData, TxState,
        Verdict,
    },
    sequencer::{
        SequencerError,
        bodies::read_inputs,
        context::{BODIES_AT_ONCE, HandlerContext, distinct},
        descendants::Descendants,
        lost_records::create_missing_stubs,
        pages::{apply_to_slots, flag_extra_pages},
        second_chances::publish_second_chances,
        steps::Steps,
        waiting::format_missing,
    },
    tx::{Outpoint, Txid},
};

/// Slots that are settled at once: some megabytes of rows.
const SETTLE_BATCH_SLOTS: usize = 10_000;

/// Settles the slots of the losers and their descendants and lists each of them in `conflictingCs` of its parents.
///
/// Returns settled slots for second chances, except outputs of the members themselves, which nothing can spend. The
/// result cannot say which slots this call has freed: a write whose reply was lost is done again. Where there are many
/// slots, the chances that the first ones give are published here.
pub async fn settle_descendants(
    cx: &HandlerContext<'_>,
    steps: &mut Steps<'_>,
    descendants: &Descendants,
) -> Result<BTreeSet<Outpoint>, SequencerError> {
    let mut settled = BTreeSet::new();
    for number in 0..descendants.chunks() {
        let members = descendants.members(cx, steps, number).await?;
        for members in members.chunks(BODIES_AT_ONCE) {
            let txids: Vec<Txid> = members.iter().map(|loser| loser.txid).collect();
            let held = settle_transactions(cx, &cx.read_existing_masters(&txids).await?).await?;
            let outpoints = held.into_iter().map(|(outpoint, _)| outpoint);
            settled.extend(outpoints.filter(|outpoint| !descendants.contains(&outpoint.txid)));
            if settled.len() >= cx.parts.settings.verdict_memory.settled_slots {
                // A slot that a later member holds is settled later, and gives its chances then.
                publish_second_chances(cx, &std::mem::take(&mut settled), &[], descendants).await?;
            }
        }
    }
    Ok(settled)
}

/// Settles the slots of these transactions, lists them in `conflictingCs` of their parents, and returns the slots.
pub async fn settle_transactions(
    cx: &HandlerContext<'_>,
    pages: &[Arc<Page>],
) -> Result<Vec<(Outpoint, HeldSlot)>, SequencerError> {
    let mut held = Vec::new();
    for page in pages {
        // A transaction that was stored after its verdict has pages that are not flagged yet.
        flag_extra_pages(cx, page).await?;
        held.extend(list_held_slots(page.txid, &read_inputs(cx, page).await?));
    }
    // A parent that is absent while a decision is applied again to a store that lost writes existed when the
    // decision was made, and comes again. Parents that are missing by verdict are the exception.
    let missing: BTreeSet<Txid> = pages
        .iter()
        .filter_map(|page| match page.state() {
            TxState::Conflicting(Verdict::Conflicting(Reason::MissingParent { parent })) => Some(parent),
            _ => None,
        })
        .collect();
    let forgotten = cx.applied_again && cx.parts.nodes.can_lose_writes();
    // Slots of one record are settled in one batch: rows for one record in several batches would contend.
    held.sort_unstable_by_key(|(outpoint, _)| *outpoint);
    for held in held.chunks(SETTLE_BATCH_SLOTS) {
        settle_slots(cx, held, |parent| !forgotten || missing.contains(&parent)).await?;
        let children = held.iter().map(|(outpoint, held)| (outpoint.txid, held.holder.txid));
        update_conflicting_children(cx, children, true).await?;
    }
    Ok(held)
}

/// Settles slots. The slots of an absent parent are settled on a stub: a late spend must not take them if the
/// parent comes after all. `may_be_absent` returns whether an absent parent gets a stub. In a rebuild an absent
/// parent is only late and no spend is late, so no stub is needed; the same holds for a parent that a node lost.
pub async fn settle_slots(
    cx: &HandlerContext<'_>,
    inputs: &[(Outpoint, HeldSlot)],
    may_be_absent: impl Fn(Txid) -> bool,
) -> Result<(), SequencerError> {
    let rows = inputs
        .iter()
        .map(|(outpoint, held)| cx.row(Phase::Apply, cx.locate(*outpoint).0, Sequenced::Settle(vec![*held])));
    let rows: Vec<Row> = rows.collect();
    let outcomes = apply_to_slots(cx, rows.clone()).await?;
    if cx.is_replay() {
        return Ok(());
    }
    let absent = find_absent_parents(cx, &rows, &outcomes, &may_be_absent).await?;
    // The master appeared after its page was read as absent, so the page exists by now, if there is one.
    let appeared = |(row, outcome): &(&Row, &Outcome)| {
        **outcome == Outcome::AlreadyApplied(Reply::None)
            && matches!(row.key, Key::Page(parent, 1..) if may_be_absent(parent) && !absent.contains(&parent))
    };
    let appeared: Vec<Row> = rows.iter().zip(&outcomes).filter(appeared).map(|(row, _)| row.clone()).collect();
    apply_to_slots(cx, appeared).await?;
    if absent.is_empty() {
        return Ok(());
    }
    if cx.has_node_restarted().await? {
        return Err(SequencerError::NodeRestarted);
    }
    let again: Vec<Row> =
        rows.into_iter().filter(|row| matches!(row.key, Key::Page(parent, _) if absent.contains(&parent))).collect();
    let stub = |key| cx.row(Phase::Apply, key, Sequenced::MarkContested);
    let masters = absent.iter().copied().map(Key::master).map(stub).collect();
    cx.apply(masters).await?;
    // A page beyond the first keeps its marks in a stub of its own while the number of pages is unknown.
    let mut stubs = BTreeSet::new();
    for absent in absent.chunks(BODIES_AT_ONCE) {
        let masters = cx.read_existing_masters(absent).await?;
        stubs.extend(masters.iter().filter(|master| master.utxos.is_none()).map(|master| master.txid));
    }
    let beyond: BTreeSet<Key> = again
        .iter()
        .filter(|row| matches!(row.key, Key::Page(parent, 1..) if stubs.contains(&parent)))
        .map(|row| row.key)
        .collect();
    cx.apply(beyond.into_iter().map(stub).collect()).await?;
    apply_to_slots(cx, again).await?;
    Ok(())
}

/// Returns the absent parents, as the outcomes of settling show them: another page can exist before its master.
async fn find_absent_parents(
    cx: &HandlerContext<'_>,
    rows: &[Row],
    outcomes: &[Outcome],
    may_be_absent: &impl Fn(Txid) -> bool,
) -> Result<Vec<Txid>, SequencerError> {
    let (mut absent, mut unknown) = (Vec::new(), Vec::new());
    for (row, outcome) in rows.iter().zip(outcomes) {
        match (row.key, outcome) {
            (Key::Page(parent, _), _) if !may_be_absent(parent) => {}
            (Key::Page(parent, 0), Outcome::AlreadyApplied(Reply::None)) => absent.push(parent),
            (Key::Page(parent, 1..), _) => unknown.push(parent),
            _ => {}
        }
    }
    // A stub has no slots: the marks of its other pages need stubs of their own.
    let no_slots =
        |master: &Option<Arc<Page>>| master.as_ref().is_none_or(|page| page.utxos.is_none() && page.pruned.is_none());
    for unknown in distinct(unknown).chunks(BODIES_AT_ONCE) {
        let masters = cx.masters(unknown).await?;
        absent.extend(unknown.iter().zip(masters).filter(|(_, master)| no_slots(master)).map(|(parent, _)| *parent));
    }
    Ok(distinct(absent))
}

/// Settles the slots of a conflicting transaction whose contest was passed over: its event may have taken slots
/// before it found its own record contested.
pub async fn settle_passed_over(cx: &HandlerContext<'_>, txid: Txid) -> Result<(), SequencerError> {
    if let Some(page) = cx.master(txid).await?
        && matches!(page.state(), TxState::Conflicting(Verdict::Conflicting(_)))
    {
        settle_transactions(cx, &[page]).await?;
    }
    Ok(())
}

/// Adds conflicting children to `conflictingCs` of their parents, or removes them; `children` are pairs of a parent
/// and a child. With `applied_again` a parent that a node lost is waited for: the parent comes again without
/// `conflictingCs`, and its children would get no second chance. A parent that has not come again within the grace may
/// wait for a verdict at a later offset, and is listed with its children on a stub.
pub async fn update_conflicting_children(
    cx: &HandlerContext<'_>,
    children: impl Iterator<Item = (Txid, Txid)>,
    conflicting: bool,
) -> Result<(), SequencerError> {
    let mut open: BTreeSet<(Txid, Txid)> = children.collect();
    let mut waiting = None;
    loop {
        let rows = open.iter().map(|(parent, child)| {
            let operation = if conflicting {
                Sequenced::AddConflictingChild(*child)
            } else {
                Sequenced::RemoveConflictingChild(*child)
            };
            cx.row(Phase::Apply, Key::master(*parent), operation)
        });
        let outcomes = cx.apply(rows.collect()).await?;
        let mut absent = outcomes.iter().map(|outcome| *outcome == Outcome::Rejected(Rejection::NotFound));
        open.retain(|_| absent.next() == Some(true));
        if open.is_empty() || !cx.applied_again {
            return Ok(());
        }
        if cx.parent_grace.is_inactive() {
            if !conflicting || !cx.parts.nodes.can_lose_writes() {
                return Ok(());
            }
            Box::pin(create_missing_stubs(cx, distinct(open.iter().map(|(parent, _)| *parent)))).await?;
        }
        let waiting = waiting.get_or_insert_with(|| cx.start_wait("the parents of conflicting transactions"));
        waiting.pause_for(&format_missing(open.iter().map(|(parent, _)| *parent))).await;
    }
}

/// Returns the slots that these inputs may hold. The result has no output contents, which would keep the bodies in
/// memory.
pub fn list_held_slots(txid: Txid, inputs: &[(Outpoint, SpendSlot)]) -> Vec<(Outpoint, HeldSlot)> {
    let held = |slot: &SpendSlot| HeldSlot { offset: slot.offset, holder: SpendingData { txid, input: slot.input } };
    inputs.iter().map(|(outpoint, slot)| (*outpoint, held(slot))).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        clock::Clock,
        engine::{conformance::RULES, fault::FaultEngine, memory::MemoryEngine},
        record::Operation,
        sequencer::{SequencerParts, handler::Handler, state::ChainState, steps::DecisionMode, tests::parts},
        store::{StateStore, restart_detector::RestartDetector, testing},
    };

    /// A decision is applied again. The parent of its loser was lost, and waits for a verdict at a later offset.
    /// Protects: the parent lists the child once the parent comes, so that the child gets its second chance.
    #[tokio::test(start_paused = true)]
    async fn a_parent_that_comes_late_lists_its_conflicting_child() {
        let (clock, second) = (Clock::simulated(1_000), Duration::from_secs(1));
        let memory = Arc::new(MemoryEngine::with_loss_window(RULES, clock.clone(), second));
        let engine = Arc::new(FaultEngine::with_restarts(memory, clock, 1));
        let mut nodes = RestartDetector::new(engine.clone(), 5 * second);
        nodes.baseline().await.unwrap();
        let parts = parts().await;
        let store = StateStore { engine, ..parts.store.clone() };
        let handler = Handler::new(SequencerParts { store: store.clone(), nodes, ..parts }, ChainState::default());
        let parent = testing::page(&testing::transaction(&[(testing::outpoint(Txid([9; 32]), 0), 1_000)], &[500]));
        let (txid, child) = (parent.txid, Txid([7; 32]));
        let listing = tokio::spawn(async move {
            let cx = HandlerContext { applied_again: true, ..handler.context(0, DecisionMode::Live) };
            update_conflicting_children(&cx, [(txid, child)].into_iter(), true).await
        });
        tokio::time::sleep(5 * second).await;
        assert!(store.master(txid).await.unwrap().is_none() && !listing.is_finished(), "the parent may come by itself");
        listing.await.unwrap().unwrap();
        let create = Operation::CreateContested(Arc::new(parent.contested()));
        store.apply(vec![Row { key: Key::master(txid), operation: create }]).await.unwrap();
        let page = store.master(txid).await.unwrap().unwrap();
        assert_eq!(page.state(), TxState::Conflicting(Verdict::Pending), "its own contest decides on it");
        assert_eq!(Vec::from_iter(page.master.clone().unwrap().conflicting_children), [child]);
    }
}
