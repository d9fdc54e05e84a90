//! Winners of the double spends of a demo.

use std::io::{self, Write};

use serde::Serialize;

use crate::{
    cli::Failure,
    generate::Rivals,
    record::TxState,
    store::StateStore,
    tx::{Outpoint, Txid},
};

/// Number of pairs that are printed one by one; every pair is counted.
const MAX_PRINTED: usize = 5;

/// Two transactions that spend one output, and the winner.
#[derive(Debug, Clone, Serialize)]
pub struct RivalPair {
    outpoint: Outpoint,
    own: Txid,
    rival: Txid,
    /// True if the rival was produced before the transaction of the block.
    rival_first: bool,
    /// The live transaction of the two; `None`: neither is live.
    winner: Option<Txid>,
}

/// Counts over all pairs of rivals.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Rivalry {
    pairs: u64,
    /// Pairs whose transaction of the block won.
    own_won: u64,
    /// Pairs whose rival won.
    rivals_won: u64,
    /// Children of rivals that are not live, as expected.
    rivals_children_conflicting: u64,
    /// Live children of the blocks' transactions, contested with their parent or not.
    own_children_live: u64,
    shown: Vec<RivalPair>,
}

impl Rivalry {
    /// Reads the state of every pair from the store.
    pub async fn read(store: &StateStore, rivals: &Rivals) -> Result<Self, Failure> {
        let mut rivalry = Rivalry::default();
        for pair in rivals.pairs() {
            let (own, rival) = (is_live(store, pair.own).await?, is_live(store, pair.rival).await?);
            rivalry.pairs += 1;
            rivalry.own_won += u64::from(own && !rival);
            rivalry.rivals_won += u64::from(rival && !own);
            rivalry.rivals_children_conflicting += u64::from(!is_live(store, pair.rival_child).await?);
            if let Some(child) = pair.own_child {
                rivalry.own_children_live += u64::from(is_live(store, child).await?);
            }
            if rivalry.shown.len() < MAX_PRINTED {
                let winner = if own { Some(pair.own) } else { rival.then_some(pair.rival) };
                rivalry.shown.push(RivalPair {
                    outpoint: pair.outpoint,
                    own: pair.own,
                    rival: pair.rival,
                    rival_first: pair.is_rival_first,
                    winner,
                });
            }
        }
        Ok(rivalry)
    }

    /// Writes the first pairs and the counts.
    ///
    /// # Errors
    /// `out` cannot be written to.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        for RivalPair { outpoint, own, rival, rival_first, winner } in &self.shown {
            let order = if *rival_first { "came second" } else { "came first" };
            let won = match winner {
                Some(winner) if winner == own => "won",
                Some(_) => "lost",
                None => "is not live, nor is its rival",
            };
            writeln!(out, "{outpoint}: the block's {own} {order} and {won}, against {rival}")?;
        }
        let Rivalry { pairs, own_won, rivals_won, rivals_children_conflicting, own_children_live, .. } = self;
        writeln!(out, "{pairs} double spends: the blocks' own won {own_won}, the rivals {rivals_won}")?;
        writeln!(
            out,
            "children: {rivals_children_conflicting} of rivals are conflicting, {own_children_live} of winners are live"
        )
    }
}

async fn is_live(store: &StateStore, txid: Txid) -> Result<bool, Failure> {
    Ok(store.master(txid).await?.is_some_and(|page| page.state() == TxState::Live))
}
