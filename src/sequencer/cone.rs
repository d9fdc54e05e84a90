//! Who falls by one verdict: its losers, and what descends from them.
//!
//! A cone may be of a million. Who is in it is kept (some fifty bytes each), besides its decisions: everything else is taken from
//! those, a chunk at a time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{
    engine::Row,
    event::{ConeMember, DecisionBody},
    record::{Key, Page, Phase, Reason, Sequenced, Slot},
    sequencer::{
        Stop,
        contest::{Named, only_live},
        handler::{At, BODIES_AT_ONCE, Handler},
        steps::{Making, Steps},
    },
    tx::Txid,
};

/// A transaction that becomes conflicting, and why.
#[derive(Debug, Clone, Copy)]
pub(super) struct Loser {
    pub(super) txid: Txid,
    pub(super) reason: Reason,
    /// Until then.
    pub(super) was_live: bool,
}

/// All who fall by one verdict.
#[derive(Debug, Default)]
pub(super) struct Cone {
    losers: Vec<Loser>,
    /// To whom they lose, if to anybody.
    winner: Option<Txid>,
    /// The decisions that name who descends from them, a chunk each. Parts of another decision, which are void, may lie between.
    steps: Vec<u32>,
    /// All of them.
    fell: BTreeSet<Txid>,
}

impl Cone {
    fn of(losers: Vec<Loser>, winner: Option<Txid>) -> Self {
        let fell = losers.iter().map(|loser| loser.txid).collect();
        Cone { losers, winner, steps: Vec::new(), fell }
    }

    /// Whether a transaction is one of them.
    pub fn contains(&self, txid: &Txid) -> bool {
        self.fell.contains(txid)
    }

    /// The same, or it is the winner, which may spend what they make.
    fn knows(&self, txid: &Txid) -> bool {
        self.contains(txid) || self.winner == Some(*txid)
    }

    /// How many chunks there are of it: the losers, and each that was decided on.
    pub fn chunks(&self) -> usize {
        1 + self.steps.len()
    }

    fn chunk(&self, number: usize, steps: &Steps<'_>) -> Vec<Loser> {
        match number.checked_sub(1) {
            None => self.losers.clone(),
            Some(number) => match self.steps.get(number).and_then(|step| steps.taken(*step)) {
                Some(DecisionBody::Cone { members, .. }) => members.iter().map(Loser::by_parent).collect(),
                _ => unreachable!("a step of a cone that was walked"),
            },
        }
    }
}

impl Loser {
    fn by_parent(member: &ConeMember) -> Self {
        Loser { txid: member.txid, reason: Reason::ConflictingParent { parent: member.parent }, was_live: member.live }
    }
}

impl Handler {
    /// Flags losers and their cones, level by level: flag the pages, *then* read their slots; the spenders found are
    /// decided on before they are flagged in turn. Ends with the decision that closes the cone.
    pub(super) async fn fell(
        &self,
        at: At,
        steps: &mut Steps<'_>,
        applied_again: bool,
        height: u32,
        losers: Vec<Loser>,
        winner: Option<Txid>,
    ) -> Result<Cone, Stop> {
        let mut unread: VecDeque<Txid> = losers.iter().map(|loser| loser.txid).collect();
        let mut found: VecDeque<ConeMember> = VecDeque::new();
        self.flag(at, height, &losers).await?;
        let mut cone = Cone::of(losers, winner);
        loop {
            let body = steps.decide(Box::pin(self.next_chunk(at, height, &cone, &mut unread, &mut found))).await?;
            let DecisionBody::Cone { members, .. } = body else {
                return Err(Stop::Halt(format!("chain offset {}: {body:?} stands inside a cone", at.offset)));
            };
            if members.is_empty() {
                self.after_cone(at, applied_again, steps, &cone).await?;
                return Ok(cone);
            }
            cone.steps.extend(steps.last_taken());
            cone.fell.extend(members.iter().map(|member| member.txid));
            found.retain(|member| !cone.knows(&member.txid));
            let chunk: Vec<Loser> = members.iter().map(Loser::by_parent).collect();
            self.flag(at, height, &chunk).await?;
            unread.extend(chunk.iter().map(|loser| loser.txid));
        }
    }

