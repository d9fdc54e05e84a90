//! The chain of the reference's block messages: which event a message becomes. Pure.
//!
//! The topic has one message for each valid block, on whichever branch. The branch with the most work is the chain; of
//! two branches with equal work the first one stays, as in nodes.

use std::collections::{HashMap, VecDeque};

use crate::event::Topic;

/// A block message and its links to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockLink {
    /// Hash of the block, internal order.
    pub hash: [u8; 32],
    /// Hash of the previous block, internal order.
    pub previous: [u8; 32],
    /// Height of the block.
    pub height: u32,
    /// Expected number of hashes for the block's target.
    pub work: u128,
}

/// Place of the event that has a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventPlace {
    /// Topic of the event, of blocks or of reorgs.
    pub topic: Topic,
    /// Offset of the event.
    pub offset: u64,
}

/// A block of the events that were published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedBlock {
    /// Hash of the block, internal order.
    pub hash: [u8; 32],
    /// Hash of the previous block, internal order.
    pub previous: [u8; 32],
    /// Height of the block.
    pub height: u32,
    /// Local id of the block.
    pub block_id: u32,
    /// First event that has the block.
    pub place: EventPlace,
}

/// The event that a block message becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockStep {
    /// The block was published already, is far below the tip, or is below the first published block: no event.
    Repeat,
    /// The previous block is not known yet.
    Wait,
    /// The block extends the chain.
    Extend,
    /// The block is on a branch with less work, or with as much work, as the chain.
    Side,
    /// The branch of the block has more work: blocks leave the chain, and the branch joins.
    Reorg {
        /// Hashes of the blocks that leave, lowest block first.
        disconnected: Vec<[u8; 32]>,
        /// Hashes of the blocks that join below the block of the message, lowest block first.
        connected: Vec<[u8; 32]>,
    },
}

/// Problem of a block message among the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum ChainError {
    #[error("its height is {height}, and its previous block has height {previous}")]
    Height { height: u32, previous: u32 },
    #[error("its branch and the chain have no common block in the last {0} block messages")]
    NoFork(usize),
    #[error("there is no local block id left")]
    NoBlockId,
}

/// A block of a message or an event, or the previous block of one.
#[derive(Debug, Default)]
struct KnownBlock {
    /// `None`: only blocks after this one are known.
    previous: Option<[u8; 32]>,
    height: u32,
    /// `None`: no message of the block was read.
    work: Option<u128>,
    /// The message of the block was planned since the start.
    is_planned: bool,
    published: Option<PublishedBlock>,
}

/// The last blocks of the topic and of the published events.
#[derive(Debug, Default)]
pub struct BlockTree {
    known: HashMap<[u8; 32], KnownBlock>,
    /// Hashes of the known blocks, the oldest first.
    order: VecDeque<[u8; 32]>,
    /// Hash and height of the tip of the chain.
    tip: Option<([u8; 32], u32)>,
    last_id: Option<u32>,
    /// Least height of a published block.
    lowest: Option<u32>,
    /// Hash of the block before the first event; `None`: the first message becomes the first event.
    begin_after: Option<[u8; 32]>,
    /// A message of the block `begin_after` was read.
    has_begin: bool,
}

/// Blocks below the tip from which on a message counts as a repeat. A reorg is assumed never to be that deep.
pub const WINDOW: u64 = 2_016;
/// Number of blocks that are kept.
const KEPT: usize = 4 * WINDOW as usize;

impl BlockTree {
    /// Makes a tree whose first event is the block after `begin_after`, or the block of the first message.
    pub fn new(begin_after: Option<[u8; 32]>) -> Self {
        BlockTree { begin_after, ..BlockTree::default() }
    }

    /// Notes a block of a published event; the events come in the order of their sequence.
    pub fn add_published(&mut self, block: PublishedBlock) {
        self.last_id = self.last_id.max(Some(block.block_id));
        self.lowest = Some(self.lowest.map_or(block.height, |lowest| lowest.min(block.height)));
        self.add_link(block.hash, block.previous, block.height).published.get_or_insert(block);
    }

