//! Transactions with several pages, and transactions whose body goes to the blob store. They are created beside the
//! loop. The spend of the last slot of a page is reported to the master, and a refusal of a page may need the master's
//! record.

use super::{Action, Token, flight_steps::FlightSteps};
use crate::{
    engine::Row,
    ingest::flight::{FlightId, SubmittedTx},
    record::{Key, Operation, Outcome, Page, Rejection, Reply, page_refusal},
    store::create::{InitialState, PagedTx},
    tx::Txid,
};

/// Returns the create of a transaction that takes more than one write; `None`: it takes one. Spends of waiting children
/// are not attached to such a create.
pub(super) fn paged_create(token: Token, work: &SubmittedTx, initial_state: InitialState) -> Option<Action> {
    let others = work.others().cloned()?;
    Some(Action::CreatePaged(token, PagedTx { master: work.page().clone(), others, initial_state }))
}

impl FlightSteps {
    /// Returns whether the answer to a group of spends needs the master of its parent, and sends the request to the
    /// master.
    pub(super) fn needs_master_answer(&mut self, id: FlightId, group: u32, outcome: &Outcome) -> bool {
        let place = self.flights.get(id).and_then(|flight| flight.place_of_group(group));
        let Some((parent, number)) = place.filter(|(_, number)| *number > 0) else { return false };
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
        if let Some(state) = self.flights.get_mut(id).and_then(|flight| flight.groups.get_mut(group as usize)) {
            state.refusal = Some(refusal);
        }
        self.actions.push_back(Action::ReadParent(id, group, parent));
    }

    /// Handles the answer of the master to the report that every slot of a page is spent. A master that is absent was
    /// lost by a node: the flight waits as for any parent and repeats the report once the master exists again.
    pub(super) fn on_page_spent_answer(&mut self, id: FlightId, group: u32, outcome: &Outcome, now_ms: u64) {
        let Some(flight) = self.flights.get_mut(id) else { return };
        let place = flight.place_of_group(group);
        let state = flight.groups.get_mut(group as usize);
        match (outcome, place) {
            (Outcome::Rejected(Rejection::NotFound), Some((parent, _))) => {
                state.into_iter().for_each(|state| state.master_not_updated = true);
                self.read_parent(id, group, parent, Rejection::NotFound);
            }
            _ => {
                state.into_iter().for_each(|state| state.has_slots = true);
                self.on_group_answer(id, now_ms);
            }
        }
    }

    /// Handles the master of a parent whose other page has refused a spend; `None`: the master is absent.
    pub(super) fn on_parent_record(&mut self, id: FlightId, group: u32, master: Option<&Page>, now_ms: u64) {
        let Some(flight) = self.flights.get_mut(id) else { return };
        let Some((_, number)) = flight.place_of_group(group) else { return };
        let offset = flight.first_offset(group);
        let Some(state) = flight.groups.get_mut(group as usize) else { return };
        let refusal = state.refusal.take().unwrap_or(Rejection::NotFound);
        state.refusal = Some(page_refusal::explain_by_master(refusal, number, offset, master));
        self.on_group_answer(id, now_ms);
    }
}
