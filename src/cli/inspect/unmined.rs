//! `utxo-store inspect unmined`: what no block of the longest chain lists.

use std::io::Write;

use clap::Args;

use super::super::{CommandResult, offline::StoreArgs};
use crate::store::Store;

const AFTER_HELP: &str = "\
Oldest first, by when they were first stored; conflicting ones are left out. With --parents what they spend is listed instead: what the pruner
keeps for them, with the height until which a command preserves it.

Example: utxo-store inspect unmined --store fjall:///var/lib/utxo-store --since 800000";

/// Arguments of `inspect unmined`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct UnminedArgs {
    #[command(flatten)]
    pub(super) store: StoreArgs,
    /// Only those that have been unmined since this height, or longer
    #[arg(long, value_name = "HEIGHT", default_value_t = u32::MAX, hide_default_value = true)]
    since: u32,
    /// Their parents
    #[arg(long)]
    parents: bool,
    /// Print one JSON object a transaction
    #[arg(long)]
    json: bool,
}

impl UnminedArgs {
    pub(super) async fn show(&self, store: &Store, out: &mut impl Write) -> CommandResult {
        if self.parents {
            for parent in store.preserved_parents(self.since).await? {
                if self.json {
                    serde_json::to_writer(&mut *out, &parent)?;
                    writeln!(out)?;
                } else {
                    match parent.preserve_until {
                        Some(height) => writeln!(out, "{}  preserved until height {height}", parent.txid)?,
                        None => writeln!(out, "{}", parent.txid)?,
                    }
                }
            }
            return Ok(());
        }
        for unmined in store.old_unmined(self.since).await? {
            if self.json {
                serde_json::to_writer(&mut *out, &unmined)?;
                writeln!(out)?;
            } else {
                let half = if unmined.creating { ", half created" } else { "" };
                writeln!(
                    out,
                    "{}  since height {}, stored at {} ms{half}",
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
    use crate::cli::offline::tests::{opened, text};

    async fn shown(since: u32, parents: bool, json: bool) -> String {
        let (store, _) = opened().await;
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
