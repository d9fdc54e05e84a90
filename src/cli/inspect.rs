//! `utxo-store inspect`: prints transactions, outputs and blocks of the store, offsets and decisions of the log, and
//! bodies of the blob store.

mod blob;
mod block;
mod conflicts;
mod decisions;
mod lock_records;
pub(super) mod offsets;
pub(super) mod transaction;
mod unmined;

use std::io::{self, Write};

use clap::{Args, Subcommand};
use serde::Serialize;

use super::{CliResult, block_on, offline::StoreArgs, output};
use crate::{
    embed::Store,
    record::{SpendingData, StoredOutput},
    store::{StateStore, outputs::OutputState},
    tx::{Outpoint, UtxoHash},
};

/// Arguments of the command `inspect`.
#[derive(Debug, Args)]
pub struct InspectCommand {
    #[command(subcommand)]
    target: InspectTarget,
}

#[derive(Debug, Subcommand)]
enum InspectTarget {
    /// A transaction: inputs, outputs and their spenders, blocks, state; with --history its decisions
    Tx(transaction::TxArgs),
    /// An output: its status and its spender
    #[command(after_help = "Example: utxo-store inspect outpoint --store fjall:///var/lib/utxo-store \\\n    \
        0e3e2357e806b6cdb1f70b54c3a3a17b6714ee1f0e68bebb44a74b1efd512098:0")]
    Outpoint(OutpointArgs),
    /// A block: its place in the chain, and the number of transactions that are set mined
    Block(block::BlockArgs),
    /// Transactions that no block of the longest chain lists, oldest first
    Unmined(unmined::UnminedArgs),
    /// Rivals that would become conflicting if a transaction won, and its conflicting descendants
    Conflicts(conflicts::ConflictsArgs),
    /// Lock records: processes that are creating a transaction with several pages
    LockRecords(lock_records::LockRecordsArgs),
    /// Committed offsets of the consumer groups, with their lag and metadata
    Offsets(offsets::OffsetsArgs),
    /// Decisions of the sequencer, and decisions that are not closed
    Decisions(decisions::DecisionsArgs),
    /// Blobs of a transaction in the blob store, checked
    Blob(blob::BlobArgs),
}

#[derive(Debug, Args)]
struct OutpointArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Output, as the transaction id and the output number
    outpoint: Outpoint,
    /// Height of the spending block; without a height maturity is not checked
    #[arg(long, value_name = "HEIGHT")]
    height: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// An output as `inspect outpoint` prints it.
#[derive(Debug, Serialize)]
struct OutputStatusView {
    outpoint: Outpoint,
    /// Code of the refusal in the reference document, or `UNSPENT`.
    status: &'static str,
    /// Description of the status.
    explained: String,
    spender: Option<SpendingData>,
    utxo_hash: Option<UtxoHash>,
    /// Amount and locking script; of a reassigned output those of the new owner.
    output: Option<StoredOutput>,
}

impl InspectCommand {
    pub(super) fn run(self) -> CliResult {
        block_on(async {
            let mut out = output::stdout();
            match self.target {
                InspectTarget::Tx(args) => Box::pin(args.run(&mut out)).await,
                InspectTarget::Block(args) => args.show(&args.store.open().await?.0, &mut out).await,
                InspectTarget::Unmined(args) => args.show(&args.store.open().await?.0, &mut out).await,
                InspectTarget::Conflicts(args) => args.show(&args.store.open().await?.0, &mut out).await,
                InspectTarget::Outpoint(args) => args.show(&args.store.open().await?.0, &mut out).await,
                InspectTarget::LockRecords(args) => Box::pin(args.run(&mut out)).await,
                InspectTarget::Offsets(args) => args.run(&mut out).await,
                InspectTarget::Decisions(args) => args.run(&mut out).await,
                InspectTarget::Blob(args) => args.run(&mut out).await,
            }
        })
    }
}

impl OutpointArgs {
    async fn show(&self, store: &StateStore, out: &mut impl Write) -> CliResult {
        let OutputState { outpoint, status, spender, utxo_hash, output, mined_height: _ } =
            Store::of(store.clone()).output(self.outpoint, self.height).await?;
        let (explained, status) = (status.to_string(), status.code());
        let shown = OutputStatusView { outpoint, status, explained, spender, utxo_hash, output };
        match self.json {
            true => output::write_json(&shown, out)?,
            false => write_output(&shown, out)?,
        }
        Ok(())
    }
}

fn write_output(shown: &OutputStatusView, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "output {}", shown.outpoint)?;
    line(out, "status", format!("{} ({})", shown.status, shown.explained))?;
    optional(out, "spender", shown.spender.as_ref())?;
    optional(out, "hash", shown.utxo_hash.as_ref())?;
    optional(out, "satoshis", shown.output.as_ref().map(|output| output.satoshis).as_ref())?;
    optional(out, "script", shown.output.as_ref().map(|output| hex::encode(&output.script)).as_ref())
}

fn line(out: &mut impl Write, name: &str, value: impl std::fmt::Display) -> io::Result<()> {
    writeln!(out, "  {name:<18}{value}")
}

fn optional(out: &mut impl Write, name: &str, value: Option<&impl std::fmt::Display>) -> io::Result<()> {
    value.map_or(Ok(()), |value| line(out, name, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::offline::tests::{open_sample_store, text},
        store::testing,
        tx::Txid,
    };

    const PARENT: Txid = Txid([1; 32]);

    async fn output(store: &StateStore, vout: u32, json: bool) -> String {
        let mut out = Vec::new();
        let args =
            OutpointArgs { store: StoreArgs::default(), outpoint: testing::outpoint(PARENT, vout), height: None, json };
        args.show(store, &mut out).await.unwrap();
        text(out)
    }

    fn child() -> Txid {
        testing::txid(&testing::transaction(&[(testing::outpoint(PARENT, 0), 1_000)], &[600]))
    }

    #[tokio::test]
    async fn the_status_of_an_output_is_printed() {
        let (store, _) = open_sample_store().await;
        let spent = output(&store, 0, false).await;
        assert!(spent.contains("SPENT (spent by") && spent.contains(&child().to_string()), "{spent}");
        let json: serde_json::Value = serde_json::from_str(&output(&store, 0, true).await).unwrap();
        assert_eq!((&json["status"], &json["spender"]["txid"]), (&"SPENT".into(), &child().to_string().into()));
        assert!(output(&store, 1, false).await.contains("UNSPENT"));
        assert!(output(&store, 2, false).await.contains("UTXO_NOT_FOUND"));
    }
}
