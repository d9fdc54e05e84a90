//! Builds the pages of a new transaction: the master at once, the other pages one at a time.

mod other_pages;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

pub use other_pages::OtherPages;

use super::{Body, CreatingEvent, Master, MinedIn, Page, PartialOutputs, Slot, StoredOutput, Verdict};
use crate::tx::{InvalidTransaction, MAX_MONEY, Network, Output, Transaction, Txid, UtxoHash, has_slot, utxo_hash};

/// Number of blocks after its own block from which a coinbase is spendable.
pub const COINBASE_MATURITY: u32 = 100;

/// Parameters that the pages of a transaction depend on besides its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageParams {
    /// Network, which decides the outputs that get a slot.
    pub network: Network,
    /// Height of the block that the transaction can first be in, or is in.
    pub height: u32,
    /// Slots per page (`utxo_batch_size`); at least 1.
    pub batch_size: u32,
    /// Time of the creation, ms since the epoch.
    pub created_at: u64,
    /// Event that creates the transaction; `None`: not known.
    pub event: Option<CreatingEvent>,
}

/// State in which a new transaction starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NewTxState {
    /// The outputs are not spendable yet.
    pub locked: bool,
    /// Verdict of a contested transaction, which is conflicting until the sequencer accepts it. `Pending`: no decision
    /// yet; `None`: not contested.
    pub verdict: Option<Verdict>,
    /// Block that already lists the transaction.
    pub listed: BlockListing,
}

/// Bodies that are inline in their masters (`semantics.md`, "External"); all other bodies go to the blob store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InlineBodies {
    /// All bodies: the store has no blob store.
    #[default]
    All,
    /// Bodies of one page and at most so many bytes. The size is that of the transaction in extended format, or that of
    /// the outputs of a partial transaction.
    UpTo(u64),
}

impl InlineBodies {
    /// Returns whether the body of a transaction with so many other pages is inline in the master.
    pub fn is_inline(self, body: &Body, others: u32) -> bool {
        match self {
            InlineBodies::All => true,
            InlineBodies::UpTo(limit) => others == 0 && body.size() <= limit,
        }
    }
}

/// Block that lists a transaction at its creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BlockListing {
    /// No block lists the transaction.
    #[default]
    No,
    /// A block of the longest chain lists the transaction.
    LongestChain(MinedIn),
    /// A block of a side chain lists the transaction.
    SideChain(MinedIn),
}

/// Known output of a partial transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownOutput {
    /// Index of the output.
    pub vout: u32,
    /// Amount and locking script.
    pub output: StoredOutput,
}

/// Known outputs of a partial transaction, from which its pages are built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownOutputs {
    /// Txid, which the outputs cannot verify.
    pub txid: Txid,
    /// The transaction is a coinbase.
    pub coinbase: bool,
    /// Known outputs, in any order.
    pub outputs: Vec<KnownOutput>,
}

/// Error of a partial transaction that no page can hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum InvalidPartialTx {
    #[error("the partial transaction has no outputs")]
    NoOutputs,
    #[error("output {0} is in the list twice")]
    RepeatedOutput(u32),
    /// The sum of the outputs exceeds [`MAX_MONEY`].
    #[error("the sum of the outputs exceeds 2,100,000,000,000,000 satoshis (21 million coins)")]
    TooMuchMoney,
    /// A blob of outputs cannot hold the height; see [`HEIGHT_LIMIT`].
    #[error("height {0} is not below 2,147,483,648")]
    TooHigh(u32),
    /// The index of an output is too great: a short message could otherwise ask for gigabytes of gaps.
    #[error("output {vout} is not below {PARTIAL_OUTPUT_LIMIT}, the limit of a partial transaction")]
    TooWide { vout: u32 },
}

/// Limit of every height in an event. A height below the limit leaves room for sums, and for the flag that shares its
/// bytes in a blob.
pub const HEIGHT_LIMIT: u32 = 1 << 31;

/// Limit of the output index in a partial transaction. A page has a slot for every index up to the greatest, so that a
/// short message could otherwise ask for billions of slots.
pub const PARTIAL_OUTPUT_LIMIT: u32 = 1 << 20;

/// All pages of a new transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pages {
    /// Page 0 with its body: live, contested, or `creating` where the transaction has other pages.
    pub master: Page,
    /// Pages besides the master. `Some` without pages where only the body goes to the blob store, which takes several
    /// writes, too.
    pub others: Option<OtherPages>,
}

