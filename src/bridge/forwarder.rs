//! The state of the bridge of blocks at work: one message after the other becomes an event, or waits.

use std::{collections::BTreeMap, time::Duration};

use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::{
    BridgeError,
    blocks::{BlockBridge, BlockMessage},
    chain::{BlockLink, BlockStep, BlockTree, ChainError, EventPlace, PublishedBlock, WINDOW},
    dead_letters::BridgeDeadLetters,
    owned::{OwnedBlock, OwnedSubtree, OwnedTxids},
    progress::SourceProgress,
    subtree::{SubtreeError, SubtreeParser},
};
use crate::{
    backoff::Backoff,
    blob::{BlobError, objects::ObjectError},
    broker::{Message, TopicPartition, range::LogRange, retry::until_answered},
    client::{EventPublisher, PRODUCE_RETRY_PAUSE},
    event::{Block, BlockMined, DeadLetterClass, Event, Reorg, Topic},
    tx::{Transaction, Txid, block::MerkleRoot},
};

/// Time that a block may wait for a subtree before readiness names the object.
const SUBTREE_WAIT_LIMIT: Duration = Duration::from_secs(60);
/// First and longest pause between two reads of a subtree that is not there yet.
const SUBTREE_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// Most blocks that wait for their previous blocks.
const MAX_WAITING: usize = 4 * WINDOW as usize;
/// Most bytes of the messages of blocks that wait: 256 MiB.
const MAX_WAITING_BYTES: usize = 256 << 20;
/// Time for which a block above the tip waits before the bridge is no longer ready.
const MISSING_LIMIT: Duration = Duration::from_secs(300);

/// Blocks of a published event.
struct NotedEvent {
    blocks: Vec<PublishedBlock>,
    /// Hash and height of the tip after the event; `None`: the event is of a side branch.
    tip: Option<([u8; 32], u32)>,
}

/// Returns the sequence of an event of blocks, with what the tree notes of the event; `None`: an event of another kind.
fn note(event: &Event<'_>, place: EventPlace) -> Option<(u64, NotedEvent)> {
    let published = |block: &Block<'_>| {
        let Block { hash, previous, height, block_id, .. } = *block;
        PublishedBlock { hash, previous, height, block_id, place }
    };
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
pub(super) struct Forwarder<'a> {
    bridge: &'a BlockBridge,
    partition: &'a TopicPartition,
    publisher: EventPublisher,
    letters: BridgeDeadLetters<'a>,
    tree: BlockTree,
    /// Sequence of the last event.
    sequence: u64,
    /// Blocks that wait for their previous blocks.
    waiting: WaitingBlocks,
    /// Hash of the missing block for which the lowest block above the tip waits, with the time of the first look.
    missing: Option<([u8; 32], Instant)>,
}

/// Block messages with what was read from them, by the offset of the message.
type WaitingBlocks = BTreeMap<u64, (Message, BlockMessage)>;

impl<'a> Forwarder<'a> {
    /// Reads the last events that a bridge has published. Every sequence, local id and tip follows from the events, so
    /// that a bridge which was killed behind an event continues after the event.
    pub(super) async fn resume(
        bridge: &'a BlockBridge,
        partition: &'a TopicPartition,
        start: SourceProgress,
    ) -> Result<Self, BridgeError> {
        let broker = bridge.broker.as_ref();
        let publisher = EventPublisher::open(broker, bridge.topics.clone()).await?;
        let places = (&bridge.topics, bridge.counts.as_ref());
        let limits = bridge.dead_letter_limits;
        let letters = BridgeDeadLetters::new(publisher.producer(), partition, places, limits, start.read);
        let (tree, waiting) = (BlockTree::new(bridge.begin_after), BTreeMap::new());
        let mut forwarder =
            Forwarder { bridge, partition, publisher, letters, tree, sequence: 0, waiting, missing: None };
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
        let last = events.last_key_value().map_or(0, |(sequence, _)| *sequence);
        if last < start.sequence {
            // Another number for the next event would be one that the chain has used.
            return Err(BridgeError::LostEvents { last, published: start.sequence });
        }
        for (sequence, event) in events {
            forwarder.add(sequence, event);
        }
        if let Some((after, height)) = bridge.begin_after.zip(forwarder.tree.tip_height()) {
            tracing::info!(after = %Txid(after), height, "bridge: events exist; the block to begin after is not used");
        }
        Ok(forwarder)
    }

    /// Reads the works of the published blocks from their messages, before the first message is planned: a message that
    /// waits for another can come before those of blocks that are published already.
    pub(super) async fn read_works(&mut self, from: u64, end: u64) -> Result<(), BridgeError> {
        if self.tree.tip_height().is_none() {
            return Ok(());
        }
        let mut range = LogRange::open(self.bridge.broker.as_ref(), self.partition, from, end).await?;
        let mut unpublished = 0;
        while unpublished <= MAX_WAITING
            && let Some(messages) = range.next().await?
        {
            for message in messages {
                // A message that is no block gets its dead letter in its turn.
                let read = BlockMessage::decode(&message.payload);
                let Ok(BlockMessage { link, .. }) = read else { continue };
                if self.tree.note_work(&link) {
                    unpublished = 0;
                } else if !self.tree.is_outdated(link.height) {
                    unpublished += 1;
                }
            }
        }
        Ok(())
    }

