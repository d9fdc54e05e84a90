//! The pages that a transaction starts as.

use bytes::Bytes;

use super::{Body, Master, MinedIn, Page, Slot, StoredOutput, Verdict};
use crate::tx::{InvalidTransaction, Network, Transaction, Txid, has_slot, utxo_hash};

/// A coinbase is spendable in a block this much higher than its own.
pub const COINBASE_MATURITY: u32 = 100;

/// What the pages of a transaction depend on besides its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Decides which outputs get a slot.
    pub network: Network,
    /// The block that the transaction can first be in, or is in.
    pub height: u32,
    /// Slots a page (`utxo_batch_size`); at least 1.
    pub batch_size: u32,
    /// Now, ms since the epoch.
    pub created_at: u64,
}

/// How a transaction of the log starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Start {
    /// Its outputs are not spendable yet.
    pub locked: bool,
    /// The body goes to the blob store. It always does where there is more than one page.
    pub external: bool,
    /// It is contested, and conflicting until the sequencer says otherwise; `Pending` where it has not spoken yet.
    pub verdict: Option<Verdict>,
    /// The block that lists it already.
    pub listed: Listed,
}

/// Whether a block lists a transaction that is being created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Listed {
    /// None does.
    #[default]
    No,
    /// One of the longest chain.
    LongestChain(MinedIn),
    /// One of a side chain.
    SideChain(MinedIn),
}

/// An output of a partial transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeededOutput {
    /// Its index.
    pub vout: u32,
    /// Amount and script.
    pub output: StoredOutput,
}

/// A partial transaction: only (some of) its outputs are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seed {
    /// Its id, which cannot be checked.
    pub txid: Txid,
    /// Whether it is a coinbase.
    pub coinbase: bool,
    /// The outputs that are known, in any order.
    pub outputs: Vec<SeededOutput>,
}

/// Why there is no page of a partial transaction.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSeed {
    /// No output is known.
    #[error("a partial transaction without outputs")]
    NoOutputs,
    /// One output comes twice.
    #[error("output {0} is there twice")]
    RepeatedOutput(u32),
    /// It would need more than one page. Also keeps a short message from asking for a huge record.
    #[error("output {vout} does not fit a page of {batch_size} slots")]
    TooWide {
        /// The output.
        vout: u32,
        /// Slots a page.
        batch_size: u32,
    },
}

/// The pages of `transaction`, the master first. `body` holds its bytes: the format that it came in is kept.
///
/// More than one page: each starts with `creating`, unless it is contested: then `conflicting` bars it.
///
/// # Errors
/// An input without previous output, an overspend, a sum that overflows: its fee cannot be told.
pub fn pages_of(
    transaction: &Transaction<'_>,
    body: Bytes,
    txid: Txid,
    setting: &Setting,
    start: &Start,
) -> Result<Vec<Page>, InvalidTransaction> {
    let mut whole = Page::empty(txid);
    whole.version = transaction.version();
    whole.lock_time = transaction.lock_time();
    whole.fee = transaction.fee()?;
    whole.size_in_bytes = transaction.standard_len() as u64;
    whole.extended_size = transaction.extended_len() as u64;
    whole.locked = start.locked;
    whole.conflicting = start.verdict.is_some();
    set_coinbase(&mut whole, transaction.is_coinbase(), setting.height);

    let slots = slots_of(transaction, &txid, setting);
    let extra = extra_pages(slots.len(), setting.batch_size);
    let external = start.external || extra > 0;
    let (mined, unmined_since) = match start.listed {
        Listed::No => (vec![], Some(setting.height)),
        Listed::LongestChain(mined_in) => (vec![mined_in], None),
        Listed::SideChain(mined_in) => (vec![mined_in], Some(setting.height)),
    };
    let master = Master {
        total_utxos: slots.len() as u32,
        total_extra_recs: extra,
        mined,
        unmined_since,
        body: Some(if external { Body::External } else { Body::Transaction(body) }),
        verdict: start.verdict,
        ..empty_master(setting)
    };
    if extra > 0 && start.verdict.is_none() {
        whole.creating_at = Some(setting.created_at);
    }
    Ok(split(whole, slots, master, setting.batch_size))
}