impl Pages {
    /// Prepares a creation of several writes where the body is not inline: adds an empty list of other pages.
    pub fn place_body(self, inline: InlineBodies, params: &PageParams) -> Self {
        let is_external = self.master.body().is_some_and(|body| !inline.is_inline(body, 0));
        let others = self.others.or_else(|| is_external.then(|| OtherPages::empty(self.master.txid, params)));
        Pages { others, ..self }
    }

    /// Returns all pages at once, the other pages `creating` since `creating_at` (ms). For small transactions only.
    #[cfg(feature = "testkit")]
    pub fn all(self, creating_at: u64) -> Vec<Page> {
        let others =
            self.others.iter().flat_map(|others| others.numbers().map(|number| others.page(number, creating_at)));
        let others: Vec<Page> = others.collect();
        std::iter::once(self.master).chain(others).collect()
    }
}

/// Builds the pages of `transaction`. `body` holds the transaction's bytes, whose format is kept.
///
/// Each of several pages starts as `creating`, except the master of a contested transaction: its verdict already makes
/// the other pages unspendable.
///
/// # Errors
/// Fails where the fee is not computable: at an input without previous output, an overspend, or a sum that overflows.
pub fn build_pages(
    transaction: &Transaction<'_>,
    body: Bytes,
    txid: Txid,
    params: &PageParams,
    start: &NewTxState,
) -> Result<Pages, InvalidTransaction> {
    let mut blank = Page::empty(txid);
    blank.version = transaction.version();
    blank.lock_time = transaction.lock_time();
    blank.fee = transaction.fee()?;
    blank.size_in_bytes = transaction.standard_len() as u64;
    blank.extended_size = transaction.extended_len() as u64;
    blank.locked = start.locked;
    set_coinbase(&mut blank, transaction.is_coinbase(), params.height);

    let mut outputs = transaction.outputs();
    let first = outputs.by_ref().take(params.slots_per_page()).zip(0..);
    let slots = first.map(|(output, vout)| slot_of(&txid, vout, output.script, output.satoshis, params)).collect();
    let (others, spent_pages) = match outputs.len() {
        0 => (None, BTreeSet::new()),
        _ => OtherPages::of_outputs(blank.clone(), body.clone(), outputs, params),
    };
    let (mined, unmined_since) = match start.listed {
        BlockListing::No => (vec![], Some(params.height)),
        BlockListing::LongestChain(mined_in) => (vec![mined_in], None),
        BlockListing::SideChain(mined_in) => (vec![mined_in], Some(params.height)),
    };
    let master = Master {
        total_utxos: transaction.output_count() as u32,
        mined,
        unmined_since,
        body: Some(Body::Transaction(body)),
        verdict: start.verdict,
        spent_pages,
        ..empty_master(params)
    };
    Ok(Pages { master: finish_master(blank, slots, master, others.as_ref(), params), others })
}

/// Builds the pages of a partial transaction, mined on the longest chain in block 0 (before this store began).
///
/// # Errors
/// Fails for outputs that no page can hold, see [`InvalidPartialTx`].
pub fn build_partial_pages(known: &KnownOutputs, params: &PageParams) -> Result<Pages, InvalidPartialTx> {
    let greatest = known.outputs.iter().map(|output| output.vout).max().ok_or(InvalidPartialTx::NoOutputs)?;
    if greatest >= PARTIAL_OUTPUT_LIMIT {
        return Err(InvalidPartialTx::TooWide { vout: greatest });
    }
    if params.height >= HEIGHT_LIMIT {
        return Err(InvalidPartialTx::TooHigh(params.height));
    }
    let sum = known.outputs.iter().try_fold(0_u64, |sum, output| sum.checked_add(output.output.satoshis));
    if sum.is_none_or(|sum| sum > MAX_MONEY) {
        return Err(InvalidPartialTx::TooMuchMoney);
    }
    let mut by_index = BTreeMap::new();
    for KnownOutput { vout, output } in &known.outputs {
        if by_index.insert(*vout, output.clone()).is_some() {
            return Err(InvalidPartialTx::RepeatedOutput(*vout));
        }
    }
    let outputs = PartialOutputs::new(by_index.into_iter().collect());
    let mut blank = Page::empty(known.txid);
    set_coinbase(&mut blank, known.coinbase, params.height);
    let slots = other_pages::build_partial_slots(&known.txid, &outputs, 0, params);
    let (others, spent_pages) = match outputs.count() as usize <= params.slots_per_page() {
        true => (None, BTreeSet::new()),
        false => OtherPages::of_partial(blank.clone(), outputs.clone(), params),
    };
    let master = Master {
        total_utxos: outputs.count(),
        mined: vec![MinedIn { block_id: 0, height: params.height, subtree: 0 }],
        body: Some(Body::Outputs(outputs)),
        spent_pages,
        ..empty_master(params)
    };
    Ok(Pages { master: finish_master(blank, slots, master, others.as_ref(), params), others })
}

