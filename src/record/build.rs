//! The pages that a transaction starts as: its master, and the others one at a time.

mod others;

use std::collections::BTreeSet;

use bytes::Bytes;

pub use others::OtherPages;

use super::{Body, Master, MinedIn, Page, Slot, StoredOutput, Verdict};
use crate::tx::{InvalidTransaction, MAX_MONEY, Network, Output, Transaction, Txid, UtxoHash, has_slot, utxo_hash};

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
    /// It is contested, and conflicting until the sequencer says otherwise; `Pending` where it has not spoken yet.
    pub verdict: Option<Verdict>,
    /// The block that lists it already.
    pub listed: Listed,
}

/// Which bodies are kept with their masters (`semantics.md`, "External"); the others go to the blob store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Inline {
    /// All of them: there is no blob store.
    #[default]
    All,
    /// Those of one page and at most so many bytes: of a transaction in extended format, or of the outputs of a partial one.
    UpTo(u64),
}

impl Inline {
    /// Whether a transaction of so many other pages keeps its body with its master.
    pub fn takes(self, body: &Body, others: u32) -> bool {
        match self {
            Inline::All => true,
            Inline::UpTo(limit) => others == 0 && body.size() <= limit,
        }
    }
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
    /// The outputs add up to more satoshis than there can be.
    #[error("the outputs hold more than the 2,100,000,000,000,000 satoshis that there can be")]
    TooMuchMoney,
    /// Above what a blob of outputs can say.
    #[error("height {0} is not below 2,147,483,648")]
    TooHigh(u32),
    /// Keeps a short message from asking for gigabytes of gaps.
    #[error("output {vout} is beyond the first {MOST_SEEDED}, of which a partial transaction may name some")]
    TooWide {
        /// The output.
        vout: u32,
    },
}

/// Every height that an event says is below it: something may be added to it, and in a blob it shares its bytes with a flag.
pub const HEIGHT_LIMIT: u32 = 1 << 31;

/// Outputs that a partial transaction may have, gaps and all.
pub const MOST_SEEDED: u32 = 1 << 20;

/// A transaction as the store will hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pages {
    /// Page 0. Live, or `creating` where there are others, or contested. It has its body.
    pub master: Page,
    /// The others, where there are any; or where the body is kept apart, which takes several writes, too: then perhaps none.
    pub others: Option<OtherPages>,
}

impl Pages {
    /// The same for a store that keeps these bodies with their masters.
    pub fn keeping(self, inline: Inline, setting: &Setting) -> Self {
        let is_apart = self.master.body().is_some_and(|body| !inline.takes(body, 0));
        let others = self.others.or_else(|| is_apart.then(|| OtherPages::none(self.master.txid, setting)));
        Pages { others, ..self }
    }

    /// All of them at once, the others `creating` since then: for transactions that are known to be small.
    pub fn all(self, creating_at: u64) -> Vec<Page> {
        let others =
            self.others.iter().flat_map(|others| others.numbers().map(|number| others.page(number, creating_at)));
        let others: Vec<Page> = others.collect();
        std::iter::once(self.master).chain(others).collect()
    }
}

/// The pages of `transaction`. `body` holds its bytes: the format that it came in is kept.
///
/// More than one page: each starts with `creating`, but for the master of one that is contested: its verdict bars the others.
///
/// # Errors
/// An input without previous output, an overspend, a sum that overflows: its fee cannot be told.
pub fn pages_of(
    transaction: &Transaction<'_>,
    body: Bytes,
    txid: Txid,
    setting: &Setting,
    start: &Start,
) -> Result<Pages, InvalidTransaction> {
    let mut whole = Page::empty(txid);
    whole.version = transaction.version();
    whole.lock_time = transaction.lock_time();
    whole.fee = transaction.fee()?;
    whole.size_in_bytes = transaction.standard_len() as u64;
    whole.extended_size = transaction.extended_len() as u64;
    whole.locked = start.locked;
    set_coinbase(&mut whole, transaction.is_coinbase(), setting.height);

    let mut outputs = transaction.outputs();
    let first = outputs.by_ref().take(setting.slots_a_page()).zip(0..);
    let slots = first.map(|(output, vout)| slot_of(&txid, vout, output.script, output.satoshis, setting)).collect();
    let (others, spent_pages) = match outputs.len() {
        0 => (None, BTreeSet::new()),
        _ => OtherPages::of_outputs(whole.clone(), body.clone(), outputs, setting),
    };
    let (mined, unmined_since) = match start.listed {
        Listed::No => (vec![], Some(setting.height)),
        Listed::LongestChain(mined_in) => (vec![mined_in], None),
        Listed::SideChain(mined_in) => (vec![mined_in], Some(setting.height)),
    };
    let master = Master {
        total_utxos: transaction.output_count() as u32,
        mined,
        unmined_since,
        body: Some(Body::Transaction(body)),
        verdict: start.verdict,
        spent_pages,
        ..empty_master(setting)
    };
    Ok(Pages { master: finish(whole, slots, master, others.as_ref(), setting), others })
}

