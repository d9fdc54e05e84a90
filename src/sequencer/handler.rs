//! Hands each chain event to the handler of its kind, and keeps the state of the chain.

use std::slice;

use tokio::sync::Mutex;

use crate::{
    broker::{Message, TopicPartition},
    event::{Block, CommandAction, DeadLetterClass, Event},
    record::Phase,
    sequencer::{
        SequencerError, SequencerParts,
        block::BlockHandler,
        bodies::BodyCache,
        chain_feed::source_next_offset,
        command::{CommandHandler, SharedWaits},
        contest::ContestHandler,
        context::HandlerContext,
        dead_letters::RefusedMessage,
        decisions::DecisionLog,
        lost_records::RestartGrace,
        member::until_meta_answers,
        reader_cache::ReaderCache,
        reorg::ReorgHandler,
        state::{ChainState, Tip},
        steps::DecisionMode,
    },
    status::registry::TipStatus,
    telemetry::EventKind,
    text::hex_reversed,
};

/// Handles chain events, one at a time.
pub struct Handler {
    /// Services and settings of the sequencer.
    pub parts: SequencerParts,
    /// State of the chain as of the last handled event.
    pub state: ChainState,
    /// Offsets in `utxo.block-mined` and `utxo.reorgs`: every message below is handled.
    pub handled: (u64, u64),
    readers: Mutex<ReaderCache>,
    bodies: Mutex<BodyCache>,
    command_waits: Mutex<SharedWaits>,
    parent_grace: RestartGrace,
}

impl Handler {
    /// Makes a handler of the events after `state`.
    pub fn new(parts: SequencerParts, state: ChainState) -> Self {
        let (handled, parent_grace) = (state.handled_offsets(), RestartGrace::new(parts.nodes.can_lose_writes()));
        let (readers, bodies, command_waits) = <(Mutex<_>, Mutex<_>, Mutex<_>)>::default();
        let handler = Handler { parts, state, handled, readers, bodies, command_waits, parent_grace };
        handler.publish_tip();
        handler
    }

