//! The decisions on one chain event, taken one after the other.
//!
//! A handler is written as if it decided everything itself: each [`Steps::decide`] answers with the decision that is in
//! the log already, or else makes one, writes it ahead and reads it back. So what a crash interrupted goes on where it
//! stood, and a rebuild applies what was decided without deciding anything.

use crate::{
    event::DecisionBody,
    sequencer::{Stop, decisions::DecisionLog},
};

/// Whether new decisions may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Making {
    /// They may.
    Allowed,
    /// Below the frontier of a rebuild everything has been decided.
    Replaying,
}

/// The decisions on one chain event. Futures hold it as `&mut`, also to read only: its log is `Send`, and not `Sync`.
pub struct Steps<'a> {
    log: &'a mut DecisionLog,
    chain_offset: u64,
    next: u32,
    making: Making,
    /// Every decision so far was in the log already.
    again: bool,
}

impl<'a> Steps<'a> {
    /// Before the first step of the event at `chain_offset`.
    pub fn new(log: &'a mut DecisionLog, chain_offset: u64, making: Making) -> Self {
        Steps { log, chain_offset, next: 0, making, again: true }
    }

    /// The next decision, if it is in the log already.
    pub fn existing(&mut self) -> Option<DecisionBody> {
        let (body, next) = self.log.table().whole(self.chain_offset, self.next)?;
        self.next = next;
        Some(body)
    }

    /// Whether the next decision is in the log already.
    pub fn has_existing(&self) -> bool {
        self.log.table().whole(self.chain_offset, self.next).is_some()
    }

    /// Reads what others have decided meanwhile.
    pub async fn catch_up(&mut self) -> Result<(), Stop> {
        if self.making == Making::Allowed {
            self.log.catch_up().await?;
        }
        Ok(())
    }

    /// Writes the last decision on the event. Somebody else's in its place: this handler missed something, and the event
    /// must be handled again from its beginning.
    pub async fn close(&mut self) -> Result<(), Stop> {
        match self.decide(async { Ok(DecisionBody::Closed) }).await? {
            DecisionBody::Closed => Ok(()),
            _ => Err(Stop::Behind(self.chain_offset)),
        }
    }

    /// Whether everything decided so far is applied again, perhaps to a store that has forgotten, and in which others have
    /// moved on meanwhile.
    pub fn is_applied_again(&self) -> bool {
        self.again && self.making == Making::Allowed
    }

    /// The next decision, if it is in the log already and `wanted`; whatever closed the event before it is passed over.
    pub fn existing_that(&mut self, wanted: impl Fn(&DecisionBody) -> bool) -> Option<DecisionBody> {
        let mut from = self.next;
        loop {
            let (body, next) = self.log.table().whole(self.chain_offset, from)?;
            if body == DecisionBody::Closed {
                from = next;
            } else if wanted(&body) {
                self.next = next;
                return Some(body);
            } else {
                return None;
            }
        }
    }

    /// Passes over what closed the event: it is open again.
    pub fn pass_over_closed(&mut self) {
        while let Some((DecisionBody::Closed, next)) = self.log.table().whole(self.chain_offset, self.next) {
            self.next = next;
        }
    }

    /// The last record of the decision that was taken last.
    pub fn last_taken(&self) -> Option<u32> {
        self.next.checked_sub(1)
    }

    /// The record of a step that was taken.
    pub fn taken(&self, step: u32) -> Option<&DecisionBody> {
        self.log.table().get(self.chain_offset, step).filter(|_| step < self.next)
    }

    /// Whether any decision was taken.
    pub fn any(&self) -> bool {
        self.next > 0
    }

    /// The next decision: the one in the log, or what `make` comes to.
    pub async fn decide(
        &mut self,
        make: impl Future<Output = Result<DecisionBody, Stop>>,
    ) -> Result<DecisionBody, Stop> {
        if let Some(body) = self.existing() {
            return Ok(body);
        }
        if self.making == Making::Replaying {
            return Err(Stop::Halt(format!(
                "chain offset {}: step {} was never decided, though it lies below the frontier",
                self.chain_offset, self.next
            )));
        }
        self.again = false;
        let body = make.await?;
        // Afterwards: what was read has to be a store from which nothing that was applied was missing.
        if self.log.has_forgotten().await? {
            return Err(Stop::NodeRestarted);
        }
        self.log.publish(self.chain_offset, body).await?;
        // Without a whole decision somebody else's parts stand between: they, or ours behind them, are read anew.
        self.existing().ok_or(Stop::Behind(self.chain_offset))
    }
}
