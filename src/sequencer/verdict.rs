//! Applies a verdict: marks the losers and their descendants conflicting, moves slots to the winner, settles the slots
//! of the losers, and publishes second chances.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    sync::Arc,
};

use bytes::Bytes;

use crate::{
    engine::Row,
    event::{Command, CommandAction, DecidedInput, DecisionBody, Event, OutcomeKind},
    record::{
        HeldSlot, Key, Outcome, Page, Phase, Reason, Rejection, Reply, Respend, RespendChecks, RespendSlot, Sequenced,
        Slot, SpendSlot, SpendingData, TxState, Verdict,
    },
    sequencer::{
        SequencerError,
        contest::{HolderState, filter_live},
        descendants::{Descendants, LosingTx},
        handler::{BODIES_AT_ONCE, EventContext, Handler, RestartGrace, distinct},
        steps::{DecisionMode, Steps},
        waiting::{ReportedWait, format_missing},
    },
    tx::{Outpoint, Txid},
};

/// A transaction that becomes live, with its inputs, their holders and the losers.
struct AcceptedTx<'a> {
    txid: Txid,
    height: u32,
    inputs: &'a [DecidedInput],
    losers: &'a [Txid],
    by_block: bool,
}

/// Slots that are settled at once: some megabytes of rows.
const SETTLE_BATCH_SLOTS: usize = 10_000;
/// Outcomes that are published at once.
const OUTCOME_BATCH: usize = 10_000;

impl Handler {
    /// Applies a verdict, the decision that was taken last of `steps`. Each part is idempotent, so that a verdict can
    /// be applied again from its beginning.
    pub async fn apply_verdict(
        &self,
        ctx: EventContext,
        steps: &mut Steps<'_>,
        body: DecisionBody,
    ) -> Result<(), SequencerError> {
        // Read before the decisions on its descendants: these may be new after a node lost writes.
        let applied_again = steps.is_applied_again();
        match body {
            DecisionBody::Accepted { txid, height, inputs, losers, by_block } => {
                let accepted = AcceptedTx { txid, height, inputs: &inputs, losers: &losers, by_block };
                self.apply_accepted(ctx, steps, applied_again, accepted).await
            }
            DecisionBody::Conflicting { txid, reason, height, live } => {
                let loser = LosingTx { txid, reason, was_live: live };
                let descendants =
                    Box::pin(self.mark_descendants_conflicting(ctx, steps, applied_again, height, vec![loser], None))
                        .await?;
                let settled = self.settle_descendants(ctx, applied_again, steps, &descendants).await?;
                self.publish_second_chances(ctx, &settled, None, &descendants).await?;
                if let Reason::MissingParent { parent } = reason {
                    self.reconsider_if_parent_is_live(ctx, txid, parent).await?;
                }
                self.publish_conflicting_outcomes(ctx, steps, &descendants).await
            }
            DecisionBody::PassedOver { txid } => self.settle_passed_over(ctx, applied_again, txid).await,
            DecisionBody::Cone { .. }
            | DecisionBody::CommandDone { .. }
            | DecisionBody::Closed
            | DecisionBody::AcceptedPart { .. } => {
                Err(SequencerError::Halt(format!("chain offset {}: expected a verdict, found {body:?}", ctx.offset)))
            }
        }
    }

