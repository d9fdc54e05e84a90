//! Marks the losers of one verdict and all their descendants conflicting.
//!
//! One verdict can have millions of descendants. Memory holds a fingerprint of each txid (14 to 27 bytes) and the
//! newest decisions; all other data is read again, one chunk at a time. The members come from the decisions topic.

use std::collections::VecDeque;

use futures_util::future::BoxFuture;

use crate::{
    engine::Row,
    event::{DecisionBody, Descendant},
    record::{Key, Phase, Reason, Sequenced},
    sequencer::{
        SequencerError,
        claims::store_proven_claims,
        context::{BODIES_AT_ONCE, HandlerContext},
        holders::{HolderState, contest_holders, filter_live},
        lost_records::wait_for_bodies,
        pages::flag_extra_pages,
        second_chances::publish_reconsider,
        spender_search::SpenderSearch,
        steps::Steps,
    },
    tx::{FingerprintSet, Txid},
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
    /// The transactions that win against the losers; empty where a verdict names no winner.
    winners: Vec<Txid>,
    /// Steps of the decisions that name the descendants, one step a chunk. Void parts of another decision may lie
    /// between two steps.
    steps: Vec<u32>,
    /// The txids of all losers and descendants.
    txids: FingerprintSet,
}

impl Descendants {
    fn from_losers(losers: Vec<LosingTx>, winners: Vec<Txid>) -> Self {
        let mut txids = FingerprintSet::default();
        txids.extend(losers.iter().map(|loser| loser.txid));
        Descendants { losers, winners, steps: Vec::new(), txids }
    }

    /// Returns whether a transaction is a loser or a descendant.
    pub fn contains(&self, txid: &Txid) -> bool {
        self.txids.contains(txid)
    }

    /// Returns whether a transaction is a loser, a descendant or a winner. A winner may spend outputs of the losers.
    pub fn is_member_or_winner(&self, txid: &Txid) -> bool {
        self.contains(txid) || self.winners.contains(txid)
    }

    /// Returns whether a transaction wins beside others. Each was evaluated before the losers of the others became
    /// conflicting.
    pub fn is_one_of_winners(&self, txid: &Txid) -> bool {
        self.winners.len() > 1 && self.winners.contains(txid)
    }

    /// Returns the number of chunks: the losers are the first, and each decision adds one.
    pub fn chunks(&self) -> usize {
        1 + self.steps.len()
    }

    /// Reads the members of one of the [`chunks`](Self::chunks). A rebuild leaves out members that are live at its
    /// frontier.
    pub async fn members(
        &self,
        cx: &HandlerContext<'_>,
        steps: &mut Steps<'_>,
        number: usize,
    ) -> Result<Vec<LosingTx>, SequencerError> {
        let mut members = match number.checked_sub(1) {
            None => self.losers.clone(),
            Some(number) => steps.read_chunk(self.steps[number]).await?.iter().map(LosingTx::by_parent).collect(),
        };
        members.retain(|loser| !cx.is_live_at_frontier(&loser.txid));
        Ok(members)
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
    winners: Vec<Txid>,
) -> BoxFuture<'a, Result<Descendants, SequencerError>> {
    Box::pin(async move {
        let mut found: VecDeque<Descendant> = VecDeque::new();
        let mut search = SpenderSearch::default();
        mark_conflicting(cx, height, &losers).await?;
        let mut descendants = Descendants::from_losers(losers, winners);
        loop {
            let body = match steps.take_next().await? {
                Some(body) => body,
                None => {
                    let next = find_next_chunk(cx, steps, &descendants, &mut search, &mut found);
                    let members = Box::pin(next).await?;
                    steps.write_ahead(DecisionBody::Cone { members, height }).await?
                }
            };
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
        }
    })
}

/// Finds the members of the next chunk. No member means that all descendants are found.
async fn find_next_chunk<'a>(
    cx: &'a HandlerContext<'_>,
    steps: &mut Steps<'_>,
    descendants: &Descendants,
    search: &mut SpenderSearch<'a>,
    found: &mut VecDeque<Descendant>,
) -> Result<Vec<Descendant>, SequencerError> {
    let size = cx.parts.settings.descendants_per_decision.max(1);
    while found.is_empty() && !search.is_at_end(descendants) {
        let spenders = search.find_next(cx, steps, descendants, size).await?;
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
    Ok(found.iter().take(size).cloned().collect())
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
        let members = descendants.members(cx, steps, number).await?;
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
    let mut search = SpenderSearch::default();
    while !search.is_at_end(descendants) {
        let spenders = search.find_next(cx, steps, descendants, BODIES_AT_ONCE).await?;
        let live = contest_holders(cx, Phase::Apply, spenders.into_keys().collect()).await?;
        publish_reconsider(cx, &filter_live(live)).await?;
    }
    Ok(())
}
