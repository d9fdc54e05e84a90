//! Blocks out of files, each with its height and its local id.

use foldhash::{HashMap, HashMapExt};

use super::GenerateError;
use crate::tx::{
    Txid,
    block::{Block, BlockFile},
};

const NO_BLOCK: [u8; 32] = [0; 32];
/// From this version on a coinbase begins with the height of its block (BIP 34).
const VERSION_WITH_HEIGHT: u32 = 2;
const OP_1: u8 = 0x51;
const OP_16: u8 = 0x60;

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

/// Reads the blocks of `files`, which together are one chain in this order.
///
/// A block is one above the block that it follows, where that is in the files; the genesis block is at 0; otherwise
/// `first_height` says (for the first block) or the block's own coinbase.
///
/// # Errors
/// A file that is empty, cut or damaged, a block that its header does not commit to, a framed file in which a block does
/// not follow the one before it, a height that nothing tells.
pub fn read_blocks(files: &[SourceFile], first_height: Option<u32>) -> Result<Vec<PlacedBlock<'_>>, GenerateError> {
    let mut placed: Vec<PlacedBlock<'_>> = Vec::new();
    let mut heights: HashMap<[u8; 32], u32> = HashMap::new();
    for file in files {
        let wrong = |error| GenerateError::File { file: file.name.clone(), error };
        let blocks = BlockFile::new(&file.bytes).map_err(wrong)?.blocks();
        let mut before = None;
        for block in blocks {
            let block = block.map_err(wrong)?;
            let (hash, previous) = (block.hash(), block.header().previous);
            follows(&file.name, hash, previous, before)?;
            let height = match heights.get(&previous) {
                Some(height) => height.checked_add(1).ok_or_else(|| overflow(&file.name, hash))?,
                None => own_height(&block, first_height.filter(|_| placed.is_empty()))
                    .ok_or_else(|| GenerateError::UnknownHeight { file: file.name.clone(), block: Txid(hash) })?,
            };
            let txids = block.check_merkle_root().map_err(|error| GenerateError::Merkle {
                file: file.name.clone(),
                block: Txid(hash),
                error,
            })?;
            let block_id = next_id(placed.last(), previous).ok_or_else(|| overflow(&file.name, hash))?;
            heights.insert(hash, height);
            placed.push(PlacedBlock { block, hash, height, block_id, txids });
            before = Some(hash);
        }
    }
    Ok(placed)
}

fn follows(file: &str, hash: [u8; 32], previous: [u8; 32], before: Option<[u8; 32]>) -> Result<(), GenerateError> {
    match before {
        Some(before) if before != previous => Err(GenerateError::NotAChain {
            file: file.to_owned(),
            block: Txid(hash),
            before: Txid(before),
            previous: Txid(previous),
        }),
        _ => Ok(()),
    }
}

fn overflow(file: &str, hash: [u8; 32]) -> GenerateError {
    GenerateError::HeightOverflow { file: file.to_owned(), block: Txid(hash) }
}

fn next_id(last: Option<&PlacedBlock<'_>>, previous: [u8; 32]) -> Option<u32> {
    match last {
        None => Some(u32::from(previous != NO_BLOCK)),
        Some(last) => last.block_id.checked_add(1),
    }
}

/// The height of a block that follows none that is known.
fn own_height(block: &Block<'_>, given: Option<u32>) -> Option<u32> {
    given.or_else(|| (block.header().previous == NO_BLOCK).then_some(0)).or_else(|| {
        let coinbase = block.transactions().next().filter(|_| block.header().version >= VERSION_WITH_HEIGHT)?;
        height_in_script(coinbase.inputs().next()?.script)
    })
}

/// The number that a script pushes first, as a little-endian number of at most four bytes without a sign.
fn height_in_script(script: &[u8]) -> Option<u32> {
    match script.split_first()? {
        (&opcode @ OP_1..=OP_16, _) => Some(u32::from(opcode - OP_1 + 1)),
        (&length @ 1..=4, rest) => {
            let pushed = rest.get(..usize::from(length))?;
            let positive = pushed.last().is_some_and(|last| last & 0x80 == 0);
            positive.then(|| pushed.iter().rev().fold(0, |height, byte| height << 8 | u32::from(*byte)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coinbase_tells_its_height() {
        let cases: [(&[u8], Option<u32>); 9] = [
            (&[3, 0x8f, 0x3c, 0x04, 0xff], Some(277_647)),
            (&[4, 1, 2, 3, 4], Some(0x0403_0201)),
            (&[0x51], Some(1)),
            (&[0x60, 9], Some(16)),
            (&[2, 0x7f], None),
            (&[3, 0, 0, 0x80], None),
            (&[5, 1, 1, 1, 1, 1], None),
            (&[0], None),
            (&[], None),
        ];
        for (script, height) in cases {
            assert_eq!(height_in_script(script), height, "{script:02x?}");
        }
    }
}
