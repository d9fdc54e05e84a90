//! The block messages of the reference, published as `block-mined` and `reorg` events with a sequence.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    BridgeCounts, BridgeError, READ_WAIT, TOPIC_CHECK_INTERVAL,
    chain::{BlockLink, WINDOW},
    forwarder::Forwarder,
    messages::BlocksFinal,
    progress::{Committer, SourceTopic},
};
use crate::{
    blob::{EventBodies, objects::Objects},
    broker::{
        Broker, TopicPartition,
        retry::{read_or_reopen, until_answered},
    },
    config::Topics,
    event::Topic,
    group::dead_letters::DeadLetterLimits,
    tx::{
        Transaction,
        block::{BlockHeader, HEADER_LEN},
        double_sha256,
    },
};

/// A block message that was read and checked.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockMessage {
    /// Links to other messages.
    pub link: BlockLink,
    /// Header of the block.
    pub header: BlockHeader,
    /// Root hashes of the subtrees.
    pub subtrees: Vec<[u8; 32]>,
    /// The coinbase in standard format.
    pub coinbase: Bytes,
}

impl BlockMessage {
    /// Reads the message of a block.
    ///
    /// # Errors
    /// Names the field that keeps the message from being a block.
    pub fn decode(payload: &Bytes) -> Result<Self, String> {
        let message = BlocksFinal::decode(payload.clone())
            .map_err(|error| format!("no KafkaBlocksFinalTopicMessage: {error}"))?;
        let header = BlockHeader::parse(&message.header).map_err(|error| format!("header: {error}"))?;
        let hash = double_sha256([&message.header[..HEADER_LEN]]);
        let coinbase = Transaction::parse(&message.coinbase_tx).map_err(|error| format!("coinbase_tx: {error}"))?;
        if coinbase.is_extended() {
            return Err("coinbase_tx: the transaction is not in standard format".to_owned());
        }
        let subtrees = message.subtree_hashes.iter().map(|hash| <[u8; 32]>::try_from(&hash[..]));
        let subtrees =
            subtrees.collect::<Result<Vec<_>, _>>().map_err(|_| "subtree_hashes: a hash has not 32 bytes")?;
        let link = BlockLink { hash, previous: header.previous, height: message.height, work: header.work() };
        Ok(BlockMessage { link, header, subtrees, coinbase: message.coinbase_tx })
    }
}

/// Turns block messages into events.
#[derive(Clone)]
pub struct BlockBridge {
    /// The log of both systems.
    pub broker: Arc<dyn Broker>,
    /// Topic of the reference.
    pub topic: String,
    /// Group that commits the progress.
    pub group: String,
    /// Topics of this store.
    pub topics: Topics,
    /// The subtrees of the reference.
    pub subtrees: Objects,
    /// Object store for the txids of large blocks (`objects.url`).
    pub bodies: Option<EventBodies>,
    /// Most bytes of txids in one event: where there are more, all txids of the event are objects.
    pub inline_bytes: usize,
    /// Height of the next block, for the transactions; `None` until the blocks that the start has seen are read.
    pub next_height: watch::Sender<Option<u32>>,
    /// Hash of the block before the first event, internal order; `None`: the first message becomes the first event.
    pub begin_after: Option<[u8; 32]>,
    /// Limits on dead letters, beyond which the bridge ends.
    pub dead_letter_limits: DeadLetterLimits,
    /// Counts of the bridge.
    pub counts: Arc<BridgeCounts>,
}

impl BlockBridge {
    /// Publishes the events of blocks until `shutdown`.
    ///
    /// # Errors
    /// A block cannot become an event, the topic lacks the block to begin after, the topic has several partitions or
    /// was created again, or the log refuses an event. A subtree that does not exist yet, and the previous block of a
    /// block, are waited for.
    pub async fn run(&self, shutdown: &CancellationToken) -> Result<(), BridgeError> {
        let (topic, partitions) = SourceTopic::open(self.broker.as_ref(), &self.topic).await?;
        self.check_partitions(partitions)?;
        let partition = TopicPartition { topic: self.topic.as_str().into(), partition: 0 };
        let mut committer = Committer::new(&topic, &self.group, partition.clone());
        let ended = tokio::select! {
            biased;
            // A subtree may be missing for long. The message is read again by the next start.
            () = shutdown.cancelled() => Ok(()),
            ended = Box::pin(self.forward_messages(&topic, &partition, &mut committer)) => ended,
        };
        committer.finish(ended).await
    }

