//! Spends of children that their parent's create carries: created and spent in one write.

use std::sync::Arc;

use super::Planner;
use crate::{
    ingest::flight::{FlightId, Stage, SubmittedTx},
    record::{self, Key, Page, Record, Spend},
};

impl Planner {
    /// Applies the spends of waiting children to the page that creates their parent. A spend that the operation would
    /// refuse is left out: the child sends the spend itself and gets the refusal.
    pub(super) fn attach_child_spends(
        &mut self,
        children: &[FlightId],
        key: Key,
        page: Arc<Page>,
        parent: FlightId,
    ) -> Arc<Page> {
        let (places, spends): (Vec<_>, Vec<_>) =
            children.iter().filter_map(|child| self.spend_of_waiting_child(*child, key)).unzip();
        if spends.is_empty() {
            return page;
        }
        let mut record = Some(Record::Page(page));
        let effects = record::spend_all(&self.settings.rules, &mut record, &spends);
        for ((child, group), effect) in places.into_iter().zip(effects) {
            if let Some(flight) = self.get(child) {
                flight.groups[group].attached_to = effect.outcome.is_done().then_some(parent);
            }
        }
        match record {
            Some(Record::Page(page)) => page,
            _ => unreachable!("a spend neither removes a page nor changes what kind of record it is"),
        }
    }

    /// Returns the group of a waiting child that takes slots of this page, and its spend.
    pub(super) fn spend_of_waiting_child(&mut self, child: FlightId, key: Key) -> Option<((FlightId, usize), Spend)> {
        let flight = self.get(child)?;
        let (SubmittedTx::Validated(tx), Stage::AwaitingParents { .. }) = (&flight.work, &flight.stage) else {
            return None;
        };
        let (index, prepared) = tx.groups.iter().enumerate().find(|(_, group)| group.key() == key)?;
        Some(((child, index), tx.spend(prepared, flight.marks())))
    }

    /// Notes that the create of `parent` has taken the slots of its child.
    pub(super) fn confirm_attached_spends(&mut self, child: FlightId, parent: FlightId) {
        if let Some(flight) = self.get(child) {
            for group in flight.groups.iter_mut().filter(|group| group.attached_to == Some(parent)) {
                group.has_slots = true;
                group.refusal = None;
            }
        }
    }
}
