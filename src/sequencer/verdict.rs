//! Applies a verdict: has the losers and what descends from them fall, moves the slots, settles what is left behind, and
//! gives second chances.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    sync::Arc,
};

use bytes::Bytes;

use crate::{
    engine::Row,
    event::{Action, Command, DecidedInput, DecisionBody, Event, OutcomeKind},
    record::{
        HeldSlot, Key, Outcome, Page, Phase, Reason, Rejection, Reply, Respend, RespendChecks, RespendSlot, Sequenced,
        Slot, SpendSlot, SpendingData, TxState, Verdict,
    },
    sequencer::{
        Stop,
        cone::{Cone, Loser},
        contest::{Named, only_live},
        handler::{At, BODIES_AT_ONCE, Handler, Patience, distinct},
        steps::{Making, Steps},
        waiting::{Waiting, names},
    },
    tx::{Outpoint, Txid},
};

/// A transaction that becomes live, what it gets, and from whom.
struct Win<'a> {
    txid: Txid,
    height: u32,
    inputs: &'a [DecidedInput],
    losers: &'a [Txid],
    by_block: bool,
}

/// Slots that are settled at once: some megabytes of rows.
const SETTLED_AT_ONCE: usize = 10_000;
/// Outcomes that are on their way at once.
const TOLD_AT_ONCE: usize = 10_000;

impl Handler {
    /// Does what a verdict says, the last that was taken of `steps`. Every part is idempotent, so it can be done again from
    /// its beginning.
    pub async fn carry_out(&self, at: At, steps: &mut Steps<'_>, body: DecisionBody) -> Result<(), Stop> {
        // As of the verdict: its cone may have been decided on only in part when a node forgot.
        let applied_again = steps.is_applied_again();
        match body {
            DecisionBody::Accepted { txid, height, inputs, losers, by_block } => {
                let win = Win { txid, height, inputs: &inputs, losers: &losers, by_block };
                self.accept(at, steps, applied_again, win).await
            }
            DecisionBody::Conflicting { txid, reason, height, live } => {
                let loser = Loser { txid, reason, was_live: live };
                let cone = Box::pin(self.fell(at, steps, applied_again, height, vec![loser], None)).await?;
                let settled = self.settle(at, applied_again, steps, &cone).await?;
                self.second_chances(at, &settled, None, &cone).await?;
                if let Reason::MissingParent { parent } = reason {
                    self.chance_if_it_came(at, txid, parent).await?;
                }
                self.tell_conflicting(at, steps, &cone).await
            }
            DecisionBody::PassedOver { txid } => self.settle_passed_over(at, applied_again, txid).await,
            DecisionBody::Cone { .. }
            | DecisionBody::CommandDone { .. }
            | DecisionBody::Closed
            | DecisionBody::AcceptedPart { .. } => Err(Stop::Halt(format!(
                "chain offset {}: a decision stands where a verdict should: {body:?}",
                at.offset
            ))),
        }
    }

    async fn accept(&self, at: At, steps: &mut Steps<'_>, applied_again: bool, win: Win<'_>) -> Result<(), Stop> {
        let Win { txid, height, inputs, losers, by_block } = win;
        let wins = at.making == Making::Allowed || self.ends_live(at, &txid);
        let contested = self.contest_again(at, applied_again, txid, inputs, losers).await?;
        let input_of = |loser: &Txid| {
            inputs
                .iter()
                .filter_map(|input| input.holder)
                .find(|holder| holder.txid == *loser)
                .map_or(0, |held| held.input)
        };
        let reason_of = |loser: &Txid| Reason::DoubleSpend { input: input_of(loser), winner: txid };
        let lost = losers
            .iter()
            .map(|loser| Loser { txid: *loser, reason: reason_of(loser), was_live: true })
            .collect::<Vec<_>>();
        let cone = if lost.is_empty() {
            Cone::default()
        } else {
            Box::pin(self.fell(at, steps, applied_again, height, lost, Some(txid))).await?
        };
        let mined_at = by_block.then_some(height);
        if wins && let Some(page) = self.respend(at, applied_again, txid, inputs, mined_at).await? {
            // What is stored now may be by another event than what was decided on.
            if by_block || applied_again || at.making == Making::Replaying {
                self.adopt_proven(at, applied_again, txid).await?;
            }
            self.accept_others(at, &page).await?;
            self.apply_decided(at, vec![at.row(Phase::Apply, Key::master(txid), Sequenced::Accept)]).await?;
            let parents = inputs.iter().map(|input| (input.outpoint.txid, txid));
            self.note_children(at, applied_again, parents, false).await?;
        }
        let settled = self.settle(at, applied_again, steps, &cone).await?;
        self.publish_reconsider(at, &contested).await?;
        self.second_chances(at, &settled, Some(txid), &cone).await?;
        self.tell(at, vec![(txid, OutcomeKind::Accepted)]).await?;
        self.tell_conflicting(at, steps, &cone).await
    }