    /// Notes the work of a published block whose message is still to be planned. Returns whether the block is one.
    pub fn note_work(&mut self, link: &BlockLink) -> bool {
        let Some(known) = self.known.get_mut(&link.hash).filter(|known| known.published.is_some()) else {
            return false;
        };
        known.work = Some(link.work);
        true
    }

    /// Sets the tip of the chain.
    pub fn set_tip(&mut self, hash: [u8; 32], height: u32) {
        self.tip = Some((hash, height));
    }

    /// Returns the height of the tip; `None`: no block was published.
    pub fn tip_height(&self) -> Option<u32> {
        self.tip.map(|(_, height)| height)
    }

    /// Returns the block after which the first event is still to come; `None`: an event was published, or the first
    /// message becomes the first event.
    pub fn awaited_begin(&self) -> Option<[u8; 32]> {
        self.begin_after.filter(|_| self.tip.is_none())
    }

    /// Returns whether a message of the block `begin_after` was read: the block after it can come later.
    pub fn has_begin(&self) -> bool {
        self.has_begin
    }

    /// Returns a published block.
    pub fn published(&self, hash: &[u8; 32]) -> Option<&PublishedBlock> {
        self.known.get(hash)?.published.as_ref()
    }

    /// True where a block of this height can join no chain any more: the block is far below the tip, or below the first
    /// published block.
    pub fn is_outdated(&self, height: u32) -> bool {
        let is_old = |(_, tip)| u64::from(height) + WINDOW < u64::from(tip);
        self.tip.is_some_and(is_old) || self.is_below_first(height)
    }

    /// True where a block of this height is below the first published block.
    pub fn is_below_first(&self, height: u32) -> bool {
        self.lowest.is_some_and(|lowest| height < lowest)
    }

    /// Adds the block of a message, unless the block waits, and returns the event that the message becomes.
    ///
    /// # Errors
    /// The heights do not follow each other, or the branch of the block begins before the known blocks.
    pub fn plan(&mut self, link: &BlockLink) -> Result<BlockStep, ChainError> {
        self.has_begin |= self.begin_after == Some(link.hash);
        let known = self.known.get(&link.hash);
        if known.is_some_and(|known| known.is_planned) {
            return Ok(BlockStep::Repeat);
        }
        let is_published = known.is_some_and(|known| known.published.is_some());
        let previous = self.known.get(&link.previous).map(|previous| previous.height);
        let step = match previous {
            _ if is_published => BlockStep::Repeat,
            _ if self.is_outdated(link.height) => return Ok(BlockStep::Repeat),
            Some(previous) if previous.checked_add(1) != Some(link.height) => {
                return Err(ChainError::Height { height: link.height, previous });
            }
            Some(_) => self.choose(link)?,
            None if self.tip.is_none() && self.begin_after.is_none_or(|hash| hash == link.previous) => {
                BlockStep::Extend
            }
            None => return Ok(BlockStep::Wait),
        };
        let known = self.add_link(link.hash, link.previous, link.height);
        (known.work, known.is_planned) = (Some(link.work), true);
        Ok(step)
    }