    /// The next spenders of what has been flagged; none: the cone is complete.
    async fn next_chunk(
        &self,
        at: At,
        height: u32,
        cone: &Cone,
        unread: &mut VecDeque<Txid>,
        found: &mut VecDeque<ConeMember>,
    ) -> Result<DecisionBody, Stop> {
        let size = self.parts.settings.cone_chunk.max(1);
        while found.is_empty() && !unread.is_empty() {
            let parents: Vec<Txid> = unread.drain(..unread.len().min(size)).collect();
            let spenders = self.spenders_of(&parents, cone).await?;
            // Contested first: so that one without a record cannot become live behind our back.
            let named = self.contest_holders(at, Phase::Apply, spenders.keys().copied().collect()).await?;
            // A partial one spends nothing, and so descends from nobody.
            let descends = |txid: &Txid| named.get(txid) != Some(&Named::Partial);
            found.extend(spenders.into_iter().filter(|(txid, _)| descends(txid)).map(|(txid, parent)| ConeMember {
                txid,
                parent,
                live: named.get(&txid) == Some(&Named::Live),
            }));
        }
        // They stay until the chunk that names them counts: it may have been cut short, or be somebody else's.
        let members = found.iter().take(size).cloned().collect();
        Ok(DecisionBody::Cone { members, height })
    }

    /// Who spends outputs of these transactions and is not known yet, with one parent each.
    async fn spenders_of(&self, txids: &[Txid], cone: &Cone) -> Result<BTreeMap<Txid, Txid>, Stop> {
        let mut spenders = BTreeMap::new();
        for txids in txids.chunks(BODIES_AT_ONCE) {
            for master in self.whole_of(txids).await? {
                let note = |page: &Page| {
                    for spender in page.utxos.iter().flatten().filter_map(Slot::spender) {
                        if !cone.knows(&spender.txid) {
                            spenders.entry(spender.txid).or_insert(page.txid);
                        }
                    }
                };
                self.each_page(&master, note).await?;
            }
        }
        Ok(spenders)
    }

    async fn flag(&self, at: At, height: u32, losers: &[Loser]) -> Result<(), Stop> {
        let rows = losers.iter().filter(|loser| !self.ends_live(at, &loser.txid)).map(|loser| {
            let operation = Sequenced::MarkConflicting { reason: loser.reason, height };
            at.row(Phase::Apply, Key::master(loser.txid), operation)
        });
        let rows: Vec<Row> = rows.collect();
        let flagged: Vec<Txid> = losers.iter().map(|loser| loser.txid).collect();
        if rows.is_empty() {
            return Ok(());
        }
        self.apply_decided(at, rows).await?;
        for chunk in flagged.chunks(BODIES_AT_ONCE) {
            for master in self.whole_of(chunk).await? {
                self.flag_others(at, &master).await?;
            }
        }
        Ok(())
    }

    /// What is left to do once all members of a cone are flagged, and before their slots are settled.
    ///
    /// In a rebuild their bodies may still be on their way (each finds its own record contested then): without them
    /// nobody knows which slots they took. Where the cone is walked again after a node has forgotten, transactions that
    /// are not in it may have come to spend its outputs, while a member was live once more: they get their own turn.
    async fn after_cone(&self, at: At, applied_again: bool, steps: &mut Steps<'_>, cone: &Cone) -> Result<(), Stop> {
        let replaying = at.making == Making::Replaying;
        if !replaying && !applied_again {
            return Ok(());
        }
        for number in 0..cone.chunks() {
            let members = self.members(at, steps, cone, number);
            for members in members.chunks(BODIES_AT_ONCE) {
                let awaited = members.iter().filter(|loser| replaying || loser.was_live).map(|loser| loser.txid);
                self.wait_for_bodies(at, applied_again, &awaited.collect::<Vec<_>>()).await?;
            }
            // What was live claimed nothing that is wrong, whatever the event says by which it is stored now.
            for loser in members.iter().filter(|loser| loser.was_live) {
                self.adopt_proven(at, applied_again, loser.txid).await?;
            }
        }
        if replaying {
            return Ok(());
        }
        for number in 0..cone.chunks() {
            let txids: Vec<Txid> = self.members(at, steps, cone, number).iter().map(|loser| loser.txid).collect();
            let strangers = self.spenders_of(&txids, cone).await?;
            let live = self.contest_holders(at, Phase::Apply, strangers.into_keys().collect()).await?;
            self.publish_reconsider(at, &only_live(live)).await?;
        }
        Ok(())
    }

    /// The members in one of the [`chunks`](Cone::chunks) of a cone, but for those that end live: a rebuild goes there at once.
    pub(super) fn members(&self, at: At, steps: &Steps<'_>, cone: &Cone, number: usize) -> Vec<Loser> {
        let mut members = cone.chunk(number, steps);
        members.retain(|loser| !self.ends_live(at, &loser.txid));
        members
    }
}
