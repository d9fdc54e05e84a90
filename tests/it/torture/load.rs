//! Generated load: mostly honest payments, with repeats, children before their parents, rivals, orphans, wrong claims,
//! poison, blocks and reorgs. An honest miner lists only transactions that can be mined together.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use utxo_store::{
    event::{PartialOutput, PartialTxEvent, Validated},
    rng::SplitMix64,
    tx::Txid,
};

use crate::{
    harness::{Coin, Made, coinbase, spend, spend_claiming},
    made_blocks::{self, MadeBlock},
};

/// Moments of the load between two blocks.
const BLOCK_EVERY: u64 = 400;
/// Number of blocks between two reorgs.
const REORG_EVERY: u64 = 12;
/// Maximum number of listed transactions in a block.
const MAX_LISTED: usize = 1_500;
/// Maximum number of unspent outputs remembered; the rest stays unspent.
const MAX_COINS: usize = 20_000;
/// Blocks until a coinbase is spent: the maturity and a margin for reorgs.
const MATURITY: u32 = 110;
const BASE_HEIGHT: u32 = 100;

/// One message of the load.
#[derive(Debug, Clone)]
pub struct LoadMessage {
    /// Topic name without the common prefix.
    pub topic: &'static str,
    pub key: Vec<u8>,
    pub payload: Vec<u8>,
}

/// Number of a transaction in the order of creation: parents have lower ones.
type Number = u32;

struct Tx {
    txid: Txid,
    inputs: Vec<(Number, u32)>,
    children: Vec<Number>,
    /// Whether the transaction is partial or a coinbase, which no block lists.
    is_source: bool,
    is_mined: bool,
}

/// An unspent output with the number of its transaction.
struct OwnedOutput {
    number: Number,
    coin: Coin,
}

struct Mined {
    block: MadeBlock,
    coinbase: Number,
    listed: Vec<Number>,
}

/// Generator of the load; one seed gives one load.
pub struct LoadGenerator {
    rng: SplitMix64,
    moment: u64,
    txs: Vec<Tx>,
    coins: Vec<OwnedOutput>,
    /// Outputs of coinbases, with the height from which they are spent.
    coinbase_outputs: Vec<(u32, OwnedOutput)>,
    /// Messages for later moments; an honest event with its transaction number.
    later: BTreeMap<u64, Vec<(Option<Number>, LoadMessage)>>,
    /// Transactions that blocks may list.
    mempool: BTreeSet<Number>,
    /// Rivals in the log that a block could list instead.
    rivals: Vec<Number>,
    /// Spender of each output on the longest chain.
    spent: HashMap<(Number, u32), Number>,
    chain: Vec<Mined>,
    blocks: u32,
    sequence: u64,
    /// Counts of generated events by kind.
    pub counts: BTreeMap<&'static str, u64>,
}

impl LoadGenerator {
    pub fn new(seed: u64) -> Self {
        LoadGenerator {
            rng: SplitMix64::new(seed),
            moment: 0,
            txs: Vec::new(),
            coins: Vec::new(),
            coinbase_outputs: Vec::new(),
            later: BTreeMap::new(),
            mempool: BTreeSet::new(),
            rivals: Vec::new(),
            spent: HashMap::new(),
            chain: Vec::new(),
            blocks: 0,
            sequence: 0,
            counts: BTreeMap::new(),
        }
    }

    /// Returns the messages of the next moment: mostly a payment.
    pub fn next(&mut self) -> Vec<LoadMessage> {
        self.moment += 1;
        let mut out = Vec::new();
        self.release_due(self.moment, &mut out);
        if self.coins.len() < 50 {
            self.add_seed(&mut out);
        }
        match self.rng.below(4_000) {
            0..12 => self.add_poison(&mut out),
            12 => self.add_orphan(&mut out),
            13..26 => self.add_seed(&mut out),
            _ => self.add_payment(&mut out),
        }
        if self.moment.is_multiple_of(BLOCK_EVERY) {
            match self.blocks > 3 && u64::from(self.blocks).is_multiple_of(REORG_EVERY) {
                true => self.add_reorg(&mut out),
                false => self.add_block(&mut out),
            }
        }
        out
    }

