//! The state machine of creating a transaction of several pages. Pure: the next step follows from the answers so far.
//!
//! A caller may stop after any step; the next creator begins again. The steps follow `000_eaac0d3352205430.txt`:
//!
//! ```text
//!  lock record ─► read master ─► body ─► other pages, creating ─► master ─► release ─► clear pages ─► clear master
//!                      ▲                 (a few at a time)          │                       │             │
//!                      └───── made by another creator ──────────────┴─── a page is absent ──┴─────────────┘
//! ```
//!
//! Four rules make the steps safe:
//! - The other pages have the same slots whoever writes them, and are barred. A page that exists already is progress.
//! - A master that exists already says how many pages the transaction has. An event that makes another number of pages
//!   (partial events can) writes no page and opens none: a page that its master does not know would belong to no
//!   transaction.
//! - The master is written when every other page has answered. A master with slots thus means that all pages were
//!   written.
//! - Pages lose `creating` only where the master is known to exist and not to be contested. The master is cleared last.

use std::{ops::Range, sync::Arc};

use crate::{
    record::{self, Key, Operation, Outcome, Page, Record, Rejection, Reply, Rules, TxState},
    store::clearing::{Clearing, ClearingStep},
};

/// States in which a creation starts a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreationKind {
    /// Live, once all pages exist.
    Live,
    /// Contested: the master bars the other pages.
    Contested,
}

/// Steps of a creation; each names the next thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CreationStep {
    /// Acquire the lock record.
    Acquire,
    /// Read the master, which another creator may have written.
    ReadMaster,
    /// Put the body into the blob store, if it belongs there.
    Body,
    /// Create these other pages.
    Others(Range<u32>),
    /// Create the master record.
    Master,
    /// Release the lock record, if this creator still holds it.
    Release,
    /// Clear `creating` on these pages.
    Clear(Vec<u32>),
    /// Clear `creating` on the master.
    ClearMaster,
    /// The creation has ended, with the outcome of creating a single page.
    Ended(Outcome),
}

/// A master with slots that exists already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExistingMaster {
    /// Number of other pages by the master.
    pub others: u32,
    /// Outcome of creating the master in its place.
    pub answer: Outcome,
}

impl ExistingMaster {
    /// Evaluates `create`, the operation that would write the master, on the stored master. `None`: no master with
    /// slots.
    pub fn of(master: Option<&Arc<Page>>, create: &Operation) -> Option<Self> {
        let master = master?;
        let others = master.utxos.as_ref().and(master.master.as_ref())?.total_extra_recs;
        // The retention does not change the outcome of a create.
        let rules = Rules::main(0);
        let mut record = Some(Record::Page(Arc::clone(master)));
        let answer = record::apply(&rules, &Key::master(master.txid), &mut record, create).outcome;
        Some(ExistingMaster { others, answer })
    }
}

/// A creation in progress.
#[derive(Debug, Clone)]
pub struct Creation {
    kind: CreationKind,
    /// Number of pages besides the master.
    others: u32,
    /// Number of pages created at once.
    at_once: u32,
    holds_lock_record: bool,
    /// The stored master is known to have as many pages as this creation.
    master_matches: bool,
    /// The outcome of creating a master that exists already, until that master was read.
    create_outcome: Option<Outcome>,
    /// The outcome of the creation, and whether pages are cleared first.
    answer: Option<(Outcome, Clears)>,
    /// The clearing of the pages, once it has begun.
    clearing: Clearing,
    step: CreationStep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clears {
    Yes,
    No,
}

/// Number of pages that are cleared at once; a row takes a few bytes.
const CLEARED_AT_ONCE: u32 = 1_024;

impl Creation {
    /// Creates a creation that begins with the lock record.
    pub fn new(kind: CreationKind, others: u32, at_once: u32) -> Self {
        Creation {
            kind,
            others,
            at_once: at_once.max(1),
            holds_lock_record: false,
            master_matches: false,
            create_outcome: None,
            answer: None,
            clearing: Clearing::default(),
            step: CreationStep::Acquire,
        }
    }

    /// Creates a creation without a lock record, which only saves work.
    pub fn without_lock_record(kind: CreationKind, others: u32, at_once: u32) -> Self {
        Creation { step: CreationStep::ReadMaster, ..Creation::new(kind, others, at_once) }
    }

    /// Returns the step to take next.
    pub fn step(&self) -> &CreationStep {
        &self.step
    }

    /// Takes the result of reading the master; `None`: no master with slots.
    pub fn on_master_read(&mut self, existing: Option<ExistingMaster>) {
        let create_outcome = self.create_outcome.take();
        self.master_matches = existing.as_ref().is_some_and(|existing| existing.others == self.others);
        match (existing, create_outcome) {
            (Some(existing), outcome) if !self.master_matches => {
                self.end(outcome.unwrap_or(existing.answer), Clears::No)
            }
            (_, Some(outcome)) => self.on_master_outcome(&outcome),
            (_, None) => self.step = CreationStep::Body,
        }
    }

    /// Continues after the body was stored.
    pub fn on_body_stored(&mut self) {
        self.step = match self.others {
            0 => CreationStep::Master,
            others => CreationStep::Others(1..(1 + self.at_once).min(others + 1)),
        };
    }

    /// Returns whether a caller that stops here holds a lock record to release.
    pub fn holds_lock_record(&self) -> bool {
        self.holds_lock_record
    }

    /// Returns whether a caller that stops during the step may hold a lock record.
    pub fn may_hold_lock_record(&self) -> bool {
        self.holds_lock_record || self.step == CreationStep::Acquire
    }

    /// Returns whether a master with the same number of pages exists: all of its pages were written then.
    pub fn has_matching_master(&self) -> bool {
        self.master_matches
    }