    fn choose(&self, link: &BlockLink) -> Result<BlockStep, ChainError> {
        let Some((tip, _)) = self.tip else { return Ok(BlockStep::Extend) };
        if link.previous == tip {
            return Ok(BlockStep::Extend);
        }
        // The messages of the oldest published blocks are not read again. Blocks near each other have about the same
        // work.
        let work_of = |block: &KnownBlock| block.work.unwrap_or(link.work);
        let no_fork = ChainError::NoFork(self.known.len());
        let (mut disconnected, mut connected) = (Vec::new(), Vec::new());
        let (mut our_work, mut their_work) = (0_u128, link.work);
        let (mut ours, mut theirs) = (tip, link.previous);
        while ours != theirs {
            let (our, their) = (self.known.get(&ours).ok_or(no_fork)?, self.known.get(&theirs).ok_or(no_fork)?);
            if our.height >= their.height {
                disconnected.push(ours);
                our_work = our_work.saturating_add(work_of(our));
                ours = our.previous.ok_or(no_fork)?;
            } else {
                connected.push(theirs);
                their_work = their_work.saturating_add(work_of(their));
                theirs = their.previous.ok_or(no_fork)?;
            }
        }
        if our_work >= their_work {
            return Ok(BlockStep::Side);
        }
        disconnected.reverse();
        connected.reverse();
        Ok(BlockStep::Reorg { disconnected, connected })
    }

    /// Returns the local id of the next block: 0 for a genesis block, else one more than the last.
    ///
    /// # Errors
    /// Every id is used.
    pub fn next_id(&self, link: &BlockLink) -> Result<u32, ChainError> {
        match self.last_id {
            None => Ok(u32::from(link.previous != NO_BLOCK)),
            Some(last) => last.checked_add(1).ok_or(ChainError::NoBlockId),
        }
    }

    /// Adds the link of a block. The block before the first one is known by its hash and its height, for other blocks
    /// of the first height.
    fn add_link(&mut self, hash: [u8; 32], previous: [u8; 32], height: u32) -> &mut KnownBlock {
        if let Some(below) = height.checked_sub(1)
            && !self.known.contains_key(&previous)
        {
            self.known_mut(previous).height = below;
        }
        let block = self.known_mut(hash);
        (block.previous, block.height) = (Some(previous), height);
        block
    }

    /// Returns the entry of a block. A new entry drops the oldest one beyond the limit.
    fn known_mut(&mut self, hash: [u8; 32]) -> &mut KnownBlock {
        if !self.known.contains_key(&hash) {
            self.order.push_back(hash);
            if self.order.len() > KEPT
                && let Some(oldest) = self.order.pop_front()
            {
                self.known.remove(&oldest);
            }
        }
        self.known.entry(hash).or_default()
    }
}

/// Previous hash in the header of a genesis block.
const NO_BLOCK: [u8; 32] = [0; 32];

#[cfg(test)]
mod tests {
    use super::*;

    fn link(hash: u8, previous: u8, height: u32) -> BlockLink {
        BlockLink { hash: [hash; 32], previous: [previous; 32], height, work: 1 }
    }

    fn published(link: &BlockLink, block_id: u32) -> PublishedBlock {
        let BlockLink { hash, previous, height, .. } = *link;
        PublishedBlock { hash, previous, height, block_id, place: EventPlace { topic: Topic::BlockMined, offset: 0 } }
    }

    /// Plans the messages one after the other, and notes their events as the bridge does.
    fn plan_all(tree: &mut BlockTree, links: &[BlockLink]) -> Vec<Result<BlockStep, ChainError>> {
        let mut steps = Vec::new();
        for link in links {
            let step = tree.plan(link);
            if let Ok(BlockStep::Extend | BlockStep::Side | BlockStep::Reorg { .. }) = step {
                tree.add_published(published(link, tree.next_id(link).unwrap()));
            }
            if let Ok(BlockStep::Extend | BlockStep::Reorg { .. }) = step {
                tree.set_tip(link.hash, link.height);
            }
            steps.push(step);
        }
        steps
    }

    fn reorg(disconnected: &[u8], connected: &[u8]) -> Result<BlockStep, ChainError> {
        let hashes = |numbers: &[u8]| numbers.iter().map(|number| [*number; 32]).collect();
        Ok(BlockStep::Reorg { disconnected: hashes(disconnected), connected: hashes(connected) })
    }

