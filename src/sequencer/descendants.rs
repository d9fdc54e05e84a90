//! Marks the losers of one verdict and all their descendants conflicting.
//!
//! One verdict can have a million descendants. Memory holds their txids (some 50 bytes each) and their decisions; all
//! other data is read again, one chunk at a time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use futures_util::future::BoxFuture;

use crate::{
    engine::Row,
    event::{DecisionBody, Descendant},
    record::{Key, Page, Phase, Reason, Sequenced, Slot},
    sequencer::{
        SequencerError,
        claims::store_proven_claims,
        context::{BODIES_AT_ONCE, HandlerContext},
        holders::{HolderState, contest_holders, filter_live},
        lost_records::wait_for_bodies,
        pages::{flag_extra_pages, for_each_page},
        second_chances::publish_reconsider,
        steps::Steps,
    },
    tx::Txid,
};

/// A transaction that becomes conflicting, with the reason.
#[derive(Debug, Clone, Copy)]
pub struct LosingTx {
    pub txid: Txid,
    pub reason: Reason,
    /// The transaction was live before this verdict.
    pub was_live: bool,
}

/// The losers of one verdict and their descendants.
#[derive(Debug, Default)]
pub struct Descendants {
    losers: Vec<LosingTx>,
    /// The transaction that wins against the losers; `None` where a verdict names no winner.
    winner: Option<Txid>,
    /// Steps of the decisions that name the descendants, one step a chunk. Void parts of another decision may lie
    /// between two steps.
    steps: Vec<u32>,
    /// The txids of all losers and descendants.
    txids: BTreeSet<Txid>,
}

impl Descendants {
    fn from_losers(losers: Vec<LosingTx>, winner: Option<Txid>) -> Self {
        let txids = losers.iter().map(|loser| loser.txid).collect();
        Descendants { losers, winner, steps: Vec::new(), txids }
    }

    /// Returns whether a transaction is a loser or a descendant.
    pub fn contains(&self, txid: &Txid) -> bool {
        self.txids.contains(txid)
    }

    /// Returns whether a transaction is a loser, a descendant or the winner. The winner may spend outputs of the
    /// losers.
    fn is_member_or_winner(&self, txid: &Txid) -> bool {
        self.contains(txid) || self.winner == Some(*txid)
    }

    /// Returns the number of chunks: the losers are the first, and each decision adds one.
    pub fn chunks(&self) -> usize {
        1 + self.steps.len()
    }

    /// Returns the members of one of the [`chunks`](Self::chunks). A rebuild leaves out members that are live at its
    /// frontier.
    pub fn members(&self, cx: &HandlerContext<'_>, steps: &Steps<'_>, number: usize) -> Vec<LosingTx> {
        let mut members = self.chunk(number, steps);
        members.retain(|loser| !cx.is_live_at_frontier(&loser.txid));
        members
    }

    fn chunk(&self, number: usize, steps: &Steps<'_>) -> Vec<LosingTx> {
        match number.checked_sub(1) {
            None => self.losers.clone(),
            Some(number) => match self.steps.get(number).and_then(|step| steps.taken_record(*step)) {
                Some(DecisionBody::Cone { members, .. }) => members.iter().map(LosingTx::by_parent).collect(),
                _ => unreachable!("the step of a chunk of descendants holds another decision"),
            },
        }
    }
}

impl LosingTx {
    fn by_parent(member: &Descendant) -> Self {
        LosingTx {
            txid: member.txid,
            reason: Reason::ConflictingParent { parent: member.parent },
            was_live: member.live,
        }
    }
}

/// Marks the losers and their descendants conflicting, level by level.
///
/// Each level is marked first and its slots are read afterwards, so that no spend is missed: a spend before the
/// mark is seen, and a spend after the mark is refused. The spenders found are decided on before they are marked in
/// turn. The decision with an empty chunk ends the walk.
pub fn mark_descendants_conflicting<'a>(
    cx: &'a HandlerContext<'_>,
    steps: &'a mut Steps<'_>,
    height: u32,
    losers: Vec<LosingTx>,
    winner: Option<Txid>,
) -> BoxFuture<'a, Result<Descendants, SequencerError>> {
    Box::pin(async move {
        let mut unread: VecDeque<Txid> = losers.iter().map(|loser| loser.txid).collect();
        let mut found: VecDeque<Descendant> = VecDeque::new();
        mark_conflicting(cx, height, &losers).await?;
        let mut descendants = Descendants::from_losers(losers, winner);
        loop {
            let next_chunk = Box::pin(find_next_chunk(cx, height, &descendants, &mut unread, &mut found));
            let body = steps.decide(next_chunk).await?;
            let DecisionBody::Cone { members, .. } = body else {
                return Err(cx.halt(format_args!("expected a decision on descendants, found {body:?}")));
            };
            if members.is_empty() {
                if cx.is_replay() || cx.applied_again {
                    Box::pin(finish_descendants(cx, steps, &descendants)).await?;
                }
                return Ok(descendants);
            }
            descendants.steps.extend(steps.last_taken_step());
            descendants.txids.extend(members.iter().map(|member| member.txid));
            found.retain(|member| !descendants.is_member_or_winner(&member.txid));
            let chunk: Vec<LosingTx> = members.iter().map(LosingTx::by_parent).collect();
            mark_conflicting(cx, height, &chunk).await?;
            unread.extend(chunk.iter().map(|loser| loser.txid));
        }
    })
}

