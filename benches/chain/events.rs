//! Synthetic transactions and blocks.

use std::sync::Arc;

use bytes::Bytes;
use utxo_store::{
    engine::Row,
    event::{Block, BlockMined, Event, Reorg, Subtree, SubtreeTransactions, Validated},
    record::{
        Key, Operation, Page, StoredOutput,
        build::{KnownOutput, KnownOutputs, NewTxState, PageParams, build_pages, build_partial_pages},
    },
    tx::{Network, Outpoint, Output, Transaction, TransactionBuilder, Txid},
};

pub const HEIGHT: u32 = 150;
const SATOSHIS: u64 = 1 << 40;
const SCRIPT: [u8; 25] = [0x51; 25];

/// An unspent output with its amount.
#[derive(Debug, Clone, Copy)]
pub struct Coin {
    pub outpoint: Outpoint,
    pub satoshis: u64,
}

pub struct MadeTx {
    pub txid: Txid,
    pub extended: Vec<u8>,
    pub coins: Vec<Coin>,
}

impl MadeTx {
    /// Returns a transaction that spends a coin; rivals differ in `tag`.
    pub fn spending(coin: Coin, outputs: u32, tag: u32) -> Self {
        Self::paying(coin, outputs, coin.satoshis / u64::from(outputs + 1), tag)
    }

    /// Returns a payment to one output with a fee of one satoshi.
    pub fn link(coin: Coin, tag: u32) -> Self {
        Self::paying(coin, 1, coin.satoshis - 1, tag)
    }

    fn paying(coin: Coin, outputs: u32, each: u64, tag: u32) -> Self {
        let previous = Output { satoshis: coin.satoshis, script: &SCRIPT };
        let builder = TransactionBuilder::default().input(coin.outpoint, &[0x30; 107], tag, Some(previous));
        let extended = (0..outputs).fold(builder, |builder, _| builder.output(each, &SCRIPT)).extended();
        let txid = Transaction::parse(&extended).expect("made by the builder").txid();
        let coin = |vout| Coin { outpoint: Outpoint { txid, vout }, satoshis: each };
        MadeTx { txid, extended, coins: (0..outputs).map(coin).collect() }
    }

    pub fn event(&self) -> (Vec<u8>, Vec<u8>) {
        let event = Validated { tx: &self.extended, height: HEIGHT, locked: false };
        (self.txid.0.to_vec(), event.encode())
    }
}

const SETTING: PageParams =
    PageParams { network: Network::Main, height: HEIGHT, batch_size: 20_000, created_at: 1, event: None };

/// Returns the create of a transaction with two outputs that is stored before the run and unmined.
pub fn unmined(number: u64) -> Row {
    let txid = Txid(*blake3::hash(&number.to_le_bytes()).as_bytes());
    let made = MadeTx::spending(Coin { outpoint: Outpoint { txid, vout: 0 }, satoshis: SATOSHIS }, 2, 0);
    let transaction = Transaction::parse(&made.extended).expect("made by the builder");
    let page = page_of(&transaction, Bytes::copy_from_slice(&made.extended));
    Row { key: Key::master(made.txid), operation: Operation::Create(Arc::new(page)) }
}

/// Returns the master of a transaction as created.
pub fn page_of(transaction: &Transaction<'_>, body: Bytes) -> Page {
    let pages = build_pages(transaction, body, transaction.txid(), &SETTING, &NewTxState::default());
    pages.expect("it pays").master
}

/// Returns the create of a partial transaction that is stored and mined before the run.
pub fn seed(number: u64, outputs: u32) -> (Row, Vec<Coin>) {
    let txid = Txid(*blake3::hash(&number.to_le_bytes()).as_bytes());
    let output =
        |vout| KnownOutput { vout, output: StoredOutput { satoshis: SATOSHIS, script: Bytes::from_static(&SCRIPT) } };
    let seed = KnownOutputs { txid, coinbase: false, outputs: (0..outputs).map(output).collect() };
    let page: Page = build_partial_pages(&seed, &SETTING).expect("a seed with outputs").master;
    let coin = |vout| Coin { outpoint: Outpoint { txid, vout }, satoshis: SATOSHIS };
    (Row { key: Key::master(txid), operation: Operation::Create(Arc::new(page)) }, (0..outputs).map(coin).collect())
}

pub struct MadeBlock {
    id: u32,
    height: u32,
    previous: [u8; 32],
    coinbase: Vec<u8>,
    listed: Listed,
}

enum Listed {
    Inline(Vec<u8>),
    Object { key: String, sha256: [u8; 32], count: u64 },
}

impl MadeBlock {
    pub fn new(id: u32, height: u32, previous: Option<&MadeBlock>, listed: &[Txid]) -> Self {
        Self::with_listing(id, height, previous, Listed::Inline(listed.iter().flat_map(|txid| txid.0).collect()))
    }

    /// Returns a block that lists the transactions of an object.
    pub fn listing_object(id: u32, height: u32, key: &str, sha256: [u8; 32], count: u64) -> Self {
        Self::with_listing(id, height, None, Listed::Object { key: key.to_owned(), sha256, count })
    }

    fn with_listing(id: u32, height: u32, previous: Option<&MadeBlock>, listed: Listed) -> Self {
        let no_outpoint = Outpoint { txid: Txid([0; 32]), vout: u32::MAX };
        let coinbase = TransactionBuilder::default().input(no_outpoint, &id.to_le_bytes(), u32::MAX, None);
        MadeBlock {
            id,
            height,
            previous: previous.map_or([0; 32], MadeBlock::hash),
            coinbase: coinbase.output(5_000, &SCRIPT).standard(),
            listed,
        }
    }

    fn hash(&self) -> [u8; 32] {
        *blake3::hash(&self.id.to_be_bytes()).as_bytes()
    }

    fn event(&self) -> Block<'_> {
        let (count, transactions) = match &self.listed {
            Listed::Inline(txids) => ((txids.len() / 32) as u64, SubtreeTransactions::Inline(txids)),
            Listed::Object { key, sha256, count } => (*count, SubtreeTransactions::Object { key, sha256: *sha256 }),
        };
        let subtree = Subtree { count, transactions };
        Block {
            block_id: self.id,
            hash: self.hash(),
            previous: self.previous,
            height: self.height,
            time: 1_700_000_000,
            longest_chain: true,
            coinbase: &self.coinbase,
            subtrees: vec![subtree],
        }
    }

    pub fn mined(&self, sequence: u64) -> (Vec<u8>, Vec<u8>) {
        (Vec::new(), Event::BlockMined(BlockMined { sequence, block: self.event() }).encode())
    }
}

pub fn reorg(sequence: u64, disconnected: &[MadeBlock], connected: &[MadeBlock]) -> (Vec<u8>, Vec<u8>) {
    let disconnected = disconnected.iter().map(MadeBlock::event).collect();
    let connected = connected.iter().map(MadeBlock::event).collect();
    (Vec::new(), Event::Reorg(Reorg { sequence, disconnected, connected }).encode())
}
