//! Operations of this store for each step of the reference file.

use std::{cell::Cell, collections::BTreeMap, ops::Range, sync::Arc};

use bytes::Bytes;
use serde_json::Value as Json;
use utxo_store::{
    engine::Row,
    record::{
        Blob, Body, CreatingEvent, HeldSlot, Key, Marks, MinedIn, Operation, Page, Phase, Reason, Sequenced, Spend,
        SpendSlot, SpendingData, Stamp, StoredOutput, Verdict,
        build::{BlockListing, NewTxState, PageParams, Pages, build_pages},
    },
    tx::{Network, Transaction, Txid, UtxoHash},
};

use super::BATCH_SIZE;

/// Height of the reference's store, and the height of its block 7.
const HEIGHT: u32 = 1_000;
const MINED: u32 = 1_001;

/// Transactions of the file by name.
pub struct Transactions {
    raw: BTreeMap<String, Bytes>,
    /// Chain offset of the next stamp: each operation of the sequencer has a stamp of its own.
    offset: Cell<u64>,
}

impl Transactions {
    pub fn of(file: &Json) -> Self {
        let raw = file["transactions"].as_object().unwrap().iter();
        let raw = raw.map(|(name, forms)| {
            (name.clone(), Bytes::from(hex::decode(forms["extended"].as_str().unwrap()).unwrap()))
        });
        Transactions { raw: raw.collect(), offset: Cell::new(0) }
    }

    /// Returns the operations of a step, in batches that depend on each other.
    pub fn rows(&self, title: &str) -> Vec<Vec<Row>> {
        let mined = |block_id, subtree| MinedIn { block_id, height: MINED, subtree };
        let set_mined =
            |name, mined_in, longest_chain| self.row(name, 0, Sequenced::SetMined { mined_in, longest_chain });
        let unset = |name, block_id| self.row(name, 0, Sequenced::UnsetMined { block_id, height: MINED });
        match title {
            "create, one input, two outputs, not mined" => vec![vec![self.create("a", HEIGHT, &NewTxState::default())]],
            "spend output 0 of a by b" => vec![self.spend("b", "a")],
            "create b" => vec![vec![self.create("b", HEIGHT, &NewTxState::default())]],
            "set mined on the longest chain: block id 7, height 1001, subtree 1" => {
                vec![vec![set_mined("a", mined(7, 1), true), set_mined("b", mined(7, 1), true)]]
            }
            "spend output 1 of a by c: all spent and mined" => vec![self.spend("c", "a")],
            "unspend output 1 of a" => {
                let holder = SpendingData { txid: self.txid("c"), input: 0 };
                vec![vec![self.row("a", 0, Sequenced::Settle(vec![HeldSlot { offset: 1, holder }]))]]
            }
            "set mined again on a fork: block id 8, subtree 2" => vec![vec![set_mined("a", mined(8, 2), false)]],
            "unset block id 7" => vec![vec![unset("a", 7)]],
            "unset block id 8: no block left" => vec![vec![unset("a", 8)]],
            "create with a data output (no slot)" => vec![vec![self.create("d", HEIGHT, &NewTxState::default())]],
            "create a coinbase, mined" => {
                let start = NewTxState { listed: BlockListing::LongestChain(mined(7, 0)), ..NewTxState::default() };
                let page = Arc::new(self.pages("coinbase", MINED, &start).master);
                vec![vec![self.row("coinbase", 0, Sequenced::CreateCoinbase(page))]]
            }
            "create 13 outputs with 5 a record: three records, external" => self.create_m(),
            "external blob of m" => vec![],
            "spend outputs 5-9 of m: page 1 all spent" => vec![self.spend("n", "m"), vec![self.all_spent("m", 1)]],
            "set mined on three records" => vec![self.every_page_of_m(|page| {
                self.row("m", page, Sequenced::SetMined { mined_in: mined(7, 3), longest_chain: true })
            })],
            "spend the rest of m: all pages spent and mined" => {
                vec![self.spend("o", "m"), vec![self.all_spent("m", 2)]]
            }
            "freeze output 0 of f" => vec![
                vec![self.create("f", HEIGHT, &NewTxState::default())],
                vec![self.row("f", 0, Sequenced::Freeze { offset: 0 })],
            ],
            "reassign output 0 of f to another locking script" => vec![vec![self.row("f", 0, self.reassigned())]],
            "freeze and unfreeze output 1 of f" => vec![
                vec![self.row("f", 0, Sequenced::Freeze { offset: 1 })],
                vec![self.row("f", 0, Sequenced::Unfreeze { offset: 1 })],
            ],
            "create g, conflicting (spends a:0 like b)" => {
                let reason = Reason::DoubleSpend { input: 0, winner: self.txid("b") };
                let start = NewTxState { verdict: Some(Verdict::Conflicting(reason)), ..NewTxState::default() };
                let page = Arc::new(self.pages("g", HEIGHT + 2, &start).master);
                vec![
                    vec![self.at("g", 0, Operation::CreateContested(page))],
                    vec![
                        self.row("g", 0, Sequenced::MarkConflicting { reason, height: HEIGHT + 2 }),
                        self.row("a", 0, Sequenced::AddConflictingChild(self.txid("g"))),
                    ],
                ]
            }
            "set conflicting on b" => vec![vec![
                self.row("b", 0, Sequenced::MarkConflicting { reason: Reason::Command, height: HEIGHT }),
                self.row("a", 0, Sequenced::AddConflictingChild(self.txid("b"))),
            ]],
            "create l, locked" => {
                vec![vec![self.create("l", HEIGHT, &NewTxState { locked: true, ..NewTxState::default() })]]
            }
            "unlock l" => vec![vec![self.row("l", 0, Sequenced::SetLocked(false))]],
            "preserve l until height 5000" => vec![vec![self.row("l", 0, Sequenced::Preserve { until: 5_000 })]],
            "mark the coinbase off the longest chain" => vec![vec![unset("coinbase", 7)]],
            // This store never deletes: a prunable record becomes a tombstone, and this one is not prunable.
            "delete d" => vec![],
            other => panic!("the step `{other}` is unknown"),
        }
    }

