//! [`OutcomeWatch`]: the transactions that the topic of outcomes names, for the parked transactions of this instance.
//!
//! ```text
//! instance A ── live(P), acknowledged ──► utxo.outcomes ──► watch of instance B ──► planner: tries the children of P
//! ```
//!
//! Nothing depends on the watch. A lost outcome, a topic that cannot be read, and a reader that is behind leave a
//! parked transaction to its next retry.

use std::sync::Arc;

use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Duration, Instant},
};

use crate::{
    broker::{Broker, BrokerError, Message, PartitionSetReader, TopicPartition},
    event::{Event, OutcomeKind},
    group::outcomes::OutcomeTopic,
    tx::Txid,
};

/// Batches that the pipeline has not taken yet; the reader waits for room.
const BATCHES_AHEAD: usize = 4;
/// Pause before the topic is opened again.
const REOPEN_PAUSE: Duration = Duration::from_secs(5);
/// Time between two looks at the number of partitions.
const PARTITIONS_INTERVAL: Duration = Duration::from_secs(30);

/// The transactions of all outcomes that are published from now on. The reading ends when the watch is dropped.
pub struct OutcomeWatch {
    named: mpsc::Receiver<Vec<Txid>>,
    _task: JoinSet<()>,
}

impl OutcomeWatch {
    /// Begins to read a topic at its end. An outcome that is published after the answer is not missed, unless the topic
    /// cannot be read now: then the watch opens the topic later.
    pub async fn start(broker: Arc<dyn Broker>, topic: &OutcomeTopic) -> Self {
        let (sender, named) = mpsc::channel(BATCHES_AHEAD);
        let mut reading = OutcomeReading { broker, topic: topic.name.as_str().into(), sender, is_away: false };
        let opened = reading.open().await;
        let mut task = JoinSet::new();
        task.spawn(async move { reading.run(opened).await });
        OutcomeWatch { named, _task: task }
    }

    /// Waits for the next outcomes and returns their transactions. Cancel safe.
    pub async fn next(&mut self) -> Vec<Txid> {
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
    sender: mpsc::Sender<Vec<Txid>>,
    /// The topic could not be read the last time.
    is_away: bool,
}

/// Reader of all partitions of a topic, and their number.
type OpenTopic = (Box<dyn PartitionSetReader>, i32);

impl OutcomeReading {
    async fn run(&mut self, mut opened: Result<OpenTopic, BrokerError>) {
        loop {
            let error = match opened {
                Ok(open) => self.follow(open).await,
                Err(error) => error.to_string(),
            };
            if !std::mem::replace(&mut self.is_away, true) {
                tracing::warn!(
                    topic = %self.topic,
                    error,
                    "outcomes: cannot be read; parked transactions of other instances' parents wait for their retries"
                );
            }
            tokio::time::sleep(REOPEN_PAUSE).await;
            opened = self.open().await;
        }
    }

    /// Opens the topic at the end of each partition.
    async fn open(&self) -> Result<OpenTopic, BrokerError> {
        let count = self.broker.partitions(&self.topic).await?;
        let count = count.ok_or_else(|| BrokerError::unknown_topic("read", &self.topic))?;
        let mut starts = Vec::new();
        for partition in 0..count {
            let partition = TopicPartition { topic: self.topic.clone(), partition };
            let (_, end) = self.broker.watermarks(&partition).await?;
            starts.push((partition, end));
        }
        Ok((self.broker.read_all(&starts).await?, count))
    }

    /// Reads until the topic has other partitions or cannot be read, and returns the reason.
    async fn follow(&mut self, (mut reader, count): OpenTopic) -> String {
        if std::mem::take(&mut self.is_away) {
            tracing::info!(topic = %self.topic, "outcomes: are read again");
        }
        let mut look = Instant::now() + PARTITIONS_INTERVAL;
        loop {
            tokio::select! {
                biased;
                batch = reader.next() => match batch {
                    Ok(batch) => {
                        let named = batch.messages.iter().flat_map(named_transactions).collect::<Vec<_>>();
                        // Fails only once the watch is dropped, which ends this task.
                        if !named.is_empty() && self.sender.send(named).await.is_err() {
                            return "the instance has ended".to_owned();
                        }
                    }
                    Err(error) => return error.to_string(),
                },
                () = tokio::time::sleep_until(look) => {
                    look = Instant::now() + PARTITIONS_INTERVAL;
                    // A request without an answer says nothing about the topic.
                    if let Ok(found) = self.broker.partitions(&self.topic).await
                        && found != Some(count)
                    {
                        return format!("the topic had {count} partitions and has {} now", found.unwrap_or(0));
                    }
                }
            }
        }
    }
}

/// Returns the transactions whose children a message can wake: an event that was refused, and a block that was
/// disconnected, have made no parent spendable.
fn named_transactions(message: &Message) -> Vec<Txid> {
    match Event::decode(&message.payload) {
        Ok(Event::OutcomeBatch(batch)) => batch.txids.iter().collect(),
        Ok(Event::Outcome(outcome)) if !matches!(outcome.kind, OutcomeKind::Refused { .. }) => vec![outcome.txid],
        // A message of a later version names nothing that this version could wake: its children are retried.
        _ => Vec::new(),
    }
}
