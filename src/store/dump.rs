//! What the digest covers, in words: one object a transaction.

use std::fmt;

use serde::Serialize;

use crate::{
    engine::{EngineError, Set},
    record::{Body, MinedIn, Page, Reason, Slot, StoredOutput, TxState, Verdict},
    tx::{Txid, UtxoHash},
};

use super::{
    Store,
    canonical::SideBlocks,
    digest::{PAGES_AT_A_TIME, SurveyError, slots_of_page},
    read::state_name,
    scan::Scan,
    verify::Holder,
};

/// A transaction as the digest sees it: fields that are `false`, absent or empty there are left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Dumped {
    /// Its id.
    pub txid: Txid,
    /// `live`, `creating` or `conflicting`.
    pub state: &'static str,
    /// The transaction in extended format, as it is stored; hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx: Option<String>,
    /// Of a partial transaction: its outputs, gaps `null`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Vec<Option<DumpedOutput>>>,
    /// Coinbase.
    #[serde(skip_serializing_if = "is_false")]
    pub coinbase: bool,
    /// Outputs not spendable yet.
    #[serde(skip_serializing_if = "is_false")]
    pub locked: bool,
    /// Frozen as a whole.
    #[serde(skip_serializing_if = "is_false")]
    pub frozen: bool,
    /// Conflicting.
    #[serde(skip_serializing_if = "is_false")]
    pub conflicting: bool,
    /// Height from which a coinbase is spendable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spending_height: Option<u32>,
    /// Height since which no block of the longest chain lists it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unmined_since: Option<u32>,
    /// Height until which it is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preserve_until: Option<u32>,
    /// Of a transaction that was contested: `pending`, `accepted` or `conflicting`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<&'static str>,
    /// Why it is conflicting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Blocks of the longest chain that list it.
    pub mined: Vec<DumpedMined>,
    /// Over all pages; the place in the list is the `vout`.
    pub slots: Vec<DumpedSlot>,
}

/// An output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DumpedOutput {
    /// Satoshis.
    pub satoshis: u64,
    /// Locking script, hex.
    pub script: String,
}

/// A block that lists a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DumpedMined {
    /// Local id of the block.
    pub block_id: u32,
    /// Its height.
    pub height: u32,
    /// The subtree that lists the transaction.
    pub subtree: u32,
}

/// A slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DumpedSlot {
    /// `nil`, `unspent`, `spent`, `frozen`, or `missing` where its page is.
    pub state: &'static str,
    /// What it commits to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<UtxoHash>,
    /// Who spends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spender: Option<Holder>,
    /// Height from which it is spendable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spendable_from: Option<u32>,
    /// Oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reassignments: Vec<DumpedReassignment>,
}

/// A reassignment of a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DumpedReassignment {
    /// Hash before.
    pub utxo_hash: UtxoHash,
    /// Hash after.
    pub new_utxo_hash: UtxoHash,
    /// Height of the reassignment.
    pub block_height: u32,
    /// The new owner's output.
    pub output: DumpedOutput,
}

impl Store {
    /// Gives `each` every transaction that the digest covers; goes on for as long as it answers `Ok`.
    ///
    /// In the order of the scan: memory and fjall engines scan in the order of the txids' bytes (internal order, not that
    /// of the text); from others the caller sorts what comes. Holds one transaction at a time.
    ///
    /// # Errors
    /// As [`Store::survey`], or what `each` answered.
    pub async fn dump<E: From<SurveyError>>(&self, mut each: impl FnMut(Dumped) -> Result<(), E>) -> Result<(), E> {
        let (side, _) = self.blocks().await.map_err(SurveyError::from)?;
        let mut scan = Scan::new(self, Set::Transactions);
        while let Some(masters) = scan.next_masters().await.map_err(SurveyError::from)? {
            for master in masters {
                if let Some(dumped) = self.dumped(&master, &side).await? {
                    each(dumped)?;
                }
            }
        }
        Ok(())
    }