fn finish_master(
    blank: Page,
    slots: Vec<Slot>,
    master: Master,
    others: Option<&OtherPages>,
    params: &PageParams,
) -> Page {
    let contested = master.verdict.is_some();
    let total_extra_recs = others.map_or(0, OtherPages::count);
    Page {
        conflicting: contested,
        creating_at: (others.is_some() && !contested).then_some(params.created_at),
        record_utxos: count_slots(&slots),
        utxos: Some(slots),
        slot_height: (total_extra_recs > 0).then_some(params.height),
        master: Some(Box::new(Master {
            total_extra_recs,
            created_by: params.event.filter(|_| total_extra_recs > 0),
            ..master
        })),
        ..blank
    }
}

impl PageParams {
    fn slots_per_page(&self) -> usize {
        self.batch_size.max(1) as usize
    }
}

fn slot_of(txid: &Txid, vout: u32, script: &[u8], satoshis: u64, params: &PageParams) -> Slot {
    if has_slot(txid, script, params.height, params.network) {
        Slot::Unspent(utxo_hash(txid, vout, script, satoshis))
    } else {
        Slot::Nil
    }
}

/// Returns the slots that a transaction's outputs have in a block of this height: index and UTXO hash of each.
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

fn count_slots(slots: &[Slot]) -> u32 {
    slots.iter().filter(|slot| **slot != Slot::Nil).count() as u32
}

fn set_coinbase(page: &mut Page, is_coinbase: bool, height: u32) {
    page.is_coinbase = is_coinbase;
    page.spending_height = is_coinbase.then(|| height.saturating_add(COINBASE_MATURITY));
}

