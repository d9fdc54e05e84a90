//! Generated load: payments, most of them honest, and whatever else comes in: repeats, children before their parents, rivals,
//! orphans, lies, poison, blocks and reorgs. An honest miner lists only what can be mined together.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use utxo_store::{
    event::{Seeded as SeededEvent, SeededOutput, Validated},
    seeded::Seeded,
    tx::Txid,
};

use crate::{
    made_blocks::{self, MadeBlock},
    world::{Coin, Made, coinbase, spend, spend_claiming},
};

/// Moments between two blocks.
const BLOCK_EVERY: u64 = 400;
/// Blocks between two reorgs.
const REORG_EVERY: u64 = 12;
/// The most that a block lists.
const MOST_LISTED: usize = 1_500;
/// Outputs to spend that are kept at hand; the rest stays unspent.
const MOST_COINS: usize = 20_000;
/// Blocks until the outputs of a coinbase can be spent, and some more, as blocks may leave.
const MATURITY: u32 = 110;
const BASE_HEIGHT: u32 = 100;

/// A message for the log.
#[derive(Debug, Clone)]
pub struct Sent {
    /// The topic, without what all names have in common.
    pub topic: &'static str,
    pub key: Vec<u8>,
    pub payload: Vec<u8>,
}

/// By number, in the order in which they were made: parents have lower ones.
type Number = u32;

struct Tx {
    txid: Txid,
    inputs: Vec<(Number, u32)>,
    children: Vec<Number>,
    /// Partial ones and coinbases: no block lists them.
    is_source: bool,
    is_mined: bool,
}

/// Something that can be spent, and whose it is.
struct Owned {
    number: Number,
    coin: Coin,
}

struct Mined {
    block: MadeBlock,
    coinbase: Number,
    listed: Vec<Number>,
}

/// Thinks out the load; the same seed thinks out the same.
pub struct Author {
    dice: Seeded,
    moment: u64,
    txs: Vec<Tx>,
    coins: Vec<Owned>,
    /// Outputs of coinbases, with the height from which on they are spent.
    rewards: Vec<(u32, Owned)>,
    /// What comes at a later moment; an event of a transaction with its number.
    later: BTreeMap<u64, Vec<(Option<Number>, Sent)>>,
    /// What blocks may list.
    mempool: BTreeSet<Number>,
    /// Others that are in the log, and could be mined instead.
    rivals: Vec<Number>,
    /// Who spends what on the longest chain.
    spent: HashMap<(Number, u32), Number>,
    chain: Vec<Mined>,
    blocks: u32,
    sequence: u64,
    /// What has been thought out, by kind.
    pub counts: BTreeMap<&'static str, u64>,
}

