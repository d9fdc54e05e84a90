//! The decisions on one chain event, one step after the other.
//!
//! A handler is written as if it decided everything itself: each [`Steps::decide`] returns the decision that is in the
//! log already, or else makes one, writes it ahead and reads it back. An event that a crash interrupted thus continues
//! where it was, and a rebuild applies the decisions of the log without deciding anything.

use crate::{
    event::{DecisionBody, Descendant, LiftedOutput},
    sequencer::{SequencerError, decisions::DecisionLog},
};

/// The mode of a handler: to make decisions, or only to apply decisions of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecisionMode {
    /// New decisions may be made and outcomes published.
    Live,
    /// A rebuild below its frontier: only decisions of the log are applied.
    Replay,
}

/// The decisions on one chain event. Futures borrow it as `&mut`, also for reads: its log is `Send`, but not `Sync`.
pub struct Steps<'a> {
    log: &'a mut DecisionLog,
    chain_offset: u64,
    next: u32,
    mode: DecisionMode,
    /// True while every decision so far was in the log already.
    all_from_log: bool,
}

impl<'a> Steps<'a> {
    /// Starts before the first step of the event at `chain_offset`.
    pub fn new(log: &'a mut DecisionLog, chain_offset: u64, mode: DecisionMode) -> Self {
        Steps { log, chain_offset, next: 0, mode, all_from_log: true }
    }

    /// Takes the next decision, if the log has it already.
    async fn take_existing(&mut self) -> Result<Option<DecisionBody>, SequencerError> {
        self.log.load_next(self.chain_offset, self.next).await?;
        let Some((body, next)) = self.log.table().next_joined(self.chain_offset, self.next) else { return Ok(None) };
        self.next = next;
        Ok(Some(body))
    }

    /// Returns whether the log has the next decision already.
    pub fn has_existing(&self) -> bool {
        self.log.table().has_next(self.chain_offset, self.next)
    }

    /// Returns the outputs whose bars an operator has lifted for the event.
    pub fn lifted_outputs(&self) -> Vec<LiftedOutput> {
        self.log.table().lifted_outputs(self.chain_offset)
    }

    /// Reads the decisions that other sequencers have written meanwhile.
    pub async fn catch_up(&mut self) -> Result<(), SequencerError> {
        if self.mode == DecisionMode::Live {
            self.log.catch_up().await?;
        }
        Ok(())
    }

    /// Writes `Closed`, the last decision on the event.
    ///
    /// # Errors
    /// `Behind` when another sequencer's decision is in that place: the event must be handled again from its beginning.
    pub async fn close(&mut self) -> Result<(), SequencerError> {
        match self.decide(async { Ok(DecisionBody::Closed) }).await? {
            DecisionBody::Closed => Ok(()),
            _ => Err(SequencerError::Behind(self.chain_offset)),
        }
    }

    /// Returns whether all decisions so far are applied again: a node may have lost the first writes, and later events
    /// may have changed the records meanwhile.
    pub fn is_applied_again(&self) -> bool {
        self.all_from_log && self.mode == DecisionMode::Live
    }

