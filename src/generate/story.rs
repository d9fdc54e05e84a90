//! Short histories for people: what happens when a coin is spent twice, when a block leaves, when an output is frozen. Made of
//! transactions that anybody may spend, since no script is checked by this store.

use std::{fmt, str::FromStr};

use super::{
    Message,
    made::{ANYBODY, MadeBlock, reorg_message, txid_of},
};
use crate::{
    event::{Action, Command, Event, Seeded, SeededOutput, Topic, Validated},
    tx::{Outpoint, Output, TransactionBuilder, Txid, UtxoHash, utxo_hash},
};

/// Which story.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// One coin is spent twice, and a block lists the second payment.
    DoubleSpend,
    /// A block leaves the longest chain; what only it listed is unmined again.
    Reorg,
    /// A block leaves whose coinbase was spent, and comes back.
    CoinbaseReorg,
    /// An output is frozen, a thief's payment is refused, and it is given to a new owner.
    Freeze,
}

impl Scenario {
    /// All of them.
    pub const ALL: [Scenario; 4] = [Scenario::DoubleSpend, Scenario::Reorg, Scenario::CoinbaseReorg, Scenario::Freeze];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Scenario::DoubleSpend => "double-spend",
            Scenario::Reorg => "reorg",
            Scenario::CoinbaseReorg => "coinbase-reorg",
            Scenario::Freeze => "freeze",
        }
    }

    /// Writes it.
    pub fn story(self) -> Story {
        match self {
            Scenario::DoubleSpend => double_spend(),
            Scenario::Reorg => reorg(),
            Scenario::CoinbaseReorg => coinbase_reorg(),
            Scenario::Freeze => freeze(),
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No scenario has this name.
#[derive(Debug, thiserror::Error)]
#[error("there is no such scenario; there are {}", Scenario::ALL.map(Scenario::name).join(", "))]
pub struct NoSuchScenario;

impl FromStr for Scenario {
    type Err = NoSuchScenario;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Scenario::ALL.into_iter().find(|scenario| scenario.name() == name).ok_or(NoSuchScenario)
    }
}

/// A history in chapters. Whoever tells it waits between them until everything is consumed.
#[derive(Debug, Clone, Default)]
pub struct Story {
    /// The transactions in it, by what they are called, in the order in which they appear.
    pub cast: Vec<(&'static str, Txid)>,
    /// What happens.
    pub chapters: Vec<Chapter>,
}

/// A part of a [`Story`].
#[derive(Debug, Clone)]
pub struct Chapter {
    /// In words.
    pub says: &'static str,
    /// In events.
    pub messages: Vec<Message>,
}

impl Story {
    /// What a transaction is called.
    pub fn name_of(&self, txid: &Txid) -> Option<&'static str> {
        self.cast.iter().find(|(_, there)| there == txid).map(|(name, _)| *name)
    }

    /// All of its events.
    pub fn messages(&self) -> impl Iterator<Item = Message> + Send + '_ {
        self.chapters.iter().flat_map(|chapter| chapter.messages.iter().cloned())
    }

    fn tell(&mut self, says: &'static str, messages: Vec<Message>) {
        self.chapters.push(Chapter { says, messages });
    }

    fn add(&mut self, made: &Made) -> Message {
        self.cast.push((made.name, made.txid));
        made.message.clone()
    }
}

const NEW_OWNER: [u8; 2] = [0x52, 0x51];
/// Long after Genesis on the main network.
const HEIGHT: u32 = 800_000;
const MATURITY: u32 = 100;

struct Made {
    name: &'static str,
    txid: Txid,
    outputs: Vec<(u64, &'static [u8])>,
    message: Message,
}

impl Made {
    fn coin(&self, vout: u32) -> (Outpoint, Output<'static>) {
        let (satoshis, script) = self.outputs[vout as usize];
        (Outpoint { txid: self.txid, vout }, Output { satoshis, script })
    }