    /// Contests, before a decision is applied, what it takes slots from. They were contested when it was made, but not in
    /// this store: it may have forgotten, or be a rebuild, whose events come in another order. Answers those that have
    /// become live meanwhile: each gets its own turn.
    async fn contest_again(
        &self,
        at: At,
        applied_again: bool,
        winner: Txid,
        inputs: &[DecidedInput],
        losers: &[Txid],
    ) -> Result<Vec<Txid>, Stop> {
        if at.making == Making::Replaying {
            // Should it wait for what this very decision gives it: a stub makes it come.
            self.contest_holders(at, Phase::Apply, vec![winner]).await?;
        }
        if !applied_again {
            return Ok(Vec::new());
        }
        let holders = inputs.iter().filter_map(|input| input.holder).map(|holder| holder.txid);
        let holders = holders.filter(|holder| *holder != winner && !losers.contains(holder)).collect();
        let live = self.contest_holders(at, Phase::Apply, holders).await?;
        Ok(only_live(live))
    }

    /// The masters of those that are there.
    pub(super) async fn whole_of(&self, txids: &[Txid]) -> Result<Vec<Arc<Page>>, Stop> {
        Ok(self.masters(txids).await?.into_iter().flatten().collect())
    }

    /// Moves every slot of an accepted transaction to it, and answers its master; `None`: a later event has deleted it, and given its
    /// slots away. `mined_at`: the height of the block that lets it win.
    async fn respend(
        &self,
        at: At,
        applied_again: bool,
        txid: Txid,
        inputs: &[DecidedInput],
        mined_at: Option<u32>,
    ) -> Result<Option<Arc<Page>>, Stop> {
        let page = self.wait_for_bodies(at, applied_again, &[txid]).await?.pop();
        let Some(page) = page.filter(|page| page.pruned.is_none()) else { return Ok(None) };
        let slots: BTreeMap<Outpoint, _> = self.inputs_of(&page).await?.into_iter().collect();
        let mut open: Vec<DecidedInput> = inputs.to_vec();
        let mut waits = Vec::new();
        let mut mended = BTreeSet::new();
        let patience = Patience::new(applied_again);
        let mut waiting = Waiting::new(&self.parts, format!("chain offset {}: the slots of {txid}", at.offset));
        while !open.is_empty() {
            let mut rows = Vec::new();
            for input in &open {
                let slot = slots.get(&input.outpoint).cloned().ok_or_else(|| {
                    Stop::Halt(format!("the decision on {txid} names {}, which it does not spend", input.outpoint))
                })?;
                let respend = Respend {
                    to: txid,
                    slots: vec![RespendSlot { slot, from: input.holder.filter(|holder| holder.txid != txid) }],
                    checks: RespendChecks::Decided,
                };
                rows.push(at.row(Phase::Apply, self.place(input.outpoint).0, Sequenced::Respend(respend)));
            }
            let outcomes = self.apply_to_slots(rows).await?;
            for (input, outcome) in open.drain(..).zip(outcomes) {
                match outcome {
                    Outcome::Applied(_) | Outcome::AlreadyApplied(_) => {}
                    // A later event has seen to this slot already.
                    Outcome::Rejected(Rejection::StaleStamp(_)) => {}
                    // Nor can it be frozen but by one: whoever this is given to had fallen before that, and does so again.
                    Outcome::Rejected(Rejection::Frozen(_)) if applied_again => {}
                    Outcome::Rejected(Rejection::SpentBy(_, own)) if own.txid == txid => {
                        return Err(Stop::Halt(format!(
                            "the store is damaged: {} names input {} of {txid}, but its input {} spends it",
                            input.outpoint, own.input, input.input
                        )));
                    }
                    Outcome::Rejected(Rejection::SpentBy(_, stranger)) => {
                        waits.push(self.give_way(at, txid, &input, stranger).await?);
                    }
                    // A rebuild stores a contestant before its parents: they are on their way.
                    Outcome::Rejected(Rejection::NotFound | Rejection::Creating | Rejection::Conflicting(_)) => {
                        waits.push(input);
                    }
                    // The same block lists the parent, at the other side of Genesis than its event said, and has yet to
                    // set it mined: decisions that are in the log are carried out first.
                    Outcome::Rejected(Rejection::NoSuchOutput(_))
                        if mined_at.is_some() && mended.insert(input.outpoint) =>
                    {
                        if let Some(height) = mined_at {
                            Box::pin(self.add_slots_of(at, input.outpoint.txid, height)).await?;
                        }
                        waits.push(input);
                    }
                    Outcome::Rejected(rejection) => {
                        return Err(Stop::Halt(format!(
                            "the decision that {txid} gets {} cannot be applied: {rejection:?}",
                            input.outpoint
                        )));
                    }
                }
            }
            open = std::mem::take(&mut waits);
            if !open.is_empty() {
                if patience.is_over() {
                    self.call_for(at, distinct(open.iter().map(|input| input.outpoint.txid))).await?;
                }
                waiting.look_again(&names(open.iter().map(|input| input.outpoint))).await;
            }
        }
        Ok(Some(page))
    }

