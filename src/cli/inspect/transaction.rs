//! `utxo-store inspect tx`: everything that is known of a transaction.

use std::io::{self, Write};

use clap::Args;
use serde::Serialize;

use super::{
    super::{CommandResult, Failure, offline::StoreArgs, opening},
    history::{self, Event},
    line, optional,
};
use crate::{
    engine::EngineError,
    record::{Page, Slot, TxState, Verdict},
    store::{Store, dump::InWords, read::TxMeta, verify::Holder},
    tx::{Txid, UtxoHash},
};

const AFTER_HELP: &str = "\
With --history the chain and decisions topics of the configuration are read from their beginnings: who contested it and why, what was decided
on it and on whom it lost to, and which commands named it.

Example: utxo-store inspect tx --store fjall:///var/lib/utxo-store \\
    0e3e2357e806b6cdb1f70b54c3a3a17b6714ee1f0e68bebb44a74b1efd512098";

/// Outputs that are shown one by one; JSON has all.
const SHOWN: usize = 100;
/// Pages that are in memory at once.
const PAGES: u32 = 8;

/// Arguments of `inspect tx`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct TxArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// The transaction's id
    txid: Txid,
    /// Also what the log says of it
    #[arg(long)]
    history: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A transaction as it is shown.
#[derive(Debug, Serialize)]
pub struct Shown {
    #[serde(flatten)]
    meta: TxMeta,
    /// `pending`, `accepted`, or why it is conflicting; `None` where it was never contested.
    verdict: Option<String>,
    spending_height: Option<u32>,
    preserve_until: Option<u32>,
    delete_at_height: Option<u32>,
    pruned: Option<u32>,
    pages: u32,
    outputs: Outputs,
    /// In the order of the chain; `None`: not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<Vec<Event>>,
}

/// Its outputs, over all pages.
#[derive(Debug, Default, Serialize)]
struct Outputs {
    /// Those that can be spent at all.
    count: u64,
    spent: u64,
    frozen: u64,
    /// Those with something to tell.
    told: Vec<Told>,
}

/// An output that is not simply free, or has a history.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Told {
    vout: u32,
    spent_by: Option<Holder>,
    frozen: bool,
    /// Its spender was pruned.
    spender_pruned: bool,
    /// The sequencer has touched it: only the sequencer gives it away.
    contested: bool,
    spendable_from: Option<u32>,
    /// Each time that it was given to a new owner.
    reassigned: Vec<Reassigned>,
}

/// An output was given to a new owner.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Reassigned {
    height: u32,
    from: UtxoHash,
    to: UtxoHash,
    /// What the new owner's spend is checked against.
    satoshis: u64,
    script: String,
}

impl TxArgs {
    pub(super) async fn run(&self, out: &mut impl Write) -> CommandResult {
        let (store, _) = self.store.open().await?;
        let history = if self.history {
            let config = self.store.config.load()?;
            let broker = opening::broker(&config).await?;
            Some(history::of(broker.as_ref(), &config.kafka.topics, self.txid).await?)
        } else {
            None
        };
        let shown = Shown::read(&store, self.txid, history).await?;
        if self.json {
            serde_json::to_writer(&mut *out, &shown)?;
            writeln!(out)?;
        } else {
            shown.write(out)?;
        }
        Ok(())
    }
}

impl Shown {
    /// What the store has of a transaction, and the log, where its history was read.
    ///
    /// # Errors
    /// The store has none, or does not answer.
    pub async fn read(store: &Store, txid: Txid, history: Option<Vec<Event>>) -> Result<Self, Failure> {
        let missing = || Failure::new(format!("the store has no transaction {txid}"));
        let meta = store.get_meta(txid).await?.ok_or_else(missing)?;
        let master = store.master(txid).await?.ok_or_else(missing)?;
        let outputs = outputs_of(store, &master).await?;
        Ok(Shown { history, ..shown(meta, &master, outputs) })
    }

    /// Writes it as text.
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
        let Outputs { count, spent, frozen, told } = &self.outputs;
        line(out, "outputs", format!("{count}, of which {spent} spent and {frozen} frozen"))?;
        for told in told.iter().take(SHOWN) {
            line(out, &format!("output {}", told.vout), told.in_words())?;
        }
        if told.len() > SHOWN {
            line(out, "", format!("and {} more: --json has them", told.len() - SHOWN))?;
        }
        for child in &meta.conflicting_children {
            line(out, "conflicting child", child)?;
        }
        for event in self.history.iter().flatten() {
            writeln!(out, "  {event}")?;
        }
        match &self.history {
            Some(history) if history.is_empty() => {
                line(out, "history", "nothing was contested, decided or asked of it")
            }
            _ => Ok(()),
        }
    }
}

async fn outputs_of(store: &Store, master: &Page) -> Result<Outputs, EngineError> {
    let mut outputs = Outputs::default();
    let count = master.master.as_deref().map_or(0, |bins| bins.total_extra_recs).saturating_add(1);
    let size = store.settings.utxo_batch_size;
    for from in (0..count).step_by(PAGES as usize) {
        let pages = store.pages(master.txid, from, (from + PAGES).min(count)).await?;
        for (page, number) in pages.iter().zip(from..) {
            page.iter().for_each(|page| outputs.add(page, number.saturating_mul(size)));
        }
    }
    Ok(outputs)
}