    fn txid(&self, name: &str) -> Txid {
        Transaction::parse(&self.raw[name]).unwrap().txid()
    }

    fn at(&self, name: &str, page: u32, operation: Operation) -> Row {
        Row { key: Key::Page(self.txid(name), page), operation }
    }

    fn row(&self, name: &str, page: u32, sequenced: Sequenced) -> Row {
        self.offset.set(self.offset.get() + 1);
        let stamp = Stamp { offset: self.offset.get(), phase: Phase::Apply };
        self.at(name, page, Operation::Sequenced(stamp, sequenced))
    }

    fn pages(&self, name: &str, height: u32, start: &NewTxState) -> Pages {
        let raw = &self.raw[name];
        let setting = PageParams {
            network: Network::Main,
            height,
            batch_size: BATCH_SIZE,
            created_at: 1_700_000_000_000,
            event: Some(CreatingEvent::Validated(9)),
        };
        build_pages(&Transaction::parse(raw).unwrap(), raw.clone(), self.txid(name), &setting, start).unwrap()
    }

    fn create(&self, name: &str, height: u32, start: &NewTxState) -> Row {
        self.at(name, 0, Operation::Create(Arc::new(self.pages(name, height, start).master)))
    }

    fn every_page_of_m(&self, row: impl Fn(u32) -> Row) -> Vec<Row> {
        let every: Range<u32> = 0..3;
        every.map(row).collect()
    }

    /// Creates the other pages first and the master last, and clears `creating` in the same order.
    fn create_m(&self) -> Vec<Vec<Row>> {
        let mut pages = self.pages("m", HEIGHT, &NewTxState::default()).all(1_700_000_000_000);
        // The body is an existing blob.
        pages[0].master.as_mut().unwrap().body = Some(Body::External(Blob::First(Some([7; 32]))));
        let create = |page: &Page| self.at("m", page.number, Operation::Create(Arc::new(page.clone())));
        let clear = |page: &Page| self.at("m", page.number, Operation::ClearCreating);
        let (master, others) = pages.split_first().unwrap();
        vec![
            others.iter().map(create).collect(),
            vec![create(master)],
            others.iter().map(clear).collect(),
            vec![clear(master)],
        ]
    }

    /// Returns the spends of all outputs of `parent` that `name` takes, page by page.
    fn spend(&self, name: &str, parent: &str) -> Vec<Row> {
        let raw = &self.raw[name];
        let mut pages: BTreeMap<u32, Vec<SpendSlot>> = BTreeMap::new();
        for (input, index) in Transaction::parse(raw).unwrap().inputs().zip(0..) {
            let previous = input.previous.unwrap();
            assert_eq!(input.outpoint.txid, self.txid(parent));
            let vout = input.outpoint.vout;
            let script = raw.slice_ref(previous.script);
            let slot = SpendSlot::claiming(&input.outpoint, vout % BATCH_SIZE, index, &previous, script);
            pages.entry(vout / BATCH_SIZE).or_default().push(slot);
        }
        let spend = |(page, slots): (u32, Vec<SpendSlot>)| {
            let spender = self.txid(name);
            let spend = Spend { spender, height: MINED, slots: slots.into(), marks: Marks::Respect, signals: true };
            self.at(parent, page, Operation::Spend(spend))
        };
        pages.into_iter().map(spend).collect()
    }

    fn all_spent(&self, name: &str, page: u32) -> Row {
        self.at(name, 0, Operation::SetPageSpent { page, spent: true })
    }

    /// Returns the reassignment; the file has only the hash of the new owner's output.
    fn reassigned(&self) -> Sequenced {
        let hash = |text: &str| UtxoHash(hex::decode(text).unwrap().try_into().unwrap());
        Sequenced::Reassign {
            offset: 0,
            utxo_hash: hash("4f2a6de23b0c2a5ee0500cc342f254950056fd7e5526d5051eff1538acb25848"),
            new_utxo_hash: hash("456a26c5be4dc2ac1c0dbab8451ccbf47d2ec8d04bbdd9a7e37d77687a05f79c"),
            output: StoredOutput { satoshis: 24_672, script: Bytes::from_static(&[0x51]) },
            block_height: HEIGHT,
            spendable_at: HEIGHT + 1_000,
            decided: false,
        }
    }
}