impl Author {
    pub fn new(seed: u64) -> Self {
        Author {
            dice: Seeded::new(seed),
            moment: 0,
            txs: Vec::new(),
            coins: Vec::new(),
            rewards: Vec::new(),
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

    /// What comes next: mostly a payment.
    pub fn next(&mut self) -> Vec<Sent> {
        self.moment += 1;
        let mut out = Vec::new();
        self.due(self.moment, &mut out);
        if self.coins.len() < 50 {
            self.seed(&mut out);
        }
        match self.dice.below(4_000) {
            0..12 => self.poison(&mut out),
            12 => self.orphan(&mut out),
            13..26 => self.seed(&mut out),
            _ => self.payment(&mut out),
        }
        if self.moment.is_multiple_of(BLOCK_EVERY) {
            match self.blocks > 3 && u64::from(self.blocks).is_multiple_of(REORG_EVERY) {
                true => self.reorg(&mut out),
                false => self.block(&mut out),
            }
        }
        out
    }

    /// All that was put off, and a last block.
    pub fn last(&mut self) -> Vec<Sent> {
        let mut out = Vec::new();
        self.due(u64::MAX, &mut out);
        self.block(&mut out);
        out
    }

    /// How many transactions were made.
    pub fn transactions(&self) -> usize {
        self.txs.len()
    }

    fn count(&mut self, kind: &'static str) {
        *self.counts.entry(kind).or_default() += 1;
    }

    fn due(&mut self, until: u64, out: &mut Vec<Sent>) {
        while let Some(entry) = self.later.first_entry().filter(|entry| *entry.key() <= until) {
            for (number, sent) in entry.remove() {
                self.send(number, sent, out);
            }
        }
    }

    /// From now on blocks may list it.
    fn send(&mut self, honest: Option<Number>, sent: Sent, out: &mut Vec<Sent>) {
        self.mempool.extend(honest.filter(|number| !self.txs[*number as usize].is_mined));
        out.push(sent);
    }

    fn put_off(&mut self, by: u64, honest: Option<Number>, sent: Sent) {
        self.later.entry(self.moment + 1 + self.dice.below(by)).or_default().push((honest, sent));
    }

    fn add(&mut self, txid: Txid, inputs: Vec<(Number, u32)>, is_source: bool) -> Number {
        let number = self.txs.len() as Number;
        for (parent, _) in &inputs {
            self.txs[*parent as usize].children.push(number);
        }
        self.txs.push(Tx { txid, inputs, children: Vec::new(), is_source, is_mined: false });
        number
    }

    fn seed(&mut self, out: &mut Vec<Sent>) {
        self.count("seeds");
        let mut txid = [0x5E; 32];
        txid[..8].copy_from_slice(&self.moment.to_le_bytes());
        txid[8..12].copy_from_slice(&(self.txs.len() as u32).to_le_bytes());
        let outputs: Vec<_> = (0..64).map(|vout| (1 << 40, vec![0x52, vout])).collect();
        let made = Made { txid: Txid(txid), extended: Default::default(), outputs };
        let outputs = made.outputs.iter().zip(0..);
        let outputs = outputs.map(|((satoshis, script), vout)| SeededOutput { vout, satoshis: *satoshis, script });
        let event = SeededEvent { txid: made.txid, coinbase: false, height: 1, outputs: outputs.collect() };
        out.push(Sent { topic: "validated-txs", key: txid.to_vec(), payload: event.encode() });
        let number = self.add(made.txid, Vec::new(), true);
        self.own(number, &made);
    }

    fn own(&mut self, number: Number, made: &Made) {
        let room = MOST_COINS.saturating_sub(self.coins.len());
        let coins = (0..made.outputs.len() as u32).take(room).map(|vout| Owned { number, coin: made.coin(vout) });
        self.coins.extend(coins);
    }

    /// One of the youngest, or any.
    fn take_coin(&mut self) -> Option<Owned> {
        let reward = self.rewards.first().is_some_and(|(from, _)| *from <= self.height());
        if reward && self.dice.below(20) == 0 {
            self.count("coinbases spent");
            return Some(self.rewards.remove(0).1);
        }
        let len = self.coins.len();
        let among = if self.dice.below(2) == 0 { len.min(64) } else { len };
        let index = len - 1 - self.dice.below(among.max(1) as u64) as usize;
        (index < len).then(|| self.coins.swap_remove(index))
    }

    fn spend(&mut self, coins: &[&Owned], outputs: usize) -> (Number, Made) {
        let tag = self.dice.next_u64() as u8;
        let made = spend(&coins.iter().map(|owned| owned.coin.clone()).collect::<Vec<_>>(), outputs, tag);
        let inputs = coins.iter().map(|owned| (owned.number, owned.coin.outpoint.vout)).collect();
        (self.add(made.txid, inputs, false), made)
    }

    fn event(&self, made: &Made) -> Sent {
        let event = Validated { tx: &made.extended, height: self.height() + 1, locked: false };
        Sent { topic: "validated-txs", key: made.txid.0.to_vec(), payload: event.encode() }
    }

    fn payment(&mut self, out: &mut Vec<Sent>) {
        let wanted = *self.dice.pick(&[1, 1, 1, 2, 3]);
        let coins: Vec<Owned> = (0..wanted).filter_map(|_| self.take_coin()).collect();
        let outputs = *self.dice.pick(&[1, 2, 2, 2, 3, 8]);
        let (honest, made) = self.spend(&coins.iter().collect::<Vec<_>>(), outputs);
        self.count("payments");
        if self.dice.below(50) == 0 {
            self.rival(&coins, out);
        }
        if self.dice.below(300) == 0 {
            self.lie(&coins, outputs, &made, out);
        }
        let event = self.event(&made);
        match self.dice.below(100) {
            0..6 => {
                self.count("payments behind their children");
                self.put_off(300, Some(honest), event.clone());
            }
            _ => self.send(Some(honest), event.clone(), out),
        }
        match self.dice.below(100) {
            0..2 => {
                self.count("repeats at once");
                out.push(event);
            }
            2..5 => {
                self.count("repeats later");
                self.put_off(5_000, None, event);
            }
            _ => {}
        }
        self.own(honest, &made);
    }

    /// Before the honest one or behind it; with a child, sometimes.
    fn rival(&mut self, coins: &[Owned], out: &mut Vec<Sent>) {
        self.count("double spends");
        let (rival, made) = self.spend(&[&coins[0]], 2);
        let event = self.event(&made);
        match self.dice.below(2) {
            0 => out.push(event),
            _ => self.put_off(1_000, None, event),
        }
        self.rivals.push(rival);
        if self.dice.below(2) == 0 {
            self.count("children of double spends");
            let (_, child) = self.spend(&[&Owned { number: rival, coin: made.coin(0) }], 1);
            let event = self.event(&child);
            self.put_off(100, None, event);
        }
    }

    /// An event of the same transaction that claims another amount; the true one comes, too.
    fn lie(&mut self, coins: &[Owned], outputs: usize, made: &Made, out: &mut Vec<Sent>) {
        let coins: Vec<Coin> = coins.iter().map(|owned| owned.coin.clone()).collect();
        let mut claimed = coins.clone();
        claimed[0].satoshis += 1;
        let tag = made.outputs[0].1[1];
        let lying = spend_claiming(&coins, &claimed, outputs, tag);
        assert_eq!(lying.txid, made.txid);
        let lie = self.event(&lying);
        self.count("lies");
        match self.dice.below(2) {
            0 => out.push(lie),
            _ => self.put_off(100, None, lie),
        }
    }

    /// A child whose parent never comes, or long after it.
    fn orphan(&mut self, out: &mut Vec<Sent>) {
        let Some(coin) = self.take_coin() else { return };
        let (parent, made) = self.spend(&[&coin], 2);
        let (_, child) = self.spend(&[&Owned { number: parent, coin: made.coin(0) }], 1);
        let event = self.event(&child);
        out.push(event);
        match self.dice.below(2) {
            0 => self.count("orphans"),
            _ => {
                self.count("orphans whose parent comes");
                let event = self.event(&made);
                self.put_off(10_000, Some(parent), event);
            }
        }
    }

    fn poison(&mut self, out: &mut Vec<Sent>) {
        self.count("poison");
        let garbage = |topic| Sent { topic, key: b"no key".to_vec(), payload: vec![9, 9, 9] };
        out.push(match self.dice.below(4) {
            0 => garbage("chain"),
            _ => garbage("validated-txs"),
        });
    }

    fn height(&self) -> u32 {
        self.chain.last().map_or(BASE_HEIGHT, |mined| mined.block.height)
    }

    fn block(&mut self, out: &mut Vec<Sent>) {
        self.mine();
        self.sequence += 1;
        self.count("blocks");
        let payload = self.chain.last().unwrap().block.mined(self.sequence, true);
        out.push(Sent { topic: "block-mined", key: Vec::new(), payload });
    }

    fn reorg(&mut self, out: &mut Vec<Sent>) {
        let depth = 1 + self.dice.below(3) as usize;
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
            self.rewards.retain(|(_, owned)| owned.number != mined.coinbase);
        }
        let kept = self.chain.len();
        (0..=depth).for_each(|_| self.mine());
        self.sequence += 1;
        self.count("reorgs");
        let blocks = |mined: &[Mined]| mined.iter().map(|mined| mined.block.clone()).collect::<Vec<_>>();
        let payload = made_blocks::reorg(self.sequence, &blocks(&left), &blocks(&self.chain[kept..]));
        out.push(Sent { topic: "reorgs", key: Vec::new(), payload });
    }

    /// A block on the tip; now and then it lists a rival.
    fn mine(&mut self) {
        if self.dice.below(3) == 0 && !self.rivals.is_empty() {
            let index = self.dice.below(self.rivals.len() as u64) as usize;
            let rival = self.rivals.swap_remove(index);
            self.favour(rival);
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
            if listed.len() < MOST_LISTED && tx.inputs.iter().all(is_free) {
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
        let coinbase = self.add(made.txid, Vec::new(), true);
        self.rewards.push((block.height + MATURITY, Owned { number: coinbase, coin: made.coin(0) }));
        self.chain.push(Mined { block, coinbase, listed });
    }

    /// Has the rival mined soon, where nothing that it spends is spent on the chain yet: whoever spends the same, and all that descends
    /// from those, is worth nothing any more.
    fn favour(&mut self, rival: Number) {
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
        let mut fallen = BTreeSet::new();
        while let Some(number) = open.pop() {
            if fallen.insert(number) {
                open.extend(children(&number));
            }
        }
        self.coins.retain(|owned| !fallen.contains(&owned.number));
        self.mempool.retain(|number| !fallen.contains(number));
        self.rivals.retain(|number| !fallen.contains(number));
        for sent in self.later.values_mut().flatten() {
            sent.0 = sent.0.filter(|number| !fallen.contains(number));
        }
        self.mempool.insert(rival);
    }
}