    fn hash(&self, vout: u32) -> UtxoHash {
        let (outpoint, output) = self.coin(vout);
        utxo_hash(&outpoint.txid, outpoint.vout, output.script, output.satoshis)
    }
}

/// A transaction from before this store, mined long ago.
fn funding(amounts: &[u64]) -> Made {
    let txid = Txid(*blake3::hash(b"from before this store").as_bytes());
    let outputs =
        amounts.iter().zip(0..).map(|(satoshis, vout)| SeededOutput { vout, satoshis: *satoshis, script: &ANYBODY });
    let seeded = Seeded { txid, coinbase: false, height: HEIGHT - 1_000, outputs: outputs.collect() };
    Made {
        name: "funding",
        txid,
        outputs: amounts.iter().map(|satoshis| (*satoshis, &ANYBODY[..])).collect(),
        message: Message { topic: Topic::ValidatedTxs, key: Some(txid), payload: Event::Seeded(seeded).encode() },
    }
}

/// Spends one output into others; the name sets it apart from its rivals.
fn payment(name: &'static str, coin: (Outpoint, Output<'_>), amounts: &[u64], height: u32) -> Made {
    let (outpoint, output) = coin;
    let spends = TransactionBuilder::default().input(outpoint, name.as_bytes(), u32::MAX, Some(output));
    let tx = amounts.iter().fold(spends, |tx, satoshis| tx.output(*satoshis, &ANYBODY)).extended();
    let txid = txid_of(&tx);
    let payload = Validated { tx: &tx, height, locked: false }.encode();
    Made {
        name,
        txid,
        outputs: amounts.iter().map(|satoshis| (*satoshis, &ANYBODY[..])).collect(),
        message: Message { topic: Topic::ValidatedTxs, key: Some(txid), payload },
    }
}

/// The coinbase of a block as one of the cast.
fn reward(block: &MadeBlock, name: &'static str) -> Made {
    let message = Message { topic: Topic::BlockMined, key: None, payload: Vec::new() };
    Made { name, txid: txid_of(&block.coinbase), outputs: vec![(MadeBlock::REWARD, &ANYBODY)], message }
}

/// A block of this id behind another, or the first one.
fn block(id: u32, previous: Option<&MadeBlock>, listed: &[&Made]) -> MadeBlock {
    let (height, hash) = previous.map_or((HEIGHT, [7; 32]), |block| (block.height + 1, block.hash));
    MadeBlock::new(id, height, hash, listed.iter().flat_map(|made| made.txid.0).collect())
}

fn reorganise(sequence: u64, leave: &[&MadeBlock], come: &[&MadeBlock]) -> Message {
    reorg_message(
        sequence,
        leave.iter().map(|block| block.event()).collect(),
        come.iter().map(|block| block.event()).collect(),
    )
}

fn command(id: u8, action: Action<'_>) -> Message {
    let payload = Event::Command(Command { id: [id; 16], action }).encode();
    Message { topic: Topic::Chain, key: None, payload }
}

fn double_spend() -> Story {
    let mut story = Story::default();
    let funding = funding(&[10_000, 4_000]);
    let to_bob = payment("to-bob", funding.coin(0), &[6_000, 3_900], HEIGHT);
    let to_carol = payment("to-carol", to_bob.coin(0), &[5_900], HEIGHT);
    let to_mallory = payment("to-mallory", funding.coin(0), &[9_900], HEIGHT);
    let mallorys = block(1, None, &[&to_mallory]);
    let told = story.add(&funding);
    story.tell("Alice has two coins, from before this store knew anything.", vec![told]);
    let told = vec![story.add(&to_bob), story.add(&to_carol)];
    story.tell("She pays Bob with the first one and keeps the change. Bob passes it on to Carol.", told);
    let told = story.add(&to_mallory);
    story.tell("Then comes a payment to Mallory that spends the same coin. Who was first keeps it.", vec![told]);
    story.add(&reward(&mallorys, "reward"));
    let says = "But a miner has put Mallory's payment into a block. What a block lists wins: Bob's payment falls, and with it what descends from it.";
    story.tell(says, vec![mallorys.mined(1)]);
    story
}

