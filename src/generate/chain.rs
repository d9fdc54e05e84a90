//! [`Chain`]: blocks, and all outputs that the blocks spend, as events.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashMapExt};
use serde::Serialize;

use super::{
    GenerateError, Message,
    blocks::{PlacedBlock, PlacedBlocks, SourceFile, place_blocks},
    left_out::LeftOutCounts,
    prevouts::{Parent, Parents},
    synthetic::ANYONE_CAN_SPEND,
};
use crate::{
    event::{Block, BlockMined, Subtree, SubtreeTransactions, Topic, Validated},
    record::build::PARTIAL_OUTPUT_LIMIT,
    tx::{Outpoint, Output, Transaction, Txid},
};

/// Greatest number of transactions in a subtree.
const SUBTREE_LIMIT: usize = 1 << 20;

/// Source of the outputs that the blocks spend and do not create.
#[derive(Debug, Clone, Default)]
pub enum PreviousOutputs {
    /// The files hold every spent output.
    #[default]
    InTheFiles,
    /// A list holds the outputs.
    Listed(Parents),
    /// Outputs are invented with amounts just large enough.
    Invented,
}

/// Counts of the content of a [`Chain`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ChainCounts {
    /// Number of blocks in the chain.
    pub blocks: u64,
    /// Number of transactions, coinbases included.
    pub transactions: u64,
    /// Number of inputs; a coinbase counts none.
    pub inputs: u64,
    /// Number of outputs of all transactions.
    pub outputs: u64,
    /// Number of partial transactions, produced before the blocks.
    pub seeded: u64,
}

/// Blocks of one chain, and all outputs that their inputs spend.
#[derive(Debug)]
pub struct Chain<'a> {
    blocks: Vec<PlacedBlock<'a>>,
    /// Outputs that the blocks create.
    outputs: HashMap<Outpoint, Output<'a>>,
    parents: Parents,
    left_out: LeftOutCounts,
}

impl<'a> Chain<'a> {
    /// Reads the blocks of `files` and finds the output that each input spends, so that [`messages`](Self::messages)
    /// cannot fail. `first_height` is the height of the first block, if neither files nor coinbase contain the height.
    pub fn new(
        files: &'a [SourceFile],
        first_height: Option<u32>,
        previous: PreviousOutputs,
    ) -> Result<Self, GenerateError> {
        let PlacedBlocks { blocks, left_out } = place_blocks(files, first_height)?;
        let outputs = collect_outputs(&blocks);
        let mut chain = Chain { blocks, outputs, parents: Parents::default(), left_out };
        match previous {
            PreviousOutputs::InTheFiles => {}
            PreviousOutputs::Listed(parents) => chain.parents = chain.drop_contained_parents(parents)?,
            PreviousOutputs::Invented => chain.parents = chain.invent_parents()?,
        }
        chain.check_inputs()?;
        Ok(chain)
    }

    /// Returns the blocks, lowest first.
    #[cfg(feature = "testkit")]
    pub fn blocks(&self) -> &[PlacedBlock<'a>] {
        &self.blocks
    }

    /// Returns counts of the files' content outside the chain.
    pub fn left_out(&self) -> &LeftOutCounts {
        &self.left_out
    }

    /// Returns the output that an outpoint names, if the output is known.
    pub fn output(&self, outpoint: &Outpoint) -> Option<Output<'_>> {
        self.outputs.get(outpoint).copied().or_else(|| self.parents.output(outpoint))
    }

    /// Counts the content of the blocks.
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

    /// Returns all events: partial transactions first, then for each block the transactions and the block itself. A
    /// parent precedes its child if the blocks order them so.
    pub fn messages(&self) -> impl Iterator<Item = Message> {
        let blocks = (1..).zip(&self.blocks);
        let blocks = blocks.flat_map(|(sequence, placed)| {
            self.transaction_messages(placed).chain(std::iter::once_with(move || block_message(sequence, placed)))
        });
        self.parents.messages().chain(blocks)
    }

    /// Returns every transaction except the coinbases, with the height of its block and its txid.
    pub fn transactions(&self) -> impl Iterator<Item = (u32, Txid, Transaction<'a>)> {
        self.blocks.iter().flat_map(|placed| {
            let transactions = placed.txids.iter().zip(placed.block.transactions());
            transactions.skip(1).map(|(txid, transaction)| (placed.height, *txid, transaction))
        })
    }

    fn transaction_messages<'c>(&'c self, placed: &'c PlacedBlock<'a>) -> impl Iterator<Item = Message> + use<'a, 'c> {
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

    /// Drops the listed parents that the files contain; their listed outputs must equal the outputs in the files.
    fn drop_contained_parents(&self, mut parents: Parents) -> Result<Parents, GenerateError> {
        let inside: HashMap<Txid, ()> =
            self.blocks.iter().flat_map(|placed| &placed.txids).map(|txid| (*txid, ())).collect();
        for (txid, parent) in &parents.0 {
            for (vout, (satoshis, script)) in parent.outputs.iter().filter(|_| inside.contains_key(txid)) {
                let outpoint = Outpoint { txid: *txid, vout: *vout };
                if self.outputs.get(&outpoint) != Some(&Output { satoshis: *satoshis, script }) {
                    return Err(GenerateError::PreviousOutputMismatch { outpoint });
                }
            }
        }
        parents.0.retain(|txid, _| !inside.contains_key(txid));
        Ok(parents)
    }

    /// Invents parents for all spent outputs outside the files. A parent is mined just before the block of its spender.
    /// Each output has an equal share of its spender's total output, rounded up, so that no transaction overspends.
    fn invent_parents(&self) -> Result<Parents, GenerateError> {
        let mut parents = Parents::default();
        for (height, _, transaction) in self.transactions() {
            let unknown: Vec<Outpoint> = transaction
                .inputs()
                .map(|input| input.outpoint)
                .filter(|outpoint| !self.outputs.contains_key(outpoint))
                .collect();
            // The store refuses a sum above all existing coins.
            let paid = transaction.outputs().fold(0_u64, |sum, output| sum.saturating_add(output.satoshis));
            for outpoint in &unknown {
                if outpoint.vout >= PARTIAL_OUTPUT_LIMIT {
                    return Err(GenerateError::TooManyOutputs { outpoint: *outpoint, limit: PARTIAL_OUTPUT_LIMIT });
                }
                let parent = parents.0.entry(outpoint.txid).or_insert_with(|| Parent {
                    height: height.saturating_sub(1),
                    coinbase: false,
                    outputs: BTreeMap::new(),
                });
                parent.height = parent.height.min(height.saturating_sub(1));
                let output = parent.outputs.entry(outpoint.vout).or_insert((0, ANYONE_CAN_SPEND.to_vec()));
                output.0 = output.0.max(paid.div_ceil(unknown.len() as u64));
            }
        }
        Ok(parents)
    }
}

fn collect_outputs<'a>(blocks: &[PlacedBlock<'a>]) -> HashMap<Outpoint, Output<'a>> {
    let mut outputs = HashMap::new();
    for placed in blocks {
        for (txid, transaction) in placed.txids.iter().zip(placed.block.transactions()) {
            outputs.extend(
                (0..).zip(transaction.outputs()).map(|(vout, output)| (Outpoint { txid: *txid, vout }, output)),
            );
        }
    }
    outputs
}

fn block_message(sequence: u64, placed: &PlacedBlock<'_>) -> Message {
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
