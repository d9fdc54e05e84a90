//! Reads blocks from files and gives each block a height and a local id.

use super::{
    GenerateError,
    connect::{FileBlock, choose_chains},
    left_out::LeftOutCounts,
};
use crate::tx::{
    Txid,
    block::{FileNetwork, RawBlock, Scan, ScanItem},
};

/// Previous hash in the header of a genesis block.
pub(super) const NO_BLOCK: [u8; 32] = [0; 32];

/// Content of one block file.
#[derive(Debug, Clone)]
pub struct SourceFile {
    /// Name of the file in errors.
    pub name: String,
    /// Whole content of the file.
    pub bytes: Vec<u8>,
}

/// Block with its place in the chain.
#[derive(Debug, Clone)]
pub struct PlacedBlock<'a> {
    /// Parsed header and transactions.
    pub block: RawBlock<'a>,
    /// Block hash in internal byte order.
    pub hash: [u8; 32],
    /// Height in the chain.
    pub height: u32,
    /// Local id: 0 for the genesis block; otherwise ids count from 1 in the order of the chain.
    pub block_id: u32,
    /// Txids in the order of the block, the coinbase first.
    pub txids: Vec<Txid>,
}

/// Blocks of one chain, and counts of the rest of the files.
#[derive(Debug, Clone)]
pub(super) struct PlacedBlocks<'a> {
    /// Blocks of the chain, lowest first.
    pub(super) blocks: Vec<PlacedBlock<'a>>,
    /// Counts of the content outside the chain.
    pub(super) left_out: LeftOutCounts,
}

/// Reads the blocks of `files` in any order, connects each block to the previous block, and takes the chain with the
/// most work, from the genesis block on if the files hold the genesis block. Pieces that are no whole block and blocks
/// of other branches are left out. A file of one bare block is always taken, connected or not, because the user has
/// named that block.
///
/// The height of a block comes from the first of these sources:
///
/// 1. the previous block, if the files hold that block: one more than its height
/// 2. for the first block: `first_height`
/// 3. for the genesis block: 0
/// 4. the block's coinbase, if the network enforces the height there ([`FileNetwork::enforced_height`]); a bare block
///    is held to the main network's rule, the strictest one
///
/// # Errors
/// A file without a whole block, a block of the chain whose header does not commit to its transactions, a block of
/// unknown height.
pub(super) fn place_blocks(files: &[SourceFile], first_height: Option<u32>) -> Result<PlacedBlocks<'_>, GenerateError> {
    let (found, mut left_out) = read_files(files)?;
    let (chains, unused) = choose_chains(&found);
    left_out.count(&unused);
    let mut blocks: Vec<PlacedBlock<'_>> = Vec::new();
    for chain in chains {
        let mut height: Option<u32> = None;
        for FileBlock { file, block, hash, network, .. } in chain.iter().map(|index| &found[*index]) {
            let name = || files[*file].name.clone();
            let overflow = || GenerateError::HeightOverflow { file: name(), block: Txid(*hash) };
            let at = match height {
                Some(below) => below.checked_add(1).ok_or_else(overflow)?,
                None => find_height(block, *network, first_height.filter(|_| blocks.is_empty()))
                    .ok_or_else(|| GenerateError::UnknownHeight { file: name(), block: Txid(*hash) })?,
            };
            let txids = block.check_merkle_root().map_err(|error| GenerateError::Merkle {
                file: name(),
                block: Txid(*hash),
                error,
            })?;
            let block_id = next_block_id(blocks.last(), block.header().previous).ok_or_else(overflow)?;
            blocks.push(PlacedBlock { block: *block, hash: *hash, height: at, block_id, txids });
            height = Some(at);
        }
    }
    Ok(PlacedBlocks { blocks, left_out })
}

/// Returns every whole block of the files, in the order of the files.
fn read_files(files: &[SourceFile]) -> Result<(Vec<FileBlock<'_>>, LeftOutCounts), GenerateError> {
    let (mut found, mut left_out) = (Vec::new(), LeftOutCounts::default());
    for (number, file) in files.iter().enumerate() {
        let wrong = |error| GenerateError::File { file: file.name.clone(), error };
        let scan = Scan::new(&file.bytes).map_err(wrong)?;
        let (network, before) = (scan.network(), found.len());
        let mut first_error = None;
        for scanned in scan {
            match scanned {
                ScanItem::Block(block) => found.push(FileBlock::new(number, block, network)),
                ScanItem::SkippedBytes(piece) => {
                    first_error = first_error.or(Some(piece.why));
                    left_out.add(&file.name, &piece);
                }
            }
        }
        if let Some(error) = first_error.filter(|_| found.len() == before) {
            return Err(wrong(error));
        }
    }
    if found.is_empty() {
        return Err(GenerateError::NoBlocks { files: files.len() });
    }
    Ok((found, left_out))
}

fn next_block_id(last: Option<&PlacedBlock<'_>>, previous: [u8; 32]) -> Option<u32> {
    match last {
        None => Some(u32::from(previous != NO_BLOCK)),
        Some(last) => last.block_id.checked_add(1),
    }
}

/// Returns the height of a block whose previous block is not in the files.
fn find_height(block: &RawBlock<'_>, network: Option<FileNetwork>, given: Option<u32>) -> Option<u32> {
    given
        .or_else(|| (block.header().previous == NO_BLOCK).then_some(0))
        .or_else(|| network.unwrap_or(FileNetwork::Main).enforced_height(block))
}
