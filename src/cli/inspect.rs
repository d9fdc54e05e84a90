//! `utxo-store inspect`: one transaction or one output as the store has it; offsets and decisions as the log has them; a body as
//! the blob store has it.

mod blob;
mod block;
mod conflicts;
pub(super) mod decisions;
pub(super) mod history;
mod lock_records;
pub(super) mod offsets;
pub(super) mod transaction;
mod unmined;

use std::io::{self, Write};

use clap::{Args, Subcommand};
use serde::Serialize;

use super::{CommandResult, block_on, offline::StoreArgs, output};
use crate::{
    record::Verdict,
    store::{Store, dump::InWords, read::SpendStatus, verify::Holder},
    tx::{Outpoint, UtxoHash},
};

/// Arguments of `inspect`.
#[derive(Debug, Args)]
pub struct InspectCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// A transaction: what it spends, who spends it, where it is mined, how it stands; and what was decided on it
    Tx(transaction::TxArgs),
    /// An output: whether it can be spent, and by whom it was
    #[command(after_help = "Example: utxo-store inspect outpoint --store fjall:///var/lib/utxo-store \\\n    \
        0e3e2357e806b6cdb1f70b54c3a3a17b6714ee1f0e68bebb44a74b1efd512098:0")]
    Outpoint(OutpointArgs),
    /// A block: where it is in the chain, and how much of it is done
    Block(block::BlockArgs),
    /// Transactions that no block of the longest chain lists, oldest first
    Unmined(unmined::UnminedArgs),
    /// Who would fall if a transaction won, and who has fallen with it
    Conflicts(conflicts::ConflictsArgs),
    /// Who is creating which transaction over several pages
    LockRecords(lock_records::LockRecordsArgs),
    /// Where the consumer groups stand: committed offsets, lag, and what was said with the commits
    Offsets(offsets::OffsetsArgs),
    /// What the sequencer decided, and which decisions are not closed
    Decisions(decisions::DecisionsArgs),
    /// What the blob store has of a transaction
    Blob(blob::BlobArgs),
}

#[derive(Debug, Args)]
struct OutpointArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// The output, as TXID:VOUT
    outpoint: Outpoint,
    /// Height of the block that wants to spend it; without it maturity is not looked at
    #[arg(long, value_name = "HEIGHT")]
    height: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// An output as it is shown.
#[derive(Debug, Serialize)]
struct ShownOutput {
    outpoint: Outpoint,
    /// The seed's code for it, or `UNSPENT`.
    status: &'static str,
    /// The status in words.
    explained: String,
    spender: Option<Holder>,
    utxo_hash: Option<UtxoHash>,
}

impl InspectCommand {
    pub(super) fn run(self) -> CommandResult {
        block_on(async {
            let mut out = output::stdout();
            match self.what {
                What::Tx(args) => args.run(&mut out).await,
                What::Block(args) => args.show(&args.store.open().await?.0, &mut out).await,
                What::Unmined(args) => args.show(&args.store.open().await?.0, &mut out).await,
                What::Conflicts(args) => args.show(&args.store.open().await?.0, &mut out).await,
                What::Outpoint(args) => args.show(&args.store.open().await?.0, &mut out).await,
                What::LockRecords(args) => args.run(&mut out).await,
                What::Offsets(args) => args.run(&mut out).await,
                What::Decisions(args) => args.run(&mut out).await,
                What::Blob(args) => args.run(&mut out).await,
            }
        })
    }
}

impl OutpointArgs {
    async fn show(&self, store: &Store, out: &mut impl Write) -> CommandResult {
        let status = store.get_spend(self.outpoint, None, self.height).await?;
        let slot = store.slot(self.outpoint).await?;
        let spender = slot.and_then(|slot| slot.spender());
        let shown = ShownOutput {
            outpoint: self.outpoint,
            status: code(&status),
            explained: explain(&status),
            spender: spender.map(Holder::from),
            utxo_hash: slot.and_then(|slot| slot.hash()),
        };
        if self.json {
            serde_json::to_writer(&mut *out, &shown)?;
            writeln!(out)?;
        } else {
            write_output(&shown, out)?;
        }
        Ok(())
    }
}