impl Outputs {
    /// Adds a page whose first output is this one.
    fn add(&mut self, page: &Page, first: u32) {
        for (slot, offset) in page.utxos.iter().flatten().zip(0..).filter(|(slot, _)| **slot != Slot::Nil) {
            self.count += 1;
            self.spent += u64::from(slot.spender().is_some());
            self.frozen += u64::from(matches!(slot, Slot::Frozen(_)));
            let reassigned = page.reassignments.iter().filter(|entry| entry.offset == offset).map(|entry| Reassigned {
                height: entry.block_height,
                from: entry.utxo_hash,
                to: entry.new_utxo_hash,
                satoshis: entry.output.satoshis,
                script: hex::encode(&entry.output.script),
            });
            let told = Told {
                vout: first.saturating_add(offset),
                spent_by: slot.spender().map(Holder::from),
                frozen: matches!(slot, Slot::Frozen(_)),
                spender_pruned: page.pruned_spenders.contains(&offset),
                contested: page.contested.contains(&offset),
                spendable_from: page.utxo_spendable_in.get(&offset).copied(),
                reassigned: reassigned.collect(),
            };
            if told.has_something_to_tell() {
                self.told.push(told);
            }
        }
    }
}

impl Told {
    fn has_something_to_tell(&self) -> bool {
        let Told { spent_by, frozen, contested, spendable_from, reassigned, .. } = self;
        spent_by.is_some() || *frozen || *contested || spendable_from.is_some() || !reassigned.is_empty()
    }

    fn in_words(&self) -> String {
        let mut words = Vec::new();
        let pruned = if self.spender_pruned { " (pruned)" } else { "" };
        words.extend(self.spent_by.as_ref().map(|by| format!("spent by {by}{pruned}")));
        words.extend(self.frozen.then(|| "frozen".to_owned()));
        words.extend(self.spendable_from.map(|height| format!("spendable from height {height}")));
        words.extend(self.reassigned.iter().map(|Reassigned { height, satoshis, script, .. }| {
            format!("given to a new owner at height {height}: {satoshis} satoshis under script {script}")
        }));
        words.extend(self.contested.then(|| "it has a history: only the sequencer gives it away".to_owned()));
        words.join(", ")
    }
}

fn shown(meta: TxMeta, master: &Page, outputs: Outputs) -> Shown {
    let bins = master.master.as_deref();
    Shown {
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
        outputs,
        history: None,
        meta,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::offline::tests::opened,
        record::{Key, Reason, Sequenced, StoredOutput},
        store::testing,
    };

    const PARENT: Txid = Txid([1; 32]);

    async fn tx(store: &Store, txid: Txid) -> Result<Shown, Failure> {
        Shown::read(store, txid, None).await
    }

    async fn text(store: &Store, txid: Txid) -> String {
        let mut out = Vec::new();
        tx(store, txid).await.unwrap().write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    async fn json(store: &Store, txid: Txid) -> serde_json::Value {
        serde_json::to_value(tx(store, txid).await.unwrap()).unwrap()
    }

    fn child() -> Txid {
        testing::txid(&testing::transaction(&[(testing::outpoint(PARENT, 0), 1_000)], &[600]))
    }

    #[tokio::test]
    async fn a_transaction_with_what_it_spends_and_who_spends_it() {
        let (store, _) = opened().await;
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
    async fn bars_on_an_output_are_told() {
        let (store, _) = opened().await;
        store.sequenced(Key::master(PARENT), Sequenced::Freeze { offset: 1 }).await;
        let shown = text(&store, PARENT).await;
        assert!(shown.contains("output 1          frozen, it has a history"), "{shown}");
        let json = json(&store, PARENT).await;
        assert_eq!(json["outputs"]["told"][1]["frozen"], true);
    }

    #[tokio::test]
    async fn a_new_owner_is_told_with_what_the_output_holds_now() {
        let (store, _) = opened().await;
        let utxo_hash = store.slot(testing::outpoint(PARENT, 1)).await.unwrap().and_then(|slot| slot.hash()).unwrap();
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
        let told = &json(&store, PARENT).await["outputs"]["told"][1]["reassigned"][0];
        assert_eq!((&told["satoshis"], &told["script"]), (&900.into(), &"5399".into()));
    }

    #[tokio::test]
    async fn a_stub_tells_its_verdict() {
        let (store, _) = opened().await;
        let stub = Txid([8; 32]);
        let reason = Reason::ConflictingParent { parent: PARENT };
        store.sequenced(Key::master(stub), Sequenced::MarkConflicting { reason, height: 3 }).await;
        let shown = text(&store, stub).await;
        assert!(shown.contains("stub") && shown.contains(&format!("parent {PARENT} is conflicting")), "{shown}");
    }
}
