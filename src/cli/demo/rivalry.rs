//! Who won, where two transactions spent the same output.

use std::io::{self, Write};

use serde::Serialize;

use crate::{
    cli::Failure,
    generate::Rivals,
    record::TxState,
    store::Store,
    tx::{Outpoint, Txid},
};

/// Pairs that are told one by one; all are counted.
const SHOWN: usize = 5;

/// One pair and its winner.
#[derive(Debug, Clone, Serialize)]
pub struct Pair {
    outpoint: Outpoint,
    own: Txid,
    rival: Txid,
    /// The rival was produced first.
    rival_first: bool,
    /// The one that is live; none, where neither is.
    winner: Option<Txid>,
}

/// All pairs.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Rivalry {
    pairs: u64,
    /// Pairs that the blocks' own transaction won.
    own_won: u64,
    /// Pairs that the rival won.
    rivals_won: u64,
    /// Children of rivals that are conflicting, as they must be.
    rivals_children_conflicting: u64,
    /// Children of the blocks' own that are live, having been contested with their parent or not.
    own_children_live: u64,
    shown: Vec<Pair>,
}

impl Rivalry {
    /// Looks every pair up.
    ///
    /// # Errors
    /// The engine failed.
    pub async fn of(store: &Store, rivals: &Rivals) -> Result<Self, Failure> {
        let mut rivalry = Rivalry::default();
        for pair in rivals.pairs() {
            let (own, rival) = (is_live(store, pair.own).await?, is_live(store, pair.rival).await?);
            rivalry.pairs += 1;
            rivalry.own_won += u64::from(own && !rival);
            rivalry.rivals_won += u64::from(rival && !own);
            rivalry.rivals_children_conflicting += u64::from(!is_live(store, pair.rivals_child).await?);
            if let Some(child) = pair.own_child {
                rivalry.own_children_live += u64::from(is_live(store, child).await?);
            }
            if rivalry.shown.len() < SHOWN {
                let winner = if own { Some(pair.own) } else { rival.then_some(pair.rival) };
                rivalry.shown.push(Pair {
                    outpoint: pair.outpoint,
                    own: pair.own,
                    rival: pair.rival,
                    rival_first: pair.rival_first,
                    winner,
                });
            }
        }
        Ok(rivalry)
    }

    /// Some of the pairs, and how many there were.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        for Pair { outpoint, own, rival, rival_first, winner } in &self.shown {
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

async fn is_live(store: &Store, txid: Txid) -> Result<bool, Failure> {
    Ok(store.master(txid).await?.is_some_and(|page| page.state() == TxState::Live))
}