    /// Adds a published event.
    fn add(&mut self, sequence: u64, event: NotedEvent) {
        event.blocks.into_iter().for_each(|block| self.tree.add_published(block));
        if let Some((hash, height)) = event.tip {
            self.tree.set_tip(hash, height);
        }
        self.sequence = sequence;
    }

    /// Announces the height of the next block to the transactions. `is_caught_up`: the messages that the start has seen
    /// are read. Before, and while blocks above the tip wait, the height would be that of a past block, at which
    /// coinbases are immature.
    pub(super) fn announce_height(&self, is_caught_up: bool) {
        let Some(tip) = self.tree.tip_height() else { return };
        let next_height = &self.bridge.next_height;
        let is_waited_for = |(_, read): &(Message, BlockMessage)| read.link.height > tip;
        if next_height.borrow().is_some() || is_caught_up && !self.waiting.values().any(is_waited_for) {
            next_height.send_replace(Some(tip.saturating_add(1)));
        }
    }

    /// Reports the missing block for which blocks above the tip have waited long. Instances would wait for ever, in
    /// silence, where retention has dropped its message.
    pub(super) fn report_missing(&mut self) {
        let tip = self.tree.tip_height();
        let above =
            self.waiting.values().map(|(_, read)| read.link).filter(|link| tip.is_some_and(|t| link.height > t));
        let lowest = above.min_by_key(|link| link.height).map(|link| (link.previous, link.height));
        self.missing = lowest.map(|(hash, _)| match self.missing {
            Some((same, since)) if same == hash => (hash, since),
            _ => (hash, Instant::now()),
        });
        let is_long = self.missing.is_some_and(|(_, since)| since.elapsed() >= MISSING_LIMIT);
        let problem = lowest.filter(|_| is_long).map(|(hash, height)| {
            let (partition, waiting) = (self.partition, self.waiting.len());
            let below = height.saturating_sub(1);
            format!(
                "{waiting} blocks wait for block {} of height {below}, of which {partition} has no message",
                Txid(hash)
            )
        });
        self.bridge.counts.set_missing_block(problem);
    }

    /// Checks that the messages up to the end that the start has seen have the block to begin after, or a block after.
    ///
    /// # Errors
    /// The messages have neither: the hash is wrong, or the topic ends below the block.
    pub(super) fn check_begin(&self, end: u64) -> Result<(), BridgeError> {
        match self.tree.awaited_begin() {
            Some(after) if !self.tree.has_begin() => {
                Err(BridgeError::NoBegin { partition: self.partition.clone(), end, after: Txid(after) })
            }
            _ => Ok(()),
        }
    }

    /// Returns the progress before the message `next`: a start reads the messages that wait again.
    pub(super) fn progress(&self, next: u64) -> SourceProgress {
        let first_waiting = self.waiting.first_key_value().map(|(offset, _)| *offset);
        SourceProgress { offset: first_waiting.unwrap_or(next), read: next, sequence: self.sequence }
    }

    fn refuse(&self, offset: u64, problem: impl Into<String>) -> BridgeError {
        BridgeError::Block { partition: self.partition.clone(), offset, problem: problem.into() }
    }

    /// Publishes the event of a message, and the events of the blocks that have waited for the message. The order of
    /// the events is the same where a start reads the messages again.
    pub(super) async fn forward(&mut self, message: Message) -> Result<(), BridgeError> {
        let mut ready = match BlockMessage::decode(&message.payload) {
            Ok(read) => BTreeMap::from([(message.offset, (message, read))]),
            Err(problem) => return self.letters.publish(message, DeadLetterClass::Decode, problem).await,
        };
        while let Some((offset, (message, read))) = ready.pop_first() {
            let link = read.link;
            match self.tree.plan(&link) {
                Ok(BlockStep::Wait) => {
                    self.wait(offset, message, read)?;
                    continue;
                }
                Ok(BlockStep::Repeat) => {
                    self.bridge.counts.metrics.repeated_blocks.inc();
                }
                Ok(step) => self.publish_event(step, read, offset).await?,
                // Another message of the block can have the right height; the blocks after it wait.
                Err(error @ ChainError::Height { .. }) => {
                    self.letters.publish(message, DeadLetterClass::Invalid, error.to_string()).await?;
                    continue;
                }
                Err(error) => return Err(self.refuse(offset, error.to_string())),
            }
            self.letters.count_event();
            ready.extend(self.take_waiting(|_, waiting| waiting.previous == link.hash));
        }
        self.drop_outdated().await?;
        self.bridge.counts.metrics.waiting_blocks.set(self.waiting.len() as i64);
        Ok(())
    }

