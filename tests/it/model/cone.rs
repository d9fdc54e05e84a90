//! A transaction that falls, everything that descends from it, and who gets a second chance by that.

use std::collections::BTreeSet;

use utxo_store::{
    event::{ConeMember, DecisionBody, OutcomeKind},
    record::Reason,
    tx::{Outpoint, Txid},
};

use super::{
    history::{History, Standing},
    replay::Replay,
};

impl Replay<'_> {
    /// They fall, and what descends from them: real descendants only, and all that are live.
    pub fn fell(&mut self, height: u32, roots: Vec<(Txid, Reason)>, winner: Option<Txid>) -> Vec<(Txid, bool)> {
        let before = self.history.clone();
        let mut fallen: BTreeSet<Txid> = winner.into_iter().collect();
        let mut fell = Vec::new();
        for (txid, reason) in roots {
            fallen.insert(txid);
            fell.push((txid, before.is_live(&txid)));
            self.lose(txid, reason, height);
        }
        while let Some(body) = self.step() {
            let DecisionBody::Cone { members, height: at } = body else {
                self.complain(format!("{body:?} stands inside a cone"));
                break;
            };
            if at != height {
                self.complain(format!("a cone is at height {at}, its verdict at {height}"));
            }
            if members.is_empty() {
                self.check_cone(&before, &fallen, winner);
                return fell;
            }
            for member in members {
                if self.check_member(&before, &fallen, &member) && fallen.insert(member.txid) {
                    if member.live {
                        self.history.pin(&member.txid);
                    }
                    fell.push((member.txid, member.live));
                    self.lose(member.txid, Reason::ConflictingParent { parent: member.parent }, height);
                }
            }
        }
        self.complain("a cone has no end");
        fell
    }

    pub fn check_member(&mut self, before: &History, fallen: &BTreeSet<Txid>, member: &ConeMember) -> bool {
        let ConeMember { txid, parent, live } = member;
        let mut wrong = |what: &str| self.complain(format!("the cone names {txid} under {parent}, {what}"));
        if !fallen.contains(parent) {
            wrong("which did not fall");
        }
        if !before.inputs(txid).iter().any(|input| input.txid == *parent) {
            wrong("which it does not spend");
        }
        if *live != before.is_live(txid) {
            wrong(if *live { "as live, and it was not" } else { "as not live, and it was" });
        }
        if before.is_mined(txid) {
            wrong("and it is mined");
        }
        true
    }

    pub fn check_cone(&mut self, before: &History, fallen: &BTreeSet<Txid>, winner: Option<Txid>) {
        let certain = |txid: &Txid| before.standing(txid) == Some(Standing::Live);
        let left: Vec<Txid> =
            before.fates.keys().filter(|txid| certain(txid) && !fallen.contains(txid)).copied().collect();
        for txid in left {
            let under = |input: &Outpoint| fallen.contains(&input.txid) && Some(input.txid) != winner;
            if before.inputs(&txid).iter().any(under) {
                self.complain(format!("the cone leaves out {txid}, which is live and descends from it"));
            }
        }
    }

    pub fn lose(&mut self, txid: Txid, reason: Reason, height: u32) {
        let fate = self.history.fate(&txid);
        (fate.standing, fate.accepted, fate.lost_at) = (Standing::Lost(reason), false, height);
        self.mentioned.insert(txid);
        // Settling contests parents that are not there: they come contested when they come.
        self.mentioned.extend(self.history.tx(&txid).map(|tx| tx.parents()).into_iter().flatten());
        self.ever_lost.insert(txid);
        self.tell(txid, OutcomeKind::Conflicting { reason });
        self.touch_inputs(&txid);
    }

    pub fn tell(&mut self, txid: Txid, kind: OutcomeKind) {
        let outcome = (txid, self.at, kind);
        if !self.told.contains(&outcome) {
            self.told.push(outcome);
        }
    }

    pub fn touch_inputs(&mut self, txid: &Txid) {
        for input in self.history.inputs(txid) {
            self.touched.entry(input).or_insert(self.at);
        }
    }

    /// Second chances: conflicting transactions that name what was freed, or what was accepted.
    pub fn after_verdict(&mut self, accepted: Option<Txid>, fell: &[(Txid, bool)]) {
        let won: BTreeSet<Outpoint> = accepted.iter().flat_map(|txid| self.history.inputs(txid)).collect();
        let live = fell.iter().filter(|(_, live)| *live);
        let fallen: BTreeSet<Txid> = fell.iter().map(|(txid, _)| *txid).collect();
        // An output of what has fallen is for nobody.
        let free = |outpoint: &Outpoint| !won.contains(outpoint) && !fallen.contains(&outpoint.txid);
        let freed: BTreeSet<Outpoint> = live.flat_map(|(txid, _)| self.history.inputs(txid)).filter(free).collect();
        let parents = freed.iter().map(|outpoint| outpoint.txid).chain(accepted).collect::<BTreeSet<_>>();
        for txid in parents.iter().filter_map(|parent| self.noted.get(parent)).flatten().collect::<BTreeSet<_>>() {
            let lost = self.history.standing(txid);
            let open = matches!(lost, Some(Standing::Lost(reason)) if !matches!(reason, Reason::Immature { .. } | Reason::Command));
            let names = |input: &Outpoint| freed.contains(input) || Some(input.txid) == accepted;
            if open && !fallen.contains(txid) && self.history.inputs(txid).iter().any(names) {
                self.chances.push((*txid, self.at));
            }
        }
        // A member that was not live may have been a stub: its parents hear of it with its own contest.
        let whole = fell.iter().zip(0..).filter(|((_, live), place)| *live || *place == 0);
        let whole: Vec<Txid> = whole.map(|((txid, _), _)| *txid).collect();
        self.stored.extend(whole.iter().copied());
        whole.iter().for_each(|txid| self.note(txid));
    }
}
