//! Handles the chain's events while its partition is ours.

use std::time::Duration;

use tokio::sync::{mpsc, watch};

use crate::{
    broker::{Batch, Committed, Message},
    event::{Action, DeadLetter, DeadLetterClass, Event},
    liveness::LoopMonitor,
    sequencer::{
        ChainMode, SequencerParts, Stop,
        decisions::DecisionLog,
        feed::{Feed, Passed, source_offset},
        handler::{At, Handler},
        prune::{Pruner, Safe},
        state::ChainState,
        steps::Making,
        waiting::Waiting,
    },
    store::meta::{MetaError, chain_id},
    telemetry::EventKind,
};

/// What a worker tells, or who looks where the chain ends.
#[derive(Debug)]
pub enum Progress {
    /// The chain ends there.
    End(u64),
    /// Everything below this offset is handled.
    Handled(Committed),
    /// It does not go on.
    Stopped(Stop),
}

const PAUSE_BEHIND: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Handles one event after the other.
pub struct Worker {
    handler: Handler,
    /// Beats with each event, with each wait and while that lasts, and while there is nothing to do.
    monitor: LoopMonitor,
    mode: ChainMode,
    epoch: u64,
    position: u64,
    progress: mpsc::UnboundedSender<(u64, Progress)>,
    safe: watch::Receiver<Safe>,
    /// Of the two topics that are fed, offsets: what is below is handled.
    handled: (u64, u64),
}

impl Worker {
    /// A worker that goes on at chain offset `position`, after `state`; `safe` says what is committed.
    pub fn new(
        parts: SequencerParts,
        mode: ChainMode,
        state: ChainState,
        epoch: u64,
        position: u64,
        progress: mpsc::UnboundedSender<(u64, Progress)>,
        safe: watch::Receiver<Safe>,
    ) -> Self {
        let handled = state.handled();
        let monitor = parts.health.liveness().watch_loop("the chain's worker");
        let parts = SequencerParts { monitor: Some(monitor.clone()), ..parts };
        Worker { handler: Handler::new(parts, state), monitor, mode, epoch, position, progress, safe, handled }
    }

    /// Runs until it is aborted or cannot go on.
    pub async fn run(mut self, messages: mpsc::UnboundedReceiver<Batch>) {
        if let Err(stop) = Box::pin(self.work(messages)).await {
            // Without a receiver the sequencer has ended, and nobody needs to know.
            let _ = self.progress.send((self.epoch, Progress::Stopped(stop)));
        }
    }

    async fn work(&mut self, messages: mpsc::UnboundedReceiver<Batch>) -> Result<(), Stop> {
        let parts = &self.handler.parts;
        let opened = DecisionLog::open(
            parts.broker.clone(),
            parts.producer.clone(),
            &parts.topics.decisions,
            self.handler.state.decisions_from,
            self.position,
        );
        let mut log = self.handler.answer("the decisions", Box::pin(opened)).await?.over(parts);
        if let ChainMode::Rebuild { stop_at_frontier: true, .. } = self.mode {
            let (_, nothing) = watch::channel(Passed::default());
            return Box::pin(self.handle_all(&mut log, messages, nothing)).await;
        }
        // Its waits are no sign of the worker's life.
        let of_feed = SequencerParts { monitor: None, ..parts.clone() };
        let feed = self.handler.answer("the feed", Feed::open(&of_feed, &self.handler.state, self.position)).await?;
        let passed = feed.passed();
        tokio::select! {
            // A run must replay from its seed, and an unbiased select throws dice of its own.
            biased;
            fed = Box::pin(feed.run()) => fed,
            handled = Box::pin(self.handle_all(&mut log, messages, passed)) => handled,
        }
    }