fn empty_master(params: &PageParams) -> Master {
    Master { created_at: params.created_at, ..Master::default() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::tx::{Outpoint, TransactionBuilder};

    fn params(batch_size: u32) -> PageParams {
        PageParams { network: Network::Main, height: 1_000, batch_size, created_at: 5, event: None }
    }

    fn build(bytes: &[u8], params: &PageParams, start: &NewTxState) -> Vec<Page> {
        let transaction = Transaction::parse(bytes).unwrap();
        let body = Bytes::copy_from_slice(bytes);
        build_pages(&transaction, body, transaction.txid(), params, start).unwrap().all(5)
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

    /// Returns the blobs of a bin that holds a list; `None` for nil.
    fn blobs(bin: &Value) -> Vec<Option<UtxoHash>> {
        let list = bin["list"].as_array().unwrap();
        list.iter().map(|slot| slot["blob"].as_str().map(|hash| hash.parse().unwrap())).collect()
    }

    #[test]
    fn pages_equal_those_of_the_reference() {
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
            let start = NewTxState {
                locked: call.contains("locked"),
                verdict: call.contains("conflicting").then_some(Verdict::Pending),
                listed: if call.contains("mined") { BlockListing::LongestChain(listed) } else { BlockListing::No },
            };
            let height = call.split("height ").nth(1).unwrap().split([',', ')']).next().unwrap().parse().unwrap();
            let pages = build(&bytes, &PageParams { height, ..params(5) }, &start);
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
        let inline = InlineBodies::UpTo(1 << 20).is_inline(page.body().unwrap(), master.total_extra_recs);
        assert_eq!(!inline, flag("external"), "{call}");
    }

    #[test]
    fn one_page_has_the_body_and_is_live() {
        let bytes = payment(3);
        let pages = build(&bytes, &params(3), &NewTxState::default());
        let [page] = &pages[..] else { panic!() };
        assert_eq!(page.master.as_ref().unwrap().body, Some(Body::Transaction(bytes.into())));
        assert_eq!(page.state(), crate::record::TxState::Live);
    }

    #[test]
    fn several_pages_are_in_creation() {
        let pages = build(&payment(7), &params(3), &NewTxState::default());
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
    fn bodies_are_external_by_size_and_by_pages() {
        let bytes = payment(3);
        let (transaction, size) = (Transaction::parse(&bytes).unwrap(), bytes.len() as u64);
        let pages = |batch_size, inline| {
            let (body, params) = (Bytes::copy_from_slice(&bytes), params(batch_size));
            let pages = build_pages(&transaction, body, transaction.txid(), &params, &NewTxState::default()).unwrap();
            let others = pages.place_body(inline, &params).others;
            others.map(|others| others.count())
        };
        assert_eq!(
            [InlineBodies::All, InlineBodies::UpTo(size), InlineBodies::UpTo(size - 1)].map(|inline| pages(3, inline)),
            [None, None, Some(0)]
        );
        assert_eq!([InlineBodies::All, InlineBodies::UpTo(size)].map(|inline| pages(2, inline)), [Some(1), Some(1)]);
        let body = Body::Transaction(bytes.into());
        assert_eq!([0, 1].map(|others| InlineBodies::UpTo(size).is_inline(&body, others)), [true, false]);
        assert_eq!([0, 1].map(|others| InlineBodies::All.is_inline(&body, others)), [true, true]);
    }

    proptest! {
        /// Every slot has the page and the offset of its index. The pages are built from the transaction, and again
        /// from the stored master and body. A page without spendable outputs counts as all spent from the start.
        #[test]
        fn pages_hold_every_slot_once_and_can_be_rebuilt(
            data in prop::collection::vec(any::<bool>(), 1..40), size in 1_u32..12, partial: bool,
        ) {
            let script = |is_data: bool| if is_data { &[0x00, 0x6a][..] } else { &[0x51] };
            let pages = if partial {
                let outputs = data.iter().zip(0..).filter(|(gap, vout)| !**gap || *vout == data.len() as u32 - 1);
                let output = |vout| {
                    let output = StoredOutput { satoshis: 7, script: Bytes::from_static(&[0x51]) };
                    KnownOutput { vout, output }
                };
                let outputs = outputs.map(|(_, vout)| output(vout)).collect();
                let known = KnownOutputs { txid: Txid([3; 32]), coinbase: false, outputs };
                build_partial_pages(&known, &params(size)).unwrap()
            } else {
                let builder = data.iter().fold(builder(), |builder, is_data| builder.output(7, script(*is_data)));
                let bytes = Bytes::from(builder.extended());
                let transaction = Transaction::parse(&bytes).unwrap();
                let start = NewTxState::default();
                build_pages(&transaction, bytes.clone(), transaction.txid(), &params(size), &start).unwrap()
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
                // Gaps have no amount. The master needs no amount sizes while its outputs are inline.
                let first = page.number as usize * size as usize;
                let of_body = bins.body.as_ref().unwrap().amount_sizes(usize::MAX);
                let expected = if page.number == 0 { Bytes::new() } else { of_body.slice(first..first + slots.len()) };
                prop_assert_eq!(&page.amount_sizes, &expected);
            }
        }
    }

    #[test]
    fn a_slot_commits_to_the_index_within_the_transaction() {
        let (one, many) = (
            build(&payment(7), &params(7), &NewTxState::default()),
            build(&payment(7), &params(3), &NewTxState::default()),
        );
        let slots = |pages: &[Page]| pages.iter().flat_map(|page| page.utxos.clone().unwrap()).collect::<Vec<_>>();
        assert_eq!(slots(&one), slots(&many));
    }

    #[test]
    fn only_the_master_of_a_contested_transaction_is_conflicting() {
        let start = NewTxState { verdict: Some(Verdict::Pending), ..NewTxState::default() };
        for page in build(&payment(7), &params(3), &start) {
            let is_master = page.number == 0;
            assert_eq!((page.conflicting, page.creating_at.is_none()), (is_master, is_master));
        }
    }

    #[test]
    fn a_coinbase_matures_and_costs_nothing() {
        let mined_in = MinedIn { block_id: 3, height: 1_000, subtree: 0 };
        for (listed, unmined_since) in
            [(BlockListing::LongestChain(mined_in), None), (BlockListing::SideChain(mined_in), Some(1_000))]
        {
            let pages = build(&coinbase(), &params(3), &NewTxState { listed, ..NewTxState::default() });
            let page = &pages[0];
            assert_eq!((page.is_coinbase, page.spending_height, page.fee), (true, Some(1_100), 0));
            let master = page.master.as_ref().unwrap();
            assert_eq!((&master.mined, master.unmined_since), (&vec![mined_in], unmined_since));
        }
    }

    #[test]
    fn a_transaction_with_an_invalid_fee_has_no_pages() {
        let previous = Output { satoshis: 1, script: &[] };
        let outpoint = Outpoint { txid: Txid([7; 32]), vout: 1 };
        let bytes = TransactionBuilder::default().input(outpoint, &[], 0, Some(previous)).output(2, &[]).extended();
        let transaction = Transaction::parse(&bytes).unwrap();
        let result = build_pages(&transaction, Bytes::new(), Txid([1; 32]), &params(3), &NewTxState::default());
        assert_eq!(result, Err(InvalidTransaction::Overspend { inputs: 1, outputs: 2 }));
    }

    fn partial(vouts: &[u32]) -> KnownOutputs {
        let output = |vout: &u32| KnownOutput {
            vout: *vout,
            output: StoredOutput { satoshis: 100 + u64::from(*vout), script: Bytes::from_static(&[0x51]) },
        };
        KnownOutputs { txid: Txid([7; 32]), coinbase: true, outputs: vouts.iter().map(output).collect() }
    }

    #[test]
    fn a_partial_transaction_has_gaps_and_is_mined() {
        let page = build_partial_pages(&partial(&[3, 1]), &params(4)).unwrap().master;
        let there: Vec<bool> = page.utxos.iter().flatten().map(|slot| slot.hash().is_some()).collect();
        assert_eq!(there, [false, true, false, true]);
        assert_eq!((page.record_utxos, page.spending_height, page.conflicting), (2, Some(1_100), false));
        assert_eq!(page.utxos.as_ref().unwrap()[3], Slot::Unspent(utxo_hash(&page.txid, 3, &[0x51], 103)));
        let master = page.master.as_ref().unwrap();
        assert_eq!(master.mined, [MinedIn { block_id: 0, height: 1_000, subtree: 0 }]);
        assert_eq!((master.unmined_since, master.total_utxos), (None, 4));
        let Some(Body::Outputs(outputs)) = &master.body else { panic!() };
        assert_eq!(outputs.iter().map(|output| output.is_some()).collect::<Vec<_>>(), there);
    }

    #[test]
    fn a_data_output_of_a_partial_transaction_gets_no_slot() {
        let mut partial = partial(&[0, 1]);
        partial.outputs[1].output.script = Bytes::from_static(&[0x00, 0x6a]);
        let page = build_partial_pages(&partial, &params(4)).unwrap().master;
        assert_eq!((page.record_utxos, page.utxos.as_ref().unwrap()[1]), (1, Slot::Nil));
    }

    #[test]
    fn invalid_partial_transactions_are_refused_before_allocation() {
        assert_eq!(build_partial_pages(&partial(&[]), &params(4)), Err(InvalidPartialTx::NoOutputs));
        assert_eq!(build_partial_pages(&partial(&[1, 1]), &params(4)), Err(InvalidPartialTx::RepeatedOutput(1)));
        let too_wide = InvalidPartialTx::TooWide { vout: u32::MAX };
        assert_eq!(build_partial_pages(&partial(&[0, u32::MAX]), &params(4)), Err(too_wide));
        let last = build_partial_pages(&partial(&[PARTIAL_OUTPUT_LIMIT - 1]), &params(20_000)).unwrap();
        assert_eq!(last.others.unwrap().count(), 52);
        assert_eq!(last.master.master.as_ref().unwrap().spent_pages.len(), 51, "all other pages but the last");
        let Some(Body::Outputs(outputs)) = last.master.body() else { panic!() };
        assert_eq!(outputs.known().len(), 1, "a gap takes no memory");
        let too_wide = InvalidPartialTx::TooWide { vout: PARTIAL_OUTPUT_LIMIT };
        assert_eq!(build_partial_pages(&partial(&[PARTIAL_OUTPUT_LIMIT]), &params(4)), Err(too_wide));
    }
}
