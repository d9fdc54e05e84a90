//! Blocks and the files that hold them: [`RawBlock`], [`BlockFile`], [`Scan`].

mod file;
mod merkle;
mod network;
mod obfuscation;
mod scan;
mod work;

use std::{fmt, iter::FusedIterator};

pub use file::{BlockFile, BlockFileError};
pub use merkle::{MerkleError, MerkleRoot};
pub use network::FileNetwork;
pub use obfuscation::ObfuscationKey;
pub use scan::{Scan, ScanItem, SkippedBytes};

use super::{ParseError, ParseErrorKind, Transaction, Txid, double_sha256, reader::ByteReader};

/// Size of a block header, in bytes.
pub const HEADER_LEN: usize = 80;

/// Size of the frame in front of a block in a block file, in bytes: magic (4) and length (4).
const FRAME_LEN: usize = 8;

/// Size of the smallest transaction, in bytes: one input without script, no outputs.
const LEAST_TRANSACTION: usize = 51;

/// Header of a block. Hashes are in internal order, as transaction ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHeader {
    /// Version number of the block.
    pub version: u32,
    /// Hash of the previous block's header.
    pub previous: [u8; 32],
    /// Merkle root of the block's transaction ids.
    pub merkle_root: [u8; 32],
    /// Time at which the miner claims to have mined the block, seconds since the epoch.
    pub time: u32,
    /// Proof-of-work target in compact form.
    pub bits: u32,
    /// Number that the miner varies until the hash meets the target.
    pub nonce: u32,
}

/// View of one well-formed block. The bytes of old blocks do not contain the height, so that the caller has to know it.
#[derive(Clone, Copy)]
pub struct RawBlock<'a> {
    raw: &'a [u8],
    header: BlockHeader,
    transaction_count: usize,
    transactions_at: usize,
}

impl<'a> RawBlock<'a> {
    /// Reads one block that takes up all of `bytes`, with every transaction in it, in standard format.
    ///
    /// # Errors
    /// Fails at the first malformed field, with its byte position in `bytes`. [`RawBlock::check_merkle_root`] checks
    /// the merkle root.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let mut reader = ByteReader::new(bytes);
        let header = BlockHeader::read(&mut reader)?;
        let transaction_count = reader.count("transaction count", LEAST_TRANSACTION)?;
        let transactions_at = reader.position();
        for _ in 0..transaction_count {
            let at = reader.position();
            let (transaction, len) = Transaction::parse_prefix(reader.rest()).map_err(|error| error.shifted(at))?;
            if transaction.is_extended() {
                return Err(reader.error(at, ParseErrorKind::ExtendedInBlock));
            }
            reader.take(len as u64, "transaction")?;
        }
        reader.finish()?;
        Ok(RawBlock { raw: bytes, header, transaction_count, transactions_at })
    }

    /// Returns the header of the block.
    pub fn header(&self) -> &BlockHeader {
        &self.header
    }

    /// Returns the double SHA-256 of the header, in internal order. Every call computes the hash.
    pub fn hash(&self) -> [u8; 32] {
        double_sha256([&self.raw[..HEADER_LEN]])
    }

    /// Returns all bytes of the block.
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// Returns the number of transactions, including the coinbase.
    #[cfg(feature = "testkit")]
    pub fn transaction_count(&self) -> usize {
        self.transaction_count
    }

    /// Returns the transactions, in order, the coinbase first.
    pub fn transactions(&self) -> Transactions<'a> {
        Transactions { rest: &self.raw[self.transactions_at..], left: self.transaction_count }
    }

    /// Checks that the header commits to the transactions. Returns their ids, in order.
    ///
    /// # Errors
    /// Fails for a block without transactions, for another root, and for a transaction list with a repeated end, which
    /// would have the same root.
    pub fn check_merkle_root(&self) -> Result<Vec<Txid>, MerkleError> {
        let txids: Vec<Txid> = self.transactions().map(|transaction| transaction.txid()).collect();
        let found = merkle::root(&txids)?;
        if found == self.header.merkle_root {
            Ok(txids)
        } else {
            Err(MerkleError::Mismatch { expected: Txid(self.header.merkle_root), found: Txid(found) })
        }
    }
}

impl BlockHeader {
    /// Reads a header that takes up all of `bytes`.
    ///
    /// # Errors
    /// The bytes are not 80.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let mut reader = ByteReader::new(bytes);
        let header = Self::read(&mut reader)?;
        reader.finish().map(|()| header)
    }

    /// Returns the expected number of hashes for the target of the block.
    pub fn work(&self) -> u128 {
        work::block_work(self.bits)
    }

    fn read(reader: &mut ByteReader<'_>) -> Result<Self, ParseError> {
        Ok(BlockHeader {
            version: reader.u32("block version")?,
            previous: reader.array("previous block hash")?,
            merkle_root: reader.array("merkle root")?,
            time: reader.u32("block time")?,
            bits: reader.u32("block bits")?,
            nonce: reader.u32("block nonce")?,
        })
    }
}

impl fmt::Debug for RawBlock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawBlock")
            .field("hash", &Txid(self.hash()))
            .field("header", &self.header)
            .field("transactions", &self.transaction_count)
            .finish()
    }
}

/// Iterator over the transactions of a block, in order. See [`RawBlock::transactions`].
#[derive(Debug, Clone)]
pub struct Transactions<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Iterator for Transactions<'a> {
    type Item = Transaction<'a>;

    fn next(&mut self) -> Option<Transaction<'a>> {
        self.left = self.left.checked_sub(1)?;
        let (transaction, len) = Transaction::parse_prefix(self.rest).expect("RawBlock::parse has parsed these bytes");
        self.rest = &self.rest[len..];
        Some(transaction)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Transactions<'_> {}
impl FusedIterator for Transactions<'_> {}