    /// Returns all postponed messages and a last block.
    pub fn last(&mut self) -> Vec<LoadMessage> {
        let mut out = Vec::new();
        self.release_due(u64::MAX, &mut out);
        self.add_block(&mut out);
        out
    }

    /// Returns the number of generated transactions.
    pub fn transactions(&self) -> usize {
        self.txs.len()
    }

    fn count(&mut self, kind: &'static str) {
        *self.counts.entry(kind).or_default() += 1;
    }

    fn release_due(&mut self, until: u64, out: &mut Vec<LoadMessage>) {
        while let Some(entry) = self.later.first_entry().filter(|entry| *entry.key() <= until) {
            for (number, sent) in entry.remove() {
                self.emit(number, sent, out);
            }
        }
    }

    /// Emits a message; from now on blocks may list an honest transaction.
    fn emit(&mut self, honest: Option<Number>, sent: LoadMessage, out: &mut Vec<LoadMessage>) {
        self.mempool.extend(honest.filter(|number| !self.txs[*number as usize].is_mined));
        out.push(sent);
    }

    fn postpone(&mut self, by: u64, honest: Option<Number>, sent: LoadMessage) {
        self.later.entry(self.moment + 1 + self.rng.below(by)).or_default().push((honest, sent));
    }

    fn add_tx(&mut self, txid: Txid, inputs: Vec<(Number, u32)>, is_source: bool) -> Number {
        let number = self.txs.len() as Number;
        for (parent, _) in &inputs {
            self.txs[*parent as usize].children.push(number);
        }
        self.txs.push(Tx { txid, inputs, children: Vec::new(), is_source, is_mined: false });
        number
    }

    fn add_seed(&mut self, out: &mut Vec<LoadMessage>) {
        self.count("seeds");
        let mut txid = [0x5E; 32];
        txid[..8].copy_from_slice(&self.moment.to_le_bytes());
        txid[8..12].copy_from_slice(&(self.txs.len() as u32).to_le_bytes());
        let outputs: Vec<_> = (0..64).map(|vout| (1 << 40, vec![0x52, vout])).collect();
        let made = Made { txid: Txid(txid), extended: Default::default(), outputs };
        let outputs = made.outputs.iter().zip(0..);
        let outputs = outputs.map(|((satoshis, script), vout)| PartialOutput { vout, satoshis: *satoshis, script });
        let event = PartialTxEvent { txid: made.txid, coinbase: false, height: 1, outputs: outputs.collect() };
        out.push(LoadMessage { topic: "validated-txs", key: txid.to_vec(), payload: event.encode() });
        let number = self.add_tx(made.txid, Vec::new(), true);
        self.add_outputs(number, &made);
    }

    fn add_outputs(&mut self, number: Number, made: &Made) {
        let room = MAX_COINS.saturating_sub(self.coins.len());
        let coins = (0..made.outputs.len() as u32).take(room).map(|vout| OwnedOutput { number, coin: made.coin(vout) });
        self.coins.extend(coins);
    }

    /// Takes one of the newest outputs, or any.
    fn take_coin(&mut self) -> Option<OwnedOutput> {
        let has_mature_coinbase = self.coinbase_outputs.first().is_some_and(|(from, _)| *from <= self.height());
        if has_mature_coinbase && self.rng.below(20) == 0 {
            self.count("coinbases spent");
            return Some(self.coinbase_outputs.remove(0).1);
        }
        let len = self.coins.len();
        let among = if self.rng.below(2) == 0 { len.min(64) } else { len };
        let index = len - 1 - self.rng.below(among.max(1) as u64) as usize;
        (index < len).then(|| self.coins.swap_remove(index))
    }

    fn spend(&mut self, coins: &[&OwnedOutput], outputs: usize) -> (Number, Made) {
        let tag = self.rng.next_u64() as u8;
        let made = spend(&coins.iter().map(|owned| owned.coin.clone()).collect::<Vec<_>>(), outputs, tag);
        let inputs = coins.iter().map(|owned| (owned.number, owned.coin.outpoint.vout)).collect();
        (self.add_tx(made.txid, inputs, false), made)
    }

    fn event(&self, made: &Made) -> LoadMessage {
        let event = Validated { tx: &made.extended, height: self.height() + 1, locked: false };
        LoadMessage { topic: "validated-txs", key: made.txid.0.to_vec(), payload: event.encode() }
    }

