//! Spends of children that their parent's create carries: created and spent in one write.

use std::sync::Arc;

use super::flight_steps::FlightSteps;
use crate::{
    ingest::flight::{Flight, FlightId, Stage, SubmittedTx},
    record::{self, Key, Page, Record, Spend},
};

/// Returns the group of a waiting child that takes slots of this page, and its spend.
fn spend_of_waiting_child(child: &Flight, key: Key) -> Option<((FlightId, usize), Spend)> {
    let (SubmittedTx::Validated(tx), Stage::AwaitingParents { .. }) = (&child.work, &child.stage) else {
        return None;
    };
    let (index, prepared) = tx.groups.iter().enumerate().find(|(_, group)| group.key() == key)?;
    Some(((child.id, index), tx.spend(prepared, child.marks())))
}

impl FlightSteps {
    /// Applies the spends of waiting children to the page that creates their parent. A spend that the operation would
    /// refuse is left out: the child sends the spend itself and gets the refusal.
    pub(super) fn attach_child_spends(
        &mut self,
        children: &[FlightId],
        key: Key,
        page: Arc<Page>,
        parent: FlightId,
    ) -> Arc<Page> {
        let flights = children.iter().filter_map(|child| self.flights.get(*child));
        let (places, spends): (Vec<_>, Vec<_>) = flights.filter_map(|child| spend_of_waiting_child(child, key)).unzip();
        if spends.is_empty() {
            return page;
        }
        let mut record = Some(Record::Page(page));
        let effects = record::spend_all(&self.parking.settings.rules, &mut record, &spends);
        for ((child, group), effect) in places.into_iter().zip(effects) {
            if let Some(flight) = self.flights.get_mut(child) {
                flight.groups[group].attached_to = effect.outcome.is_done().then_some(parent);
            }
        }
        match record {
            Some(Record::Page(page)) => page,
            _ => unreachable!("a spend neither removes a page nor changes what kind of record it is"),
        }
    }

    /// Notes that the create of `parent` has taken the slots of its children.
    pub(super) fn confirm_attached_spends(&mut self, parent: FlightId) {
        let children = self.flights.get(parent).map_or_else(Vec::new, |flight| flight.children.clone());
        for child in children {
            let Some(flight) = self.flights.get_mut(child) else { continue };
            for group in flight.groups.iter_mut().filter(|group| group.attached_to == Some(parent)) {
                group.has_slots = true;
                group.refusal = None;
            }
        }
    }
}