    const EXTEND: Result<BlockStep, ChainError> = Ok(BlockStep::Extend);
    const SIDE: Result<BlockStep, ChainError> = Ok(BlockStep::Side);
    const REPEAT: Result<BlockStep, ChainError> = Ok(BlockStep::Repeat);
    const WAIT: Result<BlockStep, ChainError> = Ok(BlockStep::Wait);

    #[test]
    fn a_stale_block_is_on_a_side_branch_until_its_branch_has_more_work() {
        let links = [link(1, 0, 100), link(2, 1, 101), link(3, 2, 102), link(33, 2, 102), link(4, 3, 103)];
        let mut tree = BlockTree::default();
        assert_eq!(plan_all(&mut tree, &links), [EXTEND, EXTEND, EXTEND, SIDE, EXTEND]);
        // Two blocks later the stale branch is the longer one.
        let later = [link(44, 33, 103), link(55, 44, 104), link(5, 4, 104), link(6, 5, 105)];
        let expected = [SIDE, reorg(&[3, 4], &[33, 44]), SIDE, reorg(&[33, 44, 55], &[3, 4, 5])];
        assert_eq!(plan_all(&mut tree, &later), expected);
        assert_eq!(tree.published(&[33; 32]).unwrap().block_id, 3, "a side block has its id before it joins");
    }

    #[test]
    fn more_work_counts_and_not_the_height() {
        let mut tree = BlockTree::default();
        let heavy = BlockLink { work: 9, ..link(22, 1, 101) };
        let links = [link(1, 0, 100), link(2, 1, 101), link(3, 2, 102), heavy];
        assert_eq!(plan_all(&mut tree, &links), [EXTEND, EXTEND, EXTEND, reorg(&[2, 3], &[])]);
    }

    #[test]
    fn a_repeated_message_is_no_event() {
        let links =
            [link(1, 0, 9), link(2, 1, 10), link(3, 2, 11), link(12, 1, 10), link(13, 12, 11), link(14, 13, 12)];
        let mut tree = BlockTree::default();
        plan_all(&mut tree, &links);
        assert_eq!(plan_all(&mut tree, &links), [REPEAT; 6]);
        assert_eq!(plan_all(&mut tree, &[link(15, 14, 13)]), [EXTEND]);
    }

    #[test]
    fn published_blocks_are_known_after_a_start() {
        let mut tree = BlockTree::default();
        for number in 1..=3 {
            tree.add_published(published(&link(number, number - 1, 8 + u32::from(number)), u32::from(number)));
        }
        tree.set_tip([3; 32], 11);
        // The messages that are read again begin in the middle of the chain.
        let links = [link(2, 1, 10), link(3, 2, 11), link(22, 1, 10), link(4, 3, 12)];
        assert_eq!(plan_all(&mut tree, &links), [REPEAT, REPEAT, SIDE, EXTEND]);
        assert_eq!(tree.published(&[4; 32]).unwrap().block_id, 5);
    }

    #[test]
    fn works_of_messages_that_were_not_read_again_count_as_those_of_their_neighbours() {
        let mut tree = BlockTree::default();
        (1..=3).for_each(|number| tree.add_published(published(&link(number, number - 1, 8 + u32::from(number)), 1)));
        tree.set_tip([3; 32], 11);
        let links = [link(33, 2, 11), link(44, 33, 12)];
        assert_eq!(plan_all(&mut tree, &links), [SIDE, reorg(&[3], &[33])]);
    }

