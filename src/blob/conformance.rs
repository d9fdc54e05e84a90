//! Conformance suite for every object store that can carry a [`BlobStore`].
//!
//! The checks are library code, so that the tests of each store, and of stores with faults, run the same checks. A
//! check panics with a message that names the difference. A retryable failure is retried, so that the suite also runs
//! where replies get lost; a put that was retried may return [`PutOutcome::AlreadyStored`].

use std::{collections::BTreeMap, future::Future, pin::Pin, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;

use super::{
    BlobError, BlobErrorKind, BlobName, BlobStore, PartialTx, PutOutcome, Reuse, check::check_tx, frame::HashedContent,
    store::encode_outputs,
};
use crate::{
    record::{Blob, StoredOutput},
    telemetry::BlobOperation,
    tx::{Outpoint, Output, Transaction, TransactionBuilder, Txid},
};

/// Puts of the first blob alone, which tell what a put has done.
impl BlobStore {
    /// Stores a transaction as the first blob of its txid, unless one exists. The format is extended; a coinbase may be
    /// in standard format.
    ///
    /// # Errors
    /// See [`BlobErrorKind`]: `Invalid` if the bytes are not that transaction, `Corrupt` if the stored bytes are not.
    pub async fn put_tx(&self, txid: Txid, bytes: Bytes) -> Result<PutOutcome, BlobError> {
        self.measure(BlobOperation::PutTx, async {
            let name = BlobName::tx(txid);
            check_tx(name, &bytes).await?;
            Box::pin(self.put(name, &HashedContent::new(bytes).await)).await
        })
        .await
    }

    /// Stores the known outputs of a partial transaction as the first blob of its txid, unless one exists.
    ///
    /// # Errors
    /// See [`BlobErrorKind`]: `Invalid` if the outputs cannot be encoded, `Corrupt` if the stored bytes are no outputs.
    pub async fn put_outputs(&self, partial: &PartialTx) -> Result<PutOutcome, BlobError> {
        self.measure(BlobOperation::PutOutputs, async {
            let (name, bytes) = encode_outputs(partial)?;
            Box::pin(self.put(name, &HashedContent::new(bytes).await)).await
        })
        .await
    }
}

/// A named check. Each check uses transactions of its own, so that all can run on one store.
#[derive(Clone, Copy)]
pub struct BlobCheck {
    /// Name of the check, which states the property.
    pub name: &'static str,
    run: fn(BlobBench) -> Pin<Box<dyn Future<Output = ()> + Send>>,
}

macro_rules! checks {
    ($($name:ident),* $(,)?) => {
        &[$(BlobCheck { name: stringify!($name), run: |bench| Box::pin($name(bench)) }),*]
    };
}

/// All checks of the suite.
pub const CHECKS: &[BlobCheck] = checks![
    get_returns_the_bytes_of_put,
    large_blobs,
    repeated_puts_store_once,
    first_blob_stays,
    absent_blobs,
    mismatched_bytes_are_refused,
    partial_transactions,
    one_of_many_writers_wins,
    delete_then_put_again,
];

impl BlobCheck {
    /// Runs the check on `store`.
    ///
    /// # Panics
    /// If the store does not conform.
    pub async fn run(&self, store: BlobStore) {
        (self.run)(BlobBench { store, check: self.name }).await;
    }
}

/// Runs every check on one store.
///
/// # Panics
/// If the store does not conform.
pub async fn run(store: &BlobStore) {
    for check in CHECKS {
        check.run(store.clone()).await;
    }
}

/// Builds a transaction in extended format with one input and `outputs` outputs. `claim` is the satoshi amount that the
/// transaction claims to spend; the txid does not depend on `claim`.
pub fn transaction(number: u64, outputs: u32, script_len: usize, claim: u64) -> (Txid, Bytes) {
    let parent = Outpoint { txid: Txid([number as u8; 32]), vout: 7 };
    let previous = Output { satoshis: claim, script: b"\x51" };
    let mut builder = TransactionBuilder::default().lock_time(number as u32).input(parent, b"", 0, Some(previous));
    for vout in 0..outputs {
        builder = builder.output(u64::from(vout) + number, &vec![0x51; script_len]);
    }
    let bytes = Bytes::from(builder.extended());
    let txid = Transaction::parse(&bytes).expect("the builder writes what parses").txid();
    (txid, bytes)
}

/// Outputs and script bytes of a transaction that is larger than a piece of a read and a part of a write in tests.
const LARGE: (u32, usize) = (800, 2_000);
/// Number of attempts after which a failing store counts as broken.
const ATTEMPTS: usize = 200;
const PAUSE: Duration = Duration::from_millis(1);

/// A store under test with the name of the running check.
#[derive(Clone)]
struct BlobBench {
    store: BlobStore,
    check: &'static str,
}

/// A store's answer to a put.
struct PutAnswer {
    put: PutOutcome,
    /// An earlier attempt may have succeeded with its reply lost.
    is_retry: bool,
}

impl PutAnswer {
    fn matches(&self, expected: PutOutcome) -> bool {
        self.put == expected
            || (self.is_retry && expected == PutOutcome::Stored && self.put == PutOutcome::AlreadyStored)
    }
}

impl BlobBench {
    fn transaction(&self, number: u64, claim: u64) -> (Txid, Bytes) {
        transaction(self.unique_number(number), 5, 30, claim)
    }

    /// Maps `number` to a number that no other check uses.
    fn unique_number(&self, number: u64) -> u64 {
        self.check.bytes().fold(number, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)))
    }

    /// Sends a request until it succeeds; the flag says whether an earlier attempt may have succeeded, too.
    async fn retry<T, F: Future<Output = Result<T, BlobError>>>(&self, mut request: impl FnMut() -> F) -> (T, bool) {
        let mut is_retry = false;
        for _ in 0..ATTEMPTS {
            match request().await {
                Ok(value) => return (value, is_retry),
                Err(error) if error.may_be_retried() => is_retry |= error.kind == BlobErrorKind::Unknown,
                Err(error) => panic!("{}: {error}", self.check),
            }
            tokio::time::sleep(PAUSE).await;
        }
        panic!("{}: failed {ATTEMPTS} times", self.check)
    }

    async fn put_tx(&self, txid: Txid, bytes: &Bytes) -> PutAnswer {
        let (put, is_retry) = self.retry(|| self.store.put_tx(txid, bytes.clone())).await;
        PutAnswer { put, is_retry }
    }

    async fn expect_put_tx(&self, txid: Txid, bytes: &Bytes, expected: PutOutcome) {
        let answer = self.put_tx(txid, bytes).await;
        assert!(answer.matches(expected), "{}: {:?} is not {expected:?}", self.check, answer.put);
    }

    async fn expect_get_tx(&self, txid: Txid, expected: Option<&Bytes>) {
        let blob = Blob::First(expected.map(hash_of));
        for reuse in [Reuse::Unlikely, Reuse::Likely, Reuse::Likely] {
            let (found, _) = self.retry(|| self.store.load_tx(txid, blob, reuse)).await;
            let len = found.as_ref().map(Bytes::len);
            assert!(found.as_ref() == expected, "{}: {txid} read as {len:?} bytes that were not put", self.check);
        }
    }

    async fn exists(&self, name: BlobName) -> bool {
        self.retry(|| self.store.exists(name)).await.0
    }
}

