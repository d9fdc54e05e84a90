//! The phases of creating a transaction over several pages, one after the other. Pure: what to do next, given what was
//! answered; whoever drives it may stop anywhere, and whoever comes next begins anew.
//!
//! `DESIGN.md` section 5, from `000_eaac0d3352205430.txt`: lock record → body → other pages with `creating`, a few at a time → when all
//! have answered, the master → release → clear `creating` on the other pages → on the master, last. Four things make that safe:
//! - The other pages have the same slots whoever writes them, and are barred. One that is there already is progress.
//! - A master that is there already says how many pages the transaction has. An event that makes another number of it (partial
//!   ones can) writes none and opens none: a page that its master does not tell of would be nobody's.
//! - The master comes when every other page has answered. So a master with slots means that all pages were written.
//! - Pages lose `creating` only where the master is known to be neither contested nor missing, and the master's goes last.

use std::{ops::Range, sync::Arc};

use crate::record::{self, Key, Operation, Outcome, Page, Record, Rejection, Reply, Rules, TxState};

/// How the transaction starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Live, once all its pages are there.
    Live,
    /// Contested: its master bars the other pages.
    Contested,
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Take the lock record.
    Acquire,
    /// Read the master, which somebody else may have made.
    Look,
    /// Store the body, where it is not with the master.
    Body,
    /// Create these pages.
    Others(Range<u32>),
    /// Create the master.
    Master,
    /// Release the lock record, if it is still ours.
    Release,
    /// Clear `creating` on these pages.
    Clear(Range<u32>),
    /// Clear `creating` on the master.
    ClearMaster,
    /// Nothing: the answer, as that of creating one page.
    Ended(Outcome),
}

/// A master with slots that is there already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Pages besides it, as it tells.
    pub others: u32,
    /// What creating the master would be answered.
    pub answer: Outcome,
}

impl Seen {
    /// Of the record in the master's place; `create`: the operation that would make it.
    pub fn of(master: Option<&Arc<Page>>, create: &Operation) -> Option<Self> {
        let master = master?;
        let others = master.utxos.as_ref().and(master.master.as_ref())?.total_extra_recs;
        // Retention has no say in whether there is something to create.
        let rules = Rules::main(0);
        let mut record = Some(Record::Page(Arc::clone(master)));
        let answer = record::apply(&rules, &Key::master(master.txid), &mut record, create).outcome;
        Some(Seen { others, answer })
    }
}

/// A creation in progress.
#[derive(Debug, Clone)]
pub struct Creation {
    kind: Kind,
    /// Pages besides the master.
    others: u32,
    /// Pages created at once.
    at_once: u32,
    holds_lock_record: bool,
    /// Whether the master that is there is known to have as many pages.
    fits: bool,
    /// The answer of a master that nobody has looked at yet.
    found: Option<Outcome>,
    /// What is answered in the end; and whether there is something to clear before.
    answer: Option<(Outcome, Clears)>,
    step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clears {
    Yes,
    No,
}

/// Pages whose `creating` is cleared at once: rows of a few bytes.
const CLEARED_AT_ONCE: u32 = 1_024;

impl Creation {
    /// Begins with the lock record.
    pub fn new(kind: Kind, others: u32, at_once: u32) -> Self {
        Creation {
            kind,
            others,
            at_once: at_once.max(1),
            holds_lock_record: false,
            fits: false,
            found: None,
            answer: None,
            step: Step::Acquire,
        }
    }

    /// Begins without: it only saves work.
    pub fn without_lock_record(kind: Kind, others: u32, at_once: u32) -> Self {
        Creation { step: Step::Look, ..Creation::new(kind, others, at_once) }
    }

    /// What is to be done next.
    pub fn step(&self) -> &Step {
        &self.step
    }

    /// What was read in the master's place; `None`: no master with slots.
    pub fn looked(&mut self, seen: Option<Seen>) {
        let found = self.found.take();
        self.fits = seen.as_ref().is_some_and(|seen| seen.others == self.others);
        match (seen, found) {
            (Some(seen), found) if !self.fits => self.end(found.unwrap_or(seen.answer), Clears::No),
            (_, Some(found)) => self.master_is(&found),
            (_, None) => self.step = Step::Body,
        }
    }

    /// The body is stored.
    pub fn body_stored(&mut self) {
        self.step = match self.others {
            0 => Step::Master,
            others => Step::Others(1..(1 + self.at_once).min(others + 1)),
        };
    }

    /// Whether whoever stops here has a lock record to release.
    pub fn holds_lock_record(&self) -> bool {
        self.holds_lock_record
    }

    /// The same of who stops while this step is taken.
    pub fn may_hold_lock_record(&self) -> bool {
        self.holds_lock_record || self.step == Step::Acquire
    }

    /// Whether the master is there, and tells of as many pages: then all of them were written.
    pub fn pages_were_there(&self) -> bool {
        self.fits
    }

