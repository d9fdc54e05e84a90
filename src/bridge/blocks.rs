//! The block messages of the reference, published as `block-mined` and `reorg` events with a sequence.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use prost::Message as _;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::{
    BridgeCounts, BridgeError, Committer, READ_WAIT,
    chain::{BlockLink, BlockProgress, BlockStep, ChainWindow, WINDOW},
    messages::BlocksFinal,
    start_offset,
    subtree::SubtreeParser,
};
use crate::{
    backoff::Backoff,
    blob::{
        BlobError, EventBodies,
        objects::{ObjectError, Objects},
    },
    broker::{
        Broker, CommittedOffset, Message, TopicPartition,
        retry::{read_or_reopen, until_answered},
    },
    client::{EventPublisher, PRODUCE_RETRY_PAUSE},
    config::Topics,
    event::{Block, BlockMined, Event, Reorg, Subtree, SubtreeTransactions, Topic},
    tx::{
        Transaction, Txid,
        block::{BlockHeader, HEADER_LEN, MerkleRoot},
        double_sha256,
    },
};

/// Previous hash in the header of a genesis block.
const NO_BLOCK: [u8; 32] = [0; 32];
/// First and longest pause between two reads of a subtree that is not there yet.
const SUBTREE_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

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
    /// Reads the message at this offset.
    ///
    /// # Errors
    /// Names the field that keeps the message from being a block.
    pub fn decode(offset: u64, payload: &Bytes) -> Result<Self, String> {
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
        let link = BlockLink { offset, hash, previous: header.previous, height: message.height };
        Ok(BlockMessage { link, header, subtrees, coinbase: message.coinbase_tx })
    }
}

/// A block whose transactions are known.
struct BuiltBlock {
    message: BlockMessage,
    block_id: u32,
    subtrees: Vec<BuiltSubtree>,
}

struct BuiltSubtree {
    count: u64,
    txids: BuiltTxids,
}

enum BuiltTxids {
    Inline(Vec<u8>),
    Object { key: String, sha256: [u8; 32] },
}

impl BuiltBlock {
    fn as_block(&self) -> Block<'_> {
        let BlockMessage { link, header, coinbase, .. } = &self.message;
        Block {
            block_id: self.block_id,
            hash: link.hash,
            previous: link.previous,
            height: link.height,
            time: header.time,
            longest_chain: true,
            coinbase,
            subtrees: self.subtrees.iter().map(BuiltSubtree::as_subtree).collect(),
        }
    }
}

impl BuiltSubtree {
    fn as_subtree(&self) -> Subtree<'_> {
        let transactions = match &self.txids {
            BuiltTxids::Inline(txids) => SubtreeTransactions::Inline(txids),
            BuiltTxids::Object { key, sha256 } => SubtreeTransactions::Object { key, sha256: *sha256 },
        };
        Subtree { count: self.count, transactions }
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
    /// Bytes of the txids of a block from which on the txids are objects.
    pub inline_bytes: usize,
    /// Counts of the bridge.
    pub counts: Arc<BridgeCounts>,
}

impl BlockBridge {
    /// Publishes the events of blocks until `shutdown`.
    ///
    /// # Errors
    /// A message cannot become an event, the topic has several partitions, or the log refuses an event. A subtree that
    /// does not exist yet is waited for.
    pub async fn run(&self, shutdown: &CancellationToken) -> Result<(), BridgeError> {
        let broker = self.broker.as_ref();
        match until_answered(|| broker.partitions(&self.topic)).await? {
            Some(1) => {}
            Some(partitions) => return Err(BridgeError::Partitions { topic: self.topic.clone(), partitions }),
            None => return Err(BridgeError::NoTopic(self.topic.clone())),
        }
        let partition = TopicPartition { topic: self.topic.as_str().into(), partition: 0 };
        let mut committer = Committer::new(broker, &self.group, partition.clone());
        let (mut forwarder, mut next) = Forwarder::resume(self, &partition, &mut committer).await?;
        let mut reader = until_answered(|| broker.read(&partition, next)).await?;
        while !shutdown.is_cancelled() {
            for message in read_or_reopen(&mut reader, broker, &partition, READ_WAIT).await? {
                let forwarded = tokio::select! {
                    biased;
                    // A subtree may be missing for long. The message is read again by the next start.
                    () = shutdown.cancelled() => break,
                    forwarded = Box::pin(forwarder.forward(&message)) => forwarded,
                };
                forwarded?;
                next = message.offset + 1;
                committer.commit_in_time(forwarder.commit_at(next)?).await?;
            }
            committer.commit_in_time(forwarder.commit_at(next)?).await?;
        }
        Ok(committer.commit(forwarder.commit_at(next)?).await?)
    }
}

/// The state of a [`BlockBridge`] at work.
struct Forwarder<'a> {
    bridge: &'a BlockBridge,
    partition: &'a TopicPartition,
    publisher: EventPublisher,
    window: ChainWindow,
    progress: BlockProgress,
}

