//! A command waits for its transaction, but only until it is proven that it was never produced before the command: the proof of a
//! missing parent, over the one partition that can hold its events. What stands before the command in the chain is handled.
//!
//! Over a store that may forget it waits for everybody who was before it, in every partition: what a node has just forgotten comes
//! again, and an output that is free meanwhile may be spent.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    broker::{Broker, BrokerError, TopicPartition, partitioner::partition_of, retry::until_answered},
    group::{partition::PartitionState, proof::PartitionView},
    record::{CommandResult, Page, TxState},
    sequencer::{
        SequencerParts, Stop,
        command::evaluate::refused,
        handler::{At, Handler},
        waiting::Waiting,
    },
    tx::Txid,
};

/// Where transactions come from, and who consumes them.
#[derive(Debug, Clone)]
pub struct ValidatedSource {
    /// `utxo.validated-txs`
    pub topic: Arc<str>,
    /// The group of the pipelines.
    pub group: String,
    /// Of a missing parent: events of one time are read within it.
    pub grace: Duration,
}

/// How far the partitions are that a command waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reached {
    /// Something that is older than the command may not have been read.
    NotRead,
    /// All of that is read, and something of it is not finished.
    Read,
    /// All of that is finished.
    Finished,
}

impl Reached {
    /// By what a partition shows, of what was produced until `asked_ms`.
    fn of(view: &PartitionView, asked_ms: i64, past: i64) -> Self {
        let read = view.at_end || view.at_bound || view.read_timestamp_ms > past;
        let finished = view.oldest_unfinished.is_none_or(|(timestamp_ms, _)| timestamp_ms > asked_ms);
        match (read, finished) {
            // What lies behind the bound of one that reads no further is not known.
            (true, true) if !view.at_bound => Reached::Finished,
            (true, _) => Reached::Read,
            (false, _) => Reached::NotRead,
        }
    }
}

/// What is known of an absent transaction.
struct Absence {
    since: Instant,
    read_since: Option<Instant>,
}

impl Absence {
    /// Whether nobody waits for it any more. It may wait itself for what only the chain can decide behind the command, or its partition
    /// may stand: neither may stop the chain.
    fn is_given_up(&mut self, reached: Reached, parts: &SequencerParts) -> bool {
        let now = Instant::now();
        match reached {
            Reached::Finished => true,
            Reached::Read => now - *self.read_since.get_or_insert(now) >= parts.validated.grace,
            Reached::NotRead => now - self.since >= parts.settings.block_wait,
        }
    }
}

impl Handler {
    /// The transaction that a command names, once it is there; or why it is not waited for (any more).
    pub(super) async fn present(
        &self,
        at: At,
        txid: Txid,
        asked_ms: i64,
    ) -> Result<Result<Arc<Page>, CommandResult>, Stop> {
        let about = format!("chain offset {}: the transaction of a command", at.offset);
        let mut waiting = Waiting::new(&self.parts, about);
        let mut absence = Absence { since: Instant::now(), read_since: None };
        let mut given_up = false;
        loop {
            if let Some(page) = self.master(txid).await? {
                if let TxState::Pruned(height) = page.state() {
                    return Ok(Err(refused("TX_NOT_FOUND", format!("{txid} was pruned at height {height}"))));
                }
                if page.utxos.is_some() && (given_up || !self.parts.nodes.may_forget()) {
                    return Ok(Ok(page));
                }
            }
            // It may have come between the last look and the proof: so this was one more.
            if given_up {
                return Ok(Err(refused("TX_NOT_FOUND", format!("{txid} was not there when the command came"))));
            }
            let reached = self.answer("the log", until_answered(|| reached(&self.parts, txid, asked_ms))).await?;
            given_up = absence.is_given_up(reached, &self.parts);
            if !given_up {
                waiting.look_again(&txid.to_string()).await;
            }
        }
    }
}

async fn reached(parts: &SequencerParts, txid: Txid, asked_ms: i64) -> Result<Reached, BrokerError> {
    let ValidatedSource { topic, group, grace } = &parts.validated;
    let broker: &dyn Broker = parts.broker.as_ref();
    let count = broker.partitions(topic).await?.unwrap_or(0);
    let own = partition_of(&txid.0, count);
    let asked = (0..count).filter(|number| parts.nodes.may_forget() || Some(*number) == own);
    let partitions: Vec<_> = asked.map(|partition| TopicPartition { topic: topic.clone(), partition }).collect();
    let past = asked_ms.saturating_add(grace.as_millis() as i64);
    let mut least = Reached::Finished;
    for (partition, committed) in partitions.iter().zip(broker.committed(group, &partitions).await?) {
        let view = PartitionState::foreign_view(broker, partition, committed).await?;
        least = least.min(Reached::of(&view, asked_ms, past));
    }
    Ok(least)
}
