//! Handles the events of the chain while this instance has the chain partition.

use std::time::Duration;

use tokio::sync::{mpsc, watch};

use crate::{
    broker::{CommittedOffset, Message, MessageBatch},
    group::member::EndOffsetAnswer,
    liveness::LoopMonitor,
    sequencer::{
        ChainMode, SequencerError, SequencerParts,
        chain_feed::{ChainFeed, FeedProgress},
        decisions::DecisionLog,
        handler::Handler,
        member::until_meta_answers,
        prune::{CommittedChain, Pruner},
        recovery::run_recovery,
        state::ChainState,
        steps::DecisionMode,
        waiting::ReportedWait,
        window::{WindowBound, handle_windows},
    },
    store::meta::compute_chain_id,
};

/// A report to the sequencer's loop, from the worker or from a request of the end offset.
#[derive(Debug)]
pub enum WorkerReport {
    /// End offsets of the chain; empty: the log did not answer, and is asked again at a later tick.
    EndOffsets(Vec<EndOffsetAnswer>),
    /// Every event below this offset is handled.
    Handled(CommittedOffset),
    /// The worker has stopped.
    Stopped(SequencerError),
}

/// First and longest pause before the decisions of a sequencer that is ahead are read again.
const PAUSE_BEHIND: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Windows of events that are taken from the queue before the first of them is handled.
const WINDOWS_AT_ONCE: usize = 4;

/// Handles the events of the chain, one after the other or in windows.
pub struct ChainWorker {
    handler: Handler,
    /// Beats with each event, during each wait, and while the worker is idle.
    monitor: LoopMonitor,
    mode: ChainMode,
    epoch: u64,
    position: u64,
    reports: mpsc::UnboundedSender<(u64, WorkerReport)>,
    committed: watch::Receiver<CommittedChain>,
    /// Number of events of the next window.
    window: WindowBound,
}

impl ChainWorker {
    /// Makes a worker that continues at chain offset `position`, after `state`. The pruner goes by `committed`.
    pub fn new(
        parts: SequencerParts,
        mode: ChainMode,
        state: ChainState,
        epoch: u64,
        position: u64,
        reports: mpsc::UnboundedSender<(u64, WorkerReport)>,
        committed: watch::Receiver<CommittedChain>,
    ) -> Self {
        let monitor = parts.health.liveness().watch_loop("the chain's worker");
        let parts = SequencerParts { monitor: Some(monitor.clone()), ..parts };
        let window = WindowBound::new(parts.settings.window_events);
        let handler = Handler::new(parts, state);
        ChainWorker { handler, monitor, mode, epoch, position, reports, committed, window }
    }

    /// Runs until the task is aborted or an error stops the worker.
    pub async fn run(mut self, messages: mpsc::UnboundedReceiver<MessageBatch>) {
        if let Err(stop) = Box::pin(self.work(messages)).await {
            // Without a receiver the sequencer has ended, and the report has no reader.
            let _ = self.reports.send((self.epoch, WorkerReport::Stopped(stop)));
        }
    }

