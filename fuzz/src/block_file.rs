//! Block files: a bare block compared with the oracle, and framed blocks up to the first error.

use bitcoin::hashes::Hash;
use utxo_store::tx::{
    Txid,
    block::{BlockFile, BlockFileError, MerkleError, RawBlock, Scan, ScanItem},
};

use super::{assert_one_line, oracle, transaction::assert_refusal};

/// Bytes of a frame before a block: magic and length.
const FRAME: usize = 8;

/// Runs the target `block_file`.
pub fn check(data: &[u8]) {
    bare(data);
    scanned(data);
    match BlockFile::new(data) {
        Ok(file) => blocks_of(&file, data),
        Err(error) => assert_eq!((error, data.len()), (BlockFileError::Empty, 0)),
    }
}

/// Checks that a scan finds at least the blocks before the first error, and that skipped bytes overlap no block.
fn scanned(data: &[u8]) {
    let whole = BlockFile::new(data).map_or(0, |file| file.blocks().filter(Result::is_ok).count());
    let Ok(scan) = Scan::new(data) else { return assert_eq!(whole, 0) };
    let (mut blocks, mut end) = (0, 0);
    for found in scan {
        match found {
            ScanItem::Block(_) => blocks += 1,
            ScanItem::SkippedBytes(piece) => {
                assert!(piece.at >= end && piece.bytes > 0);
                end = piece.at + piece.bytes;
                assert_one_line(&piece.why);
            }
        }
    }
    assert!(blocks >= whole && end <= data.len());
}

fn bare(data: &[u8]) {
    match (RawBlock::parse(data), oracle::block(data)) {
        (Ok(block), Some(oracle)) => assert_same(&block, &oracle),
        (Err(error), None) => assert_refusal(data, &error),
        (ours, oracle) => panic!("ours: {ours:?}, the oracle's: {oracle:?}"),
    }
}

fn assert_same(block: &RawBlock<'_>, oracle: &bitcoin::Block) {
    let (header, expected) = (block.header(), &oracle.header);
    assert_eq!(block.hash(), oracle.block_hash().to_byte_array());
    assert_eq!(header.version, expected.version.to_consensus() as u32);
    assert_eq!(header.previous, expected.prev_blockhash.to_byte_array());
    assert_eq!(header.merkle_root, expected.merkle_root.to_byte_array());
    assert_eq!((header.time, header.bits, header.nonce), (expected.time, expected.bits.to_consensus(), expected.nonce));
    assert_eq!((block.transaction_count(), block.transactions().len()), (oracle.txdata.len(), oracle.txdata.len()));
    for (transaction, oracle) in block.transactions().zip(&oracle.txdata) {
        oracle::assert_same(&transaction, oracle);
    }
    let txids = oracle.txdata.iter().map(|transaction| Txid(transaction.compute_txid().to_byte_array()));
    match block.check_merkle_root() {
        Ok(found) => assert!(oracle.check_merkle_root() && found.into_iter().eq(txids)),
        // The oracle does not check for a list with a doubled end.
        Err(MerkleError::Doubled) => assert!(oracle.txdata.len() > 1),
        Err(error) => {
            assert!(!oracle.check_merkle_root());
            assert_one_line(&error);
        }
    }
}

/// Checks that the returned blocks follow each other in the file, up to zeros or the error.
fn blocks_of(file: &BlockFile<'_>, data: &[u8]) {
    let mut at = 0;
    let mut blocks = file.blocks();
    for block in blocks.by_ref() {
        match block {
            Ok(block) => {
                if let Some(network) = file.network() {
                    assert_eq!(data[at..at + 4], network.block_file_magic());
                    assert_eq!(data[at + 4..at + FRAME], (block.raw().len() as u32).to_le_bytes());
                    at += FRAME;
                }
                assert_eq!(block.raw(), &data[at..at + block.raw().len()]);
                at += block.raw().len();
            }
            Err(error) => {
                assert_one_line(&error);
                assert_error(&error, at, file.network().is_some(), data);
                assert!(blocks.next().is_none(), "an error must be the last item");
                return;
            }
        }
    }
    assert!(data[at..].iter().all(|byte| *byte == 0));
}

/// Checks the position in an error; the block before it ended at `at`.
fn assert_error(error: &BlockFileError, at: usize, framed: bool, data: &[u8]) {
    let behind_frame = if framed { at + FRAME } else { at };
    match *error {
        BlockFileError::Empty => panic!("a file with blocks is not empty"),
        BlockFileError::UnknownMagic { at: found_at, found } => {
            assert!(!framed && found_at == at && data.starts_with(&found));
        }
        BlockFileError::NoMagic { at: found_at, found, .. } => {
            assert!(framed && at > 0);
            assert_eq!((found_at, &found[..]), (at, &data[at..at + 4]));
        }
        BlockFileError::CutInHalf { at: end, block_at, error } => {
            assert_eq!(end, data.len());
            assert!(block_at == at || block_at == behind_frame);
            assert_refusal(&data[block_at..], &error);
        }
        BlockFileError::Damaged { block_at, error } => {
            assert_eq!(block_at, behind_frame);
            assert_refusal(&data[block_at..], &error);
        }
    }
}