/// The pages of a partial transaction, mined on the longest chain in block 0 (before this store began).
///
/// # Errors
/// See [`InvalidSeed`].
pub fn seeded_pages(seed: &Seed, setting: &Setting) -> Result<Pages, InvalidSeed> {
    let greatest = seed.outputs.iter().map(|output| output.vout).max().ok_or(InvalidSeed::NoOutputs)?;
    if greatest >= MOST_SEEDED {
        return Err(InvalidSeed::TooWide { vout: greatest });
    }
    if setting.height >= HEIGHT_LIMIT {
        return Err(InvalidSeed::TooHigh(setting.height));
    }
    let sum = seed.outputs.iter().try_fold(0_u64, |sum, output| sum.checked_add(output.output.satoshis));
    if sum.is_none_or(|sum| sum > MAX_MONEY) {
        return Err(InvalidSeed::TooMuchMoney);
    }
    let mut outputs = vec![None; greatest as usize + 1];
    for SeededOutput { vout, output } in &seed.outputs {
        if outputs[*vout as usize].replace(output.clone()).is_some() {
            return Err(InvalidSeed::RepeatedOutput(*vout));
        }
    }
    let mut whole = Page::empty(seed.txid);
    set_coinbase(&mut whole, seed.coinbase, setting.height);
    let slots = others::slots_of_partial(&seed.txid, &outputs, 0, setting);
    let (others, spent_pages) = match outputs.len() <= setting.slots_a_page() {
        true => (None, BTreeSet::new()),
        false => OtherPages::of_partial(whole.clone(), outputs.clone(), setting),
    };
    let master = Master {
        total_utxos: outputs.len() as u32,
        mined: vec![MinedIn { block_id: 0, height: setting.height, subtree: 0 }],
        body: Some(Body::Outputs(outputs)),
        spent_pages,
        ..empty_master(setting)
    };
    Ok(Pages { master: finish(whole, slots, master, others.as_ref(), setting), others })
}

fn finish(whole: Page, slots: Vec<Slot>, master: Master, others: Option<&OtherPages>, setting: &Setting) -> Page {
    let contested = master.verdict.is_some();
    Page {
        conflicting: contested,
        creating_at: (others.is_some() && !contested).then_some(setting.created_at),
        record_utxos: count(&slots),
        utxos: Some(slots),
        master: Some(Box::new(Master { total_extra_recs: others.map_or(0, OtherPages::count), ..master })),
        ..whole
    }
}

impl Setting {
    fn slots_a_page(&self) -> usize {
        self.batch_size.max(1) as usize
    }
}

fn slot_of(txid: &Txid, vout: u32, script: &[u8], satoshis: u64, setting: &Setting) -> Slot {
    if has_slot(txid, script, setting.height, setting.network) {
        Slot::Unspent(utxo_hash(txid, vout, script, satoshis))
    } else {
        Slot::Nil
    }
}