    /// Takes the outcomes of the rows of the current [`step`](Self::step), in order.
    pub fn on_outcomes(&mut self, outcomes: &[Outcome]) {
        match (self.step.clone(), outcomes) {
            (CreationStep::Acquire, [Outcome::Rejected(held)]) => {
                self.step = CreationStep::Ended(Outcome::Rejected(held.clone()))
            }
            (CreationStep::Acquire, _) => {
                self.holds_lock_record = true;
                self.step = CreationStep::ReadMaster;
            }
            (CreationStep::Others(pages), outcomes) => self.on_pages_created(&pages, outcomes),
            (CreationStep::Master, [outcome]) => self.on_master_created(outcome),
            // The outcome does not matter: no step depends on the lock record.
            (CreationStep::Release, _) => {
                self.holds_lock_record = false;
                self.continue_after_release();
            }
            (CreationStep::Clear(_), outcomes) => {
                self.clearing.on_pages_cleared(outcomes);
                self.continue_clearing();
            }
            (CreationStep::ClearMaster, [outcome]) => self.on_master_cleared(outcome),
            (
                CreationStep::Master
                | CreationStep::ClearMaster
                | CreationStep::ReadMaster
                | CreationStep::Body
                | CreationStep::Ended(_),
                _,
            ) => {}
        }
    }

    fn on_pages_created(&mut self, pages: &Range<u32>, outcomes: &[Outcome]) {
        // The page belongs to another transaction, or to another event of a partial one: the master will not match
        // either.
        let mismatch =
            |outcome: &&Outcome| matches!(outcome, Outcome::Rejected(Rejection::OtherContent | Rejection::Unexpected));
        if let Some(mismatch) = outcomes.iter().find(mismatch) {
            self.end(mismatch.clone(), Clears::No);
        } else if pages.end > self.others {
            self.step = CreationStep::Master;
        } else {
            self.step = CreationStep::Others(pages.end..(pages.end + self.at_once).min(self.others + 1));
        }
    }

    fn on_master_created(&mut self, outcome: &Outcome) {
        if self.master_matches || matches!(outcome, Outcome::Applied(_)) {
            return self.on_master_outcome(outcome);
        }
        // Another creator wrote the master after all pages were sent.
        self.create_outcome = Some(outcome.clone());
        self.step = CreationStep::ReadMaster;
    }

    fn on_master_outcome(&mut self, outcome: &Outcome) {
        use Outcome::{AlreadyApplied, Applied, Rejected};
        let live = AlreadyApplied(Reply::State(TxState::Live));
        let (answer, clears) = match (self.kind, outcome) {
            (CreationKind::Live, Rejected(Rejection::Exists(TxState::Creating))) => (live, Clears::Yes),
            (CreationKind::Live, AlreadyApplied(Reply::State(TxState::Pruned(_)))) => (outcome.clone(), Clears::No),
            (CreationKind::Live, Applied(_) | AlreadyApplied(_)) => (outcome.clone(), Clears::Yes),
            (CreationKind::Contested, Rejected(Rejection::Exists(TxState::Creating | TxState::Live))) => {
                (Rejected(Rejection::Exists(TxState::Live)), Clears::Yes)
            }
            _ => (outcome.clone(), Clears::No),
        };
        self.end(answer, clears);
    }

    fn end(&mut self, answer: Outcome, clears: Clears) {
        self.answer = Some((answer, clears));
        if self.holds_lock_record {
            self.step = CreationStep::Release;
        } else {
            self.continue_after_release();
        }
    }

    /// Continues after the lock record was released.
    fn continue_after_release(&mut self) {
        match &self.answer {
            // A transaction of one page is never half created.
            Some((_, Clears::Yes)) if self.others > 0 => {
                self.clearing = Clearing::new(self.others, CLEARED_AT_ONCE);
                self.continue_clearing();
            }
            Some((answer, _)) => self.step = CreationStep::Ended(answer.clone()),
            None => self.step = CreationStep::ReadMaster,
        }
    }

    fn continue_clearing(&mut self) {
        self.step = match self.clearing.step() {
            ClearingStep::Master => CreationStep::ClearMaster,
            ClearingStep::Pages(pages) if !self.clearing.has_absent_page() => CreationStep::Clear(pages),
            // A page is absent. The event at hand makes every page again, not only the absent ones from the stored
            // body.
            ClearingStep::Pages(_) | ClearingStep::Restore(_) | ClearingStep::LostAgain(_) => return self.restart(),
        };
    }

    fn on_master_cleared(&mut self, outcome: &Outcome) {
        let state = match outcome {
            Outcome::Rejected(Rejection::NotFound) => return self.restart(),
            Outcome::Rejected(Rejection::Conflicting(verdict)) => TxState::Conflicting(*verdict),
            Outcome::Rejected(Rejection::Pruned(height)) => TxState::Pruned(*height),
            _ => {
                let answer = self.answer.take().map(|(answer, _)| answer);
                self.step = CreationStep::Ended(answer.unwrap_or_else(|| outcome.clone()));
                return;
            }
        };
        // The transaction became conflicting, or was pruned, after its master was written.
        self.step = CreationStep::Ended(match (self.kind, state) {
            (CreationKind::Live, TxState::Conflicting(_)) | (CreationKind::Contested, TxState::Pruned(_)) => {
                Outcome::Rejected(Rejection::Exists(state))
            }
            _ => Outcome::AlreadyApplied(Reply::State(state)),
        });
    }

    /// Begins again after a node lost a page: all pages are sent again before any page is cleared.
    fn restart(&mut self) {
        self.answer = None;
        self.step = CreationStep::ReadMaster;
    }
}

#[cfg(test)]
#[path = "steps_tests.rs"]
mod tests;
