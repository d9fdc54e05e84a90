//! `utxo-store inspect tx`: prints a transaction with its outputs, blocks, verdict and history.

use std::io::{self, Write};

use clap::Args;
use serde::Serialize;

use super::{
    super::{CliResult, Failure, offline::StoreArgs, opening, output},
    line, optional,
};
use crate::{
    client::history::{HistoryEntry, read_history},
    engine::EngineError,
    record::{Page, Slot, SpendingData, TxState, Verdict},
    store::{
        StateStore,
        read::{TxMeta, TxReader},
    },
    tx::{Txid, UtxoHash},
};

const AFTER_HELP: &str = "\
With --history the chain and decisions topics of the configuration are read from their beginnings:
contests of the transaction with their reasons, decisions on the transaction, and commands that
name it.

Example: utxo-store inspect tx --store fjall:///var/lib/utxo-store \\
    0e3e2357e806b6cdb1f70b54c3a3a17b6714ee1f0e68bebb44a74b1efd512098";

/// Number of outputs that are printed as text; JSON has every output.
const MAX_PRINTED: usize = 100;
/// Number of pages that are in memory at once.
const PAGES_PER_READ: u32 = 8;

/// Arguments of the command `inspect tx`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct TxArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Id of the transaction
    txid: Txid,
    /// Print the history of the transaction in the log, too
    #[arg(long)]
    history: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A transaction as `inspect tx` prints it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TransactionView {
    #[serde(flatten)]
    meta: TxMeta,
    /// `pending`, `accepted`, or `conflicting` with the reason; `None`: never contested.
    verdict: Option<String>,
    spending_height: Option<u32>,
    preserve_until: Option<u32>,
    delete_at_height: Option<u32>,
    pruned: Option<u32>,
    pages: u32,
    outputs: OutputsView,
    /// History in the order of the chain; `None`: not requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<Vec<HistoryEntry>>,
}

/// Outputs of a transaction, over all pages.
#[derive(Debug, Default, Serialize)]
struct OutputsView {
    /// Number of outputs that are spendable or spent.
    count: u64,
    spent: u64,
    frozen: u64,
    /// Outputs that are spent, frozen, contested, delayed or reassigned.
    notable: Vec<NotableOutput>,
}

/// An output that is not simply unspent.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct NotableOutput {
    vout: u32,
    spent_by: Option<SpendingData>,
    frozen: bool,
    /// True if the spender was pruned.
    spender_pruned: bool,
    /// True if the sequencer has changed the slot: only the sequencer assigns a spender.
    contested: bool,
    spendable_from: Option<u32>,
    /// Reassignments of the output, in their order.
    reassigned: Vec<ReassignmentView>,
}

/// A reassignment of an output to a new owner.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct ReassignmentView {
    height: u32,
    from: UtxoHash,
    to: UtxoHash,
    /// Amount against which the spend of the new owner is checked.
    satoshis: u64,
    script: String,
}

impl TxArgs {
    pub(super) async fn run(&self, out: &mut impl Write) -> CliResult {
        let (store, _) = self.store.open().await?;
        let history = if self.history {
            let config = self.store.config.load()?;
            let broker = opening::open_broker(&config).await?;
            Some(read_history(broker.as_ref(), &config.kafka.topics, self.txid).await?)
        } else {
            None
        };
        let shown = TransactionView::read(&store, self.txid, history).await?;
        match self.json {
            true => output::write_json(&shown, out)?,
            false => shown.write(out)?,
        }
        Ok(())
    }
}

impl TransactionView {
    /// Reads a transaction from the store, and adds its history where given.
    ///
    /// # Errors
    /// The store does not have the transaction, or does not answer.
    pub async fn read(store: &StateStore, txid: Txid, history: Option<Vec<HistoryEntry>>) -> Result<Self, Failure> {
        let missing = || Failure::new(format!("the store has no transaction {txid}"));
        let meta = TxReader::of(store).get_meta(txid).await?.ok_or_else(missing)?;
        let master = store.master(txid).await?.ok_or_else(missing)?;
        let outputs = read_outputs(store, &master).await?;
        Ok(TransactionView { history, ..view(meta, &master, outputs) })
    }

