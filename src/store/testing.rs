//! Stores and transactions for unit tests. Output `n` of every transaction here has the script `51 n` (hexadecimal).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{StateStore, StoreSettings};
use crate::{
    clock::Clock,
    engine::{Row, memory::MemoryEngine},
    record::{
        BlockRecord, Body, Key, Marks, Master, MinedIn, Operation, Outcome, Page, Phase, Rules, Sequenced, Spend,
        SpendSlot, Stamp, StoredOutput,
        build::{KnownOutput, KnownOutputs, NewTxState, PageParams, build_pages, build_partial_pages},
    },
    tx::{Network, Outpoint, Output, Transaction, Txid, utxo_hash, varint},
};

/// Height at which every record here is created.
pub(crate) const HEIGHT: u32 = 100;

const RULES: Rules = Rules::main(288);

/// An empty store on a memory engine.
pub(crate) fn store(utxo_batch_size: u32) -> StateStore {
    store_on(MemoryEngine::new(RULES), utxo_batch_size)
}

/// An empty store on a memory engine that can lose the writes of the last second.
pub(crate) fn forgetful_store(utxo_batch_size: u32) -> StateStore {
    let engine = MemoryEngine::with_loss_window(RULES, Clock::simulated(0), Duration::from_secs(1));
    store_on(engine, utxo_batch_size)
}

fn store_on(engine: MemoryEngine, utxo_batch_size: u32) -> StateStore {
    let settings = StoreSettings {
        network: Network::Regtest,
        rules: RULES,
        utxo_batch_size,
        batch_size: 3,
        concurrency: 2,
        retry_pause: (Duration::from_millis(1), Duration::from_millis(10)),
        inline_limit: u64::MAX,
    };
    StateStore::new(Arc::new(engine), settings)
}

pub(crate) fn script(vout: u32) -> Bytes {
    Bytes::from(vec![0x51, vout as u8])
}

/// A transaction in extended format. Each input is an outpoint and its satoshis; each output is its satoshis.
pub(crate) fn transaction(inputs: &[(Outpoint, u64)], outputs: &[u64]) -> Bytes {
    let mut bytes = vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 0xef];
    varint::write(&mut bytes, inputs.len() as u64);
    for (outpoint, satoshis) in inputs {
        bytes.extend(outpoint.txid.0);
        bytes.extend(outpoint.vout.to_le_bytes());
        bytes.extend([0, 0xff, 0xff, 0xff, 0xff]);
        Output { satoshis: *satoshis, script: &script(outpoint.vout) }.write(&mut bytes);
    }
    varint::write(&mut bytes, outputs.len() as u64);
    for (satoshis, vout) in outputs.iter().zip(0..) {
        Output { satoshis: *satoshis, script: &script(vout) }.write(&mut bytes);
    }
    bytes.extend([0; 4]);
    bytes.into()
}

/// A coinbase transaction in standard format with one output.
pub(crate) fn coinbase(satoshis: u64) -> Bytes {
    let mut bytes = vec![1, 0, 0, 0, 1];
    bytes.extend([0; 32]);
    bytes.extend([0xff; 4]);
    bytes.extend([1, 7, 0xff, 0xff, 0xff, 0xff, 1]);
    Output { satoshis, script: &script(0) }.write(&mut bytes);
    bytes.extend([0; 4]);
    bytes.into()
}

pub(crate) fn txid(bytes: &Bytes) -> Txid {
    Transaction::parse(bytes).unwrap().txid()
}

pub(crate) fn outpoint(txid: Txid, vout: u32) -> Outpoint {
    Outpoint { txid, vout }
}

pub(crate) fn setting(batch_size: u32) -> PageParams {
    PageParams { network: Network::Regtest, height: HEIGHT, batch_size, created_at: 5, event: None }
}

