//! Waits for the transaction of a command, until it is proven that no event before the command produced the
//! transaction.
//!
//! An event that was produced before the command is in the log before the command is handled, so that its offset is
//! below the end that its partition has then. Once every event below that end is completed, the transaction is there or
//! does not come. The times of client and producers do not count.
//!
//! Over a store that can lose writes an event whose writes a node lost comes again, and an output that is free
//! meanwhile may be spent by the event. The first command after the chain was acquired therefore waits for all
//! partitions. Later commands need no such wait: a node that restarts since then ends the
//! sequencer's hold of the chain.

use std::{sync::Arc, time::Duration};

use tokio::{sync::MutexGuard, time::Instant};

use crate::{
    broker::{Broker, BrokerError, TopicPartition, partitioner::partition_of, retry::until_answered},
    group::{commit_metadata::read_foreign_view, missing_parent::txid_prefix},
    record::{CommandResult, Page, TxState},
    sequencer::{
        SequencerError,
        command::{
            evaluate::refuse,
            shared_waits::{PartitionProgress, PartitionWait, SharedWaits, WaitLimits},
        },
        context::HandlerContext,
    },
    tx::Txid,
};

/// The source of validated transactions.
#[derive(Debug, Clone)]
pub struct ValidatedSource {
    /// The topic of validated transactions, `utxo.validated-txs`.
    pub topic: Arc<str>,
    /// The consumer group of the pipelines.
    pub group: String,
    /// `ingest.missing_parent_grace_ms`: an event that is read and waits is waited for during this time.
    pub grace: Duration,
}

/// Waits for the transaction that a command names. Returns its master, or the refusal `TX_NOT_FOUND` when the wait
/// is over.
pub async fn wait_for_transaction(
    cx: &HandlerContext<'_>,
    txid: Txid,
) -> Result<Result<Arc<Page>, CommandResult>, SequencerError> {
    let mut waiting = cx.start_wait("the transaction of a command");
    let waits = || async { cx.command_waits.lock().await };
    let can_be_lost = may_lack_events(cx).await;
    let mut is_over = false;
    loop {
        if let Some(page) = cx.master(txid).await? {
            if let TxState::Pruned(height) = page.state() {
                return Ok(Err(refuse("TX_NOT_FOUND", format!("{txid} was pruned at height {height}"))));
            }
            if page.utxos.is_some() && (is_over || !can_be_lost) {
                return Ok(Ok(page));
            }
        }
        // The transaction may have appeared between the last read and the proof, so it is read once more after the
        // proof.
        if is_over {
            return Ok(Err(refuse("TX_NOT_FOUND", format!("{txid} did not exist when the command was handled"))));
        }
        let look = || async { look(cx, waits().await, txid, can_be_lost).await };
        is_over = cx.wait_for("the log", until_answered(look)).await?;
        if !is_over {
            waiting.pause_for(&txid.to_string()).await;
        }
    }
}

/// Waits until all partitions have been read again, before a command is applied again that bars the spends of later
/// events: a node may have lost the flag together with the spends before it. Returns at once over a store that loses
/// no writes, or after an earlier wait.
pub async fn wait_for_lost_spends(cx: &HandlerContext<'_>, txid: Txid) -> Result<(), SequencerError> {
    let waits = || async { cx.command_waits.lock().await };
    if !cx.applied_again || !may_lack_events(cx).await {
        return Ok(());
    }
    let mut waiting = cx.start_wait("spends that a node may have lost");
    let look = || async { look(cx, waits().await, txid, true).await };
    while !cx.wait_for("the log", until_answered(look)).await? {
        waiting.pause_for(&txid.to_string()).await;
    }
    Ok(())
}

/// Returns whether events whose writes a node lost may not have come again.
async fn may_lack_events(cx: &HandlerContext<'_>) -> bool {
    cx.parts.nodes.can_lose_writes() && !cx.command_waits.lock().await.is_past_restart
}

/// Looks at the partitions that the command waits for: all of them, or the one of its transaction. Returns whether
/// none of them is waited for any more.
async fn look(
    cx: &HandlerContext<'_>,
    mut waits: MutexGuard<'_, SharedWaits>,
    txid: Txid,
    of_all: bool,
) -> Result<bool, BrokerError> {
    let ValidatedSource { topic, group, grace } = &cx.parts.validated;
    let limits = WaitLimits { unread: cx.parts.settings.block_wait, read: *grace };
    let broker: &dyn Broker = cx.parts.broker.as_ref();
    let count = broker.partitions(topic).await?.unwrap_or(0);
    let own = partition_of(&txid.0, count);
    let needed = (0..count).filter(|number| of_all || Some(*number) == own);
    let partitions: Vec<_> = needed.map(|partition| TopicPartition { topic: topic.clone(), partition }).collect();
    for partition in &partitions {
        if !waits.covers(partition.partition, cx.offset) {
            // The end of the chain is read first: the transactions of all commands below were produced before.
            let chain = TopicPartition { topic: cx.parts.topics.chain.as_str().into(), partition: 0 };
            let (_, commands_below) = broker.watermarks(&chain).await?;
            let (_, end) = broker.watermarks(partition).await?;
            waits.begin(partition.partition, PartitionWait::new(commands_below, end, Instant::now()));
        }
    }
    let mut is_over = true;
    for (partition, committed) in partitions.iter().zip(broker.committed(group, &partitions).await?) {
        let completed = committed.as_ref().map_or(0, |committed| committed.offset);
        let view = read_foreign_view(broker, partition, committed).await?;
        let progress = PartitionProgress { completed, position: view.position, is_over_limit: view.over_limit };
        let is_known = !of_all && view.has_no_unfinished_event_of(txid_prefix(&txid));
        is_over &= waits.observe(partition.partition, progress, is_known, limits, Instant::now());
    }
    waits.is_past_restart |= of_all && is_over;
    Ok(is_over)
}
