//! One suite for every store that a [`BlobStore`] may lie on.
//!
//! The checks are library code, so that the tests of each store, and of stores with faults, run the same ones. They panic with
//! a message that names what differed. A request that fails in a way that may be repeated is repeated, so the suite also runs where
//! replies get lost; such a put may also answer what a repeat answers.

use std::{collections::BTreeMap, future::Future, pin::Pin, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;

use super::{BlobError, BlobErrorKind, BlobName, BlobStore, PartialTx, Put, Reuse};
use crate::{
    record::{Body, StoredOutput},
    tx::{Outpoint, Output, Transaction, TransactionBuilder, Txid},
};

/// A check by its name. Each uses transactions of its own, so all may run on one store.
#[derive(Clone, Copy)]
pub struct Check {
    /// What it checks.
    pub name: &'static str,
    run: fn(Bench) -> Pin<Box<dyn Future<Output = ()> + Send>>,
}

macro_rules! checks {
    ($($name:ident),* $(,)?) => {
        &[$(Check { name: stringify!($name), run: |bench| Box::pin($name(bench)) }),*]
    };
}

/// All checks.
pub const CHECKS: &[Check] = checks![
    what_was_put_is_got,
    a_large_one,
    twice_is_once,
    the_first_one_stays,
    what_is_not_there,
    what_its_name_does_not_say_is_not_stored,
    partial_transactions,
    one_of_many_writers_wins,
    deleted_and_put_again,
];

impl Check {
    /// Runs it.
    ///
    /// # Panics
    /// Where the store does not conform.
    pub async fn run(&self, store: BlobStore) {
        (self.run)(Bench { store, check: self.name }).await;
    }
}

/// Runs every check on one store.
///
/// # Panics
/// Where it does not conform.
pub async fn run(store: &BlobStore) {
    for check in CHECKS {
        check.run(store.clone()).await;
    }
}

/// A transaction in extended format with one input and so many outputs; another `claim`, and only what it says that it spends
/// differs.
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

/// Larger than a piece of a read, and than a part of a write where there are any in tests.
const LARGE: (u32, usize) = (800, 2_000);
/// How often a request is sent before the store is held to be broken, and how long to wait in between.
const ATTEMPTS: usize = 200;
const PAUSE: Duration = Duration::from_millis(1);

/// A store under test, as a check sees it.
#[derive(Clone)]
struct Bench {
    store: BlobStore,
    check: &'static str,
}

/// What a store answered to a put.
struct Answer {
    put: Put,
    /// An earlier attempt may have been done, and only its reply lost.
    repeated: bool,
}

impl Answer {
    fn is(&self, expected: Put) -> bool {
        self.put == expected || (self.repeated && expected == Put::Stored && self.put == Put::AlreadyStored)
    }
}

impl Bench {
    fn transaction(&self, number: u64, claim: u64) -> (Txid, Bytes) {
        transaction(self.number(number), 5, 30, claim)
    }

    /// One of this check's own.
    fn number(&self, number: u64) -> u64 {
        self.check.bytes().fold(number, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)))
    }

    async fn retried<T, F: Future<Output = Result<T, BlobError>>>(&self, mut request: impl FnMut() -> F) -> (T, bool) {
        let mut repeated = false;
        for _ in 0..ATTEMPTS {
            match request().await {
                Ok(value) => return (value, repeated),
                Err(error) if error.may_be_repeated() => repeated |= error.kind == BlobErrorKind::Unknown,
                Err(error) => panic!("{}: {error}", self.check),
            }
            tokio::time::sleep(PAUSE).await;
        }
        panic!("{}: failed {ATTEMPTS} times", self.check)
    }

    async fn put_tx(&self, txid: Txid, bytes: &Bytes) -> Answer {
        let (put, repeated) = self.retried(|| self.store.put_tx(txid, bytes.clone())).await;
        Answer { put, repeated }
    }

    async fn must_put_tx(&self, txid: Txid, bytes: &Bytes, expected: Put) {
        let answer = self.put_tx(txid, bytes).await;
        assert!(answer.is(expected), "{}: {:?} is not {expected:?}", self.check, answer.put);
    }

    async fn must_get_tx(&self, txid: Txid, expected: Option<&Bytes>) {
        for reuse in [Reuse::Unlikely, Reuse::Likely, Reuse::Likely] {
            let (found, _) = self.retried(|| self.store.get_tx(txid, reuse)).await;
            let len = found.as_ref().map(Bytes::len);
            assert!(found.as_ref() == expected, "{}: {txid} read as {len:?} bytes that were not put", self.check);
        }
    }

    async fn exists(&self, name: BlobName) -> bool {
        self.retried(|| self.store.exists(name)).await.0
    }
}