    fn check_partitions(&self, partitions: i32) -> Result<(), BridgeError> {
        match partitions {
            1 => Ok(()),
            partitions => Err(BridgeError::Partitions { topic: self.topic.clone(), partitions }),
        }
    }

    /// Forwards messages until an error.
    async fn forward_messages(
        &self,
        topic: &SourceTopic<'_>,
        partition: &TopicPartition,
        committer: &mut Committer<'_>,
    ) -> Result<(), BridgeError> {
        let broker = self.broker.as_ref();
        let start = committer.resume().await?;
        let mut forwarder = Forwarder::resume(self, partition, start).await?;
        let (low, end) = until_answered(|| broker.watermarks(partition)).await?;
        // The messages before the committed offset give the branches; their events are published.
        let mut position = low.max(start.offset.saturating_sub(WINDOW));
        forwarder.read_works(position, end).await?;
        let mut reader = until_answered(|| broker.read(partition, position)).await?;
        let mut checked = Instant::now();
        loop {
            forwarder.announce_height(position >= end);
            forwarder.report_missing();
            if low < end && position >= end {
                forwarder.check_begin(end)?;
            }
            if position >= start.read {
                committer.commit_in_time(forwarder.progress(position)).await?;
            }
            if checked.elapsed() >= TOPIC_CHECK_INTERVAL {
                topic.check().await?.map_or(Ok(()), |partitions| self.check_partitions(partitions))?;
                checked = Instant::now();
            }
            for message in read_or_reopen(&mut reader, broker, partition, READ_WAIT).await? {
                position = message.offset + 1;
                forwarder.forward(message).await?;
                forwarder.announce_height(position >= end);
                if position >= start.read {
                    committer.commit_in_time(forwarder.progress(position)).await?;
                }
            }
            position = position.max(reader.position());
        }
    }

    /// Returns the partition of a topic of this store.
    pub(super) fn own_partition(&self, topic: Topic) -> TopicPartition {
        TopicPartition { topic: self.topics.name(topic).into(), partition: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tx::{Outpoint, TransactionBuilder, Txid};

    #[test]
    fn a_message_that_is_no_block_is_refused_with_its_field() {
        let no_output = Outpoint { txid: Txid([0; 32]), vout: u32::MAX };
        let coinbase = TransactionBuilder::default().input(no_output, &[], 0, None).output(5, &[0x51]).standard();
        let coinbase = Bytes::from(coinbase);
        let good = BlocksFinal {
            header: vec![1; HEADER_LEN].into(),
            subtree_hashes: vec![vec![2; 32].into()],
            coinbase_tx: coinbase,
            height: 7,
            ..BlocksFinal::default()
        };
        let decode = |message: &BlocksFinal| BlockMessage::decode(&message.encode_to_vec().into());
        let read = decode(&good).unwrap();
        assert_eq!((read.link.height, read.link.previous), (7, [1; 32]));
        let refused = [
            (BlocksFinal { header: vec![1; 79].into(), ..good.clone() }, "header: "),
            (BlocksFinal { coinbase_tx: Bytes::new(), ..good.clone() }, "coinbase_tx: "),
            (BlocksFinal { subtree_hashes: vec![vec![2; 31].into()], ..good }, "subtree_hashes: "),
        ];
        for (message, field) in refused {
            assert!(decode(&message).unwrap_err().starts_with(field), "{message:?}");
        }
        assert!(BlockMessage::decode(&Bytes::from_static(&[0xFF; 5])).unwrap_err().contains("BlocksFinal"));
    }
}