/// Returns the hash that a record of these bytes has.
pub fn hash_of(bytes: &Bytes) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}

async fn get_returns_the_bytes_of_put(bench: BlobBench) {
    let (txid, bytes) = bench.transaction(0, 1);
    bench.expect_put_tx(txid, &bytes, PutOutcome::Stored).await;
    bench.expect_get_tx(txid, Some(&bytes)).await;
    assert!(bench.exists(BlobName::tx(txid)).await);

    let height = bench.unique_number(1).to_le_bytes();
    let coinbase = TransactionBuilder::default().input(Outpoint::NULL, &height, 0, None).output(50, b"\x51");
    for bytes in [coinbase.standard(), coinbase.lock_time(1).extended()] {
        let bytes = Bytes::from(bytes);
        let txid = Transaction::parse(&bytes).expect("the builder writes what parses").txid();
        bench.expect_put_tx(txid, &bytes, PutOutcome::Stored).await;
        bench.expect_get_tx(txid, Some(&bytes)).await;
    }
}

async fn large_blobs(bench: BlobBench) {
    let (outputs, script_len) = LARGE;
    let (txid, bytes) = transaction(bench.unique_number(0), outputs, script_len, 1);
    bench.expect_put_tx(txid, &bytes, PutOutcome::Stored).await;
    bench.expect_put_tx(txid, &bytes, PutOutcome::AlreadyStored).await;
    bench.expect_get_tx(txid, Some(&bytes)).await;

    let transaction = Transaction::parse(&bytes).expect("parsed before");
    let all: Vec<Output<'_>> = transaction.outputs().collect();
    let (last, blob) = (outputs - 1, Blob::First(Some(hash_of(&bytes))));
    for wanted in [&[][..], &[0, last, last / 2], &[outputs, u32::MAX]] {
        let expected: BTreeMap<u32, StoredOutput> = wanted
            .iter()
            .filter_map(|vout| {
                let Output { satoshis, script } = *all.get(*vout as usize)?;
                Some((*vout, StoredOutput { satoshis, script: Bytes::copy_from_slice(script) }))
            })
            .collect();
        for reuse in [Reuse::Unlikely, Reuse::Likely, Reuse::Likely] {
            let (found, _) = bench.retry(|| bench.store.load_tx_outputs(txid, blob, wanted, reuse)).await;
            assert_eq!(found.as_ref(), Some(&expected), "{}: {wanted:?} {reuse:?}", bench.check);
        }
    }
}

async fn repeated_puts_store_once(bench: BlobBench) {
    let (txid, bytes) = bench.transaction(0, 1);
    bench.expect_put_tx(txid, &bytes, PutOutcome::Stored).await;
    for _ in 0..3 {
        bench.expect_put_tx(txid, &bytes, PutOutcome::AlreadyStored).await;
    }
    bench.expect_get_tx(txid, Some(&bytes)).await;
}

