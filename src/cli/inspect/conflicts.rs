//! `utxo-store inspect conflicts`: who stands against a transaction, and who has fallen with it.

use std::io::Write;

use clap::Args;
use serde::Serialize;

use super::{
    super::{CommandResult, Failure, offline::StoreArgs},
    line,
};
use crate::{
    store::{Store, queries::Related},
    tx::Txid,
};

const AFTER_HELP: &str = "\
Example: utxo-store inspect conflicts --store fjall:///var/lib/utxo-store \\
    0e3e2357e806b6cdb1f70b54c3a3a17b6714ee1f0e68bebb44a74b1efd512098";

/// Arguments of `inspect conflicts`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct ConflictsArgs {
    #[command(flatten)]
    pub(super) store: StoreArgs,
    /// The transaction's id
    txid: Txid,
    /// List so many of each at most
    #[arg(long, value_name = "COUNT", default_value_t = 1_000)]
    limit: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What is shown.
#[derive(Debug, Serialize)]
struct Shown {
    txid: Txid,
    /// Who would become conflicting if it won; `None`: what it spends is not known.
    against: Option<Related>,
    /// Conflicting transactions that descend from it.
    conflicting_descendants: Related,
}

impl ConflictsArgs {
    pub(super) async fn show(&self, store: &Store, out: &mut impl Write) -> CommandResult {
        let txid = self.txid;
        if store.master(txid).await?.is_none() {
            return Err(Failure::new(format!("the store has no transaction {txid}")));
        }
        let against = store.counter_conflicting(txid, self.limit).await?;
        let conflicting_descendants = store.conflicting_descendants(txid, self.limit).await?;
        let shown = Shown { txid, against, conflicting_descendants };
        if self.json {
            serde_json::to_writer(&mut *out, &shown)?;
            writeln!(out)?;
            return Ok(());
        }
        writeln!(out, "transaction {txid}")?;
        match &shown.against {
            Some(against) => list(out, "against it", against)?,
            None => line(out, "against it", "what it spends is not known")?,
        }
        list(out, "fallen child", &shown.conflicting_descendants)?;
        Ok(())
    }
}

fn list(out: &mut impl Write, name: &str, related: &Related) -> std::io::Result<()> {
    for txid in &related.txids {
        line(out, name, txid)?;
    }
    match (related.txids.is_empty(), related.more) {
        (true, _) => line(out, name, "nobody"),
        (_, true) => line(out, name, "and more: raise --limit"),
        (_, false) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::offline::tests::{opened, text},
        store::testing,
    };

    #[tokio::test]
    async fn who_holds_what_a_loser_wants_stands_against_it() {
        let (store, _) = opened().await;
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
        assert!(shown.contains(&format!("against it        {holder}")), "{shown}");
        assert!(shown.contains("fallen child      nobody"), "{shown}");
        assert!(show(Txid([7; 32]), 10).await.unwrap_err().contains("no transaction"));
    }
}