    async fn handle_all(
        &mut self,
        log: &mut DecisionLog,
        mut messages: mpsc::UnboundedReceiver<Batch>,
        mut passed: watch::Receiver<Passed>,
    ) -> Result<(), Stop> {
        let mut asked = false;
        let mut pruner = self.pruner(log);
        let monitor = self.monitor.clone();
        loop {
            monitor.beat();
            let batch = tokio::select! {
                biased;
                batch = messages.recv() => match batch {
                    Some(batch) => batch,
                    None => return Ok(()),
                },
                // What the feed refuses makes no event here.
                Ok(()) = passed.changed() => {
                    self.tell(&mut passed);
                    continue;
                }
                () = pruner.ready() => {
                    Box::pin(monitor.enter("a step of pruning", pruner.step(&self.handler))).await?;
                    continue;
                }
                () = tokio::time::sleep_until(monitor.next_beat()) => continue,
            };
            // What was read of another topic of that name is no event of this chain.
            let confirmed = async {
                let parts = &self.handler.parts;
                parts.guard.confirm(&parts.topics.guarded()).await
            };
            self.handler.answer("the topics of the chain", confirmed).await?;
            for message in batch.messages {
                // The broker may repeat what it has delivered.
                if message.offset < self.position {
                    continue;
                }
                self.handler.parts.beat();
                if message.offset == 0 {
                    self.bind_chain(&message).await?;
                }
                Box::pin(self.handle_with_others(log, &message)).await?;
                self.handler.let_go_of_bodies().await;
                let next = message.offset + 1;
                self.position = next;
                let state = &mut self.handler.state;
                state.decisions_from = log.handled_below(next);
                if state.decisions_from > 0 && state.decisions_id.is_empty() && !asked {
                    match monitor.enter("what the decisions are known by", log.id()).await {
                        Ok(id) => (asked, state.decisions_id) = (true, id),
                        Err(error) => tracing::warn!(%error, "what the decisions topic is known by is asked again"),
                    }
                }
                self.tell(&mut passed);
            }
            // A chain that is never idle must not keep it from its work.
            if pruner.is_ready() {
                Box::pin(monitor.enter("a step of pruning", pruner.step(&self.handler))).await?;
            }
        }
    }

    /// Holds the store to the chain that begins with this message, before anything of it is applied.
    async fn bind_chain(&self, first: &Message) -> Result<(), Stop> {
        let id = chain_id(first.timestamp_ms, &first.key, &first.payload);
        let parts = &self.handler.parts;
        let mut waiting = Waiting::new(parts, "the chain");
        loop {
            match self.handler.answer("the store", parts.whole.bind_chain(id)).await {
                Err(error) if error.may_be_retried() => waiting.look_again("the meta record of the store").await,
                Err(error @ MetaError::ChainRecreated { .. }) => return Err(Stop::Halt(error.to_string())),
                bound => return bound.map_err(|error| Stop::Damaged(error.to_string())),
            }
        }
    }

    /// A rebuild keeps everything: whoever goes on with it prunes.
    fn pruner(&self, log: &DecisionLog) -> Pruner {
        let task = self.handler.parts.settings.prune.filter(|_| self.mode == ChainMode::Live);
        let retains = self.handler.parts.store.settings.rules.retention > 0;
        Pruner::new(task.filter(|_| retains), self.safe.clone(), log.table().decided_below())
    }

    /// Tells how far the chain is, and the feed.
    fn tell(&mut self, passed: &mut watch::Receiver<Passed>) {
        let Passed { block_mined, reorgs, sequence } = *passed.borrow_and_update();
        let state = &mut self.handler.state;
        if state.sequence >= sequence {
            // Behind the last that was handled there are repeats and dead letters.
            self.handled = (self.handled.0.max(block_mined), self.handled.1.max(reorgs));
        }
        state.note_sources((block_mined, reorgs), self.handled);
        self.handler.publish_tip();
        let state = &self.handler.state;
        let committed = Committed { offset: self.position, metadata: state.to_metadata() };
        // Without a receiver the sequencer has ended, and nobody needs to know.
        let _ = self.progress.send((self.epoch, Progress::Handled(committed)));
    }

