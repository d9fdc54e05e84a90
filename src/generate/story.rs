//! Short histories for demonstration: a double spend, reorgs, a frozen output. The store checks no scripts, so that
//! every output has the script `OP_TRUE`.

use strum::{Display, EnumIter, EnumString, VariantNames};

use super::{
    Message,
    synthetic::{ANYONE_CAN_SPEND, SyntheticBlock, compute_txid, reorg_message},
};
use crate::{
    event::{Command, CommandAction, Event, PartialOutput, PartialTxEvent, Topic, Validated},
    tx::{Outpoint, Output, TransactionBuilder, Txid, UtxoHash, utxo_hash},
};

/// Name of a story.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumIter, EnumString, VariantNames)]
#[strum(serialize_all = "kebab-case", parse_err_ty = UnknownScenario, parse_err_fn = UnknownScenario::from)]
pub enum Scenario {
    /// Two payments spend one output, and a block lists the second payment.
    DoubleSpend,
    /// A reorg disconnects a block; a payment that only this block listed is unmined again.
    Reorg,
    /// A reorg disconnects a block whose coinbase is spent, and another reorg connects the block again.
    CoinbaseReorg,
    /// An output is frozen, a thief's payment is refused, and the output is reassigned to a new owner.
    Freeze,
}

impl Scenario {
    /// Builds the story of this scenario.
    pub fn story(self) -> Story {
        match self {
            Scenario::DoubleSpend => double_spend(),
            Scenario::Reorg => reorg(),
            Scenario::CoinbaseReorg => coinbase_reorg(),
            Scenario::Freeze => freeze(),
        }
    }
}

/// Error: no scenario has this name.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("unknown scenario: use one of {}", Scenario::VARIANTS.join(", "))]
pub struct UnknownScenario;

impl From<&str> for UnknownScenario {
    fn from(_: &str) -> Self {
        UnknownScenario
    }
}

/// History in chapters. A demo waits after each chapter until every message is consumed.
#[derive(Debug, Clone, Default)]
pub struct Story {
    /// Name and txid of each transaction, in the order of appearance.
    pub transactions: Vec<(&'static str, Txid)>,
    /// Chapters in the order in which they are produced.
    pub chapters: Vec<Chapter>,
}

/// A part of a [`Story`].
#[derive(Debug, Clone)]
pub struct Chapter {
    /// Description of the chapter's events.
    pub text: &'static str,
    /// Events of the chapter, in order.
    pub messages: Vec<Message>,
}

impl Story {
    /// Returns the name of a transaction of the story.
    pub fn find_name(&self, txid: &Txid) -> Option<&'static str> {
        self.transactions.iter().find(|(_, named)| named == txid).map(|(name, _)| *name)
    }

    /// Returns the events of all chapters.
    pub fn messages(&self) -> impl Iterator<Item = Message> + Send + '_ {
        self.chapters.iter().flat_map(|chapter| chapter.messages.iter().cloned())
    }

    fn add_chapter(&mut self, text: &'static str, messages: Vec<Message>) {
        self.chapters.push(Chapter { text, messages });
    }

    fn add_tx(&mut self, tx: &StoryTx) -> Message {
        self.transactions.push((tx.name, tx.txid));
        tx.message.clone()
    }
}

const NEW_OWNER: [u8; 2] = [0x52, 0x51];
/// Height of the first block: after the Genesis upgrade of the main network.
const HEIGHT: u32 = 800_000;
const MATURITY: u32 = 100;

struct StoryTx {
    name: &'static str,
    txid: Txid,
    outputs: Vec<(u64, &'static [u8])>,
    message: Message,
}

impl StoryTx {
    fn output(&self, vout: u32) -> (Outpoint, Output<'static>) {
        let (satoshis, script) = self.outputs[vout as usize];
        (Outpoint { txid: self.txid, vout }, Output { satoshis, script })
    }

