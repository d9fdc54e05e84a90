//! What is different for transactions over several pages, and those whose body goes to the blob store: they are created beside the loop, the last slot of a page tells the
//! master, and what bars a page its master knows.

use super::{Action, Planner, Token};
use crate::{
    engine::Row,
    ingest::flight::{FlightId, Stage, Work},
    record::{Key, Operation, Outcome, Page, Rejection, Reply, beyond},
    store::create::{Paged, Starts},
    telemetry::Completion,
    tx::Txid,
};

impl Planner {
    /// Has a transaction created that takes more than one write; `false`: it takes one. The spends of children that wait do not ride on it.
    pub(super) fn create_paged(&mut self, token: Token, work: &Work, starts: Starts) -> bool {
        let Some(others) = work.others().cloned() else { return false };
        let paged = Paged { master: work.page().clone(), others, starts };
        self.actions.push_back(Action::CreatePaged(token, paged));
        true
    }

    /// Whether somebody still asks for what this is about.
    pub fn wants(&mut self, token: Token) -> bool {
        self.get(token.flight()).is_some_and(|flight| !flight.events.is_empty())
    }

    /// A create was given up, since nobody asked for it any more. Whoever has asked since, because the partition came back, joined it: for
    /// him it begins again.
    pub fn given_up(&mut self, token: Token, now_ms: u64) {
        let id = token.flight();
        match self.get(id).map(|flight| (flight.events.is_empty(), flight.stage)) {
            Some((true, _)) => self.finish(id, Completion::PassedOver),
            Some((false, Stage::StoringContested { reason })) => self.store_contested(id, reason),
            Some((false, _)) => self.create(id),
            None => {}
        }
        self.settle_ready(now_ms);
    }

    /// Whether the answer to a group of spends is not the last word: that is asked of the master of its parent.
    pub(super) fn asks_master(&mut self, id: FlightId, group: u32, outcome: &Outcome) -> bool {
        let Some((parent, number)) = self.place_of_group(id, group).filter(|(_, number)| *number > 0) else {
            return false;
        };
        match outcome {
            Outcome::Applied(Reply::Slots { all_spent: true, .. })
            | Outcome::AlreadyApplied(Reply::Slots { all_spent: true, .. }) => {
                let operation = Operation::SetPageSpent { page: number, spent: true };
                let row = Row { key: Key::master(parent), operation };
                self.actions.push_back(Action::Apply(Token::PageSpent(id, group), row));
                true
            }
            Outcome::Rejected(rejection) if beyond::needs_master(number, rejection) => {
                self.read_parent(id, group, parent, rejection.clone());
                true
            }
            _ => false,
        }
    }

    fn read_parent(&mut self, id: FlightId, group: u32, parent: Txid, refusal: Rejection) {
        if let Some(state) = self.get(id).and_then(|flight| flight.groups.get_mut(group as usize)) {
            state.refusal = Some(refusal);
        }
        self.actions.push_back(Action::ReadParent(id, group, parent));
    }

    /// The answer of the master to who has spent the last slot of another page. Where there is none, a node forgot it: it is waited
    /// for as any parent, and told when it has come again, without what it knew.
    pub(super) fn master_told(&mut self, id: FlightId, group: u32, outcome: &Outcome, now_ms: u64) {
        match (outcome, self.place_of_group(id, group)) {
            (Outcome::Rejected(Rejection::NotFound), Some((parent, _))) => {
                if let Some(state) = self.get(id).and_then(|flight| flight.groups.get_mut(group as usize)) {
                    state.untold = true;
                }
                self.read_parent(id, group, parent, Rejection::NotFound);
            }
            _ => self.spends_held(id, group, now_ms),
        }
    }

    /// The master of a parent that one of whose other pages refused a spend; `None`: there is none.
    pub fn parent_record(&mut self, id: FlightId, group: u32, master: Option<&Page>, now_ms: u64) {
        let Some((_, number)) = self.place_of_group(id, group) else { return };
        let offset = self.first_offset(id, group);
        let Some(state) = self.get(id).and_then(|flight| flight.groups.get_mut(group as usize)) else { return };
        let rejection = beyond::by_master(state.refusal.take().unwrap_or(Rejection::NotFound), number, offset, master);
        state.refusal = Some(rejection);
        self.group_answered(id, now_ms);
        self.settle_ready(now_ms);
    }

    fn place_of_group(&mut self, id: FlightId, group: u32) -> Option<(Txid, u32)> {
        let Work::Validated(tx) = &self.get(id)?.work else { return None };
        tx.groups.get(group as usize).map(|prepared| (prepared.parent, prepared.page))
    }

    fn first_offset(&mut self, id: FlightId, group: u32) -> u32 {
        let Some(Work::Validated(tx)) = self.get(id).map(|flight| &flight.work) else { return 0 };
        tx.groups.get(group as usize).and_then(|group| group.slots.first()).map_or(0, |slot| slot.offset)
    }
}