    /// Writes the transaction as text.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let meta = &self.meta;
        let flags = [
            ("coinbase", meta.is_coinbase),
            ("locked", meta.locked),
            ("frozen", meta.frozen),
            ("partial (seeded)", meta.tx.is_none() && !meta.spending_data.is_empty()),
        ];
        let flags: Vec<_> = flags.into_iter().filter_map(|(flag, is_set)| is_set.then_some(flag)).collect();
        writeln!(out, "transaction {}", meta.txid)?;
        line(out, "state", [&[meta.state][..], &flags].concat().join(", "))?;
        optional(out, "verdict", self.verdict.as_ref())?;
        line(
            out,
            "size",
            format!("{} bytes, {} extended, {} pages", meta.size_in_bytes, meta.extended_size, self.pages),
        )?;
        line(out, "fee", format!("{} satoshis", meta.fee))?;
        for ((id, height), subtree) in meta.block_ids.iter().zip(&meta.block_heights).zip(&meta.subtree_idxs) {
            line(out, "mined", format!("block {id} at height {height}, subtree {subtree}"))?;
        }
        optional(out, "unmined since", meta.unmined_since.as_ref())?;
        optional(out, "spendable from", self.spending_height.as_ref())?;
        optional(out, "preserved until", self.preserve_until.as_ref())?;
        optional(out, "deleted at", self.delete_at_height.as_ref())?;
        optional(out, "pruned at", self.pruned.as_ref())?;
        for (parent, indexes) in meta.tx_inpoints.parent_txids.iter().zip(&meta.tx_inpoints.indexes) {
            for vout in indexes {
                line(out, "spends", format!("{parent}:{vout}"))?;
            }
        }
        let OutputsView { count, spent, frozen, notable } = &self.outputs;
        line(out, "outputs", format!("{count}, of which {spent} spent and {frozen} frozen"))?;
        for output in notable.iter().take(MAX_PRINTED) {
            line(out, &format!("output {}", output.vout), output.describe())?;
        }
        if notable.len() > MAX_PRINTED {
            line(out, "", format!("and {} more: --json has them", notable.len() - MAX_PRINTED))?;
        }
        for child in &meta.conflicting_children {
            line(out, "conflicting child", child)?;
        }
        for event in self.history.iter().flatten() {
            writeln!(out, "  {event}")?;
        }
        match &self.history {
            Some(history) if history.is_empty() => {
                line(out, "history", "no contest, decision or command names the transaction")
            }
            _ => Ok(()),
        }
    }
}

async fn read_outputs(store: &StateStore, master: &Page) -> Result<OutputsView, EngineError> {
    let mut outputs = OutputsView::default();
    let count = master.extra_pages().saturating_add(1);
    let size = store.settings.utxo_batch_size;
    for from in (0..count).step_by(PAGES_PER_READ as usize) {
        let pages = store.pages(master.txid, from, (from + PAGES_PER_READ).min(count)).await?;
        for (page, number) in pages.iter().zip(from..) {
            page.iter().for_each(|page| outputs.add(page, number.saturating_mul(size)));
        }
    }
    Ok(outputs)
}

impl OutputsView {
    /// Adds the outputs of a page whose first output has this number.
    fn add(&mut self, page: &Page, first: u32) {
        for (slot, offset) in page.utxos.iter().flatten().zip(0..).filter(|(slot, _)| **slot != Slot::Nil) {
            self.count += 1;
            self.spent += u64::from(slot.spender().is_some());
            self.frozen += u64::from(matches!(slot, Slot::Frozen(_)));
            let reassigned =
                page.reassignments.iter().filter(|entry| entry.offset == offset).map(|entry| ReassignmentView {
                    height: entry.block_height,
                    from: entry.utxo_hash,
                    to: entry.new_utxo_hash,
                    satoshis: entry.output.satoshis,
                    script: hex::encode(&entry.output.script),
                });
            let output = NotableOutput {
                vout: first.saturating_add(offset),
                spent_by: slot.spender(),
                frozen: matches!(slot, Slot::Frozen(_)),
                spender_pruned: page.pruned_spenders.contains(&offset),
                contested: page.contested.contains(&offset),
                spendable_from: page.utxo_spendable_in.get(&offset).copied(),
                reassigned: reassigned.collect(),
            };
            if output.is_notable() {
                self.notable.push(output);
            }
        }
    }
}

impl NotableOutput {
    fn is_notable(&self) -> bool {
        let NotableOutput { spent_by, frozen, contested, spendable_from, reassigned, .. } = self;
        spent_by.is_some() || *frozen || *contested || spendable_from.is_some() || !reassigned.is_empty()
    }

    fn describe(&self) -> String {
        let mut words = Vec::new();
        let pruned = if self.spender_pruned { " (pruned)" } else { "" };
        words.extend(self.spent_by.as_ref().map(|by| format!("spent by {by}{pruned}")));
        words.extend(self.frozen.then(|| "frozen".to_owned()));
        words.extend(self.spendable_from.map(|height| format!("spendable from height {height}")));
        words.extend(self.reassigned.iter().map(|ReassignmentView { height, satoshis, script, .. }| {
            format!("given to a new owner at height {height}: {satoshis} satoshis under script {script}")
        }));
        words.extend(self.contested.then(|| "with a history: only the sequencer assigns a spender".to_owned()));
        words.join(", ")
    }
}

