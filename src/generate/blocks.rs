//! Blocks out of files, each with its height and its local id.

use super::{
    GenerateError,
    connect::{Found, chains},
    left_out::LeftOutOfFiles,
};
use crate::tx::{
    Txid,
    block::{Block, FileNetwork, Scan, Scanned},
};

pub(super) const NO_BLOCK: [u8; 32] = [0; 32];

/// A file, as it was read.
#[derive(Debug, Clone)]
pub struct SourceFile {
    /// What to call it in errors.
    pub name: String,
    /// What is in it.
    pub bytes: Vec<u8>,
}

/// A block and its place in the chain.
#[derive(Debug, Clone)]
pub struct PlacedBlock<'a> {
    /// The block.
    pub block: Block<'a>,
    /// Its hash, internal order.
    pub hash: [u8; 32],
    /// Its height.
    pub height: u32,
    /// Its local id: 0 for the genesis block, otherwise from 1 on in the order of the files.
    pub block_id: u32,
    /// Ids of its transactions, in order, the coinbase first.
    pub txids: Vec<Txid>,
}

/// The blocks of files that are one chain, and what else the files hold.
#[derive(Debug, Clone)]
pub struct Placed<'a> {
    /// The blocks, from the lowest on.
    pub blocks: Vec<PlacedBlock<'a>>,
    /// Counts of the content that is left out.
    pub left_out: LeftOutOfFiles,
}

/// Reads the blocks of `files`, which together are one chain. See [`place_blocks`].
///
/// # Errors
/// As [`place_blocks`].
pub fn read_blocks(files: &[SourceFile], first_height: Option<u32>) -> Result<Vec<PlacedBlock<'_>>, GenerateError> {
    place_blocks(files, first_height).map(|placed| placed.blocks)
}

/// Reads the blocks of `files` in whatever order they are there, connects each to the one that it follows, and takes
/// the chain with the most work, from its genesis block where that is there. What is no whole block, and what is not of
/// that chain, is left out. A file of one bare block was named for that block, so such a block stays, connected or not.
///
/// A block is one above the block that it follows, where that is in the files; the genesis block is at 0; otherwise
/// `first_height` says (for the first block) or the block's own coinbase, where the network enforces that
/// ([`FileNetwork::height_of`]; of a bare block the main network's rule holds, which is the strictest).
///
/// # Errors
/// A file that is empty or without a whole block, a block of the chain that its header does not commit to, a height
/// that nothing tells.
pub fn place_blocks(files: &[SourceFile], first_height: Option<u32>) -> Result<Placed<'_>, GenerateError> {
    let (found, mut left_out) = found_in(files)?;
    let (chains, of_no_chain) = chains(&found);
    left_out.count(&of_no_chain);
    let mut blocks: Vec<PlacedBlock<'_>> = Vec::new();
    for chain in chains {
        let mut height: Option<u32> = None;
        for Found { file, block, hash, network, .. } in chain.iter().map(|index| &found[*index]) {
            let name = || files[*file].name.clone();
            let overflow = || GenerateError::HeightOverflow { file: name(), block: Txid(*hash) };
            let at = match height {
                Some(below) => below.checked_add(1).ok_or_else(overflow)?,
                None => own_height(block, *network, first_height.filter(|_| blocks.is_empty()))
                    .ok_or_else(|| GenerateError::UnknownHeight { file: name(), block: Txid(*hash) })?,
            };
            let txids = block.check_merkle_root().map_err(|error| GenerateError::Merkle {
                file: name(),
                block: Txid(*hash),
                error,
            })?;
            let block_id = next_id(blocks.last(), block.header().previous).ok_or_else(overflow)?;
            blocks.push(PlacedBlock { block: *block, hash: *hash, height: at, block_id, txids });
            height = Some(at);
        }
    }
    Ok(Placed { blocks, left_out })
}

/// Every whole block of the files, in their order.
fn found_in(files: &[SourceFile]) -> Result<(Vec<Found<'_>>, LeftOutOfFiles), GenerateError> {
    let (mut found, mut left_out) = (Vec::new(), LeftOutOfFiles::default());
    for (number, file) in files.iter().enumerate() {
        let wrong = |error| GenerateError::File { file: file.name.clone(), error };
        let scan = Scan::new(&file.bytes).map_err(wrong)?;
        let (network, before) = (scan.network(), found.len());
        let mut why = None;
        for scanned in scan {
            match scanned {
                Scanned::Block(block) => found.push(Found::new(number, block, network)),
                Scanned::LeftOut(piece) => {
                    why = why.or(Some(piece.why));
                    left_out.add(&file.name, &piece);
                }
            }
        }
        if let Some(why) = why.filter(|_| found.len() == before) {
            return Err(wrong(why));
        }
    }
    if found.is_empty() {
        return Err(GenerateError::NoBlocks { files: files.len() });
    }
    Ok((found, left_out))
}

fn next_id(last: Option<&PlacedBlock<'_>>, previous: [u8; 32]) -> Option<u32> {
    match last {
        None => Some(u32::from(previous != NO_BLOCK)),
        Some(last) => last.block_id.checked_add(1),
    }
}

/// The height of a block that follows none that is known.
fn own_height(block: &Block<'_>, network: Option<FileNetwork>, given: Option<u32>) -> Option<u32> {
    given
        .or_else(|| (block.header().previous == NO_BLOCK).then_some(0))
        .or_else(|| network.unwrap_or(FileNetwork::Main).height_of(block))
}