    fn hash(&self, vout: u32) -> UtxoHash {
        let (outpoint, output) = self.output(vout);
        utxo_hash(&outpoint.txid, outpoint.vout, output.script, output.satoshis)
    }
}

/// Returns a partial transaction that was mined long before the story.
fn funding(amounts: &[u64]) -> StoryTx {
    let txid = Txid(*blake3::hash(b"from before this store").as_bytes());
    let outputs = amounts.iter().zip(0..);
    let outputs = outputs.map(|(value, vout)| PartialOutput { vout, satoshis: *value, script: &ANYONE_CAN_SPEND });
    let seeded = PartialTxEvent { txid, coinbase: false, height: HEIGHT - 1_000, outputs: outputs.collect() };
    StoryTx {
        name: "funding",
        txid,
        outputs: amounts.iter().map(|satoshis| (*satoshis, &ANYONE_CAN_SPEND[..])).collect(),
        message: Message { topic: Topic::ValidatedTxs, key: Some(txid), payload: Event::Seeded(seeded).encode() },
    }
}

/// Returns a transaction that spends one output. The name is its unlocking script, so that rivals have different txids.
fn payment(name: &'static str, spent: (Outpoint, Output<'_>), amounts: &[u64], height: u32) -> StoryTx {
    let (outpoint, output) = spent;
    let input = TransactionBuilder::default().input(outpoint, name.as_bytes(), u32::MAX, Some(output));
    let tx = amounts.iter().fold(input, |tx, satoshis| tx.output(*satoshis, &ANYONE_CAN_SPEND)).extended();
    let txid = compute_txid(&tx);
    let payload = Validated { tx: &tx, height, locked: false }.encode();
    StoryTx {
        name,
        txid,
        outputs: amounts.iter().map(|satoshis| (*satoshis, &ANYONE_CAN_SPEND[..])).collect(),
        message: Message { topic: Topic::ValidatedTxs, key: Some(txid), payload },
    }
}

