//! `utxo-store verify`: holds a store to its invariants.

use std::io::{self, Write};

use clap::Args;
use serde::Serialize;

use super::{
    CommandResult, Failure, block_on,
    offline::{Progress, StoreArgs},
};
use crate::store::{Store, digest::StateDigest, verify::Violation};

const AFTER_HELP: &str = "\
Prints each violation in a line, then what was seen and the digest of the state: two stores that hold the same have the
same digest. With --json each line is an object; the last has `transactions`, `violations` and `digest`. The exit code is
1 when there is a violation. A store that is being written to can show violations that are none.

Example: utxo-store verify --store fjall:///var/lib/utxo-store";

/// Arguments of `verify`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct VerifyArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Print JSON, an object a line
    #[arg(long)]
    json: bool,
}

/// The last line.
#[derive(Debug, Serialize)]
struct Summary {
    transactions: u64,
    violations: u64,
    digest: StateDigest,
}

impl VerifyArgs {
    pub(super) fn run(self) -> CommandResult {
        block_on(async {
            let (store, _) = self.store.open().await?;
            self.show(&store, &mut io::stdout().lock()).await
        })
    }

    async fn show(&self, store: &Store, out: &mut impl Write) -> CommandResult {
        let progress = Progress::start("verifying");
        let (mut violations, mut written) = (0, Ok(()));
        let transactions = store
            .verify(
                |seen| progress.seen(seen),
                |violation| {
                    violations += 1;
                    if written.is_ok() {
                        written = self.write(&violation, out);
                    }
                },
            )
            .await?;
        drop(progress);
        written?;
        let progress = Progress::start("digesting");
        let digest = store.survey(|seen| progress.seen(seen)).await?.digest;
        drop(progress);
        self.summarise(&Summary { transactions, violations, digest }, out)?;
        match violations {
            0 => Ok(()),
            1 => Err(Failure::new("1 violation")),
            n => Err(Failure::new(format!("{n} violations"))),
        }
    }

    fn write(&self, violation: &Violation, out: &mut impl Write) -> io::Result<()> {
        if self.json {
            serde_json::to_writer(&mut *out, violation)?;
            writeln!(out)
        } else {
            writeln!(out, "{violation}")
        }
    }

    fn summarise(&self, summary: &Summary, out: &mut impl Write) -> io::Result<()> {
        if self.json {
            serde_json::to_writer(&mut *out, summary)?;
            return writeln!(out);
        }
        writeln!(out, "{} transactions, {} violations", summary.transactions, summary.violations)?;
        writeln!(out, "digest {}", summary.digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::offline::tests::{opened, text},
        store::testing::{outpoint, page, transaction},
        tx::Txid,
    };

    async fn shown(store: &Store, json: bool) -> (CommandResult, String) {
        let args = VerifyArgs { store: StoreArgs::default(), json };
        let mut out = Vec::new();
        let result = args.show(store, &mut out).await;
        (result, text(out))
    }

    #[tokio::test]
    async fn a_violation_is_printed_and_fails_the_command() {
        let (store, _) = opened().await;
        let (result, text) = shown(&store, false).await;
        assert!(result.is_ok() && text.starts_with("3 transactions, 0 violations\ndigest "), "{text}");
        let liar = page(&transaction(&[(outpoint(Txid([1; 32]), 1), 1_000)], &[1]));
        let txid = liar.txid;
        store.plant(liar).await;
        let (result, text) = shown(&store, false).await;
        let failure = result.unwrap_err();
        assert_eq!((failure.to_string().as_str(), failure.exit_code()), ("error: 1 violation", 1));
        assert!(text.starts_with(&format!("input 0 of {txid}")), "{text}");
        let (_, text) = shown(&store, true).await;
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["violation"], "input_not_taken");
        assert_eq!((&lines[1]["transactions"], &lines[1]["violations"]), (&4.into(), &1.into()));
        assert!(lines[1]["digest"].is_string());
    }
}
