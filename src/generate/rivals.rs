//! Double spends among the blocks' own transactions, and what depends on them. No script is checked by this store, so
//! that rivals need no signature.

use std::collections::BTreeSet;

use foldhash::HashMap;

use super::{Chain, Message};
use crate::{
    event::{Topic, Validated},
    seeded::Seeded,
    tx::{Network, Outpoint, Output, Transaction, TransactionBuilder, Txid, has_slot},
};

/// The locking script of what rivals make: anybody may spend it.
const ANYBODY: [u8; 1] = [0x51];

/// One of the blocks' own transactions, and who is against it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RivalPair {
    /// What both spend.
    pub outpoint: Outpoint,
    /// The blocks' own.
    pub own: Txid,
    /// The other.
    pub rival: Txid,
    /// It comes before the blocks' own.
    pub rival_first: bool,
    /// It spends an output of the rival.
    pub rivals_child: Txid,
    /// It spends an output of the blocks' own that no block spends; `None` where there is none.
    pub own_child: Option<Txid>,
}

/// Double spends, to be put among the blocks' own messages.
#[derive(Debug, Clone, Default)]
pub struct Rivals {
    pairs: Vec<RivalPair>,
    before: HashMap<Txid, Vec<Message>>,
    after: HashMap<Txid, Vec<Message>>,
}

impl Rivals {
    /// Gives every transaction of the blocks (but the coinbases) a rival with this probability, chosen by `seed`. At
    /// least one gets a rival, where there is any transaction.
    pub fn new(chain: &Chain<'_>, seed: u64, share: f64) -> Self {
        let mut seeded = Seeded::new(seed);
        let all: Vec<_> = chain.transactions().collect();
        let spent: BTreeSet<Outpoint> =
            all.iter().flat_map(|(_, _, transaction)| transaction.inputs().map(|input| input.outpoint)).collect();
        let certain = seeded.below(all.len() as u64);
        let mut rivals = Rivals::default();
        for (number, (height, txid, transaction)) in (0..).zip(&all) {
            if seeded.chance(share) || number == certain {
                rivals.add(chain, *height, *txid, transaction, &spent, &mut seeded);
            }
        }
        rivals
    }

    /// The pairs, in the order of the blocks.
    pub fn pairs(&self) -> &[RivalPair] {
        &self.pairs
    }

    /// `messages` with the rivals among them.
    pub fn among<'r>(
        &'r self,
        messages: impl Iterator<Item = Message> + Send + 'r,
    ) -> impl Iterator<Item = Message> + Send + 'r {
        messages.flat_map(move |message| {
            let of = |map: &'r HashMap<Txid, Vec<Message>>| {
                message.key.and_then(|txid| map.get(&txid)).into_iter().flatten().cloned()
            };
            let (before, after) = (of(&self.before), of(&self.after));
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
        seeded: &mut Seeded,
    ) {
        let chosen = seeded.below(transaction.input_count() as u64) as usize;
        let Some(outpoint) = transaction.inputs().nth(chosen).map(|input| input.outpoint) else { return };
        let Some(previous) = chain.output(&outpoint) else { return };
        let rival_first = seeded.chance(0.5);
        let rival = spender(outpoint, previous, &seeded.next_u64().to_le_bytes(), height);
        let rivals_output = Outpoint { txid: rival.txid, vout: 0 };
        let rivals_child =
            spender(rivals_output, Output { satoshis: previous.satoshis, script: &ANYBODY }, b"child", height);
        let free = (0..).zip(transaction.outputs()).find_map(|(vout, output)| {
            let outpoint = Outpoint { txid: own, vout };
            let free = has_slot(&own, output.script, height, Network::Main) && !spent.contains(&outpoint);
            free.then(|| spender(outpoint, output, b"child", height))
        });
        self.pairs.push(RivalPair {
            outpoint,
            own,
            rival: rival.txid,
            rival_first,
            rivals_child: rivals_child.txid,
            own_child: free.as_ref().map(|child| child.txid),
        });
        let against = vec![rival.message, rivals_child.message];
        let after = self.after.entry(own).or_default();
        after.extend(free.map(|child| child.message));
        match rival_first {
            true => drop(self.before.insert(own, against)),
            false => after.extend(against),
        }
    }
}

struct Made {
    txid: Txid,
    message: Message,
}

/// A transaction that spends one output and makes one of the same amount; `tag` sets it apart.
fn spender(outpoint: Outpoint, previous: Output<'_>, tag: &[u8], height: u32) -> Made {
    let tx = TransactionBuilder::default()
        .input(outpoint, tag, u32::MAX, Some(previous))
        .output(previous.satoshis, &ANYBODY)
        .extended();
    let txid = Transaction::parse(&tx).expect("the builder writes what parses, with one input").txid();
    let payload = Validated { tx: &tx, height, locked: false }.encode();
    Made { txid, message: Message { topic: Topic::ValidatedTxs, key: Some(txid), payload } }
}