async fn what_was_put_is_got(bench: Bench) {
    let (txid, bytes) = bench.transaction(0, 1);
    bench.must_put_tx(txid, &bytes, Put::Stored).await;
    bench.must_get_tx(txid, Some(&bytes)).await;
    assert!(bench.exists(BlobName::tx(txid)).await);
    let (body, _) = bench.retried(|| bench.store.body(txid, Reuse::Unlikely)).await;
    assert_eq!(body, Some(Body::Transaction(bytes)));

    let height = bench.number(1).to_le_bytes();
    let coinbase = TransactionBuilder::default().input(Outpoint::NULL, &height, 0, None).output(50, b"\x51");
    for bytes in [coinbase.standard(), coinbase.lock_time(1).extended()] {
        let bytes = Bytes::from(bytes);
        let txid = Transaction::parse(&bytes).expect("the builder writes what parses").txid();
        bench.must_put_tx(txid, &bytes, Put::Stored).await;
        bench.must_get_tx(txid, Some(&bytes)).await;
    }
}

async fn a_large_one(bench: Bench) {
    let (outputs, script_len) = LARGE;
    let (txid, bytes) = transaction(bench.number(0), outputs, script_len, 1);
    bench.must_put_tx(txid, &bytes, Put::Stored).await;
    bench.must_put_tx(txid, &bytes, Put::AlreadyStored).await;
    bench.must_get_tx(txid, Some(&bytes)).await;

    let transaction = Transaction::parse(&bytes).expect("parsed before");
    let all: Vec<Output<'_>> = transaction.outputs().collect();
    let last = outputs - 1;
    for wanted in [&[][..], &[0, last, last / 2], &[outputs, u32::MAX]] {
        let expected: BTreeMap<u32, StoredOutput> = wanted
            .iter()
            .filter_map(|vout| {
                let Output { satoshis, script } = *all.get(*vout as usize)?;
                Some((*vout, StoredOutput { satoshis, script: Bytes::copy_from_slice(script) }))
            })
            .collect();
        for reuse in [Reuse::Unlikely, Reuse::Likely, Reuse::Likely] {
            let (found, _) = bench.retried(|| bench.store.tx_outputs(txid, wanted, reuse)).await;
            assert_eq!(found.as_ref(), Some(&expected), "{}: {wanted:?} {reuse:?}", bench.check);
        }
    }
}

async fn twice_is_once(bench: Bench) {
    let (txid, bytes) = bench.transaction(0, 1);
    bench.must_put_tx(txid, &bytes, Put::Stored).await;
    for _ in 0..3 {
        bench.must_put_tx(txid, &bytes, Put::AlreadyStored).await;
    }
    bench.must_get_tx(txid, Some(&bytes)).await;
}

async fn the_first_one_stays(bench: Bench) {
    let (txid, first) = bench.transaction(0, 1);
    let (same, second) = bench.transaction(0, 2);
    assert_eq!(txid, same, "a txid does not commit to claims");
    bench.must_put_tx(txid, &first, Put::Stored).await;
    bench.must_put_tx(txid, &second, Put::OtherStored).await;
    bench.must_get_tx(txid, Some(&first)).await;
    bench.must_put_tx(txid, &first, Put::AlreadyStored).await;
}

async fn what_is_not_there(bench: Bench) {
    let (txid, _) = bench.transaction(0, 1);
    bench.must_get_tx(txid, None).await;
    for name in [BlobName::tx(txid), BlobName::outputs(txid)] {
        assert!(!bench.exists(name).await, "{}: {name}", bench.check);
        bench.retried(|| bench.store.delete(name)).await;
    }
    for reuse in [Reuse::Unlikely, Reuse::Likely] {
        assert_eq!(bench.retried(|| bench.store.tx_outputs(txid, &[0], reuse)).await.0, None);
    }
    assert_eq!(bench.retried(|| bench.store.get_outputs(txid)).await.0, None);
    assert_eq!(bench.retried(|| bench.store.body(txid, Reuse::Likely)).await.0, None);
}