async fn first_blob_stays(bench: BlobBench) {
    let (txid, first) = bench.transaction(0, 1);
    let (same, second) = bench.transaction(0, 2);
    assert_eq!(txid, same, "a txid does not commit to claims");
    bench.expect_put_tx(txid, &first, PutOutcome::Stored).await;
    bench.expect_put_tx(txid, &second, PutOutcome::OtherStored).await;
    bench.expect_get_tx(txid, Some(&first)).await;
    bench.expect_put_tx(txid, &first, PutOutcome::AlreadyStored).await;
}

async fn absent_blobs(bench: BlobBench) {
    let (txid, _) = bench.transaction(0, 1);
    bench.expect_get_tx(txid, None).await;
    for name in [BlobName::tx(txid), BlobName::outputs(txid)] {
        assert!(!bench.exists(name).await, "{}: {name}", bench.check);
        bench.retry(|| bench.store.delete(name)).await;
    }
    for reuse in [Reuse::Unlikely, Reuse::Likely] {
        assert_eq!(bench.retry(|| bench.store.load_tx_outputs(txid, Blob::First(None), &[0], reuse)).await.0, None);
    }
    assert_eq!(bench.retry(|| bench.store.load_outputs(txid, Blob::First(None))).await.0, None);
}

async fn mismatched_bytes_are_refused(bench: BlobBench) {
    let (txid, bytes) = bench.transaction(0, 1);
    let (other, _) = bench.transaction(1, 1);
    let mut standard = Vec::new();
    Transaction::parse(&bytes).expect("parsed before").write_standard(&mut standard);
    let cut = bytes.slice(..bytes.len() - 1);
    for (txid, bytes) in [(other, bytes), (txid, standard.into()), (txid, cut), (txid, Bytes::new())] {
        let error = bench.store.put_tx(txid, bytes).await.expect_err("other bytes were stored");
        assert_eq!(error.kind, BlobErrorKind::Invalid, "{error}");
        bench.expect_get_tx(txid, None).await;
    }
}

async fn partial_transactions(bench: BlobBench) {
    let (txid, _) = bench.transaction(0, 1);
    let output = |satoshis| StoredOutput { satoshis, script: Bytes::from_static(b"\x51") };
    let first = PartialTx { txid, height: 9, coinbase: false, outputs: vec![(1, output(5)), (4, output(6))] };
    let second = PartialTx { outputs: vec![(1, output(5))], ..first.clone() };
    let put = |partial: PartialTx, expected: PutOutcome| {
        let bench = bench.clone();
        async move {
            let (put, is_retry) = bench.retry(|| bench.store.put_outputs(&partial)).await;
            assert!(PutAnswer { put, is_retry }.matches(expected), "{}: {put:?} is not {expected:?}", bench.check);
        }
    };
    put(first.clone(), PutOutcome::Stored).await;
    put(first.clone(), PutOutcome::AlreadyStored).await;
    put(second, PutOutcome::OtherStored).await;
    assert_eq!(bench.retry(|| bench.store.load_outputs(txid, Blob::First(None))).await.0, Some(first));
    bench.expect_get_tx(txid, None).await;
}

async fn one_of_many_writers_wins(bench: BlobBench) {
    for (round, (outputs, script_len)) in (0..).zip([(5, 30), (5, 30), LARGE]) {
        let claims: Vec<u64> = (0..6).map(|writer| writer % 3).collect();
        let writers = claims.iter().map(|claim| {
            let (txid, bytes) = transaction(bench.unique_number(round), outputs, script_len, *claim);
            let bench = bench.clone();
            async move { (*claim, bench.put_tx(txid, &bytes).await, txid, bytes) }
        });
        let answers = join_all(writers).await;
        let winners: Vec<&(u64, PutAnswer, Txid, Bytes)> =
            answers.iter().filter(|(_, answer, ..)| answer.put != PutOutcome::OtherStored).collect();
        let stored = winners.iter().filter(|(_, answer, ..)| answer.put == PutOutcome::Stored).count();
        let any_retry = answers.iter().any(|(_, answer, ..)| answer.is_retry);
        assert!(stored == 1 || (any_retry && stored == 0), "{}: {stored} writers were the first", bench.check);
        assert_eq!(winners.len(), 2, "{}: both writers of the same bytes win", bench.check);
        assert_eq!(winners[0].0, winners[1].0, "{}: one content", bench.check);
        bench.expect_get_tx(winners[0].2, Some(&winners[0].3)).await;
    }
}

async fn delete_then_put_again(bench: BlobBench) {
    let (txid, first) = bench.transaction(0, 1);
    let (_, second) = bench.transaction(0, 2);
    bench.expect_put_tx(txid, &first, PutOutcome::Stored).await;
    bench.expect_get_tx(txid, Some(&first)).await;
    for _ in 0..2 {
        bench.retry(|| bench.store.delete(BlobName::tx(txid))).await;
        bench.expect_get_tx(txid, None).await;
    }
    bench.expect_put_tx(txid, &second, PutOutcome::Stored).await;
    bench.expect_get_tx(txid, Some(&second)).await;
}