    /// A stranger holds a slot that a decision gives away: a node forgot that it had been taken. The stranger is
    /// contested; where it is live already, a contest of the winner would find them both, so the slot moves and the
    /// stranger gets its own turn.
    async fn give_way(
        &self,
        at: At,
        txid: Txid,
        input: &DecidedInput,
        stranger: SpendingData,
    ) -> Result<DecidedInput, Stop> {
        tracing::warn!(%txid, outpoint = %input.outpoint, stranger = %stranger.txid, "a decided slot was taken by a stranger");
        let live = self.contest_holders(at, Phase::Apply, vec![stranger.txid]).await?;
        if live.get(&stranger.txid) == Some(&Named::Live) && at.making == Making::Allowed {
            self.publish_reconsider(at, &[stranger.txid]).await?;
        }
        Ok(DecidedInput { holder: Some(stranger), ..input.clone() })
    }

    /// Settles every slot of a cone, and names its members to their parents. Answers which slots those are, but for those of what
    /// fell itself, which nobody can take: whether this very call has freed them is not to be known, since a write whose reply was
    /// lost is done again.
    async fn settle(
        &self,
        at: At,
        applied_again: bool,
        steps: &mut Steps<'_>,
        cone: &Cone,
    ) -> Result<BTreeSet<Outpoint>, Stop> {
        let mut settled = BTreeSet::new();
        for number in 0..cone.chunks() {
            let members = self.members(at, steps, cone, number);
            for members in members.chunks(BODIES_AT_ONCE) {
                let txids: Vec<Txid> = members.iter().map(|loser| loser.txid).collect();
                let held = self.settle_all(at, applied_again, &self.whole_of(&txids).await?).await?;
                let outpoints = held.into_iter().map(|(outpoint, _)| outpoint);
                settled.extend(outpoints.filter(|outpoint| !cone.contains(&outpoint.txid)));
            }
        }
        Ok(settled)
    }

