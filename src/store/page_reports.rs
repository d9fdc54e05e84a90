//! Reports to a master whether all slots of its other pages are spent, from the outcomes of operations on those pages.
//! The sequencer and the pruner report alike (decision 0292 in `docs/decisions`).

use std::collections::BTreeMap;

use crate::{
    engine::Row,
    record::{Key, Operation, Outcome, Page, Record, Reply, Sequenced, Stamp},
};

/// Pages of several transactions, each with the stamp of its operation, and whether all slots of the page are spent.
#[derive(Debug, Default)]
pub(crate) struct PageReports(BTreeMap<Key, (Stamp, bool)>);

impl PageReports {
    /// Collects the reports of these operations. An operation that can free a slot is reported in both cases, also
    /// where a repeat changes nothing: a predecessor can have written "not all spent" late, and was stopped before its
    /// second look. Any other operation is reported where all slots are spent.
    pub(crate) fn of(rows: &[Row], outcomes: &[Outcome]) -> Self {
        let mut reports = PageReports::default();
        for (row, outcome) in rows.iter().zip(outcomes) {
            if let (Key::Page(_, 1..), Operation::Sequenced(stamp, operation)) = (row.key, &row.operation)
                && let Outcome::Applied(Reply::Slots { all_spent, .. })
                | Outcome::AlreadyApplied(Reply::Slots { all_spent, .. }) = outcome
                && (*all_spent || can_free_slots(operation))
            {
                // A slot that is freed in the same request keeps the page from being all spent, in any order of the
                // rows.
                let (_, spent) = reports.0.entry(row.key).or_insert((*stamp, *all_spent));
                *spent &= *all_spent;
            }
        }
        reports
    }

    /// Returns the operations on the masters that write the reports.
    pub(crate) fn rows(&self) -> Vec<Row> {
        self.0.iter().filter_map(|(key, (stamp, spent))| report(*key, *stamp, *spent)).collect()
    }

    /// Returns the pages that are reported as not all spent. Once these reports are written, the pages are read again:
    /// a spend of a freed slot can have written "all spent" before.
    pub(crate) fn pages_to_read_again(&self) -> Vec<Key> {
        self.to_read_again().map(|(key, _)| key).collect()
    }

    /// Returns the operations that report those of the read pages as all spent that are so by now. `read` has one entry
    /// for each page that is to be read again.
    pub(crate) fn rows_since(&self, read: &[Option<Record>]) -> Vec<Row> {
        let since = self.to_read_again().zip(read);
        let since = since.filter(|(_, page)| page.as_ref().and_then(Record::page).is_some_and(Page::is_all_spent));
        since.filter_map(|((key, stamp), _)| report(key, stamp, true)).collect()
    }

    fn to_read_again(&self) -> impl Iterator<Item = (Key, Stamp)> {
        self.0.iter().filter(|(_, (_, spent))| !spent).map(|(key, (stamp, _))| (*key, *stamp))
    }
}

fn report(key: Key, stamp: Stamp, spent: bool) -> Option<Row> {
    let Key::Page(txid, page) = key else { return None };
    let operation = Operation::Sequenced(stamp, Sequenced::SetPageSpent { page, spent });
    Some(Row { key: Key::master(txid), operation })
}

fn can_free_slots(operation: &Sequenced) -> bool {
    !matches!(operation, Sequenced::Respend(_) | Sequenced::MarkSpenderPruned(_))
}