    async fn apply_accepted(
        &self,
        ctx: EventContext,
        steps: &mut Steps<'_>,
        applied_again: bool,
        accepted: AcceptedTx<'_>,
    ) -> Result<(), SequencerError> {
        let AcceptedTx { txid, height, inputs, losers, by_block } = accepted;
        let wins = ctx.mode == DecisionMode::Live || self.is_live_at_frontier(ctx, &txid);
        let contested = self.contest_decided_holders(ctx, applied_again, txid, inputs, losers).await?;
        let input_of = |loser: &Txid| {
            inputs
                .iter()
                .filter_map(|input| input.holder)
                .find(|holder| holder.txid == *loser)
                .map_or(0, |held| held.input)
        };
        let reason_of = |loser: &Txid| Reason::DoubleSpend { input: input_of(loser), winner: txid };
        let losing = losers
            .iter()
            .map(|loser| LosingTx { txid: *loser, reason: reason_of(loser), was_live: true })
            .collect::<Vec<_>>();
        let descendants = if losing.is_empty() {
            Descendants::default()
        } else {
            Box::pin(self.mark_descendants_conflicting(ctx, steps, applied_again, height, losing, Some(txid))).await?
        };
        let mined_at = by_block.then_some(height);
        if wins && let Some(page) = self.respend_inputs(ctx, applied_again, txid, inputs, mined_at).await? {
            // The stored body may be of another event than the body that was decided on.
            if by_block || applied_again || ctx.mode == DecisionMode::Replay {
                self.store_proven_claims(ctx, applied_again, txid).await?;
            }
            self.accept_extra_pages(ctx, &page).await?;
            self.apply_decided(ctx, vec![ctx.row(Phase::Apply, Key::master(txid), Sequenced::Accept)]).await?;
            let parents = inputs.iter().map(|input| (input.outpoint.txid, txid));
            self.update_conflicting_children(ctx, applied_again, parents, false).await?;
        }
        let settled = self.settle_descendants(ctx, applied_again, steps, &descendants).await?;
        self.publish_reconsider(ctx, &contested).await?;
        self.publish_second_chances(ctx, &settled, Some(txid), &descendants).await?;
        self.publish_outcomes(ctx, vec![(txid, OutcomeKind::Accepted)]).await?;
        self.publish_conflicting_outcomes(ctx, steps, &descendants).await
    }

    /// Contests the holders from which an `Accepted` decision takes slots, before the decision is applied. They were
    /// contested when it was made, but this store may have lost that, and a rebuild applies events in another order.
    /// Returns the holders that are live by now: each gets a `Reconsider`.
    async fn contest_decided_holders(
        &self,
        ctx: EventContext,
        applied_again: bool,
        winner: Txid,
        inputs: &[DecidedInput],
        losers: &[Txid],
    ) -> Result<Vec<Txid>, SequencerError> {
        if ctx.mode == DecisionMode::Replay {
            // The winner may wait for a slot that this very decision gives to it. A stub makes the pipeline store it.
            self.contest_holders(ctx, Phase::Apply, vec![winner]).await?;
        }
        if !applied_again {
            return Ok(Vec::new());
        }
        let holders = inputs.iter().filter_map(|input| input.holder).map(|holder| holder.txid);
        let holders = holders.filter(|holder| *holder != winner && !losers.contains(holder)).collect();
        let live = self.contest_holders(ctx, Phase::Apply, holders).await?;
        Ok(filter_live(live))
    }

    /// Reads the masters of these transactions and leaves out the absent ones.
    pub(super) async fn read_existing_masters(&self, txids: &[Txid]) -> Result<Vec<Arc<Page>>, SequencerError> {
        Ok(self.masters(txids).await?.into_iter().flatten().collect())
    }

