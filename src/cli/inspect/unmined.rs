//! `utxo-store inspect unmined`: lists transactions that no block of the longest chain lists.

use std::io::Write;

use clap::Args;

use super::super::{CliResult, offline::StoreArgs, output};
use crate::store::{StateStore, queries::StoreQueries};

const AFTER_HELP: &str = "\
Ordered by the time of the first write, oldest first, without conflicting transactions. With
--parents the parents are listed instead: pruning keeps them, and a command can preserve them
until a height.

Example: utxo-store inspect unmined --store fjall:///var/lib/utxo-store --since 800000";

/// Arguments of the command `inspect unmined`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct UnminedArgs {
    #[command(flatten)]
    pub(super) store: StoreArgs,
    /// Only transactions that are unmined since this height or an earlier one
    #[arg(long, value_name = "HEIGHT", default_value_t = u32::MAX, hide_default_value = true)]
    since: u32,
    /// List the parents of the unmined transactions
    #[arg(long)]
    parents: bool,
    /// Print one JSON object per transaction
    #[arg(long)]
    json: bool,
}

impl UnminedArgs {
    pub(super) async fn show(&self, store: &StateStore, out: &mut impl Write) -> CliResult {
        if self.parents {
            for parent in StoreQueries::of(store).preserved_parents(self.since).await? {
                if self.json {
                    output::write_json(&parent, out)?;
                } else {
                    match parent.preserve_until {
                        Some(height) => writeln!(out, "{}  preserved until height {height}", parent.txid)?,
                        None => writeln!(out, "{}", parent.txid)?,
                    }
                }
            }
            return Ok(());
        }
        for unmined in StoreQueries::of(store).old_unmined(self.since).await? {
            if self.json {
                output::write_json(&unmined, out)?;
            } else {
                let creating = if unmined.creating { ", not completely created" } else { "" };
                writeln!(
                    out,
                    "{}  since height {}, stored at {} ms{creating}",
                    unmined.txid, unmined.unmined_since, unmined.created_at
                )?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::offline::tests::{open_sample_store, text};

    async fn shown(since: u32, parents: bool, json: bool) -> String {
        let (store, _) = open_sample_store().await;
        let mut out = Vec::new();
        UnminedArgs { store: StoreArgs::default(), since, parents, json }.show(&store, &mut out).await.unwrap();
        text(out)
    }

    #[tokio::test]
    async fn unmined_transactions_and_their_parents_are_listed() {
        let all = shown(u32::MAX, false, false).await;
        assert!(all.lines().count() == 2 && all.contains("since height 100"), "{all}");
        assert_eq!(shown(99, false, false).await, "");
        let parents = shown(u32::MAX, true, true).await;
        assert!(parents.contains(&"01".repeat(32)) && parents.contains("\"preserve_until\":null"), "{parents}");
    }
}