/// The one page of a partial transaction, mined on the longest chain in block 0 (before this store began).
///
/// # Errors
/// See [`InvalidSeed`].
pub fn seeded_page(seed: &Seed, setting: &Setting) -> Result<Page, InvalidSeed> {
    let greatest = seed.outputs.iter().map(|output| output.vout).max().ok_or(InvalidSeed::NoOutputs)?;
    if greatest >= setting.batch_size {
        return Err(InvalidSeed::TooWide { vout: greatest, batch_size: setting.batch_size });
    }
    let mut outputs = vec![None; greatest as usize + 1];
    let mut slots = vec![Slot::Nil; greatest as usize + 1];
    for SeededOutput { vout, output } in &seed.outputs {
        if outputs[*vout as usize].replace(output.clone()).is_some() {
            return Err(InvalidSeed::RepeatedOutput(*vout));
        }
        slots[*vout as usize] = slot_of(&seed.txid, *vout, &output.script, output.satoshis, setting);
    }
    let mut page = Page::empty(seed.txid);
    set_coinbase(&mut page, seed.coinbase, setting.height);
    page.record_utxos = count(&slots);
    page.master = Some(Box::new(Master {
        total_utxos: slots.len() as u32,
        mined: vec![MinedIn { block_id: 0, height: setting.height, subtree: 0 }],
        body: Some(Body::Outputs(outputs)),
        ..empty_master(setting)
    }));
    page.utxos = Some(slots);
    Ok(page)
}

fn slots_of(transaction: &Transaction<'_>, txid: &Txid, setting: &Setting) -> Vec<Slot> {
    let outputs = transaction.outputs().zip(0..);
    outputs.map(|(output, vout)| slot_of(txid, vout, output.script, output.satoshis, setting)).collect()
}

fn slot_of(txid: &Txid, vout: u32, script: &[u8], satoshis: u64, setting: &Setting) -> Slot {
    if has_slot(script, setting.height, setting.network) {
        Slot::Unspent(utxo_hash(txid, vout, script, satoshis))
    } else {
        Slot::Nil
    }
}

fn extra_pages(slots: usize, batch_size: u32) -> u32 {
    (slots.div_ceil(batch_size.max(1) as usize) as u32).saturating_sub(1)
}

fn split(whole: Page, slots: Vec<Slot>, master: Master, batch_size: u32) -> Vec<Page> {
    let page = |number: usize, slots: Vec<Slot>| Page {
        number: number as u32,
        record_utxos: count(&slots),
        utxos: Some(slots),
        ..whole.clone()
    };
    let mut pages: Vec<Page> = if master.total_extra_recs == 0 {
        vec![page(0, slots)]
    } else {
        let chunks = slots.chunks(batch_size.max(1) as usize);
        chunks.enumerate().map(|(number, slots)| page(number, slots.to_vec())).collect()
    };
    pages[0].master = Some(Box::new(master));
    pages
}

fn count(slots: &[Slot]) -> u32 {
    slots.iter().filter(|slot| **slot != Slot::Nil).count() as u32
}

fn set_coinbase(page: &mut Page, is_coinbase: bool, height: u32) {
    page.is_coinbase = is_coinbase;
    page.spending_height = is_coinbase.then(|| height.saturating_add(COINBASE_MATURITY));
}