    /// Another sequencer that does not know yet that it lost the partition may be ahead: then what it decided is in the
    /// log, and the event is handled again from its beginning.
    async fn handle_with_others(&mut self, log: &mut DecisionLog, message: &Message) -> Result<(), Stop> {
        let parts = self.handler.parts.clone();
        let mut behind = None;
        loop {
            match self.handle(log, message).await {
                // Ends when the log shows what was decided, or when the group takes the partition away.
                Err(Stop::Behind(offset)) => {
                    tracing::warn!(offset, "another sequencer is ahead: reading what it decided");
                    let about = || Waiting::new(&parts, format!("chain offset {offset}")).paced(PAUSE_BEHIND);
                    behind
                        .get_or_insert_with(about)
                        .look_again("what another sequencer, which is ahead, decided")
                        .await;
                    log.catch_up().await?;
                }
                handled => return handled,
            }
        }
    }

    async fn handle(&mut self, log: &mut DecisionLog, message: &Message) -> Result<(), Stop> {
        let making = match self.mode {
            ChainMode::Rebuild { frontier, .. } if message.offset < frontier => Making::Replaying,
            _ => Making::Allowed,
        };
        let at = At { offset: message.offset, era: self.handler.state.era, making, leaving: false };
        let event = match Event::decode(&message.payload) {
            Ok(event) => event,
            Err(error) => return self.bury(at, message, error.to_string()).await,
        };
        if let Some(kind) = EventKind::of_chain(&event) {
            self.handler.parts.metrics.events.of(kind).inc();
        }
        self.handler.parts.health.status_registry().publish_event(Some((message.offset, event.kind().name())));
        self.handle_event(at, log, message, event).await?;
        // One that stops the chain is still the one that it is at.
        self.handler.parts.health.status_registry().publish_event(None);
        Ok(())
    }

    async fn handle_event(
        &mut self,
        at: At,
        log: &mut DecisionLog,
        message: &Message,
        event: Event<'_>,
    ) -> Result<(), Stop> {
        match event {
            Event::BlockMined(block) => {
                if Box::pin(self.handler.block_mined(at, log, &block, &message.payload)).await? {
                    note_handled(&mut self.handled.0, message);
                }
                Ok(())
            }
            Event::Contest(contest) => Box::pin(self.handler.contest(at, log, &contest)).await,
            Event::Command(command) => match command.action {
                Action::Reconsider { txid } => Box::pin(self.handler.reconsider(at, log, txid)).await,
                _ => Box::pin(self.handler.command(at, log, &command, message.timestamp_ms)).await,
            },
            Event::Reorg(reorg) => {
                if Box::pin(self.handler.reorg(at, log, &reorg, &message.payload)).await? {
                    note_handled(&mut self.handled.1, message);
                }
                Ok(())
            }
            other => {
                self.bury(at, message, format!("a {} event does not belong in this topic", other.kind().name())).await
            }
        }
    }

    async fn bury(&self, at: At, message: &Message, why: String) -> Result<(), Stop> {
        if at.making == Making::Replaying {
            return Ok(());
        }
        let parts = &self.handler.parts;
        tracing::error!(offset = at.offset, why, "dead letter in the chain");
        let letter = DeadLetter {
            topic: parts.topics.chain.clone(),
            partition: 0,
            offset: message.offset,
            stage: "sequencer".to_owned(),
            class: DeadLetterClass::Decode,
            message: why,
            timestamp_ms: message.timestamp_ms,
        };
        self.handler.bury_letter(message.clone(), &letter).await
    }
}

/// The feed need not read again what is handled.
fn note_handled(next: &mut u64, message: &Message) {
    if let Some(offset) = source_offset(message) {
        *next = (*next).max(offset.saturating_add(1));
    }
}
