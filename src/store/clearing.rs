//! The state machine of clearing `creating` on a transaction whose master exists. Pure: the next step follows from the
//! answers so far. The creation of a transaction ends with these steps, and the completion of a half-created
//! transaction has no others.
//!
//! ```text
//!  clear pages ─────────────────────────────► clear master
//!  (a few at a time)                               ▲
//!      │ absent pages                              │
//!      └─► restore these pages ─► clear these ─────┤
//!                                                  └─ absent again: lost
//! ```
//!
//! The master is cleared last, and not while a page is absent: a master without `creating` means that all pages exist.

use crate::{
    engine::Row,
    record::{Key, Operation, Outcome, Rejection},
    tx::Txid,
};

/// Steps of a clearing; each names the next thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClearingStep {
    /// Clear `creating` on these pages.
    Pages(Vec<u32>),
    /// Restore these absent pages.
    Restore(Vec<u32>),
    /// The page was restored and is absent again: the clearing cannot continue.
    LostAgain(u32),
    /// Clear `creating` on the master. No step follows.
    Master,
}

/// A clearing in progress.
#[derive(Debug, Clone, Default)]
pub struct Clearing {
    /// Number of pages cleared at once.
    at_once: usize,
    /// Pages that are not cleared yet.
    pending: Vec<u32>,
    absent: Vec<u32>,
    /// Pages that refused, because they are conflicting.
    conflicting: Vec<u32>,
    has_restored: bool,
}

impl Clearing {
    /// Creates the clearing of a transaction with this number of pages beside the master.
    pub fn new(others: u32, at_once: u32) -> Self {
        let at_once = at_once.max(1) as usize;
        Clearing { at_once, pending: (1..=others).collect(), ..Clearing::default() }
    }

    /// Returns the step to take next.
    pub fn step(&self) -> ClearingStep {
        match (&*self.pending, &*self.absent) {
            ([], []) => ClearingStep::Master,
            ([], [page, ..]) if self.has_restored => ClearingStep::LostAgain(*page),
            ([], absent) => ClearingStep::Restore(absent.to_vec()),
            (pending, _) => ClearingStep::Pages(pending[..self.at_once.min(pending.len())].to_vec()),
        }
    }

    /// Takes the outcomes of [`ClearingStep::Pages`], in the order of the pages.
    pub fn on_pages_cleared(&mut self, outcomes: &[Outcome]) {
        for (page, outcome) in self.pending.drain(..self.at_once.min(self.pending.len())).zip(outcomes) {
            match outcome {
                Outcome::Rejected(Rejection::NotFound) => self.absent.push(page),
                Outcome::Rejected(Rejection::Conflicting(_)) => self.conflicting.push(page),
                _ => {}
            }
        }
    }

    /// Returns the pages that refused, because they are conflicting.
    pub fn into_conflicting(self) -> Vec<u32> {
        self.conflicting
    }

    /// Continues after the absent pages were restored, with the clearing of these pages.
    pub fn on_restored(&mut self) {
        self.pending = std::mem::take(&mut self.absent);
        self.has_restored = true;
    }

    /// Returns whether a page was absent and is not restored.
    pub fn has_absent_page(&self) -> bool {
        !self.absent.is_empty()
    }
}

/// Builds the rows that clear `creating` on these pages.
pub(super) fn build_clear_rows(txid: Txid, pages: &[u32]) -> Vec<Row> {
    pages.iter().map(|page| Row { key: Key::Page(txid, *page), operation: Operation::ClearCreating }).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::record::Reply;

    /// Runs a clearing of five pages over these absent pages; a restored page is absent once more if it is `lost`.
    fn run(at_once: u32, mut absent: BTreeSet<u32>, lost: Option<u32>) -> Vec<ClearingStep> {
        let mut clearing = Clearing::new(5, at_once);
        let mut steps = Vec::new();
        loop {
            let step = clearing.step();
            steps.push(step.clone());
            match step {
                ClearingStep::Pages(pages) => {
                    let outcome = |page: &u32| match absent.contains(page) {
                        true => Outcome::Rejected(Rejection::NotFound),
                        false => Outcome::Applied(Reply::None),
                    };
                    clearing.on_pages_cleared(&pages.iter().map(outcome).collect::<Vec<_>>());
                }
                ClearingStep::Restore(_) => {
                    absent = lost.into_iter().collect();
                    clearing.on_restored();
                }
                ClearingStep::LostAgain(_) | ClearingStep::Master => return steps,
            }
        }
    }

    #[test]
    fn the_master_is_cleared_after_every_page() {
        use ClearingStep::{Master, Pages};
        assert_eq!(run(2, [].into(), None), [Pages(vec![1, 2]), Pages(vec![3, 4]), Pages(vec![5]), Master]);
        assert_eq!(run(9, [].into(), None), [Pages(vec![1, 2, 3, 4, 5]), Master]);
        assert_eq!(Clearing::new(0, 2).step(), Master);
    }

    #[test]
    fn absent_pages_are_restored_once_and_cleared_before_the_master() {
        use ClearingStep::{LostAgain, Master, Pages, Restore};
        let all = [Pages(vec![1, 2]), Pages(vec![3, 4]), Pages(vec![5]), Restore(vec![2, 4, 5])];
        let steps = run(2, [2, 4, 5].into(), None);
        assert_eq!((&steps[..4], &steps[4..]), (&all[..], &[Pages(vec![2, 4]), Pages(vec![5]), Master][..]));
        assert_eq!(run(2, [2, 4, 5].into(), Some(4)).last(), Some(&LostAgain(4)));
    }
}