fn write_output(shown: &ShownOutput, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "output {}", shown.outpoint)?;
    line(out, "status", format!("{} ({})", shown.status, shown.explained))?;
    optional(out, "spender", shown.spender.as_ref())?;
    optional(out, "hash", shown.utxo_hash.as_ref())
}

fn line(out: &mut impl Write, name: &str, value: impl std::fmt::Display) -> io::Result<()> {
    writeln!(out, "  {name:<18}{value}")
}

fn optional(out: &mut impl Write, name: &str, value: Option<&impl std::fmt::Display>) -> io::Result<()> {
    value.map_or(Ok(()), |value| line(out, name, value))
}

/// The seed's name for what bars a spend, where it has one.
fn code(status: &SpendStatus) -> &'static str {
    match status {
        SpendStatus::NotFound => "TX_NOT_FOUND",
        SpendStatus::Pruned(_) => "PRUNED",
        SpendStatus::Creating => "CREATING",
        SpendStatus::Conflicting(_) => "CONFLICTING",
        SpendStatus::Locked => "LOCKED",
        SpendStatus::Immature(_) => "COINBASE_IMMATURE",
        SpendStatus::NoSuchOutput => "UTXO_NOT_FOUND",
        SpendStatus::HashMismatch(_) => "UTXO_HASH_MISMATCH",
        SpendStatus::Frozen => "FROZEN",
        SpendStatus::Contested(_) => "CONTESTED",
        SpendStatus::Spent(_) => "SPENT",
        SpendStatus::NotYetSpendable(_) => "FROZEN_UNTIL",
        SpendStatus::Unspent => "UNSPENT",
    }
}

fn explain(status: &SpendStatus) -> String {
    match status {
        SpendStatus::NotFound => "the store has no such transaction".into(),
        SpendStatus::Pruned(height) => format!("the transaction was pruned at height {height}"),
        SpendStatus::Creating => "the transaction is half created".into(),
        SpendStatus::Conflicting(Verdict::Conflicting(reason)) => {
            format!("the transaction is conflicting: {}", InWords(*reason))
        }
        SpendStatus::Conflicting(_) => "the transaction is contested and has no verdict yet".into(),
        SpendStatus::Locked => "the transaction is locked".into(),
        SpendStatus::Immature(from) => format!("a coinbase, spendable from height {from}"),
        SpendStatus::NoSuchOutput => "there is no such output, or it cannot be spent".into(),
        SpendStatus::HashMismatch(found) => format!("the slot commits to {found}"),
        SpendStatus::Frozen => "it is frozen".into(),
        SpendStatus::Contested(None) => "free, but it has a history: only the sequencer gives it away".into(),
        SpendStatus::Contested(Some(spender)) => format!("it has a history; spent by {}", Holder::from(*spender)),
        SpendStatus::Spent(spender) => format!("spent by {}", Holder::from(*spender)),
        SpendStatus::NotYetSpendable(from) => format!("spendable from height {from}"),
        SpendStatus::Unspent => "it can be spent".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::offline::tests::{opened, text},
        store::testing,
        tx::Txid,
    };

    const PARENT: Txid = Txid([1; 32]);

    fn place() -> StoreArgs {
        StoreArgs::default()
    }

    async fn output(store: &Store, vout: u32, json: bool) -> String {
        let mut out = Vec::new();
        let args = OutpointArgs { store: place(), outpoint: testing::outpoint(PARENT, vout), height: None, json };
        args.show(store, &mut out).await.unwrap();
        text(out)
    }

    fn child() -> Txid {
        testing::txid(&testing::transaction(&[(testing::outpoint(PARENT, 0), 1_000)], &[600]))
    }

    #[tokio::test]
    async fn an_output_says_whether_it_can_be_spent() {
        let (store, _) = opened().await;
        let spent = output(&store, 0, false).await;
        assert!(spent.contains("SPENT (spent by") && spent.contains(&child().to_string()), "{spent}");
        let json: serde_json::Value = serde_json::from_str(&output(&store, 0, true).await).unwrap();
        assert_eq!((&json["status"], &json["spender"]["txid"]), (&"SPENT".into(), &child().to_string().into()));
        assert!(output(&store, 1, false).await.contains("UNSPENT"));
        assert!(output(&store, 2, false).await.contains("UTXO_NOT_FOUND"));
    }
}