/// Pages of a transaction as after the create, with the body inline in the master.
pub(crate) fn pages(bytes: &Bytes, start: &NewTxState, batch_size: u32) -> Vec<Page> {
    let parsed = Transaction::parse(bytes).unwrap();
    let mut pages = build_pages(&parsed, bytes.clone(), txid(bytes), &setting(batch_size), start).unwrap().all(5);
    for page in &mut pages {
        page.creating_at = None;
        page.conflicting = start.verdict.is_some();
    }
    master(&mut pages[0]).body = Some(Body::Transaction(bytes.clone()));
    pages
}

/// The master of a transaction of at most 100 outputs.
pub(crate) fn page(bytes: &Bytes) -> Page {
    pages(bytes, &NewTxState::default(), 100).remove(0)
}

/// A partial transaction with this id whose outputs hold 1,000 satoshis each.
pub(crate) fn seeded(id: u8, outputs: u32) -> Page {
    let output = |vout| KnownOutput { vout, output: StoredOutput { satoshis: 1_000, script: script(vout) } };
    let seed = KnownOutputs { txid: Txid([id; 32]), coinbase: false, outputs: (0..outputs).map(output).collect() };
    build_partial_pages(&seed, &setting(100)).unwrap().master
}

pub(crate) fn master(page: &mut Page) -> &mut Master {
    page.master.as_mut().unwrap()
}

pub(crate) fn block(block_id: u32, longest_chain: bool) -> BlockRecord {
    let hash = [block_id as u8; 32];
    BlockRecord {
        block_id,
        hash,
        previous: [0; 32],
        height: HEIGHT + block_id,
        time: 0,
        longest_chain,
        progress: 0,
        chain_pos: None,
    }
}

impl StateStore {
    /// Writes a page unchanged under a key without a record.
    pub(crate) async fn plant(&self, page: Page) {
        let key = Key::Page(page.txid, page.number);
        let contested = page.conflicting;
        let page = Arc::new(page);
        let operation = if contested { Operation::CreateContested(page) } else { Operation::Create(page) };
        self.must_apply(key, operation).await;
    }

    /// Applies an operation of the sequencer.
    pub(crate) async fn sequenced(&self, key: Key, operation: Sequenced) {
        let stamp = Stamp { offset: 1, phase: Phase::Apply };
        self.must_apply(key, Operation::Sequenced(stamp, operation)).await;
    }

    /// Creates a transaction and spends its inputs.
    pub(crate) async fn accept(&self, bytes: &Bytes) {
        self.spend_inputs(bytes).await;
        for page in pages(bytes, &NewTxState::default(), self.settings.utxo_batch_size) {
            self.plant(page).await;
        }
    }

    /// Spends the inputs of a transaction, without creating the transaction.
    pub(crate) async fn spend_inputs(&self, bytes: &Bytes) {
        let parsed = Transaction::parse(bytes).unwrap();
        for (input, number) in parsed.inputs().zip(0..) {
            let previous = input.previous.unwrap();
            let Outpoint { txid, vout } = input.outpoint;
            let slot = SpendSlot {
                offset: vout % self.settings.utxo_batch_size,
                input: number,
                utxo_hash: utxo_hash(&txid, vout, previous.script, previous.satoshis),
                satoshis: previous.satoshis,
                script: Bytes::copy_from_slice(previous.script),
            };
            let spend = Spend {
                spender: parsed.txid(),
                height: 10_000,
                slots: vec![slot].into(),
                marks: Marks::Respect,
                signals: false,
            };
            let key = Key::Page(txid, vout / self.settings.utxo_batch_size);
            self.must_apply(key, Operation::Spend(spend)).await;
        }
    }

    /// Sets a transaction mined in a block of the longest chain.
    pub(crate) async fn mine(&self, txid: Txid, block_id: u32) {
        let mined_in = MinedIn { block_id, height: HEIGHT + block_id, subtree: 0 };
        self.sequenced(Key::master(txid), Sequenced::SetMined { mined_in, longest_chain: true }).await;
    }

    pub(crate) async fn must_apply(&self, key: Key, operation: Operation) {
        let outcome = self.apply_one(Row { key, operation: operation.clone() }).await.unwrap();
        assert!(matches!(outcome, Outcome::Applied(_)), "{operation:?}: {outcome:?}");
    }
}
