//! Waits for the transaction of a command, until it is proven that no event before the command produced the
//! transaction.
//!
//! The proof is that of a missing parent, over the one partition that can have the transaction's events. Chain events
//! before the command are handled already. Over a store that can lose writes the proof covers every partition: an event
//! whose writes a node lost comes again, and an output that is free meanwhile may be spent by it.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    broker::{Broker, BrokerError, TopicPartition, partitioner::partition_of, retry::until_answered},
    group::{commit_metadata::read_foreign_view, missing_parent::PartitionView},
    record::{CommandResult, Page, TxState},
    sequencer::{SequencerError, SequencerParts, command::evaluate::refuse, context::HandlerContext},
    tx::Txid,
};

/// The source of validated transactions.
#[derive(Debug, Clone)]
pub struct ValidatedSource {
    /// The topic of validated transactions, `utxo.validated-txs`.
    pub topic: Arc<str>,
    /// The consumer group of the pipelines.
    pub group: String,
    /// `ingest.missing_parent_grace_ms`: events of one time are read within this time.
    pub grace: Duration,
}

/// The progress of the partitions that a command waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ReadProgress {
    /// Some message that is older than the command may not have been read.
    NotRead,
    /// All older messages are read, and some are not completed.
    Read,
    /// All older messages are read and completed.
    Finished,
}

impl ReadProgress {
    /// Classifies one partition by its view, for messages produced until `published_ms`; `past_ms` is that time plus
    /// the grace.
    fn from_view(view: &PartitionView, published_ms: i64, past_ms: i64) -> Self {
        let read = view.at_end || view.over_limit || view.read_timestamp_ms > past_ms;
        let finished = view.oldest_unfinished.is_none_or(|(timestamp_ms, _)| timestamp_ms > published_ms);
        match (read, finished) {
            // A partition at its limit is not read further, so messages after the limit are unknown.
            (true, true) if !view.over_limit => ReadProgress::Finished,
            (true, _) => ReadProgress::Read,
            (false, _) => ReadProgress::NotRead,
        }
    }
}

/// The waits for an absent transaction, with their beginnings.
struct Absence {
    since: Instant,
    read_since: Option<Instant>,
}

impl Absence {
    /// Returns whether the wait is over. The transaction's own event may wait for a chain event after the command, or
    /// its partition may be halted: neither may stop the chain.
    fn is_given_up(&mut self, reached: ReadProgress, parts: &SequencerParts) -> bool {
        let now = Instant::now();
        match reached {
            ReadProgress::Finished => true,
            ReadProgress::Read => now - *self.read_since.get_or_insert(now) >= parts.validated.grace,
            ReadProgress::NotRead => now - self.since >= parts.settings.block_wait,
        }
    }
}

/// Waits for the transaction that a command names. Returns its master, or the refusal `TX_NOT_FOUND` when the wait
/// is over.
pub async fn wait_for_transaction(
    cx: &HandlerContext<'_>,
    txid: Txid,
    published_ms: i64,
) -> Result<Result<Arc<Page>, CommandResult>, SequencerError> {
    let mut waiting = cx.start_wait("the transaction of a command");
    let mut absence = Absence { since: Instant::now(), read_since: None };
    let mut given_up = false;
    loop {
        if let Some(page) = cx.master(txid).await? {
            if let TxState::Pruned(height) = page.state() {
                return Ok(Err(refuse("TX_NOT_FOUND", format!("{txid} was pruned at height {height}"))));
            }
            if page.utxos.is_some() && (given_up || !cx.parts.nodes.can_lose_writes()) {
                return Ok(Ok(page));
            }
        }
        // The transaction may have appeared between the last read and the proof, so it is read once more after the
        // proof.
        if given_up {
            return Ok(Err(refuse("TX_NOT_FOUND", format!("{txid} did not exist when the command was handled"))));
        }
        let reached = cx.wait_for("the log", until_answered(|| read_progress(cx.parts, txid, published_ms))).await?;
        given_up = absence.is_given_up(reached, cx.parts);
        if !given_up {
            waiting.pause_for(&txid.to_string()).await;
        }
    }
}

async fn read_progress(parts: &SequencerParts, txid: Txid, published_ms: i64) -> Result<ReadProgress, BrokerError> {
    let ValidatedSource { topic, group, grace } = &parts.validated;
    let broker: &dyn Broker = parts.broker.as_ref();
    let count = broker.partitions(topic).await?.unwrap_or(0);
    let own = partition_of(&txid.0, count);
    let needed = (0..count).filter(|number| parts.nodes.can_lose_writes() || Some(*number) == own);
    let partitions: Vec<_> = needed.map(|partition| TopicPartition { topic: topic.clone(), partition }).collect();
    let past = published_ms.saturating_add(grace.as_millis() as i64);
    let mut least = ReadProgress::Finished;
    for (partition, committed) in partitions.iter().zip(broker.committed(group, &partitions).await?) {
        let view = read_foreign_view(broker, partition, committed).await?;
        least = least.min(ReadProgress::from_view(&view, published_ms, past));
    }
    Ok(least)
}
