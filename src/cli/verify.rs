//! `utxo-store verify`: checks the invariants of a store, or compares the store with another.

mod against;

use std::io::{self, Write};

use clap::Args;
use serde::Serialize;

use super::{CliResult, Failure, UsageError, block_on, offline::StoreArgs, output, spinner::Spinner};
use crate::{
    blob::BlobUrl,
    store::{
        StateStore,
        digest::{StateDigest, survey},
        verify::{Violation, verify},
    },
};

const AFTER_HELP: &str = "\
Prints one line per violation, then the counts and the state digest: two stores with the same
state have the same digest. With --json each line is an object; the last object has
`transactions`, `violations` and `digest`. The exit code is 1 after a violation. A store that is
being written can show violations that do not exist.

With --against no invariants are checked: the digests of two stores, of any engine, are compared.
If they differ, the first different transactions are named (by the bytes of the txid, in the order
of `dump`), each with the only store that has it, or with the different fields and both values.
The exit code is then 1, and both stores are scanned at least twice. With --json each transaction
is an object; the last object has `same` and both digests.

Example: utxo-store verify --store fjall:///var/lib/utxo-store
Example: utxo-store verify --store fjall:///var/lib/utxo-store \\
    --against fjall:///var/lib/rebuilt --limit 100";

/// Arguments of the command `verify`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct VerifyArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Compare with this store instead of checking invariants
    #[arg(long, value_name = "URL")]
    against: Option<String>,
    /// Blob store of --against, if its URL does not name one (externalStore)
    #[arg(long, value_name = "URL", requires = "against")]
    against_blobs: Option<BlobUrl>,
    /// With --against: most different transactions to name
    #[arg(long, value_name = "N", default_value_t = 10, requires = "against")]
    limit: usize,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// Counts and digest: the last line of `verify`.
#[derive(Debug, Serialize)]
struct VerifySummary {
    transactions: u64,
    violations: u64,
    digest: StateDigest,
}

impl VerifyArgs {
    pub(super) fn run(self) -> CliResult {
        block_on(async {
            let other = self.other_store()?;
            let (store, _) = self.store.open_whole().await?;
            match other {
                None => self.show(&store, &mut output::stdout()).await,
                Some(other) => {
                    let (other, _) = other.open().await.map_err(|failure| failure.with_subject("--against"))?;
                    against::show(&store, &other, self.limit, self.json, &mut output::stdout()).await
                }
            }
        })
    }

    /// Returns the arguments of the store to compare with, with the configuration of the first store.
    fn other_store(&self) -> Result<Option<StoreArgs>, Failure> {
        match &self.against {
            Some(url) if url.parse().ok() == Some(self.store.url(&self.store.config.load()?)?) => {
                Err(UsageError("--against and --store are the same store: give two different URLs".to_owned()).into())
            }
            Some(url) => Ok(Some(StoreArgs {
                store: Some(url.clone()),
                blobs: self.against_blobs.clone(),
                config: self.store.config.clone(),
            })),
            None => Ok(None),
        }
    }

    async fn show(&self, store: &StateStore, out: &mut impl Write) -> CliResult {
        let progress = Spinner::of_activity("verifying");
        let (mut violations, mut written) = (0, Ok(()));
        let found = |violation| {
            violations += 1;
            if written.is_ok() {
                written = self.write(&violation, out);
            }
        };
        let transactions = verify(store, |seen| progress.update(seen), found).await?;
        drop(progress);
        written?;
        let progress = Spinner::of_activity("digesting");
        let digest = survey(store, |seen| progress.update(seen)).await?.digest;
        drop(progress);
        self.write_summary(&VerifySummary { transactions, violations, digest }, out)?;
        match violations {
            0 => Ok(()),
            1 => Err(Failure::new("1 violation")),
            n => Err(Failure::new(format!("{n} violations"))),
        }
    }

    fn write(&self, violation: &Violation, out: &mut impl Write) -> io::Result<()> {
        match self.json {
            true => output::write_json(violation, out),
            false => writeln!(out, "{violation}"),
        }
    }

    fn write_summary(&self, summary: &VerifySummary, out: &mut impl Write) -> io::Result<()> {
        if self.json {
            return output::write_json(summary, out);
        }
        writeln!(out, "{} transactions, {} violations", summary.transactions, summary.violations)?;
        writeln!(out, "digest {}", summary.digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::offline::tests::{open_sample_store, text},
        store::testing::{outpoint, page, transaction},
        tx::Txid,
    };

    async fn shown(store: &StateStore, json: bool) -> (CliResult, String) {
        let args = VerifyArgs { store: StoreArgs::default(), against: None, against_blobs: None, limit: 10, json };
        let mut out = Vec::new();
        let result = args.show(store, &mut out).await;
        (result, text(out))
    }

    #[tokio::test]
    async fn a_violation_is_printed_and_fails_the_command() {
        let (store, _) = open_sample_store().await;
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