impl<'a> Forwarder<'a> {
    /// Reads the committed progress and the messages before, and returns the next offset.
    async fn resume(
        bridge: &'a BlockBridge,
        partition: &'a TopicPartition,
        committer: &mut Committer<'_>,
    ) -> Result<(Self, u64), BridgeError> {
        let broker = bridge.broker.as_ref();
        let (next, metadata) = start_offset(broker, &bridge.group, partition).await?;
        let progress: BlockProgress = match &metadata {
            Some(metadata) => {
                serde_json::from_str(metadata).map_err(|_| BridgeError::ForeignCommit(partition.clone()))?
            }
            None => {
                bridge.check_topics_are_empty().await?;
                BlockProgress::default()
            }
        };
        let publisher = EventPublisher::open(broker, bridge.topics.clone()).await?;
        let mut forwarder = Forwarder { bridge, partition, publisher, window: ChainWindow::default(), progress };
        if metadata.is_none() {
            // Committed before the first event, so that a bridge which is killed after the event continues.
            committer.commit(forwarder.commit_at(next)?).await?;
        }
        let (low, _) = until_answered(|| broker.watermarks(partition)).await?;
        for message in read_messages(broker, partition, low.max(next.saturating_sub(WINDOW)), next).await? {
            let read = BlockMessage::decode(message.offset, &message.payload);
            forwarder.window.add(read.map_err(|problem| forwarder.refuse(message.offset, problem))?.link);
        }
        forwarder.window.set_tip(forwarder.progress.tip.map(|tip| tip.0));
        Ok((forwarder, next))
    }

    fn commit_at(&self, offset: u64) -> Result<CommittedOffset, BridgeError> {
        let metadata = serde_json::to_string(&self.progress);
        Ok(CommittedOffset { offset, metadata: metadata.map_err(|error| self.refuse(offset, error.to_string()))? })
    }

    fn refuse(&self, offset: u64, problem: impl Into<String>) -> BridgeError {
        BridgeError::Block { partition: self.partition.clone(), offset, problem: problem.into() }
    }