    /// One transaction as the digest sees it; `None` where it leaves it out.
    ///
    /// # Errors
    /// As [`Store::survey`].
    pub(super) async fn dumped(&self, master: &Page, side: &SideBlocks) -> Result<Option<Dumped>, SurveyError> {
        if matches!(master.state(), TxState::Stub(_) | TxState::Pruned(_)) {
            return Ok(None);
        }
        let Some(slots) = self.dumped_slots(master).await? else { return Ok(None) };
        let Some(bins) = master.master.as_deref() else { return Ok(None) };
        let (tx, outputs) = match self.body_unless_damaged(master).await?.as_deref() {
            Some(Body::Transaction(bytes)) => (Some(hex::encode(bytes)), None),
            Some(Body::Outputs(outputs)) => (None, Some(outputs.iter().map(|one| one.as_ref().map(output)).collect())),
            Some(Body::External(_)) | None => (None, None),
        };
        let mined = side.without(&bins.mined).into_iter();
        let (verdict, reason) = verdict_words(bins.verdict);
        Ok(Some(Dumped {
            txid: master.txid,
            state: state_name(master.state()),
            tx,
            outputs,
            coinbase: master.is_coinbase,
            locked: master.locked,
            frozen: master.frozen,
            conflicting: master.conflicting,
            spending_height: master.spending_height,
            unmined_since: bins.unmined_since,
            preserve_until: bins.preserve_until,
            verdict,
            reason,
            mined: mined
                .map(|MinedIn { block_id, height, subtree }| DumpedMined { block_id, height, subtree })
                .collect(),
            slots,
        }))
    }

    /// The slots of all pages; `None` once the pruner has begun with them.
    async fn dumped_slots(&self, master: &Page) -> Result<Option<Vec<DumpedSlot>>, EngineError> {
        let end = master.master.as_ref().map_or(0, |bins| bins.total_extra_recs).saturating_add(1);
        let mut slots = slots_of(master);
        let mut next = 1;
        while next < end {
            let to = end.min(next.saturating_add(PAGES_AT_A_TIME));
            for (page, number) in self.pages(master.txid, next, to).await?.into_iter().zip(next..) {
                match page {
                    Some(page) if page.pruned.is_some() => return Ok(None),
                    Some(page) => slots.extend(slots_of(&page)),
                    None => {
                        let missing = slots_of_page(master, number, self.settings.utxo_batch_size);
                        slots.extend((0..missing).map(|_| slot("missing", &Slot::Nil)));
                    }
                }
            }
            next = to;
        }
        Ok(Some(slots))
    }
}

fn slots_of(page: &Page) -> Vec<DumpedSlot> {
    let slots = page.utxos.iter().flatten().zip(0..);
    slots
        .map(|(there, offset)| {
            let reassigned = page.reassignments.iter().filter(|entry| entry.offset == offset);
            DumpedSlot {
                spendable_from: page.utxo_spendable_in.get(&offset).copied(),
                reassignments: reassigned.map(reassignment).collect(),
                ..slot(slot_name(there), there)
            }
        })
        .collect()
}

fn slot_name(slot: &Slot) -> &'static str {
    match slot {
        Slot::Nil => "nil",
        Slot::Unspent(_) => "unspent",
        Slot::Spent(..) => "spent",
        Slot::Frozen(_) => "frozen",
    }
}

fn slot(state: &'static str, slot: &Slot) -> DumpedSlot {
    let spender = slot.spender().map(Holder::from);
    DumpedSlot { state, hash: slot.hash(), spender, spendable_from: None, reassignments: Vec::new() }
}

fn reassignment(entry: &crate::record::Reassignment) -> DumpedReassignment {
    DumpedReassignment {
        utxo_hash: entry.utxo_hash,
        new_utxo_hash: entry.new_utxo_hash,
        block_height: entry.block_height,
        output: output(&entry.output),
    }
}

fn output(output: &StoredOutput) -> DumpedOutput {
    DumpedOutput { satoshis: output.satoshis, script: hex::encode(&output.script) }
}

fn verdict_words(verdict: Option<Verdict>) -> (Option<&'static str>, Option<String>) {
    match verdict {
        None => (None, None),
        Some(Verdict::Pending) => (Some("pending"), None),
        Some(Verdict::Accepted) => (Some("accepted"), None),
        Some(Verdict::Conflicting(reason)) => (Some("conflicting"), Some(InWords(reason).to_string())),
    }
}

/// A reason as a person reads it.
pub struct InWords(pub Reason);

