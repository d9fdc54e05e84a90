//! Blocks, and the files that hold them: [`Block`], [`BlockFile`], [`Scan`].

mod file;
mod merkle;
mod network;
mod obfuscation;
mod scan;

use std::{fmt, iter::FusedIterator};

pub use file::{BlockFile, BlockFileError, Blocks};
pub use merkle::MerkleError;
pub use network::FileNetwork;
pub use obfuscation::ObfuscationKey;
pub use scan::{LeftOut, Scan, Scanned};

use super::{ParseError, ParseErrorKind, Transaction, Txid, double_sha256, reader::Reader};

/// Size of a block header, in bytes.
pub const HEADER_LEN: usize = 80;

/// A transaction without outputs, with one input without script.
const LEAST_TRANSACTION: usize = 51;

/// What a block says of itself. Hashes are in internal order, as transaction ids are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHeader {
    /// The version number.
    pub version: u32,
    /// Hash of the previous block's header.
    pub previous: [u8; 32],
    /// What the transaction ids must hash up to.
    pub merkle_root: [u8; 32],
    /// When it was mined, in seconds since 1970, by the miner's word.
    pub time: u32,
    /// The proof-of-work target, in its compact form.
    pub bits: u32,
    /// What makes the hash meet the target.
    pub nonce: u32,
}

/// One well-formed block, borrowed from its bytes. Its height is not in there (not in old blocks): the caller knows.
#[derive(Clone, Copy)]
pub struct Block<'a> {
    raw: &'a [u8],
    header: BlockHeader,
    transaction_count: usize,
    transactions_at: usize,
}

impl<'a> Block<'a> {
    /// Reads one block that takes up all of `bytes`, with every transaction in it, in standard format.
    ///
    /// # Errors
    /// What is wrong, and at which byte of `bytes`. The merkle root is not checked: see [`Block::check_merkle_root`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let mut reader = Reader::new(bytes);
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
        Ok(Block { raw: bytes, header, transaction_count, transactions_at })
    }

    /// What the block says of itself.
    pub fn header(&self) -> &BlockHeader {
        &self.header
    }

    /// Double SHA-256 of the header, in internal order. Computed at each call.
    pub fn hash(&self) -> [u8; 32] {
        double_sha256([&self.raw[..HEADER_LEN]])
    }

    /// Its bytes.
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// How many transactions it holds, the coinbase included.
    pub fn transaction_count(&self) -> usize {
        self.transaction_count
    }

    /// Its transactions, in order, the coinbase first.
    pub fn transactions(&self) -> Transactions<'a> {
        Transactions { rest: &self.raw[self.transactions_at..], left: self.transaction_count }
    }

    /// Whether the transactions are those that the header commits to. Returns their ids, in order.
    ///
    /// # Errors
    /// No transactions, another root, or a transaction list that was doubled at its end so as to keep the root.
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
    fn read(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
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

impl fmt::Debug for Block<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("hash", &Txid(self.hash()))
            .field("header", &self.header)
            .field("transactions", &self.transaction_count)
            .finish()
    }
}

/// The transactions of a block, in order. See [`Block::transactions`].
#[derive(Debug, Clone)]
pub struct Transactions<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Iterator for Transactions<'a> {
    type Item = Transaction<'a>;

    fn next(&mut self) -> Option<Transaction<'a>> {
        self.left = self.left.checked_sub(1)?;
        let (transaction, len) = Transaction::parse_prefix(self.rest).expect("Block::parse has parsed these bytes");
        self.rest = &self.rest[len..];
        Some(transaction)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Transactions<'_> {}
impl FusedIterator for Transactions<'_> {}
