//! A transaction that falls, everything that descends from it, and who gets a second chance by that.

use std::collections::BTreeSet;

use utxo_store::{
    event::{ConeMember, DecisionBody, OutcomeKind},
    record::Reason,
    tx::{Outpoint, Txid},
};

use super::{history::Standing, replay::Replay};

impl Replay<'_> {
    /// They fall, and what descends from them: real descendants only, and all that are live.
    pub fn fell(&mut self, height: u32, roots: Vec<(Txid, Reason)>, winner: Option<Txid>) -> Vec<(Txid, bool)> {
        let mut fallen: BTreeSet<Txid> = winner.into_iter().chain(roots.iter().map(|(txid, _)| *txid)).collect();
        // All are looked at as everything stood before the first of them fell.
        let members = self.members(height, &mut fallen, winner);
        let mut fell = Vec::new();
        for (txid, _) in &roots {
            fell.push((*txid, self.history.is_live(txid)));
        }
        for (txid, reason) in roots {
            self.lose(txid, reason, height);
        }
        for ConeMember { txid, parent, live } in members {
            if live {
                self.history.pin(&txid);
            }
            fell.push((txid, live));
            self.lose(txid, Reason::ConflictingParent { parent }, height);
        }
        fell
    }

    /// The members that the decisions name, each once, checked; adds them to what has fallen.
    fn members(&mut self, height: u32, fallen: &mut BTreeSet<Txid>, winner: Option<Txid>) -> Vec<ConeMember> {
        let mut all = Vec::new();
        while let Some(body) = self.step() {
            let DecisionBody::Cone { members, height: at } = body else {
                self.complain(format!("{body:?} stands inside a cone"));
                break;
            };
            if at != height {
                self.complain(format!("a cone is at height {at}, its verdict at {height}"));
            }
            if members.is_empty() {
                self.check_cone(fallen, winner);
                return all;
            }
            for member in members {
                self.check_member(fallen, &member);
                if fallen.insert(member.txid) {
                    all.push(member);
                }
            }
        }
        self.complain("a cone has no end");
        all
    }

    fn check_member(&mut self, fallen: &BTreeSet<Txid>, member: &ConeMember) {
        let ConeMember { txid, parent, live } = member;
        let history = &self.history;
        let wrongs = [
            (!fallen.contains(parent), "which did not fall"),
            (!history.inputs(txid).iter().any(|input| input.txid == *parent), "which it does not spend"),
            (*live && !history.is_live(txid), "as live, and it was not"),
            (!*live && history.is_live(txid), "as not live, and it was"),
            (history.is_mined(txid), "and it is mined"),
        ];
        for (_, what) in wrongs.iter().filter(|(is_wrong, _)| *is_wrong) {
            self.complain(format!("the cone names {txid} under {parent}, {what}"));
        }
    }

    fn check_cone(&mut self, fallen: &BTreeSet<Txid>, winner: Option<Txid>) {
        let parents = fallen.iter().filter(|txid| Some(**txid) != winner);
        let children: BTreeSet<Txid> = parents.flat_map(|parent| self.history.facts.children(parent)).collect();
        for txid in children.difference(fallen) {
            if self.history.standing(txid) == Some(Standing::Live) {
                self.complain(format!("the cone leaves out {txid}, which is live and descends from it"));
            }
        }
    }

    pub fn lose(&mut self, txid: Txid, reason: Reason, height: u32) {
        let at = self.at;
        let fate = self.history.fate(&txid);
        (fate.standing, fate.accepted) = (Standing::Lost(reason), false);
        (fate.lost_at, fate.lost_by) = (height, at);
        self.mentioned.insert(txid);
        // Settling contests parents that are not there: they come contested when they come.
        self.mentioned.extend(self.history.tx(&txid).map(|tx| tx.parents()).into_iter().flatten());
        self.ever_lost.insert(txid);
        self.tell(txid, OutcomeKind::Conflicting { reason });
        self.touch_inputs(&txid);
    }

    pub fn tell(&mut self, txid: Txid, kind: OutcomeKind) {
        let kinds = self.told.entry((self.at, txid)).or_default();
        if !kinds.contains(&kind) {
            kinds.push(kind);
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