    /// Takes the next decision, if the log has it already and `wanted` accepts it. A `Closed` before it is skipped. A
    /// chunk of descendants is never wanted here.
    pub fn take_existing_matching(&mut self, wanted: impl Fn(&DecisionBody) -> bool) -> Option<DecisionBody> {
        let mut from = self.next;
        loop {
            let (body, next) = self.log.table().next_joined(self.chain_offset, from)?;
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

    /// Skips every `Closed` at this place: the event is open again.
    pub fn skip_closed(&mut self) {
        while let Some((DecisionBody::Closed, next)) = self.log.table().next_joined(self.chain_offset, self.next) {
            self.next = next;
        }
    }

    /// Returns the step of the last record that was taken.
    pub fn last_taken_step(&self) -> Option<u32> {
        self.next.checked_sub(1)
    }

    /// Returns the members of a chunk of descendants that was taken at this step.
    pub async fn read_chunk(&mut self, step: u32) -> Result<Vec<Descendant>, SequencerError> {
        self.log.load(self.chain_offset, step).await?;
        match self.log.table().get(self.chain_offset, step).filter(|_| step < self.next) {
            Some(DecisionBody::Cone { members, .. }) => Ok(members.clone()),
            _ => unreachable!("the step of a chunk of descendants holds another decision"),
        }
    }

    /// Returns whether any decision was taken.
    pub fn has_decisions(&self) -> bool {
        self.next > 0
    }

    /// Returns the next decision: the one in the log, or else the one that `make` returns, written ahead and read back.
    pub async fn decide(
        &mut self,
        make: impl Future<Output = Result<DecisionBody, SequencerError>>,
    ) -> Result<DecisionBody, SequencerError> {
        match self.take_next().await? {
            Some(body) => Ok(body),
            None => {
                let body = make.await?;
                self.write_ahead(body).await
            }
        }
    }

    /// Takes the next decision, if the log has it already. `None`: the decision has to be made and
    /// [written ahead](Self::write_ahead).
    ///
    /// # Errors
    /// `Halt` in a rebuild, which makes no decision.
    pub async fn take_next(&mut self) -> Result<Option<DecisionBody>, SequencerError> {
        if let Some(body) = self.take_existing().await? {
            return Ok(Some(body));
        }
        if self.mode == DecisionMode::Replay {
            return Err(SequencerError::Halt(format!(
                "chain offset {}: step {} has no decision, though the offset is below the rebuild's frontier",
                self.chain_offset, self.next
            )));
        }
        self.all_from_log = false;
        Ok(None)
    }

    /// Writes the next decision ahead, and returns the decision that counts.
    pub async fn write_ahead(&mut self, body: DecisionBody) -> Result<DecisionBody, SequencerError> {
        if self.log.is_staging() {
            self.log.stage(self.chain_offset, body);
        } else {
            // Boxed: else a part of the futures of all handlers.
            Box::pin(self.publish(body)).await?;
        }
        // No whole decision: parts of another sequencer are in between. The event is handled again with all parts.
        self.take_existing().await?.ok_or(SequencerError::Behind(self.chain_offset))
    }

    /// Writes the next decisions ahead in one record. Returns `false` where they are together too large for a message.
    ///
    /// # Errors
    /// `Behind` when another record came before: the event must be handled again from its beginning.
    pub async fn write_run_ahead(&mut self, bodies: Vec<DecisionBody>) -> Result<bool, SequencerError> {
        self.verify_nodes().await?;
        self.all_from_log = false;
        match Box::pin(self.log.publish_run(self.chain_offset, bodies)).await? {
            Some(false) => Err(SequencerError::Behind(self.chain_offset)),
            published => Ok(published.is_some()),
        }
    }

    /// Takes the run that begins with `first`, the decision that was taken last: verdicts by a block without a decision
    /// on descendants between them. Their losers share the decisions on descendants behind the run.
    pub fn take_run(&mut self, first: DecisionBody) -> Vec<DecisionBody> {
        let mut run = vec![first];
        while run.last().is_some_and(has_losers_by_block)
            && let Some(next) = self.take_existing_matching(has_losers_by_block)
        {
            run.push(next);
        }
        run
    }

    /// Writes a decision ahead and reads it back.
    async fn publish(&mut self, body: DecisionBody) -> Result<(), SequencerError> {
        self.verify_nodes().await?;
        Ok(self.log.publish(self.chain_offset, body).await?)
    }

    /// Verifies that no node lost writes while the store was read: a decision is valid only then.
    async fn verify_nodes(&mut self) -> Result<(), SequencerError> {
        match self.log.have_nodes_restarted().await? {
            true => Err(SequencerError::NodeRestarted),
            false => Ok(()),
        }
    }
}

/// Returns whether a decision accepts a listed transaction that makes live ones conflicting.
fn has_losers_by_block(body: &DecisionBody) -> bool {
    matches!(body, DecisionBody::Accepted { by_block: true, losers, .. } if !losers.is_empty())
}
