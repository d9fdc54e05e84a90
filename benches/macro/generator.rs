//! Synthetic transactions: one input, two outputs, about 250 bytes in extended format. The n-th is the same in every
//! run.

use std::collections::BTreeSet;

use bytes::{Bytes, BytesMut};
use utxo_store::{
    broker::Message,
    event::Validated,
    rng::SplitMix64,
    tx::{Outpoint, Output, Transaction, TransactionBuilder, Txid},
};

/// Height of the first block that can list them.
const HEIGHT: u32 = 800_000;
const TIMESTAMP_MS: i64 = 1_700_000_000_000;
/// A parent inside the run is between 1 and twice this many transactions back.
const DISTANCE: u64 = 10_000;
const CHAIN: u64 = 25;
const FAN_OUT: u64 = 1_000;
/// Amount of each output of a transaction from before the run, in satoshis.
const WORTH: u64 = 1 << 49;

/// Relation between the transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// No parent is inside the run.
    Apart,
    /// Every second parent is inside the run.
    Half,
    /// Every parent is inside the run.
    Inside,
    /// Chains of 25 transactions, one after the other.
    Chains,
    /// Groups of one parent with 1,000 outputs and its 1,000 children.
    FanOut,
}

impl Shape {
    pub const ALL: [Shape; 5] = [Shape::Apart, Shape::Half, Shape::Inside, Shape::Chains, Shape::FanOut];

    pub fn name(self) -> &'static str {
        match self {
            Shape::Apart => "parents-inside-0",
            Shape::Half => "parents-inside-50",
            Shape::Inside => "parents-inside-100",
            Shape::Chains => "chains-of-25",
            Shape::FanOut => "fan-out-1000",
        }
    }
}

/// Output that a transaction spends.
#[derive(Debug, Clone, Copy)]
enum Parent {
    /// The n-th output from before the run.
    Outside(u64),
    /// An output of a transaction of the run.
    Inside { index: u64, vout: u32 },
}

/// A transaction of the run, or from before it.
pub struct Made {
    txid: Txid,
    bytes: Vec<u8>,
    /// Amount of the first output, or (fan-out) of each.
    satoshis: u64,
}

/// Generator of the transactions of a run in order, and of their parents from before the run.
pub struct Generator {
    shape: Shape,
    total: u64,
    next: u64,
    /// Latest transactions, by index modulo the length: their children need them.
    latest: Vec<(Txid, u64)>,
    /// Additional bytes in the script of the last output.
    padding: usize,
}

impl Generator {
    pub fn new(shape: Shape, total: u64) -> Self {
        let memory = (2 * DISTANCE).min(total.max(1)) as usize;
        Generator { shape, total, next: 0, latest: vec![(Txid::default(), 0); memory], padding: 0 }
    }

    /// Makes each transaction larger by `padding` bytes.
    #[allow(dead_code, reason = "another bench shares this file")]
    pub fn padded(self, padding: usize) -> Self {
        Generator { padding, ..self }
    }

    /// Returns the next messages, at most `count`, in one arena as a consumer reads them, from this offset.
    pub fn chunk(&mut self, count: usize, first_offset: u64) -> Vec<Message> {
        let count = (count as u64).min(self.total - self.next);
        messages((0..count).map(|_| self.make()), first_offset)
    }

    /// Returns all messages of the run in chunks of `count`, with offsets from 0.
    pub fn chunks(mut self, count: usize) -> impl Iterator<Item = Vec<Message>> + Send {
        let mut offset = 0;
        std::iter::from_fn(move || {
            let chunk = self.chunk(count, offset);
            offset += chunk.len() as u64;
            (!chunk.is_empty()).then_some(chunk)
        })
    }

    /// Returns the transactions that must be in the store before the run, as messages.
    pub fn parents_from_before(&self) -> impl Iterator<Item = Vec<Message>> {
        let outside = (0..self.total).filter_map(|index| match self.parent_of(index) {
            Parent::Outside(output) => Some(self.outside(output).0),
            Parent::Inside { .. } => None,
        });
        let parents: Vec<u64> = outside.collect::<BTreeSet<_>>().into_iter().collect();
        let chunks: Vec<Vec<u64>> = parents.chunks(1_000).map(<[u64]>::to_vec).collect();
        chunks.into_iter().map(|chunk| messages(chunk.into_iter().map(from_before), 0))
    }