    async fn work(&mut self, messages: mpsc::UnboundedReceiver<MessageBatch>) -> Result<(), SequencerError> {
        let parts = &self.handler.parts;
        let opened = DecisionLog::open_with_limit(
            parts.broker.clone(),
            parts.producer.clone(),
            &parts.topics.decisions,
            self.handler.state.decisions_from,
            self.position,
            parts.settings.verdict_memory.chunk_bytes,
        );
        let mut log = self.handler.parts.wait_for("the decisions", Box::pin(opened)).await?.with_parts(parts);
        // Another version of this program has recorded no tip.
        self.handler.record_tip(self.position).await?;
        if let ChainMode::Rebuild { stop_at_frontier: true, .. } = self.mode {
            let (_, nothing) = watch::channel(FeedProgress::default());
            return Box::pin(self.handle_all(&mut log, messages, nothing)).await;
        }
        // Without the monitor: a wait of the feed or of the recovery does not show that the worker is alive.
        let feed_parts = SequencerParts { monitor: None, ..parts.clone() };
        let feed = self
            .handler
            .parts
            .wait_for("the feed", ChainFeed::open(&feed_parts, &self.handler.state, self.position))
            .await?;
        let feed_progress = feed.subscribe_progress();
        let task = feed_parts.settings.recovery.filter(|_| self.mode == ChainMode::Live);
        let recovery = async {
            match task {
                Some(task) => run_recovery(&feed_parts, task).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // A simulated run must repeat from its seed, and an unbiased select uses random numbers of its own.
            biased;
            fed = Box::pin(feed.run()) => fed,
            handled = Box::pin(self.handle_all(&mut log, messages, feed_progress)) => handled,
            never = Box::pin(recovery) => match never {},
        }
    }

    async fn handle_all(
        &mut self,
        log: &mut DecisionLog,
        mut messages: mpsc::UnboundedReceiver<MessageBatch>,
        mut feed_progress: watch::Receiver<FeedProgress>,
    ) -> Result<(), SequencerError> {
        let mut has_topic_id = false;
        let mut pruner = self.make_pruner(log);
        let monitor = self.monitor.clone();
        // A batch that came during a step of pruning.
        let mut early = None;
        loop {
            monitor.beat();
            let received = match early.take() {
                Some(batch) => Some(batch),
                None => tokio::select! {
                    biased;
                    batch = messages.recv() => batch,
                    // A message that the feed refuses makes no chain event, but progress.
                    Ok(()) = feed_progress.changed() => {
                        self.report_handled(&mut feed_progress);
                        continue;
                    }
                    () = pruner.wait_for_work() => {
                        early = Box::pin(self.prune(&mut pruner, &mut messages)).await?;
                        continue;
                    }
                    () = tokio::time::sleep_until(monitor.next_beat()) => continue,
                },
            };
            let Some(mut batch) = received else { return Ok(()) };
            // Windows take what is at hand, also from batches that came later.
            while batch.messages.len() < WINDOWS_AT_ONCE * self.handler.parts.settings.window_events
                && let Ok(more) = messages.try_recv()
            {
                batch.messages.extend(more.messages);
            }
            self.confirm_topics().await?;
            let mut open = batch.messages.as_slice();
            // The first message is handled alone.
            let mut is_single = false;
            while let Some(message) = open.first() {
                // The broker may deliver a message twice.
                if message.offset < self.position {
                    open = &open[1..];
                    continue;
                }
                self.handler.parts.beat();
                if message.offset == 0 {
                    self.bind_chain(message).await?;
                }
                let is_live = self.decision_mode(message.offset) == DecisionMode::Live;
                let handled = if is_live && !is_single {
                    let windows = Box::pin(handle_windows(&self.handler, log, open, &mut self.window)).await?;
                    is_single = windows.is_next_single || windows.count == 0;
                    windows.count
                } else {
                    Box::pin(self.handle_until_current(log, message)).await?;
                    is_single = false;
                    1
                };
                if handled == 0 {
                    continue;
                }
                self.handler.clear_body_cache();
                let next = open[handled - 1].offset + 1;
                open = &open[handled..];
                self.position = next;
                self.forget_decisions(log, &mut has_topic_id).await;
                self.report_handled(&mut feed_progress);
            }
            // A chain that is never idle must not starve the pruner.
            if pruner.is_due() {
                early = Box::pin(self.prune(&mut pruner, &mut messages)).await?;
            }
        }
    }

    /// Confirms the ids of the topics: a message of a recreated topic is no event of this chain.
    async fn confirm_topics(&self) -> Result<(), SequencerError> {
        let parts = &self.handler.parts;
        let confirmed = async { parts.guard.confirm(&parts.topics.guarded()).await };
        Ok(parts.wait_for("the topics of the chain", confirmed).await?)
    }

    /// Drops the decisions of the handled events, and reads the id of the decisions topic until the id is known.
    async fn forget_decisions(&mut self, log: &mut DecisionLog, has_topic_id: &mut bool) {
        let state = &mut self.handler.state;
        state.decisions_from = log.forget_handled(self.position);
        if state.decisions_from > 0 && state.decisions_id.is_empty() && !*has_topic_id {
            match self.monitor.enter("the id of the decisions topic", log.read_short_id()).await {
                Ok(id) => (*has_topic_id, state.decisions_id) = (true, id),
                Err(error) => tracing::warn!(%error, "sequencer: id of the decisions topic not read; retrying"),
            }
        }
    }

    /// Returns the mode in which the event at this chain offset is handled.
    fn decision_mode(&self, chain_offset: u64) -> DecisionMode {
        match self.mode {
            ChainMode::Rebuild { frontier, .. } if chain_offset < frontier => DecisionMode::Replay,
            _ => DecisionMode::Live,
        }
    }

    /// Runs one step of pruning. A chain event that comes meanwhile, or waits already, ends the step after a while:
    /// returns its batch.
    async fn prune(
        &self,
        pruner: &mut Pruner,
        messages: &mut mpsc::UnboundedReceiver<MessageBatch>,
    ) -> Result<Option<MessageBatch>, SequencerError> {
        let Handler { parts, state, .. } = &self.handler;
        let limit = pruner.waiting_event_limit();
        let batch = {
            let mut step = Box::pin(self.monitor.enter("a step of pruning", pruner.step(parts, state.era)));
            let batch = tokio::select! {
                biased;
                done = &mut step => return done.map(|()| None),
                Some(batch) = messages.recv() => batch,
            };
            if let Ok(done) = tokio::time::timeout(limit, &mut step).await {
                return done.map(|()| Some(batch));
            }
            batch
        };
        // A dropped step may be repeated.
        pruner.interrupt();
        Ok(Some(batch))
    }

    /// Binds the store to the chain that begins with this message, before its first event is applied.
    async fn bind_chain(&self, first: &Message) -> Result<(), SequencerError> {
        let id = compute_chain_id(first.timestamp_ms, &first.key, &first.payload);
        let parts = &self.handler.parts;
        Ok(until_meta_answers(parts, || parts.wait_for("the store", parts.ownership.bind_chain(id))).await?)
    }

    /// Makes the pruner. A rebuild does not prune; the instance that continues with the store does.
    fn make_pruner(&self, log: &DecisionLog) -> Pruner {
        let task = self.handler.parts.settings.prune.filter(|_| self.mode == ChainMode::Live);
        let retains = self.handler.parts.store.settings.rules.retention > 0;
        Pruner::new(task.filter(|_| retains), self.committed.clone(), log.table().decided_below())
    }

    /// Reports the handled state of the chain, with the progress of the feed.
    fn report_handled(&mut self, feed_progress: &mut watch::Receiver<FeedProgress>) {
        let FeedProgress { block_mined, reorgs, sequence } = *feed_progress.borrow_and_update();
        let Handler { state, handled, .. } = &mut self.handler;
        if state.sequence >= sequence {
            // Messages after the last handled one are repeats and dead letters.
            *handled = (handled.0.max(block_mined), handled.1.max(reorgs));
        }
        state.record_sources((block_mined, reorgs), *handled);
        self.handler.publish_tip();
        let state = &self.handler.state;
        let committed = CommittedOffset { offset: self.position, metadata: state.to_metadata() };
        // Without a receiver the sequencer has ended, and the report has no reader.
        let _ = self.reports.send((self.epoch, WorkerReport::Handled(committed)));
    }

    /// Handles one event, also while another sequencer that has not noticed its revocation is ahead: its decisions are
    /// in the log, and the event is handled again from its beginning with them.
    async fn handle_until_current(&mut self, log: &mut DecisionLog, message: &Message) -> Result<(), SequencerError> {
        let parts = self.handler.parts.clone();
        let mode = self.decision_mode(message.offset);
        let mut waiting = None;
        loop {
            match self.handler.handle(log, mode, message).await {
                // The loop ends once the log shows the decisions, or when the group revokes the partition.
                Err(SequencerError::Behind(offset)) => {
                    tracing::warn!(offset, "sequencer: another sequencer is ahead; reading its decisions");
                    let about =
                        || ReportedWait::new(&parts, format!("chain offset {offset}")).with_pauses(PAUSE_BEHIND);
                    waiting
                        .get_or_insert_with(about)
                        .pause_for("what another sequencer, which is ahead, decided")
                        .await;
                    log.catch_up().await?;
                }
                handled => return handled,
            }
        }
    }
}
