//! The transactions of the bench: number `n` takes the first output of parent `n`, and makes two outputs.

use std::sync::Arc;

use utxo_store::{
    engine::Row,
    record::{
        Key, Marks, Operation, Page, Spend, SpendSlot,
        build::{NewTxState, PageParams, build_pages},
    },
    tx::{Network, Outpoint, Output, Transaction, TransactionBuilder, Txid},
};

const SCRIPT: [u8; 25] = [0x51; 25];
const SATOSHIS: u64 = 1_000;

/// A transaction of the bench, with the rows that store the transaction.
pub struct Prepared {
    pub parent: Txid,
    pub txid: Txid,
    /// Takes the first output of the parent.
    pub spend: Row,
    /// Creates the transaction.
    pub create: Row,
}

/// Returns the row that creates a parent.
pub fn create_parent(number: u32) -> Row {
    create_page(parent(number))
}

pub fn prepare(number: u32) -> Prepared {
    let (parent, child) = (parent(number), child(number));
    let script = bytes::Bytes::from_static(&SCRIPT);
    let outpoint = Outpoint { txid: parent.txid, vout: 0 };
    let slot = SpendSlot::claiming(&outpoint, 0, 0, &Output { satoshis: SATOSHIS, script: &SCRIPT }, script);
    let slots = vec![slot].into();
    let spend = Spend { spender: child.txid, height: 700_000, slots, marks: Marks::Respect, signals: false };
    Prepared {
        parent: parent.txid,
        txid: child.txid,
        spend: Row { key: Key::master(parent.txid), operation: Operation::Spend(spend) },
        create: create_page(child),
    }
}

fn create_page(page: Page) -> Row {
    Row { key: Key::master(page.txid), operation: Operation::Create(Arc::new(page)) }
}

fn parent(number: u32) -> Page {
    let mut txid = [0x33; 32];
    txid[..4].copy_from_slice(&number.to_le_bytes());
    master(Outpoint { txid: Txid(txid), vout: 0 }, 10 * SATOSHIS)
}

fn child(number: u32) -> Page {
    master(Outpoint { txid: parent(number).txid, vout: 0 }, SATOSHIS)
}

fn master(input: Outpoint, satoshis: u64) -> Page {
    let previous = Some(Output { satoshis, script: &SCRIPT });
    // The unlocking script is as long as a signature and a key.
    let builder = TransactionBuilder::default().input(input, &[0x47; 107], u32::MAX, previous);
    let output = if satoshis == SATOSHIS { 400 } else { SATOSHIS };
    let bytes = bytes::Bytes::from(builder.output(output, &SCRIPT).output(output, &SCRIPT).extended());
    let transaction = Transaction::parse(&bytes).expect("the builder writes transactions");
    let params = PageParams {
        network: Network::Main,
        height: 700_000,
        batch_size: 20_000,
        created_at: 1_700_000_000_000,
        event: None,
    };
    let pages = build_pages(&transaction, bytes.clone(), transaction.txid(), &params, &NewTxState::default());
    pages.expect("inputs exceed outputs").master
}
