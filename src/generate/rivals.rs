//! Double spends of the blocks' own transactions, and their children. The store checks no scripts, so that rivals need
//! no signature.

use std::collections::BTreeSet;

use foldhash::HashMap;

use super::{Chain, Message, synthetic::ANYONE_CAN_SPEND};
use crate::{
    event::{Topic, Validated},
    rng::SplitMix64,
    tx::{Network, Outpoint, Output, Transaction, TransactionBuilder, Txid, has_slot},
};

/// A transaction of the blocks and its rival, with one child of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoubleSpend {
    /// Outpoint that both transactions spend.
    pub outpoint: Outpoint,
    /// Txid of the blocks' own transaction.
    pub own: Txid,
    /// Txid of the added transaction.
    pub rival: Txid,
    /// `true`: the rival precedes the blocks' own transaction.
    pub is_rival_first: bool,
    /// Txid of a transaction that spends the rival's output.
    pub rival_child: Txid,
    /// Txid of a transaction that spends an output of the blocks' own transaction; `None`: the blocks spend all
    /// outputs.
    pub own_child: Option<Txid>,
}

/// Double spends that [`interleave`](Self::interleave) adds to the blocks' own messages.
#[derive(Debug, Clone, Default)]
pub struct Rivals {
    pairs: Vec<DoubleSpend>,
    before: HashMap<Txid, Vec<Message>>,
    after: HashMap<Txid, Vec<Message>>,
}

impl Rivals {
    /// Adds a rival to each transaction of the blocks, except the coinbases, with probability `share`, chosen by
    /// `seed`. At least one transaction gets a rival if there is any.
    pub fn new(chain: &Chain<'_>, seed: u64, share: f64) -> Self {
        let mut rng = SplitMix64::new(seed);
        let all: Vec<_> = chain.transactions().collect();
        let spent: BTreeSet<Outpoint> =
            all.iter().flat_map(|(_, _, transaction)| transaction.inputs().map(|input| input.outpoint)).collect();
        let certain = rng.below(all.len() as u64);
        let mut rivals = Rivals::default();
        for (number, (height, txid, transaction)) in (0..).zip(&all) {
            if rng.chance(share) || number == certain {
                rivals.add(chain, *height, *txid, transaction, &spent, &mut rng);
            }
        }
        rivals
    }

    /// Returns the pairs in the order of the blocks.
    pub fn pairs(&self) -> &[DoubleSpend] {
        &self.pairs
    }

    /// Adds the rivals and the children to `messages`.
    pub fn interleave<'r>(
        &'r self,
        messages: impl Iterator<Item = Message> + Send + 'r,
    ) -> impl Iterator<Item = Message> + Send + 'r {
        messages.flat_map(move |message| {
            let added = |map: &'r HashMap<Txid, Vec<Message>>| {
                message.key.and_then(|txid| map.get(&txid)).into_iter().flatten().cloned()
            };
            let (before, after) = (added(&self.before), added(&self.after));
            before.chain(std::iter::once(message)).chain(after)
        })
    }

    fn add(
        &mut self,
        chain: &Chain<'_>,
        height: u32,
        own: Txid,
        transaction: &Transaction<'_>,
        spent: &BTreeSet<Outpoint>,
        rng: &mut SplitMix64,
    ) {
        let chosen = rng.below(transaction.input_count() as u64) as usize;
        let Some(outpoint) = transaction.inputs().nth(chosen).map(|input| input.outpoint) else { return };
        let Some(previous) = chain.output(&outpoint) else { return };
        let is_rival_first = rng.chance(0.5);
        let rival = spender(outpoint, previous, &rng.next_u64().to_le_bytes(), height);
        let rivals_output = Outpoint { txid: rival.txid, vout: 0 };
        let rival_child =
            spender(rivals_output, Output { satoshis: previous.satoshis, script: &ANYONE_CAN_SPEND }, b"child", height);
        let own_child = (0..).zip(transaction.outputs()).find_map(|(vout, output)| {
            let outpoint = Outpoint { txid: own, vout };
            let is_free = has_slot(&own, output.script, height, Network::Main) && !spent.contains(&outpoint);
            is_free.then(|| spender(outpoint, output, b"child", height))
        });
        self.pairs.push(DoubleSpend {
            outpoint,
            own,
            rival: rival.txid,
            is_rival_first,
            rival_child: rival_child.txid,
            own_child: own_child.as_ref().map(|child| child.txid),
        });
        let added = vec![rival.message, rival_child.message];
        let after = self.after.entry(own).or_default();
        after.extend(own_child.map(|child| child.message));
        match is_rival_first {
            true => drop(self.before.insert(own, added)),
            false => after.extend(added),
        }
    }
}

struct RivalTx {
    txid: Txid,
    message: Message,
}

/// Returns a transaction that spends one output and creates one output of the same amount. `tag` makes its txid unique.
fn spender(outpoint: Outpoint, previous: Output<'_>, tag: &[u8], height: u32) -> RivalTx {
    let tx = TransactionBuilder::default()
        .input(outpoint, tag, u32::MAX, Some(previous))
        .output(previous.satoshis, &ANYONE_CAN_SPEND)
        .extended();
    let txid = Transaction::parse(&tx).expect("the builder writes what parses, with one input").txid();
    let payload = Validated { tx: &tx, height, locked: false }.encode();
    RivalTx { txid, message: Message { topic: Topic::ValidatedTxs, key: Some(txid), payload } }
}