    fn add_payment(&mut self, out: &mut Vec<LoadMessage>) {
        let wanted = *self.rng.pick(&[1, 1, 1, 2, 3]);
        let coins: Vec<OwnedOutput> = (0..wanted).filter_map(|_| self.take_coin()).collect();
        let outputs = *self.rng.pick(&[1, 2, 2, 2, 3, 8]);
        let (honest, made) = self.spend(&coins.iter().collect::<Vec<_>>(), outputs);
        self.count("payments");
        if self.rng.below(50) == 0 {
            self.add_rival(&coins, out);
        }
        if self.rng.below(300) == 0 {
            self.add_lie(&coins, outputs, &made, out);
        }
        let event = self.event(&made);
        match self.rng.below(100) {
            0..6 => {
                self.count("payments behind their children");
                self.postpone(300, Some(honest), event.clone());
            }
            _ => self.emit(Some(honest), event.clone(), out),
        }
        match self.rng.below(100) {
            0..2 => {
                self.count("repeats at once");
                out.push(event);
            }
            2..5 => {
                self.count("repeats later");
                self.postpone(5_000, None, event);
            }
            _ => {}
        }
        self.add_outputs(honest, &made);
    }

    /// Adds a rival before or after the honest transaction, sometimes with a child.
    fn add_rival(&mut self, coins: &[OwnedOutput], out: &mut Vec<LoadMessage>) {
        self.count("double spends");
        let (rival, made) = self.spend(&[&coins[0]], 2);
        let event = self.event(&made);
        match self.rng.below(2) {
            0 => out.push(event),
            _ => self.postpone(1_000, None, event),
        }
        self.rivals.push(rival);
        if self.rng.below(2) == 0 {
            self.count("children of double spends");
            let (_, child) = self.spend(&[&OwnedOutput { number: rival, coin: made.coin(0) }], 1);
            let event = self.event(&child);
            self.postpone(100, None, event);
        }
    }

    /// Adds an event of the same transaction with a wrong amount; the honest event comes, too.
    fn add_lie(&mut self, coins: &[OwnedOutput], outputs: usize, made: &Made, out: &mut Vec<LoadMessage>) {
        let coins: Vec<Coin> = coins.iter().map(|owned| owned.coin.clone()).collect();
        let mut claimed = coins.clone();
        claimed[0].satoshis += 1;
        let tag = made.outputs[0].1[1];
        let lying = spend_claiming(&coins, &claimed, outputs, tag);
        assert_eq!(lying.txid, made.txid);
        let lie = self.event(&lying);
        self.count("lies");
        match self.rng.below(2) {
            0 => out.push(lie),
            _ => self.postpone(100, None, lie),
        }
    }

    /// Adds a child whose parent is never produced, or long after it.
    fn add_orphan(&mut self, out: &mut Vec<LoadMessage>) {
        let Some(coin) = self.take_coin() else { return };
        let (parent, made) = self.spend(&[&coin], 2);
        let (_, child) = self.spend(&[&OwnedOutput { number: parent, coin: made.coin(0) }], 1);
        let event = self.event(&child);
        out.push(event);
        match self.rng.below(2) {
            0 => self.count("orphans"),
            _ => {
                self.count("orphans whose parent comes");
                let event = self.event(&made);
                self.postpone(10_000, Some(parent), event);
            }
        }
    }

    fn add_poison(&mut self, out: &mut Vec<LoadMessage>) {
        self.count("poison");
        let garbage = |topic| LoadMessage { topic, key: b"no key".to_vec(), payload: vec![9, 9, 9] };
        out.push(match self.rng.below(4) {
            0 => garbage("chain"),
            _ => garbage("validated-txs"),
        });
    }

    fn height(&self) -> u32 {
        self.chain.last().map_or(BASE_HEIGHT, |mined| mined.block.height)
    }

    fn add_block(&mut self, out: &mut Vec<LoadMessage>) {
        self.mine();
        self.sequence += 1;
        self.count("blocks");
        let payload = self.chain.last().unwrap().block.mined(self.sequence, true);
        out.push(LoadMessage { topic: "block-mined", key: Vec::new(), payload });
    }