    /// Gives each input slot of an accepted transaction to that transaction and returns its master. `None`: a later
    /// event has deleted the transaction and given its slots away. `mined_at` is the height of the block by which the
    /// transaction wins.
    async fn respend_inputs(
        &self,
        ctx: EventContext,
        applied_again: bool,
        txid: Txid,
        inputs: &[DecidedInput],
        mined_at: Option<u32>,
    ) -> Result<Option<Arc<Page>>, SequencerError> {
        let page = self.wait_for_bodies(ctx, applied_again, &[txid]).await?.pop();
        let Some(page) = page.filter(|page| page.pruned.is_none()) else { return Ok(None) };
        let slots: BTreeMap<Outpoint, _> = self.read_inputs(&page).await?.into_iter().collect();
        let mut open: Vec<DecidedInput> = inputs.to_vec();
        let mut unsettled = Vec::new();
        let mut slots_added = BTreeSet::new();
        let grace = RestartGrace::new(applied_again);
        let mut waiting = ReportedWait::new(&self.parts, format!("chain offset {}: the slots of {txid}", ctx.offset));
        while !open.is_empty() {
            let mut rows = Vec::new();
            for input in &open {
                let slot = slots.get(&input.outpoint).cloned().ok_or_else(|| {
                    SequencerError::Halt(format!(
                        "the decision on {txid} names {}, which {txid} does not spend",
                        input.outpoint
                    ))
                })?;
                let respend = Respend {
                    to: txid,
                    slots: vec![RespendSlot { slot, from: input.holder.filter(|holder| holder.txid != txid) }],
                    checks: RespendChecks::Decided,
                };
                rows.push(ctx.row(Phase::Apply, self.locate(input.outpoint).0, Sequenced::Respend(respend)));
            }
            let outcomes = self.apply_to_slots(rows).await?;
            for (input, outcome) in open.drain(..).zip(outcomes) {
                match outcome {
                    Outcome::Applied(_) | Outcome::AlreadyApplied(_) => {}
                    // A later event has already changed this slot.
                    Outcome::Rejected(Rejection::StaleStamp(_)) => {}
                    // A frozen slot was frozen by a later event: the winner was conflicting before that freeze, and
                    // becomes conflicting again when later events are applied again.
                    Outcome::Rejected(Rejection::Frozen(_)) if applied_again => {}
                    Outcome::Rejected(Rejection::SpentBy(_, own)) if own.txid == txid => {
                        return Err(SequencerError::Halt(format!(
                            "the store is damaged: {} names input {} of {txid}, but its input {} spends it",
                            input.outpoint, own.input, input.input
                        )));
                    }
                    Outcome::Rejected(Rejection::SpentBy(_, unexpected)) => {
                        unsettled.push(self.displace_unexpected_holder(ctx, txid, &input, unexpected).await?);
                    }
                    // A rebuild stores a contestant before its parents, which are stored later.
                    Outcome::Rejected(Rejection::NotFound | Rejection::Creating | Rejection::Conflicting(_)) => {
                        unsettled.push(input);
                    }
                    // The same block lists the parent, which lies on the other side of Genesis than its event said, and
                    // sets it mined only later: decisions that are in the log are applied first.
                    Outcome::Rejected(Rejection::NoSuchOutput(_))
                        if mined_at.is_some() && slots_added.insert(input.outpoint) =>
                    {
                        if let Some(height) = mined_at {
                            Box::pin(self.read_and_add_slots(ctx, input.outpoint.txid, height)).await?;
                        }
                        unsettled.push(input);
                    }
                    Outcome::Rejected(rejection) => {
                        return Err(SequencerError::Halt(format!(
                            "the decision that {txid} gets {} cannot be applied: {rejection:?}",
                            input.outpoint
                        )));
                    }
                }
            }
            open = std::mem::take(&mut unsettled);
            if !open.is_empty() {
                if grace.has_expired() {
                    self.create_missing_stubs(ctx, distinct(open.iter().map(|input| input.outpoint.txid))).await?;
                }
                waiting.pause_for(&format_missing(open.iter().map(|input| input.outpoint))).await;
            }
        }
        Ok(Some(page))
    }

    /// Handles a holder that the decision does not name: a node lost the spend of the slot's former holder. The
    /// unexpected holder is contested. If it is live already, a contest of the winner would find both live, so the slot
    /// moves and the unexpected holder gets a `Reconsider`.
    async fn displace_unexpected_holder(
        &self,
        ctx: EventContext,
        txid: Txid,
        input: &DecidedInput,
        unexpected: SpendingData,
    ) -> Result<DecidedInput, SequencerError> {
        let (outpoint, holder) = (input.outpoint, unexpected.txid);
        tracing::warn!(%txid, %outpoint, %holder, "verdict: unexpected holder displaced");
        let live = self.contest_holders(ctx, Phase::Apply, vec![unexpected.txid]).await?;
        if live.get(&unexpected.txid) == Some(&HolderState::Live) && ctx.mode == DecisionMode::Live {
            self.publish_reconsider(ctx, &[unexpected.txid]).await?;
        }
        Ok(DecidedInput { holder: Some(unexpected), ..input.clone() })
    }

    /// Settles the slots of the losers and their descendants and lists each of them in `conflictingCs` of its parents.
    ///
    /// Returns the settled slots, except outputs of the members themselves, which nothing can spend. The result cannot
    /// say which slots this call has freed: a write whose reply was lost is done again.
    async fn settle_descendants(
        &self,
        ctx: EventContext,
        applied_again: bool,
        steps: &mut Steps<'_>,
        descendants: &Descendants,
    ) -> Result<BTreeSet<Outpoint>, SequencerError> {
        let mut settled = BTreeSet::new();
        for number in 0..descendants.chunks() {
            let members = self.members(ctx, steps, descendants, number);
            for members in members.chunks(BODIES_AT_ONCE) {
                let txids: Vec<Txid> = members.iter().map(|loser| loser.txid).collect();
                let held =
                    self.settle_transactions(ctx, applied_again, &self.read_existing_masters(&txids).await?).await?;
                let outpoints = held.into_iter().map(|(outpoint, _)| outpoint);
                settled.extend(outpoints.filter(|outpoint| !descendants.contains(&outpoint.txid)));
            }
        }
        Ok(settled)
    }