fn view(meta: TxMeta, master: &Page, outputs: OutputsView) -> TransactionView {
    let bins = master.master.as_deref();
    TransactionView {
        verdict: master.verdict().map(|verdict| match verdict {
            Verdict::Pending => "pending".to_owned(),
            Verdict::Accepted => "accepted".to_owned(),
            Verdict::Conflicting(reason) => format!("conflicting: {}", reason),
        }),
        spending_height: master.spending_height,
        preserve_until: bins.and_then(|bins| bins.preserve_until),
        delete_at_height: master.delete_at_height,
        pruned: match master.state() {
            TxState::Pruned(height) => Some(height),
            _ => None,
        },
        pages: master.extra_pages().saturating_add(1),
        outputs,
        history: None,
        meta,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::offline::tests::open_sample_store,
        record::{Key, Reason, Sequenced, StoredOutput},
        store::testing,
    };

    const PARENT: Txid = Txid([1; 32]);

    async fn tx(store: &StateStore, txid: Txid) -> Result<TransactionView, Failure> {
        TransactionView::read(store, txid, None).await
    }

    async fn text(store: &StateStore, txid: Txid) -> String {
        let mut out = Vec::new();
        tx(store, txid).await.unwrap().write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    async fn json(store: &StateStore, txid: Txid) -> serde_json::Value {
        serde_json::to_value(tx(store, txid).await.unwrap()).unwrap()
    }

    fn child() -> Txid {
        testing::txid(&testing::transaction(&[(testing::outpoint(PARENT, 0), 1_000)], &[600]))
    }

    #[tokio::test]
    async fn a_transaction_is_printed_with_inputs_and_spenders() {
        let (store, _) = open_sample_store().await;
        let shown = text(&store, child()).await;
        assert!(shown.contains("live") && shown.contains("400 satoshis"), "{shown}");
        assert!(shown.contains(&format!("{PARENT}:0")) && shown.contains("unmined since"), "{shown}");
        let shown = text(&store, PARENT).await;
        assert!(shown.contains(&format!("output 0          spent by input 0 of {}", child())), "{shown}");
        assert!(shown.contains("2, of which 1 spent and 0 frozen"), "{shown}");
        assert!(shown.contains("partial") && shown.contains("block 0 at height 100"), "{shown}");
        let json = json(&store, child()).await;
        assert_eq!((&json["fee"], &json["pages"], &json["verdict"]), (&400.into(), &1.into(), &().into()));
        let failure = tx(&store, Txid([9; 32])).await.unwrap_err().to_string();
        assert!(failure.contains("0909"), "{failure}");
    }

    #[tokio::test]
    async fn a_frozen_output_is_printed() {
        let (store, _) = open_sample_store().await;
        store.sequenced(Key::master(PARENT), Sequenced::Freeze { offset: 1 }).await;
        let shown = text(&store, PARENT).await;
        assert!(shown.contains("output 1          frozen, with a history"), "{shown}");
        let json = json(&store, PARENT).await;
        assert_eq!(json["outputs"]["notable"][1]["frozen"], true);
    }

    #[tokio::test]
    async fn a_reassignment_is_printed_with_the_new_amount_and_script() {
        let (store, _) = open_sample_store().await;
        let utxo_hash = TxReader::of(&store)
            .slot(testing::outpoint(PARENT, 1))
            .await
            .unwrap()
            .and_then(|slot| slot.hash())
            .unwrap();
        let reassign = Sequenced::Reassign {
            offset: 1,
            utxo_hash,
            new_utxo_hash: UtxoHash([2; 32]),
            output: StoredOutput { satoshis: 900, script: vec![0x53, 0x99].into() },
            block_height: 300,
            spendable_at: 1_300,
            decided: true,
        };
        store.sequenced(Key::master(PARENT), Sequenced::Freeze { offset: 1 }).await;
        store.sequenced(Key::master(PARENT), reassign).await;
        let shown = text(&store, PARENT).await;
        let words = "spendable from height 1300, given to a new owner at height 300: 900 satoshis under script 5399";
        assert!(shown.contains(words), "{shown}");
        let reassigned = &json(&store, PARENT).await["outputs"]["notable"][1]["reassigned"][0];
        assert_eq!((&reassigned["satoshis"], &reassigned["script"]), (&900.into(), &"5399".into()));
    }

    #[tokio::test]
    async fn a_stub_is_printed_with_its_verdict() {
        let (store, _) = open_sample_store().await;
        let stub = Txid([8; 32]);
        let reason = Reason::ConflictingParent { parent: PARENT };
        store.sequenced(Key::master(stub), Sequenced::MarkConflicting { reason, height: 3 }).await;
        let shown = text(&store, stub).await;
        assert!(shown.contains("stub") && shown.contains(&format!("parent {PARENT} is conflicting")), "{shown}");
    }
}
