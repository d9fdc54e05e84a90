//! `utxo-store inspect`: one transaction or one output as the store has it; offsets and decisions as the log has them; a body as
//! the blob store has it.

mod blob;
mod decisions;
mod lock_records;
pub(super) mod offsets;

use std::io::{self, Write};

use clap::{Args, Subcommand};
use serde::Serialize;

use super::{CommandResult, Failure, block_on, offline::StoreArgs};
use crate::{
    record::{Page, TxState, Verdict},
    store::{
        Store,
        dump::InWords,
        read::{SpendStatus, TxMeta},
        verify::Holder,
    },
    tx::{Outpoint, Txid, UtxoHash},
};

/// Arguments of `inspect`.
#[derive(Debug, Args)]
pub struct InspectCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// A transaction: what it spends, who spends it, where it is mined, how it stands
    #[command(after_help = "Example: utxo-store inspect tx --store fjall:///var/lib/utxo-store \\\n    \
        0e3e2357e806b6cdb1f70b54c3a3a17b6714ee1f0e68bebb44a74b1efd512098")]
    Tx(TxArgs),
    /// An output: whether it can be spent, and by whom it was
    #[command(after_help = "Example: utxo-store inspect outpoint --store fjall:///var/lib/utxo-store \\\n    \
        0e3e2357e806b6cdb1f70b54c3a3a17b6714ee1f0e68bebb44a74b1efd512098:0")]
    Outpoint(OutpointArgs),
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
struct TxArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// The transaction's id
    txid: Txid,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
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

/// A transaction as it is shown.
#[derive(Debug, Serialize)]
struct ShownTx {
    #[serde(flatten)]
    meta: TxMeta,
    /// `pending`, `accepted`, or why it is conflicting; `None` where it was never contested.
    verdict: Option<String>,
    spending_height: Option<u32>,
    preserve_until: Option<u32>,
    delete_at_height: Option<u32>,
    pruned: Option<u32>,
    pages: u32,
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
            let mut out = io::stdout().lock();
            match self.what {
                What::Tx(args) => args.show(&args.store.open().await?.0, &mut out).await,
                What::Outpoint(args) => args.show(&args.store.open().await?.0, &mut out).await,
                What::LockRecords(args) => args.run(&mut out).await,
                What::Offsets(args) => args.run(&mut out).await,
                What::Decisions(args) => args.run(&mut out).await,
                What::Blob(args) => args.run(&mut out).await,
            }
        })
    }
}

