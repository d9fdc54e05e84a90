//! [`Chain`]: blocks, and everything that their inputs spend, as events.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashMapExt};
use serde::Serialize;

use super::{
    GenerateError, Message,
    blocks::{Placed, PlacedBlock, SourceFile, place_blocks},
    left_out::LeftOutOfFiles,
    prevouts::{Parent, Parents},
};
use crate::{
    event::{Block, BlockMined, SEEDED_OUTPUT_LIMIT, Subtree, SubtreeTransactions, Topic, Validated},
    tx::{Outpoint, Output, Transaction, Txid},
};

/// The most transactions that a subtree holds.
const SUBTREE_LIMIT: usize = 1 << 20;

/// The locking script of invented outputs: anybody may spend them.
const INVENTED_SCRIPT: [u8; 1] = [0x51];

/// Where the outputs come from that the blocks spend and do not make.
#[derive(Debug, Clone, Default)]
pub enum PreviousOutputs {
    /// From nowhere: there must be none.
    #[default]
    InTheFiles,
    /// From a list.
    Listed(Parents),
    /// Invented, with just enough in them.
    Invented,
}

/// What the blocks of a [`Chain`] hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ChainCounts {
    /// Blocks.
    pub blocks: u64,
    /// Transactions, coinbases included.
    pub transactions: u64,
    /// Inputs; a coinbase has none.
    pub inputs: u64,
    /// Outputs.
    pub outputs: u64,
    /// Partial transactions beside them.
    pub seeded: u64,
}

/// Blocks, and everything that their inputs spend.
#[derive(Debug)]
pub struct Chain<'a> {
    blocks: Vec<PlacedBlock<'a>>,
    /// What the blocks' own transactions make.
    made: HashMap<Outpoint, Output<'a>>,
    parents: Parents,
    left_out: LeftOutOfFiles,
}

impl<'a> Chain<'a> {
    /// Reads blocks (see [`place_blocks`]) and finds what each input spends, so that nothing can fail later.
    ///
    /// # Errors
    /// See [`GenerateError`].
    pub fn new(
        files: &'a [SourceFile],
        first_height: Option<u32>,
        previous: PreviousOutputs,
    ) -> Result<Self, GenerateError> {
        let Placed { blocks, left_out } = place_blocks(files, first_height)?;
        let made = outputs_of(&blocks);
        let mut chain = Chain { blocks, made, parents: Parents::default(), left_out };
        match previous {
            PreviousOutputs::InTheFiles => {}
            PreviousOutputs::Listed(parents) => chain.parents = chain.outside(parents)?,
            PreviousOutputs::Invented => chain.parents = chain.invent()?,
        }
        chain.check_inputs()?;
        Ok(chain)
    }

    /// The blocks, in their order.
    pub fn blocks(&self) -> &[PlacedBlock<'a>] {
        &self.blocks
    }

    /// Counts of the files' content that the chain does not have.
    pub fn left_out(&self) -> &LeftOutOfFiles {
        &self.left_out
    }

