//! `utxo-store inspect conflicts`: rivals of a transaction, and its conflicting descendants.

use std::io::Write;

use clap::Args;
use serde::Serialize;

use super::{
    super::{CliResult, Failure, offline::StoreArgs, output},
    line,
};
use crate::{
    store::{
        StateStore,
        queries::{RelatedTxs, StoreQueries},
    },
    tx::Txid,
};

const AFTER_HELP: &str = "\
Example: utxo-store inspect conflicts --store fjall:///var/lib/utxo-store \\
    0e3e2357e806b6cdb1f70b54c3a3a17b6714ee1f0e68bebb44a74b1efd512098";

/// Arguments of the command `inspect conflicts`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct ConflictsArgs {
    #[command(flatten)]
    pub(super) store: StoreArgs,
    /// Id of the transaction
    txid: Txid,
    /// Most rivals, and most descendants, to list
    #[arg(long, value_name = "COUNT", default_value_t = 1_000)]
    limit: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Rivals and descendants as `inspect conflicts` prints them.
#[derive(Debug, Serialize)]
struct ConflictsView {
    txid: Txid,
    /// Transactions that would become conflicting if this one won; `None`: its inputs are unknown.
    against: Option<RelatedTxs>,
    /// Conflicting descendants of the transaction.
    conflicting_descendants: RelatedTxs,
}

impl ConflictsArgs {
    pub(super) async fn show(&self, store: &StateStore, out: &mut impl Write) -> CliResult {
        let txid = self.txid;
        if store.master(txid).await?.is_none() {
            return Err(Failure::new(format!("the store has no transaction {txid}")));
        }
        let against = StoreQueries::of(store).counter_conflicting(txid, self.limit).await?;
        let conflicting_descendants = StoreQueries::of(store).conflicting_descendants(txid, self.limit).await?;
        let shown = ConflictsView { txid, against, conflicting_descendants };
        if self.json {
            return Ok(output::write_json(&shown, out)?);
        }
        writeln!(out, "transaction {txid}")?;
        match &shown.against {
            Some(against) => write_related(out, "rival", against)?,
            None => line(out, "rival", "its inputs are unknown")?,
        }
        write_related(out, "conflicting", &shown.conflicting_descendants)?;
        Ok(())
    }
}

fn write_related(out: &mut impl Write, name: &str, related: &RelatedTxs) -> std::io::Result<()> {
    for txid in &related.txids {
        line(out, name, txid)?;
    }
    match (related.txids.is_empty(), related.more) {
        (true, _) => line(out, name, "none"),
        (_, true) => line(out, name, "and more: raise --limit"),
        (_, false) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::offline::tests::{open_sample_store, text},
        store::testing,
    };

    #[tokio::test]
    async fn the_holder_of_an_output_is_a_rival_of_the_loser() {
        let (store, _) = open_sample_store().await;
        let parent = testing::outpoint(Txid([1; 32]), 0);
        let holder = testing::txid(&testing::transaction(&[(parent, 1_000)], &[600]));
        let rival = testing::transaction(&[(parent, 1_000)], &[500]);
        store.plant(testing::page(&rival).contested()).await;
        let show = async |txid, limit| {
            let mut out = Vec::new();
            let args = ConflictsArgs { store: StoreArgs::default(), txid, limit, json: false };
            args.show(&store, &mut out).await.map_err(|failure| failure.to_string())?;
            Ok::<_, String>(text(out))
        };
        let shown = show(testing::txid(&rival), 10).await.unwrap();
        assert!(shown.contains(&format!("rival             {holder}")), "{shown}");
        assert!(shown.contains("conflicting       none"), "{shown}");
        assert!(show(Txid([7; 32]), 10).await.unwrap_err().contains("no transaction"));
    }
}