    /// Returns the context of the event at this chain offset.
    pub fn context(&self, offset: u64, mode: DecisionMode) -> HandlerContext<'_> {
        HandlerContext {
            parts: &self.parts,
            state: &self.state,
            offset,
            mode,
            latest_phase: Phase::Prune,
            applied_again: false,
            readers: &self.readers,
            bodies: &self.bodies,
            command_waits: &self.command_waits,
            parent_grace: self.parent_grace,
        }
    }

    /// Handles one message of the chain log. A message that is no event of the chain becomes a dead letter.
    pub async fn handle(
        &mut self,
        log: &mut DecisionLog,
        mode: DecisionMode,
        message: &Message,
    ) -> Result<(), SequencerError> {
        let event = match Event::decode(&message.payload) {
            Ok(event) => event,
            Err(error) => return self.refuse(mode, message, error.to_string()).await,
        };
        if let Some(kind) = EventKind::of_chain(&event) {
            self.parts.metrics.events.of(kind).inc();
        }
        self.parts.health.status_registry().publish_event(Some((message.offset, event.kind().name())));
        self.handle_event(log, mode, message, event).await?;
        // An event that stops the chain stays the current event in `/state`.
        self.parts.health.status_registry().publish_event(None);
        Ok(())
    }

    async fn handle_event(
        &mut self,
        log: &mut DecisionLog,
        mode: DecisionMode,
        message: &Message,
        event: Event<'_>,
    ) -> Result<(), SequencerError> {
        let cx = self.context(message.offset, mode);
        match event {
            Event::BlockMined(mined) => {
                let block = &mined.block;
                if self.is_next(mined.sequence)? {
                    Box::pin(BlockHandler::new(&cx, block, &message.payload).handle(log)).await?;
                    self.state.sequence = mined.sequence;
                    if block.longest_chain {
                        self.move_tip(Some(Tip::of(block)), 0, slice::from_ref(block));
                        self.record_tip(message.offset + 1).await?;
                    }
                    advance_handled(&mut self.handled.0, message);
                }
                Ok(())
            }
            Event::Reorg(reorg) => {
                if self.is_next(reorg.sequence)? {
                    let tip = Box::pin(ReorgHandler::new(&cx, &reorg, &message.payload).handle(log)).await?;
                    self.state.sequence = reorg.sequence;
                    self.move_tip(tip, reorg.disconnected.len(), &reorg.connected);
                    self.record_tip(message.offset + 1).await?;
                    advance_handled(&mut self.handled.1, message);
                }
                Ok(())
            }
            Event::Contest(contest) => Box::pin(ContestHandler::new(&cx).handle_contest(log, &contest)).await,
            Event::Command(command) => match command.action {
                CommandAction::Reconsider { txid } => {
                    Box::pin(ContestHandler::new(&cx).handle_reconsider(log, command.id, txid)).await
                }
                _ => Box::pin(CommandHandler::new(&cx, &command).handle(log)).await,
            },
            other => {
                let why = format!("a {} event does not belong in this topic", other.kind().name());
                self.refuse(mode, message, why).await
            }
        }
    }

    /// Publishes the dead letter of a message that is no event of the chain.
    async fn refuse(&self, mode: DecisionMode, message: &Message, why: String) -> Result<(), SequencerError> {
        if mode == DecisionMode::Replay {
            return Ok(());
        }
        tracing::error!(offset = message.offset, why, "sequencer: chain event refused; publishing a dead letter");
        let partition = TopicPartition { topic: self.parts.topics.chain.as_str().into(), partition: 0 };
        let (message, class) = (message.clone(), DeadLetterClass::Decode);
        let refused = RefusedMessage { stage: "sequencer", partition, class, message, why };
        self.context(refused.message.offset, mode).publish_dead_letter(refused).await
    }

    /// Returns whether a fed event has the next sequence. An event with an earlier sequence is a repeat. An event with
    /// a later sequence was produced although the produce of the next sequence failed; the feed appends both again in
    /// order. Both kinds are passed over.
    ///
    /// # Errors
    /// `Halt` for the greatest possible sequence: no event could follow.
    fn is_next(&self, sequence: u64) -> Result<bool, SequencerError> {
        let expected = self.state.sequence + 1;
        if sequence < expected {
            tracing::debug!(sequence, expected, "sequencer: repeated block or reorg passed over");
        } else if sequence > expected {
            tracing::warn!(
                sequence,
                expected,
                "sequencer: block or reorg out of sequence passed over, to be fed again"
            );
        }
        if sequence == expected && sequence == u64::MAX {
            let why = format!("a block or reorg has the sequence {sequence}: nothing could follow it");
            return Err(SequencerError::Halt(why));
        }
        Ok(sequence == expected)
    }

    /// Moves the tip after `disconnected` blocks have left the longest chain and the blocks `connected` have joined.
    fn move_tip(&mut self, tip: Option<Tip>, disconnected: usize, connected: &[Block<'_>]) {
        self.state.move_tip(tip, disconnected, connected);
        self.publish_tip();
    }

    /// Records the tip in the meta record, where every event below `chain_offset` is handled.
    pub(super) async fn record_tip(&self, chain_offset: u64) -> Result<(), SequencerError> {
        let Some(tip) = self.state.recorded_tip(chain_offset) else { return Ok(()) };
        let parts = &self.parts;
        Ok(until_meta_answers(parts, || parts.wait_for("the store", parts.ownership.record_tip(&tip))).await?)
    }

    /// Publishes the tip in the metrics and in `/state`.
    pub(super) fn publish_tip(&self) {
        let metrics = &self.parts.metrics;
        metrics.chain_tip_height.set(i64::from(self.state.height()));
        metrics.chain_median_time.set(self.state.median_time().map_or(0, i64::from));
        let ChainState { tip, sequence, era, .. } = &self.state;
        self.parts.health.status_registry().publish_tip(TipStatus {
            height: tip.map(|tip| tip.height),
            hash: tip.map(|tip| hex_reversed(&tip.hash)),
            sequence: *sequence,
            era: *era,
        });
    }

    /// Drops the bodies that the handled event has read.
    pub(super) fn clear_body_cache(&mut self) {
        *self.bodies.get_mut() = BodyCache::default();
    }
}

/// Advances the handled offset of a source topic to the next offset of the feed behind this event.
pub(super) fn advance_handled(next: &mut u64, message: &Message) {
    if let Some(offset) = source_next_offset(message) {
        *next = (*next).max(offset);
    }
}
