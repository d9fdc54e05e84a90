//! Transactions that become conflicting, their descendants, and the second chances that follow.

use std::collections::BTreeSet;

use utxo_store::{
    event::{DecisionBody, Descendant, OutcomeKind},
    record::Reason,
    tx::{Outpoint, Txid},
};

use super::{history::TxStatus, replay::Replay};

impl Replay<'_> {
    /// Makes the roots and their descendants conflicting: real descendants only, and every live one.
    pub fn mark_descendants_conflicting(
        &mut self,
        height: u32,
        roots: Vec<(Txid, Reason)>,
        winners: &BTreeSet<Txid>,
    ) -> Vec<(Txid, bool)> {
        let mut affected: BTreeSet<Txid> = winners.iter().copied().chain(roots.iter().map(|(txid, _)| *txid)).collect();
        // All are checked against the state before the first became conflicting.
        let members = self.members(height, &mut affected, winners);
        let mut newly_conflicting = Vec::new();
        for (txid, _) in &roots {
            newly_conflicting.push((*txid, self.history.is_live(txid)));
        }
        for (txid, reason) in roots {
            self.mark_conflicting(txid, reason, height);
        }
        for Descendant { txid, parent, live } in members {
            if live {
                self.history.confirm_live(&txid);
            }
            newly_conflicting.push((txid, live));
            self.mark_conflicting(txid, Reason::ConflictingParent { parent }, height);
        }
        newly_conflicting
    }

    /// Returns the checked descendants that the decisions name, each once, and adds them to `affected`.
    fn members(&mut self, height: u32, affected: &mut BTreeSet<Txid>, winners: &BTreeSet<Txid>) -> Vec<Descendant> {
        let mut all = Vec::new();
        while let Some(body) = self.next_decision() {
            let DecisionBody::Cone { members, height: at } = body else {
                self.complain(format!("{body:?} is among the decisions on descendants"));
                break;
            };
            if at != height {
                self.complain(format!("a list of descendants is at height {at}, its verdict at {height}"));
            }
            if members.is_empty() {
                self.check_descendants(affected, winners);
                return all;
            }
            for member in members {
                self.check_member(affected, &member);
                if affected.insert(member.txid) {
                    all.push(member);
                }
            }
        }
        self.complain("a list of descendants has no end");
        all
    }

    fn check_member(&mut self, affected: &BTreeSet<Txid>, member: &Descendant) {
        let Descendant { txid, parent, live } = member;
        let history = &self.history;
        let wrongs = [
            (!affected.contains(parent), "which is not conflicting"),
            (!history.inputs(txid).iter().any(|input| input.txid == *parent), "which it does not spend"),
            (*live && !history.is_live(txid), "as live, which it was not"),
            (!*live && history.is_live(txid), "as not live, which it was"),
            (history.is_mined(txid), "but it is mined"),
        ];
        for (_, what) in wrongs.iter().filter(|(is_wrong, _)| *is_wrong) {
            self.complain(format!("the descendants name {txid} under {parent}, {what}"));
        }
    }

    fn check_descendants(&mut self, affected: &BTreeSet<Txid>, winners: &BTreeSet<Txid>) {
        let parents = affected.iter().filter(|txid| !winners.contains(*txid));
        let children: BTreeSet<Txid> = parents.flat_map(|parent| self.history.facts.children(parent)).collect();
        for txid in children.difference(affected) {
            if self.history.status(txid) == Some(TxStatus::Live) {
                self.complain(format!("the descendants leave out {txid}, which is live"));
            }
        }
    }

    pub fn mark_conflicting(&mut self, txid: Txid, reason: Reason, height: u32) {
        let at = self.offset;
        let tx_entry = self.history.tx_entry(&txid);
        (tx_entry.status, tx_entry.accepted) = (TxStatus::Conflicting(reason), false);
        (tx_entry.conflicting_height, tx_entry.conflicting_offset) = (height, at);
        self.mentioned.insert(txid);
        // Settling creates stubs of absent parents, which are contested when they are stored.
        self.mentioned.extend(self.history.tx(&txid).map(|tx| tx.parents()).into_iter().flatten());
        self.ever_conflicting.insert(txid);
        self.expect_outcome(txid, OutcomeKind::Conflicting { reason });
        self.mark_inputs_touched(&txid);
    }

    pub fn expect_outcome(&mut self, txid: Txid, kind: OutcomeKind) {
        let kinds = self.expected_outcomes.entry((self.offset, txid)).or_default();
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }

    pub fn mark_inputs_touched(&mut self, txid: &Txid) {
        for input in self.history.inputs(txid) {
            self.touched.entry(input).or_insert(self.offset);
        }
    }

    /// Records second chances: conflicting transactions that spend a released output, or an output of the accepted
    /// transaction.
    pub fn after_verdict(&mut self, accepted: &BTreeSet<Txid>, newly_conflicting: &[(Txid, bool)]) {
        let won: BTreeSet<Outpoint> = accepted.iter().flat_map(|txid| self.history.inputs(txid)).collect();
        let live = newly_conflicting.iter().filter(|(_, live)| *live);
        let affected: BTreeSet<Txid> = newly_conflicting.iter().map(|(txid, _)| *txid).collect();
        // Outputs of a conflicting transaction are spendable by none, those of a frozen one after the freezing.
        let free = |outpoint: &Outpoint| {
            let is_barred = affected.contains(&outpoint.txid) || self.history.is_transaction_frozen(&outpoint.txid);
            !won.contains(outpoint) && !is_barred
        };
        let freed: BTreeSet<Outpoint> = live.flat_map(|(txid, _)| self.history.inputs(txid)).filter(free).collect();
        let parents =
            freed.iter().map(|outpoint| outpoint.txid).chain(accepted.iter().copied()).collect::<BTreeSet<_>>();
        for txid in
            parents.iter().filter_map(|parent| self.known_children.get(parent)).flatten().collect::<BTreeSet<_>>()
        {
            let lost = self.history.status(txid);
            let open = match lost {
                Some(TxStatus::Conflicting(reason)) => !matches!(reason, Reason::Immature { .. } | Reason::Command),
                _ => false,
            };
            let names = |input: &Outpoint| freed.contains(input) || accepted.contains(&input.txid);
            if open && !affected.contains(txid) && self.history.inputs(txid).iter().any(names) {
                self.due_second_chances.push((*txid, self.offset));
            }
        }
        // A descendant that was not live may have been a stub: its parents list it only after its own contest.
        let whole = newly_conflicting.iter().zip(0..).filter(|((_, live), place)| *live || *place == 0);
        let whole: Vec<Txid> = whole.map(|((txid, _), _)| *txid).collect();
        self.stored.extend(whole.iter().copied());
        whole.iter().for_each(|txid| self.record_with_parents(txid));
    }
}
