//! Spends that ride on the create of their parent: created and spent in one write.

use std::sync::Arc;

use super::Planner;
use crate::{
    ingest::flight::{FlightId, Stage, Work},
    record::{self, Key, Page, Record, Spend},
};

impl Planner {
    /// Lets the spends of waiting children ride on their parent's create: created and spent in one write. What the spend
    /// operation would refuse is left for the child to find out.
    pub(super) fn ride(&mut self, children: &[FlightId], key: Key, page: Arc<Page>, parent: FlightId) -> Arc<Page> {
        let (places, spends): (Vec<_>, Vec<_>) =
            children.iter().filter_map(|child| self.spend_of_waiting(*child, key)).unzip();
        if spends.is_empty() {
            return page;
        }
        let mut record = Some(Record::Page(page));
        let effects = record::spend_all(&self.settings.rules, &mut record, &spends);
        for ((child, group), effect) in places.into_iter().zip(effects) {
            if let Some(flight) = self.get(child) {
                flight.groups[group].rides_on = effect.outcome.is_done().then_some(parent);
            }
        }
        match record {
            Some(Record::Page(page)) => page,
            _ => unreachable!("a spend neither removes a page nor changes what kind of record it is"),
        }
    }

    /// Which group of a waiting child takes slots of this page, and its spend.
    pub(super) fn spend_of_waiting(&mut self, child: FlightId, key: Key) -> Option<((FlightId, usize), Spend)> {
        let flight = self.get(child)?;
        let (Work::Validated(tx), Stage::AwaitingParents { .. }) = (&flight.work, &flight.stage) else { return None };
        let (index, prepared) = tx.groups.iter().enumerate().find(|(_, group)| group.key() == key)?;
        Some(((child, index), tx.spend(prepared, flight.marks())))
    }

    pub(super) fn boarded(&mut self, child: FlightId, parent: FlightId) {
        if let Some(flight) = self.get(child) {
            for group in flight.groups.iter_mut().filter(|group| group.rides_on == Some(parent)) {
                group.held = true;
                group.refusal = None;
            }
        }
    }
}