    fn add_reorg(&mut self, out: &mut Vec<LoadMessage>) {
        let depth = 1 + self.rng.below(3) as usize;
        let left = self.chain.split_off(self.chain.len() - depth);
        for number in left.iter().flat_map(|mined| &mined.listed) {
            let tx = &mut self.txs[*number as usize];
            tx.is_mined = false;
            for input in &tx.inputs {
                self.spent.remove(input);
            }
            self.mempool.insert(*number);
        }
        for mined in &left {
            self.coinbase_outputs.retain(|(_, owned)| owned.number != mined.coinbase);
        }
        let kept = self.chain.len();
        (0..=depth).for_each(|_| self.mine());
        self.sequence += 1;
        self.count("reorgs");
        let blocks = |mined: &[Mined]| mined.iter().map(|mined| mined.block.clone()).collect::<Vec<_>>();
        let payload = made_blocks::reorg(self.sequence, &blocks(&left), &blocks(&self.chain[kept..]));
        out.push(LoadMessage { topic: "reorgs", key: Vec::new(), payload });
    }

    /// Mines a block on the tip; sometimes it lists a rival.
    fn mine(&mut self) {
        if self.rng.below(3) == 0 && !self.rivals.is_empty() {
            let index = self.rng.below(self.rivals.len() as u64) as usize;
            let rival = self.rivals.swap_remove(index);
            self.prefer_rival(rival);
        }
        self.blocks += 1;
        let made = coinbase(1_000_000 + self.blocks);
        let mut listed: Vec<Number> = Vec::new();
        for number in self.mempool.clone() {
            let tx = &self.txs[number as usize];
            let is_free = |input: &(Number, u32)| {
                let parent = &self.txs[input.0 as usize];
                (parent.is_source || parent.is_mined) && !self.spent.contains_key(input)
            };
            if listed.len() < MAX_LISTED && tx.inputs.iter().all(is_free) {
                self.spent.extend(tx.inputs.iter().map(|input| (*input, number)));
                self.txs[number as usize].is_mined = true;
                listed.push(number);
            }
        }
        self.mempool.retain(|number| !self.txs[*number as usize].is_mined);
        let mut block = match self.chain.last() {
            Some(tip) => tip.block.followed_by(self.blocks, &made, &[]),
            None => MadeBlock::new(self.blocks, BASE_HEIGHT + 1, &made, &[]),
        };
        block.listed = listed.iter().flat_map(|number| self.txs[*number as usize].txid.0).collect();
        let coinbase = self.add_tx(made.txid, Vec::new(), true);
        self.coinbase_outputs.push((block.height + MATURITY, OwnedOutput { number: coinbase, coin: made.coin(0) }));
        self.chain.push(Mined { block, coinbase, listed });
    }

    /// Lets the next block list the rival, if its inputs are unspent on the chain. Transactions with the same inputs,
    /// and their descendants, are no longer used.
    fn prefer_rival(&mut self, rival: Number) {
        let inputs = self.txs[rival as usize].inputs.clone();
        let is_open = |input: &(Number, u32)| {
            let parent = &self.txs[input.0 as usize];
            (parent.is_source || parent.is_mined) && !self.spent.contains_key(input)
        };
        if !inputs.iter().all(is_open) {
            return;
        }
        self.count("blocks with a double spend");
        let children = |number: &Number| self.txs[*number as usize].children.clone();
        let rivals = inputs.iter().flat_map(|(parent, _)| children(parent)).filter(|child| {
            let tx = &self.txs[*child as usize];
            *child != rival && tx.inputs.iter().any(|input| inputs.contains(input))
        });
        let mut open: Vec<Number> = rivals.collect();
        let mut conflicting = BTreeSet::new();
        while let Some(number) = open.pop() {
            if conflicting.insert(number) {
                open.extend(children(&number));
            }
        }
        self.coins.retain(|owned| !conflicting.contains(&owned.number));
        self.mempool.retain(|number| !conflicting.contains(number));
        self.rivals.retain(|number| !conflicting.contains(number));
        for sent in self.later.values_mut().flatten() {
            sent.0 = sent.0.filter(|number| !conflicting.contains(number));
        }
        self.mempool.insert(rival);
    }
}