/// The slots of a transaction's outputs in a block of this height, by index, with the hash of each.
pub fn added_slots<'a>(
    txid: Txid,
    outputs: impl Iterator<Item = Option<Output<'a>>>,
    network: Network,
    height: u32,
) -> Vec<(u32, UtxoHash)> {
    let slot = |(output, vout): (Option<Output<'_>>, u32)| {
        let output = output.filter(|output| has_slot(&txid, output.script, height, network))?;
        Some((vout, utxo_hash(&txid, vout, output.script, output.satoshis)))
    };
    outputs.zip(0..).filter_map(slot).collect()
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
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::tx::{Outpoint, TransactionBuilder};

    fn setting(batch_size: u32) -> Setting {
        Setting { network: Network::Main, height: 1_000, batch_size, created_at: 5 }
    }

    fn build(bytes: &[u8], setting: &Setting, start: &Start) -> Vec<Page> {
        let transaction = Transaction::parse(bytes).unwrap();
        let body = Bytes::copy_from_slice(bytes);
        pages_of(&transaction, body, transaction.txid(), setting, start).unwrap().all(5)
    }

    fn builder() -> TransactionBuilder {
        let previous = Output { satoshis: 5_000, script: &[0x51] };
        let outpoint = Outpoint { txid: Txid([7; 32]), vout: 1 };
        TransactionBuilder::default().input(outpoint, &[0x30], u32::MAX, Some(previous))
    }

    fn payment(outputs: usize) -> Vec<u8> {
        (0..outputs).fold(builder(), |builder, n| builder.output(n as u64, &[0x51])).extended()
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
            let records = step["records"].as_array().unwrap();
            let mut records: Vec<&Value> = records.iter().filter(|record| record["tx"] == name).collect();
            records.sort_by_key(|record| record["record"].as_u64());
            let start = Start {
                locked: call.contains("locked"),
                verdict: call.contains("conflicting").then_some(Verdict::Pending),
                listed: if call.contains("mined") { Listed::LongestChain(listed) } else { Listed::No },
            };
            let height = call.split("height ").nth(1).unwrap().split([',', ')']).next().unwrap().parse().unwrap();
            let pages = build(&bytes, &Setting { height, ..setting(5) }, &start);
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
        let inline = Inline::UpTo(1 << 20).takes(page.body().unwrap(), master.total_extra_recs);
        assert_eq!(!inline, flag("external"), "{call}");
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
    fn several_pages_are_in_creation() {
        let pages = build(&payment(7), &setting(3), &Start::default());
        let sizes: Vec<usize> = pages.iter().map(|page| page.utxos.as_ref().unwrap().len()).collect();
        assert_eq!(sizes, [3, 3, 1]);
        for (number, page) in pages.iter().enumerate() {
            assert_eq!((page.number, page.creating_at), (number as u32, Some(5)));
            assert_eq!(page.master.is_some(), number == 0);
        }
        let master = pages[0].master.as_ref().unwrap();
        assert_eq!((master.total_utxos, master.total_extra_recs), (7, 2));
    }

    #[test]
    fn a_body_is_kept_apart_by_its_size_and_by_its_pages() {
        let bytes = payment(3);
        let (transaction, size) = (Transaction::parse(&bytes).unwrap(), bytes.len() as u64);
        let pages = |batch_size, inline| {
            let (body, setting) = (Bytes::copy_from_slice(&bytes), setting(batch_size));
            let pages = pages_of(&transaction, body, transaction.txid(), &setting, &Start::default()).unwrap();
            let others = pages.keeping(inline, &setting).others;
            others.map(|others| others.count())
        };
        assert_eq!(
            [Inline::All, Inline::UpTo(size), Inline::UpTo(size - 1)].map(|inline| pages(3, inline)),
            [None, None, Some(0)]
        );
        assert_eq!([Inline::All, Inline::UpTo(size)].map(|inline| pages(2, inline)), [Some(1), Some(1)]);
        let body = Body::Transaction(bytes.into());
        assert_eq!([0, 1].map(|others| Inline::UpTo(size).takes(&body, others)), [true, false]);
        assert_eq!([0, 1].map(|others| Inline::All.takes(&body, others)), [true, true]);
    }

    proptest! {
        /// Every slot lies on the page and in the place that its index says, is made from the transaction and again from what
        /// is stored of it, and a page with nothing to spend is known as all spent from the start.
        #[test]
        fn pages_hold_every_slot_once_and_can_be_made_again(
            data in prop::collection::vec(any::<bool>(), 1..40), size in 1_u32..12, partial: bool,
        ) {
            let script = |is_data: bool| if is_data { &[0x00, 0x6a][..] } else { &[0x51] };
            let pages = if partial {
                let outputs = data.iter().zip(0..).filter(|(gap, vout)| !**gap || *vout == data.len() as u32 - 1);
                let output = |vout| SeededOutput { vout, output: StoredOutput { satoshis: 7, script: Bytes::from_static(&[0x51]) } };
                let outputs = outputs.map(|(_, vout)| output(vout)).collect();
                seeded_pages(&Seed { txid: Txid([3; 32]), coinbase: false, outputs }, &setting(size)).unwrap()
            } else {
                let builder = data.iter().fold(builder(), |builder, is_data| builder.output(7, script(*is_data)));
                let bytes = Bytes::from(builder.extended());
                let transaction = Transaction::parse(&bytes).unwrap();
                pages_of(&transaction, bytes.clone(), transaction.txid(), &setting(size), &Start::default()).unwrap()
            };
            let (master, others) = (pages.master.clone(), pages.others.clone());
            let bins = master.master.clone().unwrap();
            prop_assert_eq!(others.as_ref().map_or(0, OtherPages::count), bins.total_extra_recs);
            let again = OtherPages::of_stored(&master, bins.body.as_ref().unwrap(), Network::Main, size);
            let all = pages.all(9);
            if let (Some(others), Some(again)) = (&others, &again) {
                for number in others.numbers() {
                    prop_assert_eq!(others.page(number, 9), again.page(number, 9));
                }
            }
            prop_assert_eq!(others.is_some(), again.is_some());
            prop_assert_eq!(bins.total_utxos as usize, data.len());
            for (vout, is_data) in data.iter().enumerate() {
                let slot = all[vout / size as usize].utxos.as_ref().unwrap()[vout % size as usize];
                let none = *is_data && !(partial && vout == data.len() - 1);
                let txid = if partial { Txid([3; 32]) } else { master.txid };
                let expected = if none { Slot::Nil } else { Slot::Unspent(utxo_hash(&txid, vout as u32, &[0x51], 7)) };
                prop_assert_eq!(slot, expected);
            }
            for page in &all {
                let listed = bins.spent_pages.contains(&page.number);
                prop_assert_eq!(listed, page.number > 0 && page.record_utxos == 0);
                let slots = page.utxos.as_ref().unwrap();
                prop_assert!(slots.len() <= size as usize);
                // Gaps have no amount; the master has its outputs, until they are put elsewhere.
                let first = page.number as usize * size as usize;
                let of_body = bins.body.as_ref().unwrap().amount_sizes(usize::MAX);
                let expected = if page.number == 0 { Bytes::new() } else { of_body.slice(first..first + slots.len()) };
                prop_assert_eq!(&page.amount_sizes, &expected);
            }
        }
    }

    #[test]
    fn a_slot_commits_to_the_index_within_the_transaction() {
        let (one, many) =
            (build(&payment(7), &setting(7), &Start::default()), build(&payment(7), &setting(3), &Start::default()));
        let slots = |pages: &[Page]| pages.iter().flat_map(|page| page.utxos.clone().unwrap()).collect::<Vec<_>>();
        assert_eq!(slots(&one), slots(&many));
    }

    #[test]
    fn a_contested_transaction_bars_its_other_pages_by_its_master() {
        let start = Start { verdict: Some(Verdict::Pending), ..Start::default() };
        for page in build(&payment(7), &setting(3), &start) {
            let is_master = page.number == 0;
            assert_eq!((page.conflicting, page.creating_at.is_none()), (is_master, is_master));
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
        let page = seeded_pages(&seed(&[3, 1]), &setting(4)).unwrap().master;
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
        let page = seeded_pages(&seed, &setting(4)).unwrap().master;
        assert_eq!((page.record_utxos, page.utxos.as_ref().unwrap()[1]), (1, Slot::Nil));
    }

    #[test]
    fn a_seed_that_cannot_be_is_refused_before_anything_large_is_made() {
        assert_eq!(seeded_pages(&seed(&[]), &setting(4)), Err(InvalidSeed::NoOutputs));
        assert_eq!(seeded_pages(&seed(&[1, 1]), &setting(4)), Err(InvalidSeed::RepeatedOutput(1)));
        let too_wide = InvalidSeed::TooWide { vout: u32::MAX };
        assert_eq!(seeded_pages(&seed(&[0, u32::MAX]), &setting(4)), Err(too_wide));
        let last = seeded_pages(&seed(&[MOST_SEEDED - 1]), &setting(20_000)).unwrap();
        assert_eq!(last.others.unwrap().count(), 52);
        assert_eq!(seeded_pages(&seed(&[MOST_SEEDED]), &setting(4)), Err(InvalidSeed::TooWide { vout: MOST_SEEDED }));
    }
}