/// Returns the coinbase of a block; the message of the block creates the coinbase.
fn reward(block: &SyntheticBlock, name: &'static str) -> StoryTx {
    let message = Message { topic: Topic::BlockMined, key: None, payload: Vec::new() };
    let outputs: Vec<(u64, &'static [u8])> = vec![(SyntheticBlock::REWARD, &ANYONE_CAN_SPEND)];
    StoryTx { name, txid: compute_txid(&block.coinbase), outputs, message }
}

/// Returns a block with this id after `previous`, or the first block.
fn block(id: u32, previous: Option<&SyntheticBlock>, listed: &[&StoryTx]) -> SyntheticBlock {
    let (height, hash) = previous.map_or((HEIGHT, [7; 32]), |block| (block.height + 1, block.hash));
    SyntheticBlock::new(id, height, hash, listed.iter().flat_map(|tx| tx.txid.0).collect())
}

fn replace_blocks(sequence: u64, disconnected: &[&SyntheticBlock], connected: &[&SyntheticBlock]) -> Message {
    reorg_message(
        sequence,
        disconnected.iter().map(|block| block.event()).collect(),
        connected.iter().map(|block| block.event()).collect(),
    )
}

fn command(id: u8, action: CommandAction<'_>) -> Message {
    let payload = Event::Command(Command { id: [id; 16], action }).encode();
    Message { topic: Topic::Chain, key: None, payload }
}

fn double_spend() -> Story {
    let mut story = Story::default();
    let funding = funding(&[10_000, 4_000]);
    let to_bob = payment("to-bob", funding.output(0), &[6_000, 3_900], HEIGHT);
    let to_carol = payment("to-carol", to_bob.output(0), &[5_900], HEIGHT);
    let to_mallory = payment("to-mallory", funding.output(0), &[9_900], HEIGHT);
    let listing = block(1, None, &[&to_mallory]);
    let messages = vec![story.add_tx(&funding)];
    story.add_chapter("Alice has two outputs from before this store existed.", messages);
    let messages = vec![story.add_tx(&to_bob), story.add_tx(&to_carol)];
    story.add_chapter("Alice pays Bob with the first output and keeps the change. Bob pays Carol.", messages);
    let messages = vec![story.add_tx(&to_mallory)];
    story.add_chapter("A payment to Mallory spends the same output. The first payment keeps the output.", messages);
    story.add_tx(&reward(&listing, "reward"));
    let text = "A block lists the payment to Mallory. A listed transaction wins: the payment to Bob becomes \
                conflicting, and so do its descendants.";
    story.add_chapter(text, vec![listing.mined(1)]);
    story
}

fn reorg() -> Story {
    let mut story = Story::default();
    let funding = funding(&[10_000, 4_000]);
    let first = payment("first", funding.output(0), &[9_900], HEIGHT);
    let second = payment("second", funding.output(1), &[3_900], HEIGHT);
    let old = block(1, None, &[&first, &second]);
    let new = block(2, None, &[&first]);
    let next = block(3, Some(&new), &[&second]);
    let messages = vec![story.add_tx(&funding), story.add_tx(&first), story.add_tx(&second)];
    story.add_chapter("Two payments are unmined.", messages);
    story.add_tx(&reward(&old, "old-reward"));
    story.add_chapter("A block lists both payments.", vec![old.mined(1)]);
    story.add_tx(&reward(&new, "new-reward"));
    let text = "A reorg replaces the block by a block that lists only the first payment. The second payment is unmined \
                again and stays spendable. The old block's coinbase becomes conflicting.";
    story.add_chapter(text, vec![replace_blocks(2, &[&old], &[&new])]);
    story.add_tx(&reward(&next, "next-reward"));
    story.add_chapter("The next block lists the second payment.", vec![next.mined(3)]);
    story
}

fn coinbase_reorg() -> Story {
    let mut story = Story::default();
    let ours = block(1, None, &[]);
    let theirs = block(2, None, &[]);
    let our_reward = reward(&ours, "our-reward");
    let spent = payment("reward-spent", our_reward.output(0), &[4_900], HEIGHT + MATURITY);
    let passed_on = payment("passed-on", spent.output(0), &[4_800], HEIGHT + MATURITY);
    story.add_tx(&our_reward);
    story.add_chapter("Our block is mined. Its coinbase can be spent 100 blocks later.", vec![ours.mined(1)]);
    let messages = vec![story.add_tx(&spent), story.add_tx(&passed_on)];
    let text = "A payment of that height spends the coinbase, and another payment spends the first one.";
    story.add_chapter(text, messages);
    story.add_tx(&reward(&theirs, "their-reward"));
    let text = "A deep reorg disconnects our block. Its coinbase becomes conflicting, and so do both payments.";
    story.add_chapter(text, vec![replace_blocks(2, &[&ours], &[&theirs])]);
    let text = "Another reorg connects our block again. Its coinbase is live, and both payments get a second chance.";
    story.add_chapter(text, vec![replace_blocks(3, &[&theirs], &[&ours])]);
    story
}

fn freeze() -> Story {
    let mut story = Story::default();
    let funding = funding(&[10_000]);
    let stolen = payment("thief", funding.output(0), &[9_900], HEIGHT);
    let outpoint = funding.output(0).0;
    let reassigned = (outpoint, Output { satoshis: 10_000, script: &NEW_OWNER });
    let early = payment("too-early", reassigned, &[9_800], HEIGHT + 10);
    let owner = payment("new-owner", reassigned, &[9_900], HEIGHT + 1_000);
    let messages = vec![story.add_tx(&funding)];
    story.add_chapter("The key of an output is stolen.", messages);
    story.add_chapter("An alert freezes the output.", vec![command(1, CommandAction::Freeze { outpoint })]);
    let messages = vec![story.add_tx(&stolen)];
    story.add_chapter("The thief tries to spend the output.", messages);
    let reassign = CommandAction::Reassign {
        outpoint,
        utxo_hash: funding.hash(0),
        new_script: &NEW_OWNER,
        satoshis: 10_000,
        height: HEIGHT,
        spendable_after: 1_000,
    };
    let text = "A court order reassigns the output to a new owner, who can spend the output 1,000 blocks later.";
    story.add_chapter(text, vec![command(2, reassign)]);
    let messages = vec![story.add_tx(&early)];
    story.add_chapter("The new owner tries to spend the output too early.", messages);
    let messages = vec![story.add_tx(&owner)];
    story.add_chapter("The new owner spends the output in time.", messages);
    story
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use strum::IntoEnumIterator;

    use super::*;

    #[test]
    fn every_story_has_a_name_and_events_that_decode() {
        for scenario in Scenario::iter() {
            assert_eq!(scenario.to_string().parse::<Scenario>().unwrap(), scenario);
            let story = scenario.story();
            assert!(story.chapters.len() > 2);
            for message in story.messages() {
                Event::decode(&message.payload).unwrap();
                assert_eq!(message.key.is_some(), message.topic == Topic::ValidatedTxs);
                assert!(message.key.is_none_or(|txid| story.find_name(&txid).is_some()), "{scenario}");
            }
            let (names, txids): (BTreeSet<_>, BTreeSet<_>) = story.transactions.iter().copied().unzip();
            let count = story.transactions.len();
            assert_eq!((names.len(), txids.len()), (count, count), "{scenario}");
        }
        let error = "tragedy".parse::<Scenario>().unwrap_err().to_string();
        assert!(error.contains("double-spend, reorg, coinbase-reorg, freeze"), "{error}");
    }
}
