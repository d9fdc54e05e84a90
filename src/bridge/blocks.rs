//! The block messages of the reference, published as `block-mined` and `reorg` events with a sequence.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use prost::Message as _;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    BridgeCounts, BridgeError, Committer, READ_WAIT,
    chain::{BlockLink, BlockStep, BlockTree, EventPlace, PublishedBlock, WINDOW},
    messages::BlocksFinal,
    owned::{OwnedBlock, OwnedSubtree, OwnedTxids},
    publish_dead, start_offset,
    subtree::SubtreeParser,
};
use crate::{
    backoff::Backoff,
    blob::{
        BlobError, EventBodies,
        objects::{ObjectError, Objects},
    },
    broker::{
        Broker, Message, TopicPartition,
        range::LogRange,
        retry::{read_or_reopen, until_answered},
    },
    client::{EventPublisher, PRODUCE_RETRY_PAUSE},
    config::Topics,
    event::{Block, BlockMined, Event, Reorg, Topic},
    tx::{
        Transaction, Txid,
        block::{BlockHeader, HEADER_LEN, MerkleRoot},
        double_sha256,
    },
};

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
    /// Height of the next block, for the transactions.
    pub next_height: watch::Sender<Option<u32>>,
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
        tokio::select! {
            biased;
            // A subtree may be missing for long. The message is read again by the next start.
            () = shutdown.cancelled() => {}
            ended = Box::pin(self.forward_messages(&partition, &mut committer)) => return ended,
        }
        committer.commit_at_end().await
    }

    /// Forwards messages until an error.
    async fn forward_messages(
        &self,
        partition: &TopicPartition,
        committer: &mut Committer<'_>,
    ) -> Result<(), BridgeError> {
        let broker = self.broker.as_ref();
        let committed = start_offset(broker, &self.group, partition).await?;
        let mut forwarder = Forwarder::resume(self, partition).await?;
        let (low, _) = until_answered(|| broker.watermarks(partition)).await?;
        // The messages before the committed offset give the branches; their events are published.
        let mut position = low.max(committed.saturating_sub(WINDOW));
        let mut reader = until_answered(|| broker.read(partition, position)).await?;
        loop {
            if position >= committed {
                committer.commit_in_time(position).await?;
            }
            for message in read_or_reopen(&mut reader, broker, partition, READ_WAIT).await? {
                position = message.offset + 1;
                forwarder.forward(message).await?;
                if position >= committed {
                    committer.commit_in_time(position).await?;
                }
            }
            position = position.max(reader.position());
        }
    }
}

/// Blocks of a published event.
struct NotedEvent {
    blocks: Vec<PublishedBlock>,
    /// Hash and height of the tip after the event; `None`: the event is of a side branch.
    tip: Option<([u8; 32], u32)>,
}

/// Returns the sequence of an event of blocks, with what the tree notes of the event; `None`: an event of another kind.
fn note(event: &Event<'_>, place: EventPlace) -> Option<(u64, NotedEvent)> {
    let published = |block: &Block<'_>| PublishedBlock { hash: block.hash, block_id: block.block_id, place };
    let tip_of = |block: &Block<'_>| (block.hash, block.height);
    let (sequence, blocks, tip) = match event {
        Event::BlockMined(BlockMined { sequence, block }) => {
            (*sequence, vec![published(block)], block.longest_chain.then(|| tip_of(block)))
        }
        Event::Reorg(Reorg { sequence, connected, .. }) => {
            (*sequence, connected.iter().map(published).collect(), connected.last().map(tip_of))
        }
        _ => return None,
    };
    Some((sequence, NotedEvent { blocks, tip }))
}

/// The state of a [`BlockBridge`] at work.
struct Forwarder<'a> {
    bridge: &'a BlockBridge,
    partition: &'a TopicPartition,
    publisher: EventPublisher,
    tree: BlockTree,
    /// Sequence of the last event.
    sequence: u64,
}