    /// What an outpoint names, where that is known.
    pub fn output(&self, outpoint: &Outpoint) -> Option<Output<'_>> {
        self.made.get(outpoint).copied().or_else(|| self.parents.output(outpoint))
    }

    /// What the blocks hold.
    pub fn counts(&self) -> ChainCounts {
        let mut counts =
            ChainCounts { blocks: self.blocks.len() as u64, seeded: self.parents.0.len() as u64, ..Default::default() };
        for transaction in self.blocks.iter().flat_map(|placed| placed.block.transactions()) {
            counts.transactions += 1;
            counts.inputs += if transaction.is_coinbase() { 0 } else { transaction.input_count() as u64 };
            counts.outputs += transaction.output_count() as u64;
        }
        counts
    }

    /// All events: partial transactions first, then block by block its transactions and the block itself. A parent
    /// comes before its child as far as the blocks have it so.
    pub fn messages(&self) -> impl Iterator<Item = Message> {
        let blocks = (1..).zip(&self.blocks);
        let blocks = blocks.flat_map(|(sequence, placed)| {
            self.validated(placed).chain(std::iter::once_with(move || mined(sequence, placed)))
        });
        self.parents.messages().chain(blocks)
    }

    /// Every transaction of the blocks but the coinbases, with its id and the height of its block.
    pub fn transactions(&self) -> impl Iterator<Item = (u32, Txid, Transaction<'a>)> {
        self.blocks.iter().flat_map(|placed| {
            let transactions = placed.txids.iter().zip(placed.block.transactions());
            transactions.skip(1).map(|(txid, transaction)| (placed.height, *txid, transaction))
        })
    }

    fn validated<'c>(&'c self, placed: &'c PlacedBlock<'a>) -> impl Iterator<Item = Message> + use<'a, 'c> {
        placed.txids.iter().zip(placed.block.transactions()).skip(1).map(|(txid, transaction)| {
            let mut tx = Vec::new();
            transaction
                .write_extended(&mut tx, |_, outpoint| self.output(&outpoint))
                .expect("every previous output was found when the chain was read");
            let event = Validated { tx: &tx, height: placed.height, locked: false };
            Message { topic: Topic::ValidatedTxs, key: Some(*txid), payload: event.encode() }
        })
    }

    fn check_inputs(&self) -> Result<(), GenerateError> {
        for (height, txid, transaction) in self.transactions() {
            for (input, outpoint) in transaction.inputs().map(|input| input.outpoint).enumerate() {
                if self.output(&outpoint).is_none() {
                    return Err(GenerateError::UnknownPreviousOutput { height, txid, input, outpoint });
                }
            }
        }
        Ok(())
    }

    /// Listed parents without those that are in the files; what is said of these must be true.
    fn outside(&self, mut parents: Parents) -> Result<Parents, GenerateError> {
        let inside: HashMap<Txid, ()> =
            self.blocks.iter().flat_map(|placed| &placed.txids).map(|txid| (*txid, ())).collect();
        for (txid, parent) in &parents.0 {
            for (vout, (satoshis, script)) in parent.outputs.iter().filter(|_| inside.contains_key(txid)) {
                let outpoint = Outpoint { txid: *txid, vout: *vout };
                if self.made.get(&outpoint) != Some(&Output { satoshis: *satoshis, script }) {
                    return Err(GenerateError::Contradiction { outpoint });
                }
            }
        }
        parents.0.retain(|txid, _| !inside.contains_key(txid));
        Ok(parents)
    }

    /// Parents for all that is spent and not in the files: mined just before the block of the spender, each output with
    /// an equal share of what its spender pays out, rounded up, so that nothing overspends.
    fn invent(&self) -> Result<Parents, GenerateError> {
        let mut parents = Parents::default();
        for (height, _, transaction) in self.transactions() {
            let unknown: Vec<Outpoint> = transaction
                .inputs()
                .map(|input| input.outpoint)
                .filter(|outpoint| !self.made.contains_key(outpoint))
                .collect();
            // A sum beyond all coins there are is the store's to refuse.
            let paid = transaction.outputs().fold(0_u64, |sum, output| sum.saturating_add(output.satoshis));
            for outpoint in &unknown {
                if outpoint.vout >= SEEDED_OUTPUT_LIMIT {
                    return Err(GenerateError::TooManyOutputs { outpoint: *outpoint, limit: SEEDED_OUTPUT_LIMIT });
                }
                let parent = parents.0.entry(outpoint.txid).or_insert_with(|| Parent {
                    height: height.saturating_sub(1),
                    coinbase: false,
                    outputs: BTreeMap::new(),
                });
                parent.height = parent.height.min(height.saturating_sub(1));
                let output = parent.outputs.entry(outpoint.vout).or_insert((0, INVENTED_SCRIPT.to_vec()));
                output.0 = output.0.max(paid.div_ceil(unknown.len() as u64));
            }
        }
        Ok(parents)
    }
}

fn outputs_of<'a>(blocks: &[PlacedBlock<'a>]) -> HashMap<Outpoint, Output<'a>> {
    let mut made = HashMap::new();
    for placed in blocks {
        for (txid, transaction) in placed.txids.iter().zip(placed.block.transactions()) {
            made.extend(
                (0..).zip(transaction.outputs()).map(|(vout, output)| (Outpoint { txid: *txid, vout }, output)),
            );
        }
    }
    made
}

fn mined(sequence: u64, placed: &PlacedBlock<'_>) -> Message {
    let coinbase = placed.block.transactions().next().map_or(&[][..], |coinbase| coinbase.raw());
    let listed: Vec<u8> = placed.txids.iter().skip(1).flat_map(|txid| txid.0).collect();
    let subtrees = listed
        .chunks(SUBTREE_LIMIT * 32)
        .map(|txids| Subtree { count: (txids.len() / 32) as u64, transactions: SubtreeTransactions::Inline(txids) });
    let block = Block {
        block_id: placed.block_id,
        hash: placed.hash,
        previous: placed.block.header().previous,
        height: placed.height,
        time: placed.block.header().time,
        longest_chain: true,
        coinbase,
        subtrees: subtrees.collect(),
    };
    let event = BlockMined { sequence, block };
    Message { topic: Topic::BlockMined, key: None, payload: event.encode() }
}