impl fmt::Display for InWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Reason::DoubleSpend { input, winner } => write!(f, "what input {input} names is spent by {winner}"),
            Reason::ConflictingParent { parent } => write!(f, "parent {parent} is conflicting"),
            Reason::MissingParent { parent } => write!(f, "parent {parent} is missing"),
            Reason::PrunedParent { parent } => write!(f, "parent {parent} was pruned"),
            Reason::Immature { input } => write!(f, "what input {input} names is an immature coinbase"),
            Reason::Mismatch { input } => write!(f, "what input {input} names differs from the stored output"),
            Reason::NoSuchOutput { input } => write!(f, "what input {input} names does not exist or has no slot"),
            Reason::NotYetSpendable { input } => write!(f, "what input {input} names is not spendable yet"),
            Reason::Frozen { input } => write!(f, "what input {input} names is frozen"),
            Reason::Locked { parent } => write!(f, "parent {parent} is locked"),
            Reason::History { input } => write!(f, "what input {input} names has a history"),
            Reason::Found => f.write_str("it was found contested"),
            Reason::Command => f.write_str("by command"),
            Reason::Disconnected => f.write_str("a coinbase whose block left the longest chain"),
            Reason::Seeded => f.write_str("a partial transaction came first"),
        }
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        record::{Key, Reassignment, Sequenced, SpendingData, build::Start},
        store::testing::*,
    };

    async fn lines(store: &Store) -> Vec<serde_json::Value> {
        let mut lines = Vec::new();
        store
            .dump(|dumped| {
                lines.push(serde_json::to_value(dumped).unwrap());
                Ok::<_, SurveyError>(())
            })
            .await
            .unwrap();
        lines
    }

    #[tokio::test]
    async fn transactions_come_by_txid_and_say_what_the_digest_covers() {
        let store = store(2);
        let bytes = transaction(&[(outpoint(Txid([1; 32]), 0), 1_000)], &[10, 20, 30]);
        let id = txid(&bytes);
        let mut pages = pages(&bytes, &Start::default(), 2);
        pages[1].utxo_spendable_in.insert(0, 700);
        let output = StoredOutput { satoshis: 5, script: script(9) };
        let (utxo_hash, new_utxo_hash) = (UtxoHash([3; 32]), UtxoHash([4; 32]));
        pages[1].reassignments.push(Reassignment { offset: 0, utxo_hash, new_utxo_hash, block_height: 9, output });
        let hash = |page: usize, at: usize| pages[page].utxos.as_ref().unwrap()[at].hash().unwrap().to_string();
        let hashes = [hash(0, 0), hash(0, 1), hash(1, 0)];
        let slots = pages[0].utxos.as_mut().unwrap();
        slots[1] = Slot::Spent(slots[1].hash().unwrap(), SpendingData { txid: Txid([9; 32]), input: 2 });
        for page in pages {
            store.plant(page).await;
        }
        store.plant(seeded(0, 1)).await;
        store.plant(seeded(0xff, 1)).await;
        store.sequenced(Key::master(Txid([5; 32])), Sequenced::MarkContested).await;

        let lines = lines(&store).await;
        let ids: Vec<_> = lines.iter().map(|line| line["txid"].as_str().unwrap().to_owned()).collect();
        assert_eq!(ids, [Txid([0; 32]), id, Txid([0xff; 32])].map(|txid| txid.to_string()));
        let expected = json!({
            "txid": id.to_string(),
            "state": "live",
            "tx": hex::encode(&bytes),
            "unmined_since": 100,
            "mined": [],
            "slots": [
                {"state": "unspent", "hash": hashes[0]},
                {"state": "spent", "hash": hashes[1], "spender": {"txid": Txid([9; 32]).to_string(), "input": 2}},
                {"state": "unspent", "hash": hashes[2], "spendable_from": 700, "reassignments": [{
                    "utxo_hash": "03".repeat(32),
                    "new_utxo_hash": "04".repeat(32),
                    "block_height": 9,
                    "output": {"satoshis": 5, "script": "5109"},
                }]},
            ],
        });
        assert_eq!(lines[1], expected);
        assert_eq!(lines[0]["outputs"], json!([{"satoshis": 1_000, "script": "5100"}]));
        assert_eq!(lines[0]["mined"], json!([{"block_id": 0, "height": 100, "subtree": 0}]));
    }

    #[tokio::test]
    async fn a_loser_says_why_and_a_missing_page_shows() {
        let store = store(2);
        let reason = Reason::DoubleSpend { input: 0, winner: Txid([6; 32]) };
        let start = Start { verdict: Some(Verdict::Conflicting(reason)), ..Start::default() };
        let bytes = transaction(&[(outpoint(Txid([1; 32]), 0), 1_000)], &[10, 20, 30]);
        store.plant(pages(&bytes, &start, 2).remove(0)).await;
        let line = &lines(&store).await[0];
        assert_eq!((&line["conflicting"], &line["verdict"]), (&json!(true), &json!("conflicting")));
        assert!(line["reason"].as_str().unwrap().contains(&Txid([6; 32]).to_string()));
        assert_eq!(line["slots"][2], json!({"state": "missing"}));
    }

    #[tokio::test]
    async fn the_reader_can_stop() {
        let store = store(2);
        for id in 1..4 {
            store.plant(seeded(id, 1)).await;
        }
        let mut seen = 0;
        let stopped = store.dump(|_| {
            seen += 1;
            Err(SurveyError::Engine(EngineError {
                kind: crate::engine::ErrorKind::Fatal,
                operation: "print",
                key: "line".into(),
                message: "enough".into(),
            }))
        });
        assert!(stopped.await.is_err());
        assert_eq!(seen, 1);
    }
}