impl<'a> Forwarder<'a> {
    /// Reads the last events that a bridge has published. Every sequence, local id and tip follows from the events, so
    /// that a bridge which was killed behind an event continues after the event.
    async fn resume(bridge: &'a BlockBridge, partition: &'a TopicPartition) -> Result<Self, BridgeError> {
        let broker = bridge.broker.as_ref();
        let publisher = EventPublisher::open(broker, bridge.topics.clone()).await?;
        let mut forwarder = Forwarder { bridge, partition, publisher, tree: BlockTree::default(), sequence: 0 };
        let mut events: BTreeMap<u64, NotedEvent> = BTreeMap::new();
        for topic in [Topic::BlockMined, Topic::Reorgs] {
            let own = bridge.own_partition(topic);
            let (low, high) = until_answered(|| broker.watermarks(&own)).await?;
            let from = low.max(high.saturating_sub(2 * WINDOW));
            let mut range = LogRange::open(broker, &own, from, high).await?;
            while let Some(messages) = range.next().await? {
                for message in messages {
                    let place = EventPlace { topic, offset: message.offset };
                    let noted = Event::decode(&message.payload).ok().and_then(|event| note(&event, place));
                    let foreign = || BridgeError::ForeignEvent { partition: own.clone(), offset: message.offset };
                    let (sequence, event) = noted.ok_or_else(foreign)?;
                    // A repeat has the same content.
                    events.entry(sequence).or_insert(event);
                }
            }
        }
        for (sequence, event) in events {
            forwarder.add(sequence, event);
        }
        forwarder.announce_height();
        Ok(forwarder)
    }

    /// Adds a published event.
    fn add(&mut self, sequence: u64, event: NotedEvent) {
        event.blocks.into_iter().for_each(|block| self.tree.add_published(block));
        if let Some((hash, height)) = event.tip {
            self.tree.set_tip(hash, height);
        }
        self.sequence = sequence;
    }

    fn announce_height(&self) {
        self.bridge.next_height.send_replace(Some(self.tree.tip_height().map_or(1, |height| height.saturating_add(1))));
    }

    fn refuse(&self, offset: u64, problem: impl Into<String>) -> BridgeError {
        BridgeError::Block { partition: self.partition.clone(), offset, problem: problem.into() }
    }