    /// Keeps a block until its previous block comes. Before the first event the oldest blocks beyond the limits are
    /// dropped: the topic has them from before the block to begin after.
    fn wait(&mut self, offset: u64, message: Message, read: BlockMessage) -> Result<(), BridgeError> {
        let BlockLink { hash, previous, height, .. } = read.link;
        let (block, missing) = (Txid(hash), Txid(previous));
        let mut links = self.waiting.values().map(|(_, waiting)| waiting.link);
        if !links.any(|waiting| waiting.hash == previous || waiting.previous == previous) {
            tracing::warn!(%block, height, %missing, offset, "bridge: block waits for a message of its previous block");
        }
        self.waiting.insert(offset, (message, read));
        let size =
            |waiting: &WaitingBlocks| -> usize { waiting.values().map(|(message, _)| message.payload.len()).sum() };
        while self.waiting.len() > MAX_WAITING || size(&self.waiting) > MAX_WAITING_BYTES {
            let Some((first, (_, read))) = self.waiting.pop_first() else { break };
            if self.tree.awaited_begin().is_none() {
                let (later, missing) = (self.waiting.len(), Txid(read.link.previous));
                return Err(self.refuse(
                    first,
                    format!(
                        "{later} later blocks wait with this block for its previous block {missing}, of which the \
                         topic has no message"
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Takes the blocks out that wait no longer.
    fn take_waiting(&mut self, is_taken: impl Fn(&BlockTree, &BlockLink) -> bool) -> WaitingBlocks {
        let waiting = std::mem::take(&mut self.waiting);
        let (taken, left): (WaitingBlocks, _) =
            waiting.into_iter().partition(|(_, (_, read))| is_taken(&self.tree, &read.link));
        self.waiting = left;
        taken
    }

    /// Drops blocks that can join no chain any more. A block far below the tip gets a dead letter; a block below the
    /// first published block is a repeat of what the store has.
    async fn drop_outdated(&mut self) -> Result<(), BridgeError> {
        if !self.waiting.values().any(|(_, read)| self.tree.is_outdated(read.link.height)) {
            return Ok(());
        }
        for (_, (message, read)) in self.take_waiting(|tree, waiting| tree.is_outdated(waiting.height)) {
            let BlockLink { previous, height, .. } = read.link;
            if self.tree.is_below_first(height) {
                self.bridge.counts.metrics.repeated_blocks.inc();
                continue;
            }
            let missing = Txid(previous);
            let problem = format!("the tip is more than {WINDOW} blocks above, and block {missing} has no message");
            self.letters.publish_dropped(message, DeadLetterClass::Invalid, problem).await?;
        }
        Ok(())
    }

    /// Publishes the event of a block.
    async fn publish_event(&mut self, step: BlockStep, read: BlockMessage, offset: u64) -> Result<(), BridgeError> {
        let link = read.link;
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
        self.bridge.counts.metrics.block_events.inc();
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
            let txids = self.read_subtree(*hash, number == 0).await.map_err(|error| refuse(error.to_string()))?;
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

    /// Reads the txids of a subtree. An object that does not exist, or ends early, is waited for: the reference may
    /// write the object after the message. A long wait is reported.
    async fn read_subtree(&self, hash: [u8; 32], is_first: bool) -> Result<Vec<u8>, SubtreeReadError> {
        let (name, started) = (Txid(hash).to_string(), Instant::now());
        // The reference has folders of the first two digits by default (`hashPrefix=2`).
        let keys = [format!("{name}.subtree"), format!("{}/{name}.subtree", &name[..2])];
        let read = || async {
            let mut read = self.read_subtree_object(&keys[0], hash, is_first).await;
            if read.is_err()
                && let Ok(in_folder) = self.read_subtree_object(&keys[1], hash, is_first).await
            {
                read = Ok(in_folder);
            }
            let long_wait = read.as_ref().err().filter(|_| started.elapsed() >= SUBTREE_WAIT_LIMIT);
            self.bridge.counts.set_missing_subtree(long_wait.map(ToString::to_string));
            read
        };
        let is_retryable = |error: &SubtreeReadError| match error {
            SubtreeReadError::Object(ObjectError::Failed(_, error)) => error.may_be_retried(),
            SubtreeReadError::Object(ObjectError::Missing(_)) => true,
            SubtreeReadError::Damaged(_, SubtreeError::Short(_)) => true,
            SubtreeReadError::Object(ObjectError::Wrong { .. }) | SubtreeReadError::Damaged(..) => false,
        };
        Backoff::from_key(SUBTREE_PAUSE, &hash).retry(is_retryable, read).await
    }

    async fn read_subtree_object(
        &self,
        key: &str,
        hash: [u8; 32],
        is_first: bool,
    ) -> Result<Vec<u8>, SubtreeReadError> {
        let mut parser = SubtreeParser::new(hash, is_first);
        let mut problem = None;
        let each = |piece: &[u8]| match parser.push(piece) {
            Ok(()) => true,
            Err(error) => {
                problem = Some(error);
                false
            }
        };
        self.bridge.subtrees.read_pieces(key, each).await?;
        let read = problem.map_or_else(|| parser.finish(), Err);
        read.map_err(|error| SubtreeReadError::Damaged(key.to_owned(), error))
    }
}

/// Problem of a subtree at one read.
#[derive(Debug, thiserror::Error)]
enum SubtreeReadError {
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error("subtree object `{0}`: {1}")]
    Damaged(String, SubtreeError),
}