    /// Block 4 waits for block 3. Block 2 extends the tip, block 3 arrives on the side, and the bridge is killed before
    /// the event of block 4, whose message comes before that of block 2.
    /// Protects: the next start knows the work of block 2 before the message of block 4 is planned.
    #[test]
    fn a_bridge_that_was_killed_stays_on_the_branch_with_more_work() {
        let heavy = BlockLink { work: 1_000, ..link(2, 1, 10) };
        let (side, waiting) = (link(3, 1, 10), link(4, 3, 11));
        let mut tree = BlockTree::default();
        let messages = [link(1, 0, 9), waiting, heavy, side];
        assert_eq!(plan_all(&mut tree, &messages), [EXTEND, WAIT, EXTEND, SIDE]);
        let mut restarted = BlockTree::default();
        [(messages[0], 1), (heavy, 2), (side, 3)].iter().for_each(|(link, id)| {
            restarted.add_published(published(link, *id));
        });
        restarted.set_tip(heavy.hash, heavy.height);
        assert_eq!(messages.map(|link| restarted.note_work(&link)), [true, false, true, true]);
        assert_eq!(plan_all(&mut restarted, &messages), [REPEAT, SIDE, REPEAT, REPEAT]);
    }

    #[test]
    fn a_block_waits_for_its_previous_block_and_a_wrong_height_is_refused() {
        let mut tree = BlockTree::default();
        plan_all(&mut tree, &[link(1, 0, 9), link(2, 1, 10)]);
        assert_eq!(plan_all(&mut tree, &[link(4, 3, 12), link(3, 2, 11), link(4, 3, 12)]), [WAIT, EXTEND, EXTEND]);
        assert_eq!(tree.plan(&link(9, 4, 14)), Err(ChainError::Height { height: 14, previous: 12 }));
        assert_eq!(tree.plan(&link(9, 4, 13)), EXTEND, "a message with the right height follows");
        tree.set_tip([4; 32], 10_000);
        assert_eq!(tree.plan(&link(19, 18, 11)), REPEAT);
    }

    #[test]
    fn two_blocks_of_the_first_height_are_branches_of_one_chain() {
        let links = [link(1, 0, 9), link(11, 0, 9), link(12, 11, 10)];
        assert_eq!(plan_all(&mut BlockTree::default(), &links), [EXTEND, SIDE, reorg(&[1], &[11])]);
        // The chain of a store begins with its first event; a block below is of no use.
        assert_eq!(
            plan_all(&mut BlockTree::default(), &[links[0], link(21, 20, 8), link(0, 99, 8)]),
            [EXTEND, REPEAT, REPEAT]
        );
    }

    #[test]
    fn the_first_event_can_be_the_block_after_a_given_one() {
        let mut tree = BlockTree::new(Some([2; 32]));
        let links = [link(1, 0, 9), link(2, 1, 10), link(33, 1, 10), link(3, 2, 11), link(2, 1, 10), link(4, 3, 12)];
        assert_eq!(plan_all(&mut tree, &links[..1]), [WAIT]);
        assert!(tree.awaited_begin().is_some() && !tree.has_begin());
        assert_eq!(plan_all(&mut tree, &links[1..]), [WAIT, WAIT, EXTEND, REPEAT, EXTEND]);
        assert!(tree.awaited_begin().is_none() && tree.has_begin());
        assert!(tree.is_outdated(10) && !tree.is_outdated(11));
    }

    #[test]
    fn the_first_id_is_that_of_a_genesis_block() {
        let tree = BlockTree::default();
        assert_eq!((tree.next_id(&link(1, 0, 0)), tree.next_id(&link(1, 7, 9))), (Ok(0), Ok(1)));
    }

    #[test]
    fn old_blocks_are_forgotten() {
        let mut tree = BlockTree::default();
        let hash = |number: u32| {
            let mut hash = [7; 32];
            hash[..4].copy_from_slice(&number.to_le_bytes());
            hash
        };
        for height in 0..3 * KEPT as u32 {
            let link = BlockLink { hash: hash(height + 1), previous: hash(height), height, work: 1 };
            assert_eq!(plan_all(&mut tree, &[link]), [EXTEND]);
        }
        assert_eq!((tree.known.len(), tree.order.len()), (KEPT, KEPT));
        assert_eq!(
            plan_all(&mut tree, &[BlockLink { hash: hash(9), previous: hash(8), height: 8, work: 1 }]),
            [REPEAT]
        );
    }
}