fn reorg() -> Story {
    let mut story = Story::default();
    let funding = funding(&[10_000, 4_000]);
    let first = payment("first", funding.coin(0), &[9_900], HEIGHT);
    let second = payment("second", funding.coin(1), &[3_900], HEIGHT);
    let old = block(1, None, &[&first, &second]);
    let new = block(2, None, &[&first]);
    let next = block(3, Some(&new), &[&second]);
    let told = vec![story.add(&funding), story.add(&first), story.add(&second)];
    story.tell("Two payments wait for a block.", told);
    story.add(&reward(&old, "old-reward"));
    story.tell("A block lists both.", vec![old.mined(1)]);
    story.add(&reward(&new, "new-reward"));
    let says = "A reorg: another block takes its place, and lists only the first. The second is unmined again, and stays spendable; the old block's \
                coinbase was never paid.";
    story.tell(says, vec![reorganise(2, &[&old], &[&new])]);
    story.add(&reward(&next, "next-reward"));
    story.tell("The next block lists the second, too.", vec![next.mined(3)]);
    story
}

fn coinbase_reorg() -> Story {
    let mut story = Story::default();
    let ours = block(1, None, &[]);
    let theirs = block(2, None, &[]);
    let ours_reward = reward(&ours, "our-reward");
    let spent = payment("reward-spent", ours_reward.coin(0), &[4_900], HEIGHT + MATURITY);
    let on = payment("passed-on", spent.coin(0), &[4_800], HEIGHT + MATURITY);
    story.add(&ours_reward);
    story.tell("Our block is mined. Its reward can be spent a hundred blocks later.", vec![ours.mined(1)]);
    let told = vec![story.add(&spent), story.add(&on)];
    story.tell("Those have come (the events say so by their heights): the reward is spent, and passed on.", told);
    story.add(&reward(&theirs, "their-reward"));
    let says = "A deep reorg takes our block away. Its reward never existed, nor does anything that came of it.";
    story.tell(says, vec![reorganise(2, &[&ours], &[&theirs])]);
    let says =
        "The reorg is reorganised: our block is back. Its reward wins, and what fell with it has a second chance.";
    story.tell(says, vec![reorganise(3, &[&theirs], &[&ours])]);
    story
}

fn freeze() -> Story {
    let mut story = Story::default();
    let funding = funding(&[10_000]);
    let stolen = payment("thief", funding.coin(0), &[9_900], HEIGHT);
    let outpoint = funding.coin(0).0;
    let given = (outpoint, Output { satoshis: 10_000, script: &NEW_OWNER });
    let early = payment("too-early", given, &[9_800], HEIGHT + 10);
    let owner = payment("new-owner", given, &[9_900], HEIGHT + 1_000);
    let told = story.add(&funding);
    story.tell("A coin whose key was stolen.", vec![told]);
    story.tell("An alert freezes it.", vec![command(1, Action::Freeze { outpoint })]);
    let told = story.add(&stolen);
    story.tell("The thief tries to spend it.", vec![told]);
    let reassign = Action::Reassign {
        outpoint,
        utxo_hash: funding.hash(0),
        new_script: &NEW_OWNER,
        satoshis: 10_000,
        height: HEIGHT,
        spendable_after: 1_000,
    };
    story.tell(
        "The court's order gives it to a new owner, who may spend it a thousand blocks later.",
        vec![command(2, reassign)],
    );
    let told = story.add(&early);
    story.tell("The new owner tries too early.", vec![told]);
    let told = story.add(&owner);
    story.tell("And then in time.", vec![told]);
    story
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_story_has_a_name_and_events_that_can_be_read() {
        for scenario in Scenario::ALL {
            assert_eq!(scenario.name().parse::<Scenario>().unwrap(), scenario);
            let story = scenario.story();
            assert!(story.chapters.len() > 2);
            for message in story.messages() {
                Event::decode(&message.payload).unwrap();
                assert_eq!(message.key.is_some(), message.topic == Topic::ValidatedTxs);
                assert!(message.key.is_none_or(|txid| story.name_of(&txid).is_some()), "{scenario}");
            }
            let (names, txids): (BTreeSet<_>, BTreeSet<_>) = story.cast.iter().copied().unzip();
            assert_eq!((names.len(), txids.len()), (story.cast.len(), story.cast.len()), "{scenario}");
        }
        let told = "tragedy".parse::<Scenario>().unwrap_err().to_string();
        assert!(told.contains("double-spend, reorg, coinbase-reorg, freeze"), "{told}");
    }
}