    /// The outcomes of what [`step`](Self::step) asked for, in order.
    pub fn answered(&mut self, outcomes: &[Outcome]) {
        match (self.step.clone(), outcomes) {
            (Step::Acquire, [Outcome::Rejected(held)]) => self.step = Step::Ended(Outcome::Rejected(held.clone())),
            (Step::Acquire, _) => {
                self.holds_lock_record = true;
                self.step = Step::Look;
            }
            (Step::Others(pages), outcomes) => self.others_answered(&pages, outcomes),
            (Step::Master, [outcome]) => self.master_answered(outcome),
            // Whether it was still ours does not matter: nothing depends on it.
            (Step::Release, _) => {
                self.holds_lock_record = false;
                self.go_on();
            }
            (Step::Clear(pages), outcomes) => self.cleared(&pages, outcomes),
            (Step::ClearMaster, [outcome]) => self.master_cleared(outcome),
            (Step::Master | Step::ClearMaster | Step::Look | Step::Body | Step::Ended(_), _) => {}
        }
    }

    fn others_answered(&mut self, pages: &Range<u32>, outcomes: &[Outcome]) {
        // Of another transaction, or of another event of a partial one: its master will not fit either.
        let strange =
            |outcome: &&Outcome| matches!(outcome, Outcome::Rejected(Rejection::OtherContent | Rejection::Unexpected));
        if let Some(strange) = outcomes.iter().find(strange) {
            self.end(strange.clone(), Clears::No);
        } else if pages.end > self.others {
            self.step = Step::Master;
        } else {
            self.step = Step::Others(pages.end..(pages.end + self.at_once).min(self.others + 1));
        }
    }

    fn master_answered(&mut self, outcome: &Outcome) {
        if self.fits || matches!(outcome, Outcome::Applied(_)) {
            return self.master_is(outcome);
        }
        // Somebody else made it after all pages were sent.
        self.found = Some(outcome.clone());
        self.step = Step::Look;
    }

    fn master_is(&mut self, outcome: &Outcome) {
        use Outcome::{AlreadyApplied, Applied, Rejected};
        let live = AlreadyApplied(Reply::State(TxState::Live));
        let (answer, clears) = match (self.kind, outcome) {
            (Kind::Live, Rejected(Rejection::Exists(TxState::Creating))) => (live, Clears::Yes),
            (Kind::Live, AlreadyApplied(Reply::State(TxState::Pruned(_)))) => (outcome.clone(), Clears::No),
            (Kind::Live, Applied(_) | AlreadyApplied(_)) => (outcome.clone(), Clears::Yes),
            (Kind::Contested, Rejected(Rejection::Exists(TxState::Creating | TxState::Live))) => {
                (Rejected(Rejection::Exists(TxState::Live)), Clears::Yes)
            }
            _ => (outcome.clone(), Clears::No),
        };
        self.end(answer, clears);
    }

    fn end(&mut self, answer: Outcome, clears: Clears) {
        self.answer = Some((answer, clears));
        if self.holds_lock_record {
            self.step = Step::Release;
        } else {
            self.go_on();
        }
    }

    /// After the lock record.
    fn go_on(&mut self) {
        self.step = match &self.answer {
            // One page is never half created.
            Some((answer, Clears::Yes)) if self.others == 0 => Step::Ended(answer.clone()),
            Some((_, Clears::Yes)) => Step::Clear(1..(1 + CLEARED_AT_ONCE).min(self.others + 1)),
            Some((answer, Clears::No)) => Step::Ended(answer.clone()),
            None => Step::Look,
        };
    }

    fn cleared(&mut self, pages: &Range<u32>, outcomes: &[Outcome]) {
        if outcomes.contains(&Outcome::Rejected(Rejection::NotFound)) {
            self.begin_again();
        } else if pages.end > self.others {
            self.step = Step::ClearMaster;
        } else {
            self.step = Step::Clear(pages.end..(pages.end + CLEARED_AT_ONCE).min(self.others + 1));
        }
    }

    fn master_cleared(&mut self, outcome: &Outcome) {
        let state = match outcome {
            Outcome::Rejected(Rejection::NotFound) => return self.begin_again(),
            Outcome::Rejected(Rejection::Conflicting(verdict)) => TxState::Conflicting(*verdict),
            Outcome::Rejected(Rejection::Pruned(height)) => TxState::Pruned(*height),
            _ => {
                let answer = self.answer.take().map(|(answer, _)| answer);
                self.step = Step::Ended(answer.unwrap_or_else(|| outcome.clone()));
                return;
            }
        };
        // It has fallen, or was forgotten, since its master was there.
        self.step = Step::Ended(match (self.kind, state) {
            (Kind::Live, TxState::Conflicting(_)) | (Kind::Contested, TxState::Pruned(_)) => {
                Outcome::Rejected(Rejection::Exists(state))
            }
            _ => Outcome::AlreadyApplied(Reply::State(state)),
        });
    }

    /// A node forgot a page that was there: all are sent again, before anything is cleared.
    fn begin_again(&mut self) {
        self.answer = None;
        self.step = Step::Look;
    }
}

#[cfg(test)]
#[path = "steps_tests.rs"]
mod tests;