    /// Publishes the event of a message.
    async fn forward(&mut self, message: Message) -> Result<(), BridgeError> {
        let offset = message.offset;
        let read = match BlockMessage::decode(&message.payload) {
            Ok(read) => read,
            Err(problem) => {
                let producer = self.publisher.producer();
                let topics = &self.bridge.topics;
                publish_dead(producer.as_ref(), topics, self.partition, message, problem).await?;
                self.bridge.counts.dead_letters.fetch_add(1, Relaxed);
                return Ok(());
            }
        };
        let link = read.link;
        let step = self.tree.plan(&link).map_err(|error| self.refuse(offset, error.to_string()))?;
        if step == BlockStep::Repeat {
            self.bridge.counts.repeats.fetch_add(1, Relaxed);
            return Ok(());
        }
        let own = self.build(read, offset).await?;
        let (mut leaving, mut joining) = (Vec::new(), Vec::new());
        if let BlockStep::Reorg { disconnected, connected } = &step {
            tracing::warn!(block = %Txid(link.hash), leave = disconnected.len(), "bridge: reorg");
            for hash in disconnected {
                leaving.push(self.read_published(hash, offset).await?);
            }
            for hash in connected {
                joining.push(self.read_published(hash, offset).await?);
            }
        }
        joining.push(own);
        self.fit_into_message(&mut leaving, &mut joining).await?;
        let sequence = self.sequence + 1;
        let event = match (&step, joining.as_slice()) {
            (BlockStep::Extend | BlockStep::Side, [block]) => {
                Event::BlockMined(BlockMined { sequence, block: block.as_block(step == BlockStep::Extend) })
            }
            _ => Event::Reorg(Reorg {
                sequence,
                disconnected: leaving.iter().map(|block| block.as_block(true)).collect(),
                connected: joining.iter().map(|block| block.as_block(true)).collect(),
            }),
        };
        let published = self.publisher.publish(&event).await?;
        let topic = if matches!(event, Event::Reorg(_)) { Topic::Reorgs } else { Topic::BlockMined };
        if let Some((sequence, event)) = note(&event, EventPlace { topic, offset: published.offset }) {
            self.add(sequence, event);
        }
        self.announce_height();
        self.bridge.counts.blocks.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Reads a block from the event that has the block.
    async fn read_published(&self, hash: &[u8; 32], offset: u64) -> Result<OwnedBlock, BridgeError> {
        let gone = || self.refuse(offset, format!("block {} is in no event that the topics hold", Txid(*hash)));
        let EventPlace { topic, offset: at } = self.tree.published(hash).ok_or_else(gone)?.place;
        let own = self.bridge.own_partition(topic);
        let broker = self.bridge.broker.as_ref();
        let (low, high) = until_answered(|| broker.watermarks(&own)).await?;
        let mut range = LogRange::open(broker, &own, at.max(low), (at + 1).min(high)).await?;
        let mut found = None;
        while let Some(messages) = range.next().await? {
            found = messages.into_iter().next().or(found);
        }
        let message = found.ok_or_else(gone)?;
        let find = |blocks: &[Block<'_>]| blocks.iter().find(|block| block.hash == *hash).map(OwnedBlock::of);
        let block = match Event::decode(&message.payload) {
            Ok(Event::BlockMined(mined)) => find(&[mined.block]),
            Ok(Event::Reorg(reorg)) => find(&reorg.connected),
            _ => None,
        };
        block.ok_or_else(gone)
    }

    /// Reads the subtrees of a block, and checks them against the header.
    async fn build(&self, message: BlockMessage, offset: u64) -> Result<OwnedBlock, BridgeError> {
        let refuse = |problem: String| self.refuse(offset, problem);
        let BlockMessage { link, header, subtrees: hashes, coinbase } = message;
        let block_id = self.tree.next_id(&link).map_err(|error| refuse(error.to_string()))?;
        let mut root = MerkleRoot::default();
        root.push(Transaction::parse(&coinbase).map_err(|error| refuse(error.to_string()))?.txid());
        let mut subtrees: Vec<OwnedSubtree> = Vec::new();
        let mut inline = 0;
        for (number, hash) in hashes.iter().enumerate() {
            let txids = self.read_subtree(*hash, number == 0).await.map_err(&refuse)?;
            txids.as_chunks().0.iter().for_each(|txid| root.push(Txid(*txid)));
            inline += txids.len();
            subtrees.push(OwnedSubtree { count: (txids.len() / 32) as u64, txids: OwnedTxids::Inline(txids.into()) });
            // The memory of a large block is bounded by its largest subtree.
            if inline > self.bridge.inline_bytes {
                self.store_all(&mut subtrees).await?;
            }
        }
        let found = root.finish().map_err(|error| refuse(error.to_string()))?;
        if found != header.merkle_root {
            return Err(refuse(format!(
                "the coinbase and the subtrees have the merkle root {}, and the header has {}",
                Txid(found),
                Txid(header.merkle_root)
            )));
        }
        let BlockLink { hash, previous, height, .. } = link;
        Ok(OwnedBlock { block_id, hash, previous, height, time: header.time, coinbase, subtrees })
    }

    /// Stores all txids of an event as objects, where they are too large for one message together.
    async fn fit_into_message(
        &self,
        leaving: &mut [OwnedBlock],
        joining: &mut [OwnedBlock],
    ) -> Result<(), BridgeError> {
        let inline: usize = leaving.iter().chain(joining.iter()).map(OwnedBlock::inline_bytes).sum();
        if inline > self.bridge.inline_bytes {
            for block in leaving.iter_mut().chain(joining) {
                self.store_all(&mut block.subtrees).await?;
            }
        }
        Ok(())
    }

    /// Stores the txids of subtrees as objects, unless they are objects already.
    async fn store_all(&self, subtrees: &mut [OwnedSubtree]) -> Result<(), BridgeError> {
        for subtree in subtrees {
            let OwnedTxids::Inline(txids) = &subtree.txids else { continue };
            let bodies = self.bridge.bodies.as_ref().ok_or(BridgeError::NoObjects)?;
            let sha256: [u8; 32] = Sha256::digest(txids).into();
            let put = || bodies.put(txids.clone());
            let pauses = Backoff::from_key(PRODUCE_RETRY_PAUSE, &sha256);
            let key = pauses.retry(BlobError::may_be_retried, put).await?.key;
            subtree.txids = OwnedTxids::Object { key, sha256 };
        }
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
    /// Returns the partition of a topic of this store.
    fn own_partition(&self, topic: Topic) -> TopicPartition {
        TopicPartition { topic: self.topics.name(topic).into(), partition: 0 }
    }
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