    fn make(&mut self) -> Made {
        let index = self.next;
        self.next += 1;
        let (outpoint, satoshis, script) = match self.parent_of(index) {
            Parent::Outside(output) => {
                let (parent, vout) = self.outside(output);
                let made = from_before(parent);
                (Outpoint { txid: made.txid, vout }, made.satoshis, script(before_tag(parent), vout))
            }
            Parent::Inside { index, vout } => {
                let (txid, satoshis) = self.latest[index as usize % self.latest.len()];
                (Outpoint { txid, vout }, satoshis, script(index, vout))
            }
        };
        let outputs = if self.shape == Shape::FanOut && index.is_multiple_of(FAN_OUT + 1) { FAN_OUT } else { 2 };
        let made = transaction(index, outpoint, satoshis, &script, outputs, self.padding);
        let index_in_latest = index as usize % self.latest.len();
        self.latest[index_in_latest] = (made.txid, made.satoshis);
        made
    }

    fn parent_of(&self, index: u64) -> Parent {
        let (block, index_in_block) = (index / DISTANCE, index % DISTANCE);
        // A permutation of the previous block of indexes: each first output is spent once.
        let scattered =
            || Parent::Inside { index: (block - 1) * DISTANCE + index_in_block * 7_919 % DISTANCE, vout: 0 };
        match self.shape {
            Shape::Half if block > 0 && index % 2 == 1 => scattered(),
            Shape::Inside if block > 0 => scattered(),
            Shape::Chains if !index.is_multiple_of(CHAIN) => Parent::Inside { index: index - 1, vout: 0 },
            Shape::FanOut if !index.is_multiple_of(FAN_OUT + 1) => {
                let (group, index_in_group) = (index / (FAN_OUT + 1), index % (FAN_OUT + 1));
                Parent::Inside { index: group * (FAN_OUT + 1), vout: index_in_group as u32 - 1 }
            }
            _ => Parent::Outside(index),
        }
    }

    /// Returns the transaction and output index of an outside output. The two outputs of one transaction are spent half
    /// a run apart.
    fn outside(&self, output: u64) -> (u64, u32) {
        let half = self.total.div_ceil(2);
        (output % half, (output / half) as u32)
    }
}

/// Returns a transaction from before the run, with two equal outputs.
fn from_before(index: u64) -> Made {
    let mut random = SplitMix64::new(before_tag(index));
    let txid = Txid(std::array::from_fn(|_| random.next_u64() as u8));
    let outpoint = Outpoint { txid, vout: 0 };
    transaction(before_tag(index), outpoint, 3 * WORTH, &script(before_tag(index), 9), 0, 0)
}

fn before_tag(index: u64) -> u64 {
    index | 1 << 63
}

/// Builds a transaction. With two outputs the first gets nearly the whole amount, which a chain of any length needs;
/// with more, or for one from before the run (0), all get the same.
fn transaction(tag: u64, outpoint: Outpoint, satoshis: u64, spent: &[u8], outputs: u64, padding: usize) -> Made {
    let first = match outputs {
        0 => WORTH,
        2 => satoshis - 600,
        many => satoshis / (many + 1),
    };
    let previous = Output { satoshis, script: spent };
    let builder = TransactionBuilder::default().input(outpoint, &[0x30; 107], u32::MAX, Some(previous));
    let builder = match outputs {
        2 => builder.output(first, &script(tag, 0)).output(546, &[&script(tag, 1)[..], &vec![0x61; padding]].concat()),
        0 => builder.output(first, &script(tag, 0)).output(first, &script(tag, 1)),
        many => (0..many as u32).fold(builder, |builder, vout| builder.output(first, &script(tag, vout))),
    };
    let bytes = builder.extended();
    let txid = Transaction::parse(&bytes).expect("made by the builder").txid();
    Made { txid, bytes, satoshis: first }
}

/// Returns a script that pays to the hash of an unknown key.
fn script(tag: u64, vout: u32) -> [u8; 25] {
    let mut script = [0x76; 25];
    (script[1], script[2], script[23], script[24]) = (0xA9, 20, 0x88, 0xAC);
    let mut random = SplitMix64::new(tag ^ u64::from(vout) << 40);
    for part in script[3..23].chunks_mut(8) {
        part.copy_from_slice(&random.next_u64().to_le_bytes()[..part.len()]);
    }
    script
}

fn messages(made: impl Iterator<Item = Made>, first_offset: u64) -> Vec<Message> {
    let mut arena = BytesMut::new();
    let mut ends = Vec::new();
    for made in made {
        arena.extend_from_slice(&made.txid.0);
        arena.extend_from_slice(&Validated { tx: &made.bytes, height: HEIGHT, locked: false }.encode());
        ends.push(arena.len());
    }
    // The arena has no spare room, since every kept message keeps the arena.
    let arena = Bytes::copy_from_slice(&arena);
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let message = |((start, end), offset): ((usize, &usize), u64)| Message {
        offset,
        timestamp_ms: TIMESTAMP_MS,
        key: arena.slice(start..start + 32),
        payload: arena.slice(start + 32..*end),
        headers: Vec::new(),
    };
    starts.zip(&ends).zip(first_offset..).map(message).collect()
}
