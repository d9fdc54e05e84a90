//! A flood of rival payments: an attack that keeps the sequencer busy. The store checks no scripts, so that every
//! output has the script `OP_TRUE`.

use super::{
    Message,
    synthetic::{ANYONE_CAN_SPEND, compute_txid},
};
use crate::{
    event::{Event, PartialOutput, PartialTxEvent, Topic, Validated},
    tx::{Outpoint, Output, TransactionBuilder, Txid},
};

/// Coins of one funding transaction.
const COINS_PER_FUNDING: u32 = 1_000;
/// Amount of a coin, satoshis.
const COIN: u64 = 10_000;
/// Amount of the output of a payment, satoshis.
const PAYMENT: u64 = 9_000;
/// Height of the payments: after the Genesis upgrade of the main network.
const HEIGHT: u32 = 800_000;

/// Payments that spend the same coins again and again. One payment of each coin is meant to stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flood {
    /// Number of coins, at least 1.
    pub coins: u32,
    /// Number of rivals over all coins, besides the first payment of each coin; below 2^63.
    pub rivals: u64,
    /// Number that all txids depend on: floods with different seeds have no transaction in common.
    pub seed: u64,
}

impl Flood {
    /// Returns the number of events.
    pub fn events(&self) -> u64 {
        u64::from(self.coins.div_ceil(COINS_PER_FUNDING)) + u64::from(self.coins) + self.rivals
    }

    /// Returns the events in their order: the coins as outputs of partial transactions, the first payment of each coin,
    /// and the rivals, each of the next coin. The events are made one by one.
    pub fn messages(self) -> impl Iterator<Item = Message> + Send {
        let payments = u64::from(self.coins) + self.rivals;
        let fundings = (0..self.coins.div_ceil(COINS_PER_FUNDING)).map(move |number| self.funding(number));
        fundings.chain((0..payments).map(move |number| self.payment(number)))
    }

    fn funding_txid(&self, number: u32) -> Txid {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"a flood").update(&self.seed.to_le_bytes()).update(&number.to_le_bytes());
        Txid(*hasher.finalize().as_bytes())
    }

    /// Returns a partial transaction that was mined long before the flood.
    fn funding(&self, number: u32) -> Message {
        let txid = self.funding_txid(number);
        let count = COINS_PER_FUNDING.min(self.coins - number * COINS_PER_FUNDING);
        let output = |vout| PartialOutput { vout, satoshis: COIN, script: &ANYONE_CAN_SPEND };
        let funding =
            PartialTxEvent { txid, coinbase: false, height: HEIGHT - 1_000, outputs: (0..count).map(output).collect() };
        Message { topic: Topic::ValidatedTxs, key: Some(txid), payload: Event::Seeded(funding).encode() }
    }

    /// Returns a payment of coin `number` modulo the coins. The number is the unlocking script, so that rivals have
    /// different txids.
    fn payment(&self, number: u64) -> Message {
        let coin = (number % u64::from(self.coins)) as u32;
        let spent = Outpoint { txid: self.funding_txid(coin / COINS_PER_FUNDING), vout: coin % COINS_PER_FUNDING };
        let previous = Output { satoshis: COIN, script: &ANYONE_CAN_SPEND };
        let tx = TransactionBuilder::default()
            .input(spent, &number.to_le_bytes(), u32::MAX, Some(previous))
            .output(PAYMENT, &ANYONE_CAN_SPEND)
            .extended();
        let payload = Validated { tx: &tx, height: HEIGHT, locked: false }.encode();
        Message { topic: Topic::ValidatedTxs, key: Some(compute_txid(&tx)), payload }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::tx::Transaction;

    /// Returns the coins that the payments spend, each with its number of payments, and all txids.
    fn spends(flood: Flood) -> (BTreeMap<Outpoint, u64>, BTreeSet<Txid>) {
        let (mut coins, mut txids) = (BTreeMap::new(), BTreeSet::new());
        for message in flood.messages() {
            assert!(txids.insert(message.key.unwrap()), "a txid comes twice");
            if let Event::Validated(validated) = Event::decode(&message.payload).unwrap() {
                let tx = Transaction::parse(validated.tx).unwrap();
                tx.inputs().for_each(|input| *coins.entry(input.outpoint).or_default() += 1);
            }
        }
        (coins, txids)
    }

    #[test]
    fn the_rivals_are_spread_over_all_coins() {
        let flood = Flood { coins: 1_500, rivals: 4_000, seed: 7 };
        let (coins, txids) = spends(flood);
        assert_eq!((coins.len(), txids.len() as u64), (1_500, flood.events()));
        assert_eq!((coins.values().min(), coins.values().max()), (Some(&3), Some(&4)));
        let (_, others) = spends(Flood { seed: 8, ..flood });
        assert!(txids.is_disjoint(&others), "another seed gives other transactions");
    }

    #[test]
    fn a_flood_without_rivals_is_one_payment_of_each_coin() {
        let (coins, txids) = spends(Flood { coins: 1, rivals: 0, seed: 0 });
        assert_eq!((coins.len(), txids.len()), (1, 2));
    }
}