    /// Publishes the event of a message.
    async fn forward(&mut self, message: &Message) -> Result<(), BridgeError> {
        let refuse = |problem: String| self.refuse(message.offset, problem);
        let read = BlockMessage::decode(message.offset, &message.payload).map_err(refuse)?;
        let link = read.link;
        let step = self.window.plan(&link).map_err(|error| refuse(error.to_string()))?;
        let sequence = self.progress.sequence + 1;
        if self.progress.tip.is_none() {
            self.progress.has_genesis = link.previous == NO_BLOCK;
        }
        match step {
            BlockStep::Repeat => {
                tracing::info!(block = %Txid(link.hash), offset = link.offset, "bridge: block is in the chain already");
                self.bridge.counts.repeats.fetch_add(1, Relaxed);
                self.window.add(link);
                return Ok(());
            }
            BlockStep::Extend => {
                let built = self.build(read).await?;
                self.publisher.publish(&Event::BlockMined(BlockMined { sequence, block: built.as_block() })).await?;
            }
            BlockStep::Reorg { disconnected } => {
                tracing::warn!(block = %Txid(link.hash), depth = disconnected.len(), "bridge: reorg");
                let mut left = Vec::new();
                for offset in disconnected {
                    left.push(self.read_again(offset).await?);
                }
                let built = self.build(read).await?;
                let disconnected = left.iter().map(BuiltBlock::as_block).collect();
                let reorg = Reorg { sequence, disconnected, connected: vec![built.as_block()] };
                self.publisher.publish(&Event::Reorg(reorg)).await?;
            }
        }
        self.window.add(link);
        self.window.set_tip(Some(link.hash));
        (self.progress.sequence, self.progress.tip) = (sequence, Some(Txid(link.hash)));
        self.bridge.counts.blocks.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Builds the block of an earlier message again.
    async fn read_again(&self, offset: u64) -> Result<BuiltBlock, BridgeError> {
        let messages = read_messages(self.bridge.broker.as_ref(), self.partition, offset, offset + 1).await?;
        let message = messages.into_iter().find(|message| message.offset == offset);
        let message = message.ok_or_else(|| self.refuse(offset, "the topic no longer holds the block that leaves"))?;
        let read = BlockMessage::decode(offset, &message.payload).map_err(|problem| self.refuse(offset, problem))?;
        self.build(read).await
    }

    /// Reads the subtrees of a block, and checks them against the header.
    async fn build(&self, message: BlockMessage) -> Result<BuiltBlock, BridgeError> {
        let refuse = |problem: String| self.refuse(message.link.offset, problem);
        let block_id = self
            .window
            .block_id(&message.link, self.progress.has_genesis)
            .map_err(|error| refuse(error.to_string()))?;
        let coinbase = Transaction::parse(&message.coinbase).map_err(|error| refuse(error.to_string()))?.txid();
        let mut root = MerkleRoot::default();
        root.push(coinbase);
        let mut subtrees: Vec<BuiltSubtree> = Vec::new();
        let mut inline = 0;
        for (number, hash) in message.subtrees.iter().enumerate() {
            let txids = self.read_subtree(*hash, number == 0).await.map_err(&refuse)?;
            txids.as_chunks().0.iter().for_each(|txid| root.push(Txid(*txid)));
            inline += txids.len();
            subtrees.push(BuiltSubtree { count: (txids.len() / 32) as u64, txids: BuiltTxids::Inline(txids) });
            // A block that is too large for a message has all of its txids in objects.
            if inline > self.bridge.inline_bytes {
                for built in &mut subtrees {
                    self.store(built).await?;
                }
            }
        }
        let found = root.finish().map_err(|error| refuse(error.to_string()))?;
        if found != message.header.merkle_root {
            return Err(refuse(format!(
                "the coinbase and the subtrees have the merkle root {}, and the header has {}",
                Txid(found),
                Txid(message.header.merkle_root)
            )));
        }
        Ok(BuiltBlock { message, block_id, subtrees })
    }

    /// Stores the txids of a subtree as an object, unless they are one already.
    async fn store(&self, built: &mut BuiltSubtree) -> Result<(), BridgeError> {
        let BuiltTxids::Inline(txids) = &mut built.txids else { return Ok(()) };
        let txids = Bytes::from(std::mem::take(txids));
        let Some(bodies) = &self.bridge.bodies else {
            return Err(BridgeError::NoObjects);
        };
        let sha256: [u8; 32] = Sha256::digest(&txids).into();
        let is_retryable = BlobError::may_be_retried;
        let put = || bodies.put(txids.clone());
        let key = Backoff::from_key(PRODUCE_RETRY_PAUSE, &sha256).retry(is_retryable, put).await?.key;
        built.txids = BuiltTxids::Object { key, sha256 };
        Ok(())
    }

    /// Reads the txids of a subtree. A subtree that does not exist is waited for: the reference may write its object
    /// after the message.
    async fn read_subtree(&self, hash: [u8; 32], is_first: bool) -> Result<Vec<u8>, String> {
        let key = format!("{}.subtree", Txid(hash));
        let read = || async {
            let mut parser = SubtreeParser::new(hash, is_first);
            let mut problem = None;
            let each = |piece: &[u8]| match parser.push(piece) {
                Ok(()) => true,
                Err(error) => {
                    problem = Some(error);
                    false
                }
            };
            self.bridge.subtrees.read_pieces(&key, each).await?;
            let read = match problem {
                Some(error) => Err(error),
                None => parser.finish(),
            };
            Ok(read.map_err(|error| format!("subtree object `{key}`: {error}")))
        };
        let is_retryable = |error: &ObjectError| match error {
            ObjectError::Missing(_) => true,
            ObjectError::Failed(_, error) => error.may_be_retried(),
            ObjectError::Wrong { .. } => false,
        };
        Backoff::from_key(SUBTREE_PAUSE, &hash).retry(is_retryable, read).await.map_err(|error| error.to_string())?
    }
}

impl BlockBridge {
    /// Checks that the topics of blocks have no events: the sequence of a new bridge begins at 1.
    async fn check_topics_are_empty(&self) -> Result<(), BridgeError> {
        for topic in [Topic::BlockMined, Topic::Reorgs] {
            let name = self.topics.name(topic);
            let partition = TopicPartition { topic: name.into(), partition: 0 };
            if until_answered(|| self.broker.watermarks(&partition)).await?.1 > 0 {
                return Err(BridgeError::NotEmpty(name.to_owned()));
            }
        }
        Ok(())
    }
}

/// Reads the messages of a range of offsets, as far as the topic has them.
async fn read_messages(
    broker: &dyn Broker,
    partition: &TopicPartition,
    from: u64,
    end: u64,
) -> Result<Vec<Message>, BridgeError> {
    let (low, high) = until_answered(|| broker.watermarks(partition)).await?;
    let (from, end) = (from.max(low), end.min(high));
    let mut found = Vec::new();
    if from >= end {
        return Ok(found);
    }
    let mut reader = until_answered(|| broker.read(partition, from)).await?;
    while reader.position() < end {
        found.extend(read_or_reopen(&mut reader, broker, partition, READ_WAIT).await?);
    }
    found.retain(|message| message.offset < end);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tx::{Outpoint, TransactionBuilder};

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
        let decode = |message: &BlocksFinal| BlockMessage::decode(3, &message.encode_to_vec().into());
        let read = decode(&good).unwrap();
        assert_eq!((read.link.offset, read.link.height, read.link.previous), (3, 7, [1; 32]));
        let refused = [
            (BlocksFinal { header: vec![1; 79].into(), ..good.clone() }, "header: "),
            (BlocksFinal { coinbase_tx: Bytes::new(), ..good.clone() }, "coinbase_tx: "),
            (BlocksFinal { subtree_hashes: vec![vec![2; 31].into()], ..good }, "subtree_hashes: "),
        ];
        for (message, field) in refused {
            assert!(decode(&message).unwrap_err().starts_with(field), "{message:?}");
        }
        assert!(BlockMessage::decode(0, &Bytes::from_static(&[0xFF; 5])).unwrap_err().contains("BlocksFinal"));
    }
}