/// Finds the next spenders of the marked transactions. An empty chunk means that all descendants are found.
async fn find_next_chunk(
    cx: &HandlerContext<'_>,
    height: u32,
    descendants: &Descendants,
    unread: &mut VecDeque<Txid>,
    found: &mut VecDeque<Descendant>,
) -> Result<DecisionBody, SequencerError> {
    let size = cx.parts.settings.descendants_per_decision.max(1);
    while found.is_empty() && !unread.is_empty() {
        let parents: Vec<Txid> = unread.drain(..unread.len().min(size)).collect();
        let spenders = find_spenders(cx, &parents, descendants).await?;
        // Contested before the decision: a spender without a record becomes a stub and cannot become live meanwhile.
        let holder_states = contest_holders(cx, Phase::Apply, spenders.keys().copied().collect()).await?;
        // A partial transaction spends nothing, so it is no descendant.
        let descends = |txid: &Txid| holder_states.get(txid) != Some(&HolderState::Partial);
        found.extend(spenders.into_iter().filter(|(txid, _)| descends(txid)).map(|(txid, parent)| Descendant {
            txid,
            parent,
            live: holder_states.get(&txid) == Some(&HolderState::Live),
        }));
    }
    // Members stay in `found` until the chunk that names them counts: the published chunk may be cut short, or
    // another sequencer's chunk may count.
    let members = found.iter().take(size).cloned().collect();
    Ok(DecisionBody::Cone { members, height })
}

/// Returns the spenders of these transactions that are not known yet, each with one parent.
async fn find_spenders(
    cx: &HandlerContext<'_>,
    txids: &[Txid],
    descendants: &Descendants,
) -> Result<BTreeMap<Txid, Txid>, SequencerError> {
    let mut spenders = BTreeMap::new();
    for txids in txids.chunks(BODIES_AT_ONCE) {
        for master in cx.read_existing_masters(txids).await? {
            let collect = |page: &Page| {
                for spender in page.utxos.iter().flatten().filter_map(Slot::spender) {
                    if !descendants.is_member_or_winner(&spender.txid) {
                        spenders.entry(spender.txid).or_insert(page.txid);
                    }
                }
            };
            for_each_page(cx, &master, collect).await?;
        }
    }
    Ok(spenders)
}

async fn mark_conflicting(cx: &HandlerContext<'_>, height: u32, losers: &[LosingTx]) -> Result<(), SequencerError> {
    let rows = losers.iter().filter(|loser| !cx.is_live_at_frontier(&loser.txid)).map(|loser| {
        let operation = Sequenced::MarkConflicting { reason: loser.reason, height };
        cx.row(Phase::Apply, Key::master(loser.txid), operation)
    });
    let rows: Vec<Row> = rows.collect();
    let flagged: Vec<Txid> = losers.iter().map(|loser| loser.txid).collect();
    if rows.is_empty() {
        return Ok(());
    }
    cx.apply_decided(rows).await?;
    for chunk in flagged.chunks(BODIES_AT_ONCE) {
        for master in cx.read_existing_masters(chunk).await? {
            flag_extra_pages(cx, &master).await?;
        }
    }
    Ok(())
}

/// Completes the walk after all members are marked and before their slots are settled: in a rebuild, and where the
/// verdict is applied again.
///
/// In a rebuild the bodies of members may not be stored yet (their events find a contested record): without a body
/// the slots of a member are unknown. Where the verdict is applied again after a node lost writes, a member may
/// have been live again for a while, and transactions outside the decided chunks may have spent its outputs. Each
/// such live spender gets a `Reconsider`.
async fn finish_descendants(
    cx: &HandlerContext<'_>,
    steps: &mut Steps<'_>,
    descendants: &Descendants,
) -> Result<(), SequencerError> {
    let replaying = cx.is_replay();
    for number in 0..descendants.chunks() {
        let members = descendants.members(cx, steps, number);
        for members in members.chunks(BODIES_AT_ONCE) {
            let awaited = members.iter().filter(|loser| replaying || loser.was_live).map(|loser| loser.txid);
            wait_for_bodies(cx, &awaited.collect::<Vec<_>>()).await?;
        }
        // A live transaction has true claims, whatever the event claims by which the transaction is stored now.
        for loser in members.iter().filter(|loser| loser.was_live) {
            store_proven_claims(cx, loser.txid).await?;
        }
    }
    if replaying {
        return Ok(());
    }
    for number in 0..descendants.chunks() {
        let txids: Vec<Txid> = descendants.members(cx, steps, number).iter().map(|loser| loser.txid).collect();
        let spenders = find_spenders(cx, &txids, descendants).await?;
        let live = contest_holders(cx, Phase::Apply, spenders.into_keys().collect()).await?;
        publish_reconsider(cx, &filter_live(live)).await?;
    }
    Ok(())
}