impl TxArgs {
    async fn show(&self, store: &Store, out: &mut impl Write) -> CommandResult {
        let missing = || Failure::new(format!("the store has no transaction {}", self.txid));
        let meta = store.get_meta(self.txid).await?.ok_or_else(missing)?;
        let master = store.master(self.txid).await?.ok_or_else(missing)?;
        let shown = shown_tx(meta, &master);
        if self.json {
            serde_json::to_writer(&mut *out, &shown)?;
            writeln!(out)?;
        } else {
            write_tx(&shown, out)?;
        }
        Ok(())
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

fn shown_tx(meta: TxMeta, master: &Page) -> ShownTx {
    let bins = master.master.as_deref();
    ShownTx {
        verdict: master.verdict().map(|verdict| match verdict {
            Verdict::Pending => "pending".to_owned(),
            Verdict::Accepted => "accepted".to_owned(),
            Verdict::Conflicting(reason) => format!("conflicting: {}", InWords(reason)),
        }),
        spending_height: master.spending_height,
        preserve_until: bins.and_then(|bins| bins.preserve_until),
        delete_at_height: master.delete_at_height,
        pruned: match master.state() {
            TxState::Pruned(height) => Some(height),
            _ => None,
        },
        pages: bins.map_or(0, |bins| bins.total_extra_recs).saturating_add(1),
        meta,
    }
}

fn write_tx(shown: &ShownTx, out: &mut impl Write) -> io::Result<()> {
    let meta = &shown.meta;
    let flags = [
        ("coinbase", meta.is_coinbase),
        ("locked", meta.locked),
        ("frozen", meta.frozen),
        ("partial (seeded)", meta.tx.is_none() && !meta.spending_data.is_empty()),
    ];
    let flags: Vec<_> = flags.into_iter().filter_map(|(flag, is_set)| is_set.then_some(flag)).collect();
    writeln!(out, "transaction {}", meta.txid)?;
    line(out, "state", [&[meta.state][..], &flags].concat().join(", "))?;
    optional(out, "verdict", shown.verdict.as_ref())?;
    line(out, "size", format!("{} bytes, {} extended, {} pages", meta.size_in_bytes, meta.extended_size, shown.pages))?;
    line(out, "fee", format!("{} satoshis", meta.fee))?;
    for ((id, height), subtree) in meta.block_ids.iter().zip(&meta.block_heights).zip(&meta.subtree_idxs) {
        line(out, "mined", format!("block {id} at height {height}, subtree {subtree}"))?;
    }
    optional(out, "unmined since", shown.meta.unmined_since.as_ref())?;
    optional(out, "spendable from", shown.spending_height.as_ref())?;
    optional(out, "preserved until", shown.preserve_until.as_ref())?;
    optional(out, "deleted at", shown.delete_at_height.as_ref())?;
    optional(out, "pruned at", shown.pruned.as_ref())?;
    for (parent, indexes) in meta.tx_inpoints.parent_txids.iter().zip(&meta.tx_inpoints.indexes) {
        for vout in indexes {
            line(out, "spends", format!("{parent}:{vout}"))?;
        }
    }
    for (spender, vout) in meta.spending_data.iter().zip(0_u32..) {
        match spender {
            Some(data) if *data == crate::store::read::FROZEN => line(out, "frozen", format!("output {vout}"))?,
            Some(data) => line(out, "spent", format!("output {vout} by {}", Holder::from(*data)))?,
            None => {}
        }
    }
    for child in &meta.conflicting_children {
        line(out, "conflicting child", child)?;
    }
    Ok(())
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
        record::{Key, Reason, Sequenced},
        store::testing,
    };

    const PARENT: Txid = Txid([1; 32]);

    fn place() -> StoreArgs {
        StoreArgs::default()
    }

    async fn tx(store: &Store, txid: Txid, json: bool) -> Result<String, Failure> {
        let mut out = Vec::new();
        TxArgs { store: place(), txid, json }.show(store, &mut out).await?;
        Ok(text(out))
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
    async fn a_transaction_with_what_it_spends_and_who_spends_it() {
        let (store, _) = opened().await;
        let shown = tx(&store, child(), false).await.unwrap();
        assert!(shown.contains("live") && shown.contains("400 satoshis"), "{shown}");
        assert!(shown.contains(&format!("{PARENT}:0")) && shown.contains("unmined since"), "{shown}");
        let shown = tx(&store, PARENT, false).await.unwrap();
        assert!(shown.contains(&format!("output 0 by input 0 of {}", child())), "{shown}");
        assert!(shown.contains("partial") && shown.contains("block 0 at height 100"), "{shown}");
        let json: serde_json::Value = serde_json::from_str(&tx(&store, child(), true).await.unwrap()).unwrap();
        assert_eq!((&json["fee"], &json["pages"], &json["verdict"]), (&400.into(), &1.into(), &().into()));
        let failure = tx(&store, Txid([9; 32]), true).await.unwrap_err().to_string();
        assert!(failure.contains("0909"), "{failure}");
    }

    #[tokio::test]
    async fn a_stub_tells_its_verdict() {
        let (store, _) = opened().await;
        let stub = Txid([8; 32]);
        let reason = Reason::ConflictingParent { parent: PARENT };
        store.sequenced(Key::master(stub), Sequenced::MarkConflicting { reason, height: 3 }).await;
        let shown = tx(&store, stub, false).await.unwrap();
        assert!(shown.contains("stub") && shown.contains(&format!("parent {PARENT} is conflicting")), "{shown}");
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