    /// Settles every slot of these transactions, and names them to their parents. Answers which slots those are.
    pub(super) async fn settle_all(
        &self,
        at: At,
        applied_again: bool,
        pages: &[Arc<Page>],
    ) -> Result<Vec<(Outpoint, HeldSlot)>, Stop> {
        let mut held = Vec::new();
        for page in pages {
            // One that was stored after it had fallen has pages that nobody has flagged.
            self.flag_others(at, page).await?;
            held.extend(held_by(page.txid, &self.inputs_of(page).await?));
        }
        // Who is not there while a decision is applied again to a store that forgets was there when it was made, and comes
        // again: but for those that were missing by verdict.
        let missing: BTreeSet<Txid> = pages
            .iter()
            .filter_map(|page| match page.state() {
                TxState::Conflicting(Verdict::Conflicting(Reason::MissingParent { parent })) => Some(parent),
                _ => None,
            })
            .collect();
        let forgotten = applied_again && self.parts.nodes.may_forget();
        // Those of one record go together, or they would be in each other's way.
        held.sort_unstable_by_key(|(outpoint, _)| *outpoint);
        for held in held.chunks(SETTLED_AT_ONCE) {
            self.settle_slots(at, held, |parent| !forgotten || missing.contains(&parent)).await?;
            let children = held.iter().map(|(outpoint, held)| (outpoint.txid, held.holder.txid));
            self.note_children(at, applied_again, children, true).await?;
        }
        Ok(held)
    }