    /// Settles the slots of these transactions, lists them in `conflictingCs` of their parents, and returns the slots.
    pub(super) async fn settle_transactions(
        &self,
        ctx: EventContext,
        applied_again: bool,
        pages: &[Arc<Page>],
    ) -> Result<Vec<(Outpoint, HeldSlot)>, SequencerError> {
        let mut held = Vec::new();
        for page in pages {
            // A transaction that was stored after its verdict has pages that are not flagged yet.
            self.flag_extra_pages(ctx, page).await?;
            held.extend(list_held_slots(page.txid, &self.read_inputs(page).await?));
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
        let forgotten = applied_again && self.parts.nodes.can_lose_writes();
        // Slots of one record are settled in one batch: rows for one record in several batches would contend.
        held.sort_unstable_by_key(|(outpoint, _)| *outpoint);
        for held in held.chunks(SETTLE_BATCH_SLOTS) {
            self.settle_slots(ctx, held, |parent| !forgotten || missing.contains(&parent)).await?;
            let children = held.iter().map(|(outpoint, held)| (outpoint.txid, held.holder.txid));
            self.update_conflicting_children(ctx, applied_again, children, true).await?;
        }
        Ok(held)
    }

    /// Settles slots. The slots of an absent parent are settled on a stub: a late spend must not take them if the
    /// parent comes after all. `may_be_absent` returns whether an absent parent gets a stub. In a rebuild an absent
    /// parent is only late and no spend is late, so no stub is needed; the same holds for a parent that a node lost.
    pub(super) async fn settle_slots(
        &self,
        ctx: EventContext,
        inputs: &[(Outpoint, HeldSlot)],
        may_be_absent: impl Fn(Txid) -> bool,
    ) -> Result<(), SequencerError> {
        let rows = inputs
            .iter()
            .map(|(outpoint, held)| ctx.row(Phase::Apply, self.locate(*outpoint).0, Sequenced::Settle(vec![*held])));
        let rows: Vec<Row> = rows.collect();
        let outcomes = self.apply_to_slots(rows.clone()).await?;
        if ctx.mode == DecisionMode::Replay {
            return Ok(());
        }
        let absent = self.find_absent_parents(&rows, &outcomes, &may_be_absent).await?;
        // The master appeared after its page was read as absent, so the page exists by now, if there is one.
        let appeared = |(row, outcome): &(&Row, &Outcome)| {
            **outcome == Outcome::AlreadyApplied(Reply::None)
                && matches!(row.key, Key::Page(parent, 1..) if may_be_absent(parent) && !absent.contains(&parent))
        };
        let appeared: Vec<Row> = rows.iter().zip(&outcomes).filter(appeared).map(|(row, _)| row.clone()).collect();
        self.apply_to_slots(appeared).await?;
        if absent.is_empty() {
            return Ok(());
        }
        if self.wait_for("the nodes of the store", self.parts.nodes.has_restarted()).await? {
            return Err(SequencerError::NodeRestarted);
        }
        let again: Vec<Row> = rows
            .into_iter()
            .filter(|row| matches!(row.key, Key::Page(parent, _) if absent.contains(&parent)))
            .collect();
        let stub = |key| ctx.row(Phase::Apply, key, Sequenced::MarkContested);
        let masters = absent.iter().copied().map(Key::master).map(stub).collect();
        self.apply(masters).await?;
        // A page beyond the first keeps its marks in a stub of its own while the number of pages is unknown.
        let mut stubs = BTreeSet::new();
        for absent in absent.chunks(BODIES_AT_ONCE) {
            let masters = self.read_existing_masters(absent).await?;
            stubs.extend(masters.iter().filter(|master| master.utxos.is_none()).map(|master| master.txid));
        }
        let beyond: BTreeSet<Key> = again
            .iter()
            .filter(|row| matches!(row.key, Key::Page(parent, 1..) if stubs.contains(&parent)))
            .map(|row| row.key)
            .collect();
        self.apply(beyond.into_iter().map(stub).collect()).await?;
        self.apply_to_slots(again).await?;
        Ok(())
    }

    /// Returns the absent parents, as the outcomes of settling show them: another page can exist before its master.
    async fn find_absent_parents(
        &self,
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
        let no_slots = |master: &Option<Arc<Page>>| {
            master.as_ref().is_none_or(|page| page.utxos.is_none() && page.pruned.is_none())
        };
        for unknown in distinct(unknown).chunks(BODIES_AT_ONCE) {
            let masters = self.masters(unknown).await?;
            absent
                .extend(unknown.iter().zip(masters).filter(|(_, master)| no_slots(master)).map(|(parent, _)| *parent));
        }
        Ok(distinct(absent))
    }

    /// Settles the slots of a conflicting transaction whose contest was passed over: its event may have taken slots
    /// before it found its own record contested.
    async fn settle_passed_over(
        &self,
        ctx: EventContext,
        applied_again: bool,
        txid: Txid,
    ) -> Result<(), SequencerError> {
        if let Some(page) = self.master(txid).await?
            && matches!(page.state(), TxState::Conflicting(Verdict::Conflicting(_)))
        {
            self.settle_transactions(ctx, applied_again, &[page]).await?;
        }
        Ok(())
    }

    /// Adds conflicting children to `conflictingCs` of their parents, or removes them; `children` are pairs of a parent
    /// and a child. With `applied_again` a parent that a node lost is waited for: it comes again without
    /// `conflictingCs`, and its children would get no second chance.
    async fn update_conflicting_children(
        &self,
        ctx: EventContext,
        applied_again: bool,
        children: impl Iterator<Item = (Txid, Txid)>,
        conflicting: bool,
    ) -> Result<(), SequencerError> {
        let mut open: BTreeSet<(Txid, Txid)> = children.collect();
        let mut waiting = ReportedWait::new(
            &self.parts,
            format!("chain offset {}: the parents of conflicting transactions", ctx.offset),
        );
        loop {
            let rows = open.iter().map(|(parent, child)| {
                let operation = if conflicting {
                    Sequenced::AddConflictingChild(*child)
                } else {
                    Sequenced::RemoveConflictingChild(*child)
                };
                ctx.row(Phase::Apply, Key::master(*parent), operation)
            });
            let outcomes = self.apply(rows.collect()).await?;
            let mut absent = outcomes.iter().map(|outcome| *outcome == Outcome::Rejected(Rejection::NotFound));
            open.retain(|_| absent.next() == Some(true));
            if open.is_empty() || !applied_again || self.parent_grace.is_inactive() {
                return Ok(());
            }
            waiting.pause_for(&format_missing(open.iter().map(|(parent, _)| *parent))).await;
        }
    }

    /// Publishes `Reconsider` for the conflicting transactions that name a settled slot without a holder, or an output
    /// of the accepted transaction. A `Reconsider` that fails triggers nothing, so that the chances end.
    pub(super) async fn publish_second_chances(
        &self,
        ctx: EventContext,
        settled: &BTreeSet<Outpoint>,
        accepted: Option<Txid>,
        descendants: &Descendants,
    ) -> Result<(), SequencerError> {
        if ctx.mode == DecisionMode::Replay || (settled.is_empty() && accepted.is_none()) {
            return Ok(());
        }
        let parents = distinct(settled.iter().map(|outpoint| outpoint.txid).chain(accepted));
        let mut chances = BTreeSet::new();
        for parents in parents.chunks(BODIES_AT_ONCE) {
            let parents = self.read_existing_masters(parents).await?;
            let slots = parents.iter().flat_map(|parent| settled.range(output_range(parent.txid))).copied();
            let slots = self.read_slots(&parents, slots).await?;
            for parent in parents {
                let own = slots.range(output_range(parent.txid));
                let freed: BTreeSet<Outpoint> =
                    own.filter(|(_, slot)| is_free(&parent, slot)).map(|(outpoint, _)| *outpoint).collect();
                // A loser against a live rival has freed no slot: a parent with many outputs may have as many
                // conflicting children.
                if freed.is_empty() && accepted != Some(parent.txid) {
                    continue;
                }
                let mut children = list_conflicting_children(&parent);
                children.retain(|child| !descendants.contains(child));
                let freed = &freed;
                let deserves =
                    |child: Arc<Page>| async move { self.deserves_second_chance(&child, freed, accepted).await };
                chances.extend(self.filter_deserving(&children, deserves).await?);
            }
        }
        self.publish_reconsider(ctx, &chances.into_iter().collect::<Vec<_>>()).await
    }

    /// Returns the transactions whose bodies satisfy `deserves`.
    async fn filter_deserving<F>(
        &self,
        txids: &[Txid],
        deserves: impl Fn(Arc<Page>) -> F,
    ) -> Result<Vec<Txid>, SequencerError>
    where
        F: Future<Output = Result<bool, SequencerError>>,
    {
        let mut found = Vec::new();
        for chunk in txids.chunks(BODIES_AT_ONCE) {
            for page in self.read_existing_masters(chunk).await? {
                if deserves(page.clone()).await? {
                    found.push(page.txid);
                }
            }
        }
        Ok(found)
    }

    /// Publishes a `Reconsider` for a child whose missing parent became live between the decision and its application:
    /// no verdict on that parent would give the chance. A parent that comes after its child's slots were settled finds
    /// a stub and is contested, and its verdict gives the chance.
    async fn reconsider_if_parent_is_live(
        &self,
        ctx: EventContext,
        child: Txid,
        parent: Txid,
    ) -> Result<(), SequencerError> {
        if ctx.mode == DecisionMode::Replay {
            return Ok(());
        }
        let appeared = self.master(parent).await?.is_some_and(|parent| parent.state() == TxState::Live);
        if appeared { self.publish_reconsider(ctx, &[child]).await } else { Ok(()) }
    }

    /// Publishes a `Reconsider` for a conflicting transaction whose contest was passed over, unless the reason of its
    /// verdict still bars it.
    ///
    /// A transaction can become conflicting before its event has stored a body. Then no parent lists it in
    /// `conflictingCs`, and the parent may have become live again before the contest is handled. From this point on the
    /// parents list it.
    pub(super) async fn reconsider_unless_barred(&self, ctx: EventContext, txid: Txid) -> Result<(), SequencerError> {
        if ctx.mode == DecisionMode::Replay {
            return Ok(());
        }
        let Some(page) = self.master(txid).await? else { return Ok(()) };
        if self.is_barred_by_verdict(&page).await? {
            return Ok(());
        }
        self.publish_reconsider(ctx, &[txid]).await
    }

    /// Publishes second chances for the children of `parents` after a bar was lifted: a lock by a command or by a block
    /// that lists the parent, a freeze of `output`, or the immaturity of a coinbase that counts by an earlier block
    /// again.
    ///
    /// A verdict names only the first bar of its transaction, and a chance that fails changes no verdict. So the chance
    /// is given to each child that its named bar does not bar any more: the lifted bar may have been the last. The end
    /// of its named bar gives the chance to every other child.
    pub(super) async fn publish_chances_after_lifting(
        &self,
        ctx: EventContext,
        parents: &[Txid],
        output: Option<Outpoint>,
    ) -> Result<(), SequencerError> {
        if ctx.mode == DecisionMode::Replay || parents.is_empty() {
            return Ok(());
        }
        let deserves = |child: Arc<Page>| async move {
            let spends_output = match output {
                Some(output) => self.read_inputs(&child).await?.iter().any(|(outpoint, _)| *outpoint == output),
                None => true,
            };
            Ok(spends_output && !self.is_barred_by_verdict(&child).await?)
        };
        let mut chances = BTreeSet::new();
        for parent in self.read_existing_masters(parents).await? {
            chances.extend(self.filter_deserving(&list_conflicting_children(&parent), deserves).await?);
        }
        self.publish_reconsider(ctx, &chances.into_iter().collect::<Vec<_>>()).await
    }

    /// Returns the output that an input of a stored transaction spends.
    async fn find_outpoint(&self, page: &Page, input: u32) -> Result<Option<Outpoint>, SequencerError> {
        let inputs = self.read_inputs(page).await?;
        Ok(inputs.into_iter().find(|(_, slot)| slot.input == input).map(|(outpoint, _)| outpoint))
    }

    /// Returns whether the reason in the verdict on a transaction still bars it, or bars it for good.
    async fn is_barred_by_verdict(&self, child: &Page) -> Result<bool, SequencerError> {
        let TxState::Conflicting(Verdict::Conflicting(reason)) = child.state() else { return Ok(true) };
        match reason {
            Reason::Locked { parent } | Reason::MissingParent { parent } | Reason::ConflictingParent { parent } => {
                let parent = self.master(parent).await?;
                Ok(parent.is_none_or(|parent| parent.state() != TxState::Live || parent.locked))
            }
            Reason::DoubleSpend { input, .. } | Reason::Frozen { input } | Reason::NoSuchOutput { input } => {
                let Some(outpoint) = self.find_outpoint(child, input).await? else { return Ok(true) };
                let parents = self.read_existing_masters(&[outpoint.txid]).await?;
                let slots = self.read_slots(&parents, [outpoint].into_iter()).await?;
                let free =
                    parents.first().zip(slots.get(&outpoint)).is_some_and(|(parent, slot)| is_free(parent, slot));
                Ok(!free)
            }
            // A coinbase may count by an earlier block again.
            Reason::Immature { input } => {
                let Some(outpoint) = self.find_outpoint(child, input).await? else { return Ok(true) };
                let height = child.unmined_since().unwrap_or(u32::MAX);
                let parent = self.master(outpoint.txid).await?;
                Ok(parent.is_none_or(|parent| parent.spending_height.is_some_and(|from| from > height)))
            }
            // The bar ends with the height, without an event of its own.
            Reason::NotYetSpendable { .. } => Ok(false),
            _ => Ok(true),
        }
    }

    /// Returns whether a child that is not refused for good spends one of these outputs, or an output of the accepted
    /// transaction.
    async fn deserves_second_chance(
        &self,
        child: &Page,
        freed: &BTreeSet<Outpoint>,
        accepted: Option<Txid>,
    ) -> Result<bool, SequencerError> {
        let refused_for_good = match child.state() {
            TxState::Conflicting(Verdict::Conflicting(reason)) => reason.is_permanent(),
            _ => true,
        };
        let is_freed = |outpoint: &Outpoint| freed.contains(outpoint) || accepted == Some(outpoint.txid);
        Ok(!refused_for_good && self.read_inputs(child).await?.iter().any(|(outpoint, _)| is_freed(outpoint)))
    }

    pub(super) async fn publish_reconsider(&self, ctx: EventContext, txids: &[Txid]) -> Result<(), SequencerError> {
        let messages = txids.iter().map(|txid| {
            let mut cause = blake3::Hasher::new();
            cause.update(&ctx.offset.to_le_bytes()).update(&txid.0);
            let mut id = [0; 16];
            id.copy_from_slice(&cause.finalize().as_bytes()[..16]);
            let event = Event::Command(Command { id, action: CommandAction::Reconsider { txid: *txid } });
            self.message(&self.parts.topics.chain, Some(0), Bytes::copy_from_slice(&txid.0), event.encode().into())
        });
        self.produce(messages.collect()).await
    }

    async fn publish_conflicting_outcomes(
        &self,
        ctx: EventContext,
        steps: &mut Steps<'_>,
        descendants: &Descendants,
    ) -> Result<(), SequencerError> {
        for number in 0..descendants.chunks() {
            let members = self.members(ctx, steps, descendants, number);
            let outcome = |loser: &LosingTx| (loser.txid, OutcomeKind::Conflicting { reason: loser.reason });
            for members in members.chunks(OUTCOME_BATCH) {
                self.publish_outcomes(ctx, members.iter().map(outcome).collect()).await?;
            }
        }
        Ok(())
    }
}

/// Returns the slots that these inputs may hold. The result has no output contents, which would keep the bodies in
/// memory.
pub(super) fn list_held_slots(txid: Txid, inputs: &[(Outpoint, SpendSlot)]) -> Vec<(Outpoint, HeldSlot)> {
    let held = |slot: &SpendSlot| HeldSlot { offset: slot.offset, holder: SpendingData { txid, input: slot.input } };
    inputs.iter().map(|(outpoint, slot)| (*outpoint, held(slot))).collect()
}

fn list_conflicting_children(parent: &Page) -> Vec<Txid> {
    parent.master.iter().flat_map(|master| master.conflicting_children.iter().copied()).collect()
}

fn output_range(txid: Txid) -> RangeInclusive<Outpoint> {
    Outpoint { txid, vout: 0 }..=Outpoint { txid, vout: u32::MAX }
}

/// Returns whether a slot has no holder, or only a conflicting one: a loser's own event may take the slot again before
/// it finds its record contested.
fn is_free(master: &Page, slot: &Slot) -> bool {
    let is_conflicting =
        |txid: &Txid| master.master.as_ref().is_some_and(|master| master.conflicting_children.contains(txid));
    match slot {
        Slot::Unspent(_) => true,
        Slot::Spent(_, holder) => is_conflicting(&holder.txid),
        Slot::Nil | Slot::Frozen(_) => false,
    }
}