async fn what_its_name_does_not_say_is_not_stored(bench: Bench) {
    let (txid, bytes) = bench.transaction(0, 1);
    let (other, _) = bench.transaction(1, 1);
    let mut standard = Vec::new();
    Transaction::parse(&bytes).expect("parsed before").write_standard(&mut standard);
    let cut = bytes.slice(..bytes.len() - 1);
    for (txid, bytes) in [(other, bytes), (txid, standard.into()), (txid, cut), (txid, Bytes::new())] {
        let error = bench.store.put_tx(txid, bytes).await.expect_err("other bytes were stored");
        assert_eq!(error.kind, BlobErrorKind::Invalid, "{error}");
        bench.must_get_tx(txid, None).await;
    }
}

async fn partial_transactions(bench: Bench) {
    let (txid, _) = bench.transaction(0, 1);
    let output = |satoshis| StoredOutput { satoshis, script: Bytes::from_static(b"\x51") };
    let first = PartialTx { txid, height: 9, coinbase: false, outputs: vec![(1, output(5)), (4, output(6))] };
    let second = PartialTx { outputs: vec![(1, output(5))], ..first.clone() };
    let put = |partial: PartialTx, expected: Put| {
        let bench = bench.clone();
        async move {
            let (put, repeated) = bench.retried(|| bench.store.put_outputs(&partial)).await;
            assert!(Answer { put, repeated }.is(expected), "{}: {put:?} is not {expected:?}", bench.check);
        }
    };
    put(first.clone(), Put::Stored).await;
    put(first.clone(), Put::AlreadyStored).await;
    put(second, Put::OtherStored).await;
    assert_eq!(bench.retried(|| bench.store.get_outputs(txid)).await.0, Some(first.clone()));
    assert_eq!(bench.retried(|| bench.store.body(txid, Reuse::Likely)).await.0, Some(first.body()));
    bench.must_get_tx(txid, None).await;
}

async fn one_of_many_writers_wins(bench: Bench) {
    for (round, (outputs, script_len)) in (0..).zip([(5, 30), (5, 30), LARGE]) {
        let claims: Vec<u64> = (0..6).map(|writer| writer % 3).collect();
        let writers = claims.iter().map(|claim| {
            let (txid, bytes) = transaction(bench.number(round), outputs, script_len, *claim);
            let bench = bench.clone();
            async move { (*claim, bench.put_tx(txid, &bytes).await, txid, bytes) }
        });
        let answers = join_all(writers).await;
        let winners: Vec<&(u64, Answer, Txid, Bytes)> =
            answers.iter().filter(|(_, answer, ..)| answer.put != Put::OtherStored).collect();
        let stored = winners.iter().filter(|(_, answer, ..)| answer.put == Put::Stored).count();
        let told = answers.iter().any(|(_, answer, ..)| answer.repeated);
        assert!(stored == 1 || (told && stored == 0), "{}: {stored} writers were the first", bench.check);
        assert_eq!(winners.len(), 2, "{}: both who wrote the same", bench.check);
        assert_eq!(winners[0].0, winners[1].0, "{}: one content", bench.check);
        bench.must_get_tx(winners[0].2, Some(&winners[0].3)).await;
    }
}

async fn deleted_and_put_again(bench: Bench) {
    let (txid, first) = bench.transaction(0, 1);
    let (_, second) = bench.transaction(0, 2);
    bench.must_put_tx(txid, &first, Put::Stored).await;
    bench.must_get_tx(txid, Some(&first)).await;
    for _ in 0..2 {
        bench.retried(|| bench.store.delete(BlobName::tx(txid))).await;
        bench.must_get_tx(txid, None).await;
    }
    bench.must_put_tx(txid, &second, Put::Stored).await;
    bench.must_get_tx(txid, Some(&second)).await;
}
