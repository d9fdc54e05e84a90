//! Transactions with several pages, and transactions whose body goes to the blob store. They are created beside the
//! loop. The spend of the last slot of a page is reported to the master, and a refusal of a page may need the master's
//! record.

use super::{Action, Planner, Token};
use crate::{
    engine::Row,
    ingest::flight::{FlightId, Stage, SubmittedTx},
    record::{Key, Operation, Outcome, Page, Rejection, Reply, page_refusal},
    store::create::{InitialState, PagedTx},
    telemetry::Completion,
    tx::Txid,
};

impl Planner {
    /// Starts the create of a transaction that takes more than one write; `false`: it takes one. Spends of waiting
    /// children are not attached to such a create.
    pub(super) fn create_paged(&mut self, token: Token, work: &SubmittedTx, initial_state: InitialState) -> bool {
        let Some(others) = work.others().cloned() else { return false };
        let paged = PagedTx { master: work.page().clone(), others, initial_state };
        self.actions.push_back(Action::CreatePaged(token, paged));
        true
    }

    /// Returns whether the flight still has events, so that the answer to this row matters.
    pub fn is_wanted(&mut self, token: Token) -> bool {
        self.get(token.flight()).is_some_and(|flight| !flight.events.is_empty())
    }

    /// Handles a cancelled create. Events that joined since, because the partition was assigned again, start the create
    /// anew.
    pub fn on_cancelled(&mut self, token: Token, now_ms: u64) {
        let id = token.flight();
        match self.get(id).map(|flight| (flight.events.is_empty(), flight.stage)) {
            Some((true, _)) => self.finish(id, Completion::PassedOver),
            Some((false, Stage::StoringContested { reason })) => self.store_contested(id, reason),
            Some((false, _)) => self.create(id),
            None => {}
        }
        self.start_ready(now_ms);
    }

    /// Returns whether the answer to a group of spends needs the master of its parent, and sends the request to the
    /// master.
    pub(super) fn needs_master_answer(&mut self, id: FlightId, group: u32, outcome: &Outcome) -> bool {
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
            Outcome::Rejected(rejection) if page_refusal::is_explained_by_master(number, rejection) => {
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

    /// Handles the answer of the master to the report that every slot of a page is spent. A master that is absent was
    /// lost by a node: the flight waits as for any parent and repeats the report once the master exists again.
    pub(super) fn on_page_spent_answer(&mut self, id: FlightId, group: u32, outcome: &Outcome, now_ms: u64) {
        match (outcome, self.place_of_group(id, group)) {
            (Outcome::Rejected(Rejection::NotFound), Some((parent, _))) => {
                if let Some(state) = self.get(id).and_then(|flight| flight.groups.get_mut(group as usize)) {
                    state.master_not_updated = true;
                }
                self.read_parent(id, group, parent, Rejection::NotFound);
            }
            _ => self.on_slots_taken(id, group, now_ms),
        }
    }

    /// Handles the master of a parent whose other page has refused a spend; `None`: the master is absent.
    pub fn parent_record(&mut self, id: FlightId, group: u32, master: Option<&Page>, now_ms: u64) {
        let Some((_, number)) = self.place_of_group(id, group) else { return };
        let offset = self.first_offset(id, group);
        let Some(state) = self.get(id).and_then(|flight| flight.groups.get_mut(group as usize)) else { return };
        let rejection = page_refusal::explain_by_master(
            state.refusal.take().unwrap_or(Rejection::NotFound),
            number,
            offset,
            master,
        );
        state.refusal = Some(rejection);
        self.on_group_answer(id, now_ms);
        self.start_ready(now_ms);
    }

    fn place_of_group(&mut self, id: FlightId, group: u32) -> Option<(Txid, u32)> {
        let SubmittedTx::Validated(tx) = &self.get(id)?.work else { return None };
        tx.groups.get(group as usize).map(|prepared| (prepared.parent, prepared.page))
    }

    fn first_offset(&mut self, id: FlightId, group: u32) -> u32 {
        let Some(SubmittedTx::Validated(tx)) = self.get(id).map(|flight| &flight.work) else { return 0 };
        tx.groups.get(group as usize).and_then(|group| group.slots.first()).map_or(0, |slot| slot.offset)
    }
}
