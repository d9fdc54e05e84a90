//! [`OutcomeWatch`]: the transactions that the topic of outcomes names, for the parked transactions of this instance.
//!
//! ```text
//! instance A ── live(P), acknowledged ──► utxo.outcomes ──► watch of instance B ──► planner: tries the children of P
//! ```
//!
//! Nothing depends on the watch. A lost outcome, a topic that cannot be read, and a reader that is behind leave a
//! parked transaction to its next retry.

use std::{collections::BTreeMap, sync::Arc};

use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Duration, Instant},
};

use crate::{
    broker::{Broker, BrokerError, Message, PartitionSetReader, TopicPartition},
    event::{Event, OutcomeChange, OutcomeKind},
    group::outcomes::OutcomeTopic,
    ingest::plan::NamedTransaction,
};

/// Batches that the pipeline has not taken yet; the reader waits for room.
const BATCHES_AHEAD: usize = 4;
/// Pause before the topic is opened again.
const REOPEN_PAUSE: Duration = Duration::from_secs(5);
/// Messages of a partition that are caught up at most when the topic is opened again.
const CATCH_UP: u64 = 100_000;
/// Time between two looks at the number of partitions.
const PARTITIONS_INTERVAL: Duration = Duration::from_secs(30);

/// The transactions of all outcomes that are published from now on. The reading ends when the watch is dropped.
pub struct OutcomeWatch {
    named: mpsc::Receiver<Vec<NamedTransaction>>,
    _task: JoinSet<()>,
}

impl OutcomeWatch {
    /// Begins to read a topic at its end. An outcome that is published after the answer is not missed, unless the topic
    /// cannot be read now: then the watch opens the topic later.
    pub async fn start(broker: Arc<dyn Broker>, topic: &OutcomeTopic) -> Self {
        let (sender, named) = mpsc::channel(BATCHES_AHEAD);
        let mut reading =
            OutcomeReading { broker, topic: topic.name.as_str().into(), sender, next: BTreeMap::new(), is_away: false };
        let opened = reading.open().await;
        let mut task = JoinSet::new();
        task.spawn(async move { reading.run(opened).await });
        OutcomeWatch { named, _task: task }
    }

    /// Waits for the next outcomes and returns their transactions. Cancel safe.
    pub async fn next(&mut self) -> Vec<NamedTransaction> {
        match self.named.recv().await {
            Some(named) => named,
            // The task ends with the watch only.
            None => std::future::pending().await,
        }
    }
}

/// A topic of outcomes that is being read.
struct OutcomeReading {
    broker: Arc<dyn Broker>,
    topic: Arc<str>,
    sender: mpsc::Sender<Vec<NamedTransaction>>,
    /// Next offset of each partition; empty before the topic is opened for the first time.
    next: BTreeMap<i32, u64>,
    /// The topic could not be read the last time.
    is_away: bool,
}

/// Reader of all partitions of a topic, and their number.
type OpenTopic = (Box<dyn PartitionSetReader>, i32);

impl OutcomeReading {
    async fn run(&mut self, mut opened: Result<OpenTopic, BrokerError>) {
        loop {
            let has_read = match opened {
                Ok(open) => self.follow(open).await,
                Err(error) => {
                    self.report_away(&error);
                    false
                }
            };
            // A topic that gives nothing is opened at a slow pace.
            if !has_read {
                tokio::time::sleep(REOPEN_PAUSE).await;
            }
            opened = self.open().await;
        }
    }

    /// Logs once that the topic cannot be read.
    fn report_away(&mut self, error: &BrokerError) {
        if !std::mem::replace(&mut self.is_away, true) {
            tracing::warn!(
                topic = %self.topic,
                %error,
                "outcomes: cannot be read; transactions whose parents other instances create wait for their retries"
            );
        }
    }

    /// Opens the topic: at the end of each partition for the first time, later where the reading stopped.
    async fn open(&mut self) -> Result<OpenTopic, BrokerError> {
        let count = self.broker.partitions(&self.topic).await?;
        let count = count.ok_or_else(|| BrokerError::unknown_topic("read", &self.topic))?;
        let is_first = self.next.is_empty();
        let mut starts = Vec::new();
        for number in 0..count {
            let partition = TopicPartition { topic: self.topic.clone(), partition: number };
            let (low, end) = self.broker.watermarks(&partition).await?;
            let stopped = if is_first { end } else { self.next.get(&number).copied().unwrap_or(low) };
            // An offset beyond the end is of an earlier topic of that name.
            let start = if stopped > end { end } else { stopped.max(low).max(end.saturating_sub(CATCH_UP)) };
            starts.push((partition, start));
        }
        self.next = starts.iter().map(|(partition, start)| (partition.partition, *start)).collect();
        Ok((self.broker.read_all(&starts).await?, count))
    }

    /// Reads until the topic has other partitions or cannot be read. Returns whether anything was read, or the topic
    /// has other partitions.
    async fn follow(&mut self, (mut reader, count): OpenTopic) -> bool {
        let mut look = Instant::now() + PARTITIONS_INTERVAL;
        let mut has_read = false;
        loop {
            tokio::select! {
                biased;
                batch = reader.next() => match batch {
                    Ok(batch) => {
                        has_read = true;
                        if std::mem::take(&mut self.is_away) {
                            tracing::info!(topic = %self.topic, "outcomes: are read again");
                        }
                        let named = batch.messages.iter().flat_map(named_transactions).collect::<Vec<_>>();
                        // Fails only once the watch is dropped, which ends this task.
                        if !named.is_empty() && self.sender.send(named).await.is_err() {
                            return false;
                        }
                        if let Some(last) = batch.messages.last() {
                            self.next.insert(batch.partition.partition, last.offset + 1);
                        }
                    }
                    Err(error) => {
                        self.report_away(&error);
                        return has_read;
                    }
                },
                () = tokio::time::sleep_until(look) => {
                    look = Instant::now() + PARTITIONS_INTERVAL;
                    // A request without an answer says nothing about the topic.
                    if let Ok(found) = self.broker.partitions(&self.topic).await
                        && found != Some(count)
                    {
                        let found = found.unwrap_or(0);
                        tracing::info!(topic = %self.topic, count, found, "outcomes: number of partitions changed");
                        return true;
                    }
                }
            }
        }
    }
}

/// Returns the transactions whose children a message can wake: an event that was refused has made no parent spendable.
fn named_transactions(message: &Message) -> Vec<NamedTransaction> {
    match Event::decode(&message.payload) {
        Ok(Event::OutcomeBatch(batch)) => {
            let can_unlock = batch.change != OutcomeChange::Live;
            batch.txids.iter().map(|txid| NamedTransaction { txid, can_unlock }).collect()
        }
        Ok(Event::Outcome(outcome)) if !matches!(outcome.kind, OutcomeKind::Refused { .. }) => {
            vec![NamedTransaction { txid: outcome.txid, can_unlock: true }]
        }
        // A message of a later version names nothing that this version could wake: its children are retried.
        _ => Vec::new(),
    }
}