fn empty_master(setting: &Setting) -> Master {
    Master { created_at: setting.created_at, ..Master::default() }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::tx::{Outpoint, Output, TransactionBuilder, UtxoHash};

    fn setting(batch_size: u32) -> Setting {
        Setting { network: Network::Main, height: 1_000, batch_size, created_at: 5 }
    }

    fn build(bytes: &[u8], setting: &Setting, start: &Start) -> Vec<Page> {
        let transaction = Transaction::parse(bytes).unwrap();
        let body = Bytes::copy_from_slice(bytes);
        pages_of(&transaction, body, transaction.txid(), setting, start).unwrap()
    }

    fn payment(outputs: usize) -> Vec<u8> {
        let previous = Output { satoshis: 5_000, script: &[0x51] };
        let builder = TransactionBuilder::default().input(
            Outpoint { txid: Txid([7; 32]), vout: 1 },
            &[0x30],
            u32::MAX,
            Some(previous),
        );
        (0..outputs).fold(builder, |builder, n| builder.output(n as u64, &[0x51])).extended()
    }

    fn coinbase() -> Vec<u8> {
        TransactionBuilder::default().input(Outpoint::NULL, &[1], u32::MAX, None).output(50, &[0x51]).standard()
    }

    /// Blobs of a bin that is a list; nil is empty.
    fn blobs(bin: &Value) -> Vec<Option<UtxoHash>> {
        let list = bin["list"].as_array().unwrap();
        list.iter().map(|slot| slot["blob"].as_str().map(|hash| hash.parse().unwrap())).collect()
    }

    #[test]
    fn pages_are_what_the_reference_wrote() {
        let reference: Value = serde_json::from_str(include_str!("../../tests/data/reference-records.json")).unwrap();
        let mut compared = 0;
        for step in reference["steps"].as_array().unwrap() {
            let call = step["call"].as_str().unwrap();
            let Some(call) = call.strip_prefix("Create(") else { continue };
            let name = call.split([',', ')']).next().unwrap();
            let bytes = hex::decode(reference["transactions"][name]["extended"].as_str().unwrap()).unwrap();
            let listed = MinedIn { block_id: 7, height: 1_001, subtree: 0 };
            let start = Start {
                locked: call.contains("locked"),
                external: false,
                verdict: call.contains("conflicting").then_some(Verdict::Pending),
                listed: if call.contains("mined") { Listed::LongestChain(listed) } else { Listed::No },
            };
            let height = call.split("height ").nth(1).unwrap().split([',', ')']).next().unwrap().parse().unwrap();
            let pages = build(&bytes, &Setting { height, ..setting(5) }, &start);
            let records = step["records"].as_array().unwrap();
            let mut records: Vec<&Value> = records.iter().filter(|record| record["tx"] == name).collect();
            records.sort_by_key(|record| record["record"].as_u64());
            assert_eq!(pages.len(), records.len(), "{call}");
            for (page, record) in pages.iter().zip(records) {
                compare(page, &record["bins"], call);
                compared += 1;
            }
        }
        assert_eq!(compared, 9, "records of created transactions");
    }

    fn compare(page: &Page, bins: &Value, call: &str) {
        let int = |name: &str| bins[name]["int"].as_u64();
        let flag = |name: &str| bins[name]["bool"].as_bool().unwrap_or(false);
        let hashes: Vec<Option<UtxoHash>> = page.utxos.iter().flatten().map(Slot::hash).collect();
        assert_eq!(hashes, blobs(&bins["utxos"]), "{call}");
        let numbers = [
            ("fee", page.fee),
            ("sizeInBytes", page.size_in_bytes),
            ("extendedSize", page.extended_size),
            ("version", page.version.into()),
            ("locktime", page.lock_time.into()),
            ("recordUtxos", page.record_utxos.into()),
            ("spentUtxos", page.spent_utxos.into()),
        ];
        for (name, number) in numbers {
            assert_eq!(Some(number), int(name), "{name} of {call}");
        }
        let flags = [("isCoinbase", page.is_coinbase), ("locked", page.locked), ("conflicting", page.conflicting)];
        for (name, set) in flags {
            assert_eq!(set, flag(name), "{name} of {call}");
        }
        // The reference's test network has a maturity of 1.
        let spending_height = int("spendingHeight").map(|height| height as u32 - 1 + COINBASE_MATURITY);
        assert_eq!(page.spending_height, spending_height, "{call}");
        let Some(master) = &page.master else {
            return assert_eq!(int("totalUtxos"), None, "{call}");
        };
        assert_eq!(Some(u64::from(master.total_utxos)), int("totalUtxos"), "{call}");
        assert_eq!(Some(u64::from(master.total_extra_recs)), int("totalExtraRecs"), "{call}");
        assert_eq!(master.unmined_since.map(u64::from), int("unminedSince"), "{call}");
        assert_eq!(master.mined.len(), bins["blockIDs"]["list"].as_array().unwrap().len(), "{call}");
        assert_eq!(master.body == Some(Body::External), flag("external"), "{call}");
    }

    #[test]
    fn one_page_has_the_body_and_is_live() {
        let bytes = payment(3);
        let pages = build(&bytes, &setting(3), &Start::default());
        let [page] = &pages[..] else { panic!() };
        assert_eq!(page.master.as_ref().unwrap().body, Some(Body::Transaction(bytes.into())));
        assert_eq!(page.state(), crate::record::TxState::Live);
    }

    #[test]
    fn several_pages_are_in_creation_and_their_body_is_elsewhere() {
        let pages = build(&payment(7), &setting(3), &Start::default());
        let sizes: Vec<usize> = pages.iter().map(|page| page.utxos.as_ref().unwrap().len()).collect();
        assert_eq!(sizes, [3, 3, 1]);
        for (number, page) in pages.iter().enumerate() {
            assert_eq!((page.number, page.creating_at), (number as u32, Some(5)));
            assert_eq!(page.master.is_some(), number == 0);
        }
        let master = pages[0].master.as_ref().unwrap();
        assert_eq!((master.total_utxos, master.total_extra_recs), (7, 2));
        assert_eq!(master.body, Some(Body::External));
    }

    #[test]
    fn a_slot_commits_to_the_index_within_the_transaction() {
        let (one, many) =
            (build(&payment(7), &setting(7), &Start::default()), build(&payment(7), &setting(3), &Start::default()));
        let slots = |pages: &[Page]| pages.iter().flat_map(|page| page.utxos.clone().unwrap()).collect::<Vec<_>>();
        assert_eq!(slots(&one), slots(&many));
    }

    #[test]
    fn a_contested_transaction_is_conflicting_on_every_page() {
        let start = Start { verdict: Some(Verdict::Pending), ..Start::default() };
        for page in build(&payment(7), &setting(3), &start) {
            assert!(page.conflicting && page.creating_at.is_none());
        }
    }

    #[test]
    fn a_coinbase_matures_and_costs_nothing() {
        let mined_in = MinedIn { block_id: 3, height: 1_000, subtree: 0 };
        for (listed, unmined_since) in
            [(Listed::LongestChain(mined_in), None), (Listed::SideChain(mined_in), Some(1_000))]
        {
            let pages = build(&coinbase(), &setting(3), &Start { listed, ..Start::default() });
            let page = &pages[0];
            assert_eq!((page.is_coinbase, page.spending_height, page.fee), (true, Some(1_100), 0));
            let master = page.master.as_ref().unwrap();
            assert_eq!((&master.mined, master.unmined_since), (&vec![mined_in], unmined_since));
        }
    }

    #[test]
    fn a_transaction_whose_fee_cannot_be_told_has_no_pages() {
        let previous = Output { satoshis: 1, script: &[] };
        let outpoint = Outpoint { txid: Txid([7; 32]), vout: 1 };
        let bytes = TransactionBuilder::default().input(outpoint, &[], 0, Some(previous)).output(2, &[]).extended();
        let transaction = Transaction::parse(&bytes).unwrap();
        let result = pages_of(&transaction, Bytes::new(), Txid([1; 32]), &setting(3), &Start::default());
        assert_eq!(result, Err(InvalidTransaction::Overspend { inputs: 1, outputs: 2 }));
    }

    fn seed(vouts: &[u32]) -> Seed {
        let output = |vout: &u32| SeededOutput {
            vout: *vout,
            output: StoredOutput { satoshis: 100 + u64::from(*vout), script: Bytes::from_static(&[0x51]) },
        };
        Seed { txid: Txid([7; 32]), coinbase: true, outputs: vouts.iter().map(output).collect() }
    }

    #[test]
    fn a_seed_has_gaps_and_is_mined() {
        let page = seeded_page(&seed(&[3, 1]), &setting(4)).unwrap();
        let there: Vec<bool> = page.utxos.iter().flatten().map(|slot| slot.hash().is_some()).collect();
        assert_eq!(there, [false, true, false, true]);
        assert_eq!((page.record_utxos, page.spending_height, page.conflicting), (2, Some(1_100), false));
        assert_eq!(page.utxos.as_ref().unwrap()[3], Slot::Unspent(utxo_hash(&page.txid, 3, &[0x51], 103)));
        let master = page.master.as_ref().unwrap();
        assert_eq!(master.mined, [MinedIn { block_id: 0, height: 1_000, subtree: 0 }]);
        assert_eq!((master.unmined_since, master.total_utxos), (None, 4));
        let Some(Body::Outputs(outputs)) = &master.body else { panic!() };
        assert_eq!(outputs.iter().map(Option::is_some).collect::<Vec<_>>(), there);
    }

    #[test]
    fn a_seeded_data_output_gets_no_slot() {
        let mut seed = seed(&[0, 1]);
        seed.outputs[1].output.script = Bytes::from_static(&[0x00, 0x6a]);
        let page = seeded_page(&seed, &setting(4)).unwrap();
        assert_eq!((page.record_utxos, page.utxos.as_ref().unwrap()[1]), (1, Slot::Nil));
    }

    #[test]
    fn a_seed_that_cannot_be_is_refused_before_anything_large_is_made() {
        assert_eq!(seeded_page(&seed(&[]), &setting(4)), Err(InvalidSeed::NoOutputs));
        assert_eq!(seeded_page(&seed(&[1, 1]), &setting(4)), Err(InvalidSeed::RepeatedOutput(1)));
        let too_wide = InvalidSeed::TooWide { vout: u32::MAX, batch_size: 4 };
        assert_eq!(seeded_page(&seed(&[0, u32::MAX]), &setting(4)), Err(too_wide));
        assert_eq!(seeded_page(&seed(&[4]), &setting(4)), Err(InvalidSeed::TooWide { vout: 4, batch_size: 4 }));
    }
}