    /// The slots of a parent that is not there are settled on a stub: a spend that is still on its way must not land on them
    /// should the parent come after all. In a rebuild a parent that is not there is only late, and nothing is on its way;
    /// the same goes for one that a node has forgotten.
    pub(super) async fn settle_slots(
        &self,
        at: At,
        inputs: &[(Outpoint, HeldSlot)],
        may_be_absent: impl Fn(Txid) -> bool,
    ) -> Result<(), Stop> {
        let rows = inputs
            .iter()
            .map(|(outpoint, held)| at.row(Phase::Apply, self.place(*outpoint).0, Sequenced::Settle(vec![*held])));
        let rows: Vec<Row> = rows.collect();
        let outcomes = self.apply_to_slots(rows.clone()).await?;
        if at.making == Making::Replaying {
            return Ok(());
        }
        let absent = self.absent_parents(&rows, &outcomes, &may_be_absent).await?;
        // Its master came after its page had been looked for: so by now the page has come, too, if there is one.
        let came = |(row, outcome): &(&Row, &Outcome)| {
            **outcome == Outcome::AlreadyApplied(Reply::None)
                && matches!(row.key, Key::Page(parent, 1..) if may_be_absent(parent) && !absent.contains(&parent))
        };
        let came: Vec<Row> = rows.iter().zip(&outcomes).filter(came).map(|(row, _)| row.clone()).collect();
        self.apply_to_slots(came).await?;
        if absent.is_empty() {
            return Ok(());
        }
        if self.answer("the nodes of the store", self.parts.nodes.have_restarted()).await? {
            return Err(Stop::NodeRestarted);
        }
        let again: Vec<Row> = rows
            .into_iter()
            .filter(|row| matches!(row.key, Key::Page(parent, _) if absent.contains(&parent)))
            .collect();
        let stub = |key| at.row(Phase::Apply, key, Sequenced::MarkContested);
        let masters = absent.iter().copied().map(Key::master).map(stub).collect();
        self.apply(masters).await?;
        // A page beyond the first has a place of its own for its marks, as long as it is not known which pages there are.
        let mut stubs = BTreeSet::new();
        for absent in absent.chunks(BODIES_AT_ONCE) {
            let masters = self.whole_of(absent).await?;
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

    /// The parents that are not there, as settling their slots shows: a page besides the master may be there before it.
    async fn absent_parents(
        &self,
        rows: &[Row],
        outcomes: &[Outcome],
        may_be_absent: &impl Fn(Txid) -> bool,
    ) -> Result<Vec<Txid>, Stop> {
        let (mut absent, mut unknown) = (Vec::new(), Vec::new());
        for (row, outcome) in rows.iter().zip(outcomes) {
            match (row.key, outcome) {
                (Key::Page(parent, _), _) if !may_be_absent(parent) => {}
                (Key::Page(parent, 0), Outcome::AlreadyApplied(Reply::None)) => absent.push(parent),
                (Key::Page(parent, 1..), _) => unknown.push(parent),
                _ => {}
            }
        }
        // On a stub the marks of its other pages have yet to find their places.
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

    /// A contest that changes nothing still leaves a conflicting transaction without slots: its event may have taken some
    /// before it found its own record contested.
    async fn settle_passed_over(&self, at: At, applied_again: bool, txid: Txid) -> Result<(), Stop> {
        if let Some(page) = self.master(txid).await?
            && matches!(page.state(), TxState::Conflicting(Verdict::Conflicting(_)))
        {
            self.settle_all(at, applied_again, &[page]).await?;
        }
        Ok(())
    }

    /// Names conflicting children to their parents, or takes the names away; pairs of a parent and a child. A parent that a node forgot,
    /// `applied_again`, is waited for: it comes without the names of its children, and they would have no second chance.
    async fn note_children(
        &self,
        at: At,
        applied_again: bool,
        children: impl Iterator<Item = (Txid, Txid)>,
        conflicting: bool,
    ) -> Result<(), Stop> {
        let mut open: BTreeSet<(Txid, Txid)> = children.collect();
        let mut waiting =
            Waiting::new(&self.parts, format!("chain offset {}: parents that are told of their children", at.offset));
        loop {
            let rows = open.iter().map(|(parent, child)| {
                let operation = if conflicting {
                    Sequenced::AddConflictingChild(*child)
                } else {
                    Sequenced::RemoveConflictingChild(*child)
                };
                at.row(Phase::Apply, Key::master(*parent), operation)
            });
            let outcomes = self.apply(rows.collect()).await?;
            let mut absent = outcomes.iter().map(|outcome| *outcome == Outcome::Rejected(Rejection::NotFound));
            open.retain(|_| absent.next() == Some(true));
            if open.is_empty() || !applied_again || self.returning.is_spent() {
                return Ok(());
            }
            waiting.look_again(&names(open.iter().map(|(parent, _)| *parent))).await;
        }
    }

    /// Publishes `Reconsider` for the conflicting transactions that name a settled slot which nobody holds now, or what was
    /// accepted. One that fails triggers nothing, so this ends.
    pub(super) async fn second_chances(
        &self,
        at: At,
        settled: &BTreeSet<Outpoint>,
        accepted: Option<Txid>,
        cone: &Cone,
    ) -> Result<(), Stop> {
        if at.making == Making::Replaying || (settled.is_empty() && accepted.is_none()) {
            return Ok(());
        }
        let parents = distinct(settled.iter().map(|outpoint| outpoint.txid).chain(accepted));
        let mut chances = BTreeSet::new();
        for parents in parents.chunks(BODIES_AT_ONCE) {
            let parents = self.whole_of(parents).await?;
            let slots = parents.iter().flat_map(|parent| settled.range(outputs_of(parent.txid))).copied();
            let slots = self.slots_of(&parents, slots).await?;
            for parent in parents {
                let own = slots.range(outputs_of(parent.txid));
                let freed: BTreeSet<Outpoint> =
                    own.filter(|(_, slot)| is_free(&parent, slot)).map(|(outpoint, _)| *outpoint).collect();
                // Who lost to a live rival has freed nothing: a parent of many outputs may have as many children that lost.
                if freed.is_empty() && accepted != Some(parent.txid) {
                    continue;
                }
                let mut children = children_that_lost(&parent);
                children.retain(|child| !cone.contains(child));
                let freed = &freed;
                let deserves = |child: Arc<Page>| async move { self.deserves_a_chance(&child, freed, accepted).await };
                chances.extend(self.deserving(&children, deserves).await?);
            }
        }
        self.publish_reconsider(at, &chances.into_iter().collect::<Vec<_>>()).await
    }

    /// Those of these transactions that deserve a second chance, by their bodies.
    async fn deserving<F>(&self, txids: &[Txid], deserves: impl Fn(Arc<Page>) -> F) -> Result<Vec<Txid>, Stop>
    where
        F: Future<Output = Result<bool, Stop>>,
    {
        let mut found = Vec::new();
        for chunk in txids.chunks(BODIES_AT_ONCE) {
            for page in self.whole_of(chunk).await? {
                if deserves(page.clone()).await? {
                    found.push(page.txid);
                }
            }
        }
        Ok(found)
    }

    /// A missing parent that comes while its absence is decided on is live, and nobody decides on it. One that comes after its
    /// child's slots were settled finds a stub, and is contested: its verdict gives the second chance.
    async fn chance_if_it_came(&self, at: At, child: Txid, parent: Txid) -> Result<(), Stop> {
        if at.making == Making::Replaying {
            return Ok(());
        }
        let came = self.master(parent).await?.is_some_and(|parent| parent.state() == TxState::Live);
        if came { self.publish_reconsider(at, &[child]).await } else { Ok(()) }
    }

    /// Publishes a `Reconsider` for a conflicting transaction whose contest was passed over, unless the reason of its
    /// verdict still bars it. A transaction can fall before its event has stored a body: then no parent lists it in
    /// `conflictingCs`, and the parent may have become live again before the contest is handled. From here on the
    /// parents list it.
    pub(super) async fn reconsider_unless_barred(&self, at: At, txid: Txid) -> Result<(), Stop> {
        if at.making == Making::Replaying {
            return Ok(());
        }
        let Some(page) = self.master(txid).await? else { return Ok(()) };
        if self.is_barred_as_it_fell(&page).await? {
            return Ok(());
        }
        self.publish_reconsider(at, &[txid]).await
    }

    /// Second chances when these may have been unlocked, by a command or by a block that lists them, or are coinbases
    /// that count by an earlier block again, or this output of one of them is no longer frozen. A verdict names what
    /// barred its transaction first, and a chance that fails changes no verdict: so they are for whoever that bars no
    /// longer, since what bars them to the end may be this. Whom it still bars its own end gives a chance.
    pub(super) async fn chances_after_lifting(
        &self,
        at: At,
        parents: &[Txid],
        output: Option<Outpoint>,
    ) -> Result<(), Stop> {
        if at.making == Making::Replaying || parents.is_empty() {
            return Ok(());
        }
        let deserves = |child: Arc<Page>| async move {
            let names = match output {
                Some(output) => self.inputs_of(&child).await?.iter().any(|(outpoint, _)| *outpoint == output),
                None => true,
            };
            Ok(names && !self.is_barred_as_it_fell(&child).await?)
        };
        let mut chances = BTreeSet::new();
        for parent in self.whole_of(parents).await? {
            chances.extend(self.deserving(&children_that_lost(&parent), deserves).await?);
        }
        self.publish_reconsider(at, &chances.into_iter().collect::<Vec<_>>()).await
    }

    /// The output that an input of a stored transaction spends.
    async fn outpoint_of(&self, page: &Page, input: u32) -> Result<Option<Outpoint>, Stop> {
        let inputs = self.inputs_of(page).await?;
        Ok(inputs.into_iter().find(|(_, slot)| slot.input == input).map(|(outpoint, _)| outpoint))
    }

    /// Whether what the verdict on a transaction names bars it still, or for good.
    async fn is_barred_as_it_fell(&self, child: &Page) -> Result<bool, Stop> {
        let TxState::Conflicting(Verdict::Conflicting(reason)) = child.state() else { return Ok(true) };
        match reason {
            Reason::Locked { parent } | Reason::MissingParent { parent } | Reason::ConflictingParent { parent } => {
                let parent = self.master(parent).await?;
                Ok(parent.is_none_or(|parent| parent.state() != TxState::Live || parent.locked))
            }
            Reason::DoubleSpend { input, .. } | Reason::Frozen { input } | Reason::NoSuchOutput { input } => {
                let Some(outpoint) = self.outpoint_of(child, input).await? else { return Ok(true) };
                let parents = self.whole_of(&[outpoint.txid]).await?;
                let slots = self.slots_of(&parents, [outpoint].into_iter()).await?;
                let free =
                    parents.first().zip(slots.get(&outpoint)).is_some_and(|(parent, slot)| is_free(parent, slot));
                Ok(!free)
            }
            // A coinbase may count by an earlier block again.
            Reason::Immature { input } => {
                let Some(outpoint) = self.outpoint_of(child, input).await? else { return Ok(true) };
                let height = child.unmined_since().unwrap_or(u32::MAX);
                let parent = self.master(outpoint.txid).await?;
                Ok(parent.is_none_or(|parent| parent.spending_height.is_some_and(|from| from > height)))
            }
            // The bar passes with the height.
            Reason::NotYetSpendable { .. } => Ok(false),
            _ => Ok(true),
        }
    }

    /// Whether one that lost, and not for good, names one of these outputs, or any of this transaction.
    async fn deserves_a_chance(
        &self,
        child: &Page,
        freed: &BTreeSet<Outpoint>,
        accepted: Option<Txid>,
    ) -> Result<bool, Stop> {
        let refused_for_good = match child.state() {
            TxState::Conflicting(Verdict::Conflicting(reason)) => reason.is_for_good(),
            _ => true,
        };
        let names = |outpoint: &Outpoint| freed.contains(outpoint) || accepted == Some(outpoint.txid);
        Ok(!refused_for_good && self.inputs_of(child).await?.iter().any(|(outpoint, _)| names(outpoint)))
    }

    pub(super) async fn publish_reconsider(&self, at: At, txids: &[Txid]) -> Result<(), Stop> {
        let messages = txids.iter().map(|txid| {
            let mut cause = blake3::Hasher::new();
            cause.update(&at.offset.to_le_bytes()).update(&txid.0);
            let mut id = [0; 16];
            id.copy_from_slice(&cause.finalize().as_bytes()[..16]);
            let event = Event::Command(Command { id, action: Action::Reconsider { txid: *txid } });
            self.message(&self.parts.topics.chain, Some(0), Bytes::copy_from_slice(&txid.0), event.encode().into())
        });
        self.produce(messages.collect()).await
    }

    async fn tell_conflicting(&self, at: At, steps: &mut Steps<'_>, cone: &Cone) -> Result<(), Stop> {
        for number in 0..cone.chunks() {
            let members = self.members(at, steps, cone, number);
            let outcome = |loser: &Loser| (loser.txid, OutcomeKind::Conflicting { reason: loser.reason });
            for members in members.chunks(TOLD_AT_ONCE) {
                self.tell(at, members.iter().map(outcome).collect()).await?;
            }
        }
        Ok(())
    }
}

/// The slots that these inputs may hold, without what their outputs are: that would keep the bodies.
pub(super) fn held_by(txid: Txid, inputs: &[(Outpoint, SpendSlot)]) -> Vec<(Outpoint, HeldSlot)> {
    let held = |slot: &SpendSlot| HeldSlot { offset: slot.offset, holder: SpendingData { txid, input: slot.input } };
    inputs.iter().map(|(outpoint, slot)| (*outpoint, held(slot))).collect()
}

fn children_that_lost(parent: &Page) -> Vec<Txid> {
    parent.master.iter().flat_map(|master| master.conflicting_children.iter().copied()).collect()
}

fn outputs_of(txid: Txid) -> RangeInclusive<Outpoint> {
    Outpoint { txid, vout: 0 }..=Outpoint { txid, vout: u32::MAX }
}

/// Whether nobody holds this slot of a transaction, or only who is conflicting: a loser's own event may take it again before
/// it finds its record contested.
fn is_free(master: &Page, slot: &Slot) -> bool {
    let lost = |txid: &Txid| master.master.as_ref().is_some_and(|master| master.conflicting_children.contains(txid));
    match slot {
        Slot::Unspent(_) => true,
        Slot::Spent(_, holder) => lost(&holder.txid),
        Slot::Nil | Slot::Frozen(_) => false,
    }
}
