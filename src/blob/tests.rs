//! Tests of the whole store: the conformance suite in memory and in a directory, with and without faults, and the
//! effect of each fault.

use std::{fs, path::Path as FilePath, sync::Arc, time::Duration};

use bytes::Bytes;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, memory::InMemory};

use super::{
    conformance::{self, CHECKS, transaction},
    fault::{BlobFault, BlobFaults, FaultStore},
    *,
};
use crate::{
    record::Blob,
    telemetry::{Metrics, TransferDirection},
    tx::Txid,
};

const PART: usize = 1 << 19;

fn in_parts(part_bytes: Option<usize>) -> BlobOptions {
    BlobOptions { part_bytes, ..BlobOptions::default() }
}

/// Opens a store in memory and returns it with its fault injector and its objects.
pub(super) fn faulty(seed: u64, options: BlobOptions) -> (BlobStore, FaultStore, Arc<InMemory>) {
    let objects = Arc::new(InMemory::new());
    let faults = FaultStore::new(objects.clone(), seed);
    (BlobStore::new(Arc::new(faults.clone()), options), faults, objects)
}

async fn directory(path: &FilePath) -> BlobStore {
    let url = BlobUrl::Directory(path.to_owned());
    let store = open(&url, Intent::Write, &BlobAccess::default(), BlobOptions::default()).await.unwrap();
    store.claim([1; 16], true).await.unwrap();
    store
}

pub(super) fn small(number: u64) -> (Txid, Bytes) {
    transaction(number, 3, 30, 1)
}

/// Replaces the bytes of a blob directly in the object store.
pub(super) async fn overwrite(objects: &InMemory, name: BlobName, bytes: &[u8]) {
    objects.put(&name.path(), PutPayload::from(bytes.to_vec())).await.unwrap();
}

#[tokio::test]
async fn memory_conforms() {
    conformance::run(&BlobStore::memory()).await;
}

#[tokio::test]
async fn memory_conforms_in_parts() {
    let objects = Arc::new(InMemory::new());
    conformance::run(&BlobStore::new(objects.clone(), in_parts(Some(PART)))).await;
    let staged = objects.list_with_delimiter(Some(&"staging".into())).await.unwrap();
    assert!(staged.objects.is_empty(), "{staged:?}");
}

#[tokio::test]
async fn a_directory_conforms() {
    let root = tempfile::tempdir().unwrap();
    conformance::run(&directory(root.path()).await).await;
    conformance::run(&BlobStore::memory()).await;
    let leftovers = fs::read_dir(root.path())
        .unwrap()
        .flat_map(|folder| fs::read_dir(folder.unwrap().path()).into_iter().flatten());
    let leftovers: Vec<_> =
        leftovers.map(|file| file.unwrap().path()).filter(|path| path.to_string_lossy().contains('#')).collect();
    assert!(leftovers.is_empty(), "{leftovers:?}");
}

#[tokio::test(start_paused = true)]
async fn stores_that_fail_conform() {
    let faults = BlobFaults {
        lost_request: 0.05,
        lost_reply: 0.05,
        slow: 0.05,
        slow_within: Duration::from_secs(60),
        other_bytes: 0.0,
        cut_short: 0.05,
        denied: 0.03,
        damaged_before: 0.0,
    };
    let mut injected = 0;
    for seed in 0..8 {
        for part in [None, Some(PART)] {
            let (store, with, _) = faulty(seed, in_parts(part));
            with.set(faults);
            for check in CHECKS {
                check.run(store.clone()).await;
            }
            injected += with.injected_by_kind().values().sum::<u64>();
        }
    }
    assert!(injected > 300, "{injected}");
}

#[tokio::test]
async fn lost_requests_and_lost_replies_are_retried() {
    for fault in [BlobFault::LostRequest, BlobFault::LostReply] {
        let (store, faults, _) = faulty(1, BlobOptions::default());
        let (txid, bytes) = small(1);
        faults.fail_at(1, fault);
        let error = store.put_tx(txid, bytes.clone()).await.unwrap_err();
        assert_eq!(error.kind, BlobErrorKind::Retryable, "the first request only asks for the size: {error}");
        faults.fail_at(2, fault);
        let error = store.put_tx(txid, bytes.clone()).await.unwrap_err();
        assert_eq!(error.kind, BlobErrorKind::Unknown, "{error}");
        let put = store.put_tx(txid, bytes.clone()).await.unwrap();
        assert_eq!(put, if fault == BlobFault::LostReply { PutOutcome::AlreadyStored } else { PutOutcome::Stored });

        faults.fail_at(1, fault);
        let error = store.load_tx(txid, Blob::First(None), Reuse::Unlikely).await.unwrap_err();
        assert_eq!(error.kind, BlobErrorKind::Retryable, "{error}");
        assert_eq!(store.load_tx(txid, Blob::First(None), Reuse::Unlikely).await.unwrap(), Some(bytes));
    }
}

#[tokio::test(start_paused = true)]
async fn requests_to_a_silent_store_time_out_and_can_be_retried() {
    let (store, faults, _) = faulty(1, BlobOptions::default());
    let (txid, bytes) = small(1);
    faults.fail_all(Some(BlobFault::Slow(Duration::from_secs(3_600))));
    let began = tokio::time::Instant::now();
    let error = store.put_tx(txid, bytes.clone()).await.unwrap_err();
    assert_eq!((error.kind, error.message.as_str()), (BlobErrorKind::Retryable, "not finished within 30s"));
    let error = store.load_tx(txid, Blob::First(None), Reuse::Likely).await.unwrap_err();
    assert_eq!(error.kind, BlobErrorKind::Retryable, "{error}");
    assert!(began.elapsed() < Duration::from_secs(61), "{:?}", began.elapsed());
    faults.fail_all(None);
    assert_eq!(store.put_tx(txid, bytes.clone()).await.unwrap(), PutOutcome::Stored);
    assert_eq!(store.load_tx(txid, Blob::First(None), Reuse::Likely).await.unwrap(), Some(bytes));
}

#[tokio::test]
async fn denied_requests_can_be_retried() {
    let (store, faults, _) = faulty(1, BlobOptions::default());
    let (txid, bytes) = small(1);
    faults.fail_all(Some(BlobFault::Denied));
    for error in [
        store.put_tx(txid, bytes.clone()).await.unwrap_err(),
        store.load_tx(txid, Blob::First(None), Reuse::Likely).await.unwrap_err(),
        store.exists(BlobName::tx(txid)).await.unwrap_err(),
        store.delete(BlobName::tx(txid)).await.unwrap_err(),
    ] {
        assert!(error.kind == BlobErrorKind::Denied && error.may_be_retried(), "{error}");
        assert!(error.to_string().contains(&format!("{txid}.tx")), "{error}");
    }
    faults.fail_all(None);
    assert_eq!(store.put_tx(txid, bytes).await.unwrap(), PutOutcome::Stored);
}

#[tokio::test]
async fn outputs_of_a_cached_transaction_are_not_read_again() {
    let (txid, bytes) = large(1);
    let stored = bytes.len() as u64 + 8;
    for (cache_bytes, reads) in [(stored as usize, 1), (stored as usize - 1, 21)] {
        let metrics = Arc::new(Metrics::new());
        let (store, ..) = faulty(1, BlobOptions { cache_bytes, metrics: metrics.clone(), ..BlobOptions::default() });
        store.put_tx(txid, bytes.clone()).await.unwrap();
        let reads_of_outputs = (0..20).map(|vout| {
            let store = &store;
            async move {
                store
                    .load_tx_outputs(txid, Blob::First(None), &[vout], Reuse::Likely)
                    .await
                    .unwrap()
                    .unwrap()
                    .contains_key(&vout)
            }
        });
        assert_eq!(futures_util::future::join_all(reads_of_outputs).await, [true; 20]);
        store.load_tx_outputs(txid, Blob::First(None), &[799], Reuse::Unlikely).await.unwrap().unwrap();
        assert_eq!(
            metrics.blob_bytes.of(TransferDirection::Read).get(),
            reads * stored,
            "a cache of {cache_bytes} bytes"
        );
    }
}

#[tokio::test]
async fn an_existing_blob_is_not_sent_again() {
    let metrics = Arc::new(Metrics::new());
    for part_bytes in [None, Some(PART)] {
        let (store, ..) = faulty(1, BlobOptions { part_bytes, metrics: metrics.clone(), ..BlobOptions::default() });
        let [(txid, one), (_, other)] = [1, 2].map(|claim| transaction(1, 800, 2_000, claim));
        assert_eq!(store.put_tx(txid, one.clone()).await.unwrap(), PutOutcome::Stored);
        let sent = metrics.blob_bytes.of(TransferDirection::Written).get();
        assert_eq!(store.put_tx(txid, one).await.unwrap(), PutOutcome::AlreadyStored);
        assert_eq!(store.put_tx(txid, other).await.unwrap(), PutOutcome::OtherStored);
        assert_eq!(metrics.blob_bytes.of(TransferDirection::Written).get(), sent);
    }
}

/// Builds a transaction of 1.6 MB, which takes 24 s at 64 KiB per second.
fn large(number: u64) -> (Txid, Bytes) {
    transaction(number, 800, 2_000, 1)
}

#[tokio::test(start_paused = true)]
async fn the_time_limit_of_a_write_grows_with_its_bytes() {
    let (txid, bytes) = large(1);
    let slow = |seconds| BlobFault::Slow(Duration::from_secs(seconds));
    let (store, faults, _) = faulty(1, BlobOptions::default());
    faults.fail_at(2, slow(55));
    let error = store.put_tx(txid, bytes.clone()).await.unwrap_err();
    assert_eq!((error.kind, error.message.as_str()), (BlobErrorKind::Unknown, "not finished within 54s"));
    faults.fail_at(2, slow(53));
    assert_eq!(store.put_tx(txid, bytes.clone()).await.unwrap(), PutOutcome::Stored);

    // Four parts share the bandwidth, so that each has the time of four.
    let (store, faults, _) = faulty(1, in_parts(Some(PART)));
    faults.fail_at(3, slow(61));
    assert_eq!(store.put_tx(txid, bytes.clone()).await.unwrap(), PutOutcome::Stored);
    let quicker = BlobOptions { least_rate: 1 << 20, ..in_parts(Some(PART)) };
    let (store, faults, _) = faulty(1, quicker);
    faults.fail_at(3, slow(61));
    assert_eq!(store.put_tx(txid, bytes).await.unwrap_err().message, "not finished within 32s");
}

#[tokio::test(start_paused = true)]
async fn a_read_ends_when_it_stalls_and_when_it_exceeds_its_time_limit() {
    let (txid, bytes) = large(1);
    let (store, faults, _) = faulty(1, BlobOptions::default());
    store.put_tx(txid, bytes.clone()).await.unwrap();
    let dripping = |ms| faults.fail_all(Some(BlobFault::Dripping(Duration::from_millis(ms))));
    let late = "not finished within 54s";
    for (ms, says) in [(31_000, "no answer for 30s"), (29_000, late), (200, late)] {
        dripping(ms);
        for error in [
            store.load_tx(txid, Blob::First(None), Reuse::Likely).await.unwrap_err(),
            store.load_tx_outputs(txid, Blob::First(None), &[0], Reuse::Unlikely).await.unwrap_err(),
            store.put_tx(txid, bytes.clone()).await.unwrap_err(),
        ] {
            assert_eq!((error.kind, error.message.as_str()), (BlobErrorKind::Retryable, says), "{ms} ms");
        }
    }
    dripping(100);
    assert_eq!(store.load_tx(txid, Blob::First(None), Reuse::Likely).await.unwrap(), Some(bytes));
}

#[tokio::test(start_paused = true)]
async fn whole_reads_are_bounded_by_their_bytes() {
    let blobs: Vec<(Txid, Bytes)> = (1..=6).map(large).collect();
    // Budgets for three blobs, for all, and for less than one, which is then read alone.
    for (whole_read_bytes, rounds) in [(5 << 20, 2), (10 << 20, 1), (1 << 10, 6)] {
        let (store, faults, _) = faulty(1, BlobOptions { whole_read_bytes, ..BlobOptions::default() });
        for (txid, bytes) in &blobs {
            store.put_tx(*txid, bytes.clone()).await.unwrap();
        }
        faults.fail_all(Some(BlobFault::Dripping(Duration::from_millis(100))));
        let drops = (blobs[0].1.len() as u32 + 32).div_ceil(4 << 10);
        let began = tokio::time::Instant::now();
        let read = blobs.iter().map(|(txid, _)| store.load_tx(*txid, Blob::First(None), Reuse::Unlikely));
        for (found, (_, bytes)) in futures_util::future::join_all(read).await.iter().zip(&blobs) {
            assert_eq!(
                found.as_ref().unwrap().as_ref(),
                Some(bytes),
                "the time limit does not run while a read waits for its budget"
            );
        }
        assert_eq!(
            began.elapsed(),
            rounds * drops * Duration::from_millis(100),
            "a budget of {whole_read_bytes} bytes"
        );
    }
}

#[tokio::test]
async fn a_fault_at_any_request_of_a_large_write_leaves_all_or_nothing() {
    let (txid, bytes) = transaction(1, 800, 2_000, 1);
    for fault in [BlobFault::LostRequest, BlobFault::LostReply, BlobFault::Denied] {
        let mut failed = 0;
        for k in 1.. {
            let (store, faults, _) = faulty(1, in_parts(Some(PART)));
            faults.fail_at(k, fault);
            let put = store.put_tx(txid, bytes.clone()).await;
            let all = faults.requests();
            faults.clear_script();
            failed += usize::from(put.is_err());
            let found = store.load_tx(txid, Blob::First(None), Reuse::Unlikely).await.unwrap();
            assert!(found.is_none() || found.as_ref() == Some(&bytes), "request {k}: {fault:?}");
            assert!(put.is_err() || found.is_some(), "request {k}: {fault:?}: acknowledged and absent");
            store.put_tx(txid, bytes.clone()).await.unwrap();
            assert_eq!(store.load_tx(txid, Blob::First(None), Reuse::Unlikely).await.unwrap(), Some(bytes.clone()));
            if k > all {
                break;
            }
        }
        assert!(failed >= 6, "{fault:?}: {failed}");
    }
}

#[tokio::test]
async fn a_torn_write_leaves_no_blob_and_does_not_block_the_next_put() {
    let root = tempfile::tempdir().unwrap();
    let store = directory(root.path()).await;
    let (txid, bytes) = small(1);
    let file = root.path().join(BlobName::tx(txid).to_string());
    let staged = |number: u32| FilePath::new(&format!("{}#{number}", file.display())).to_owned();
    for number in 1..=3 {
        fs::write(staged(number), &bytes[..bytes.len() / 2]).unwrap();
    }
    assert!(!store.exists(BlobName::tx(txid)).await.unwrap());
    assert_eq!(store.load_tx(txid, Blob::First(None), Reuse::Likely).await.unwrap(), None);
    assert_eq!(store.put_tx(txid, bytes.clone()).await.unwrap(), PutOutcome::Stored);
    // A writer that was killed between linking the blob and removing the staged file leaves both names.
    fs::hard_link(&file, staged(4)).unwrap();
    assert_eq!(store.put_tx(txid, bytes.clone()).await.unwrap(), PutOutcome::AlreadyStored);
    assert_eq!(store.load_tx(txid, Blob::First(None), Reuse::Likely).await.unwrap(), Some(bytes));
}

#[tokio::test]
async fn an_unmounted_directory_is_an_error_and_not_an_empty_store() {
    let parent = tempfile::tempdir().unwrap();
    let (root, elsewhere) = (parent.path().join("blobs"), parent.path().join("unmounted"));
    let store = directory(&root).await;
    let (txid, bytes) = small(1);
    store.put_tx(txid, bytes.clone()).await.unwrap();
    fs::rename(&root, &elsewhere).unwrap();
    for has_mount_point in [false, true] {
        if has_mount_point {
            fs::create_dir(&root).unwrap();
        }
        for error in [
            store.load_tx(txid, Blob::First(None), Reuse::Unlikely).await.unwrap_err(),
            store.exists(BlobName::tx(txid)).await.unwrap_err(),
            store.delete(BlobName::tx(txid)).await.unwrap_err(),
            store.put_tx(txid, bytes.clone()).await.unwrap_err(),
        ] {
            assert!(
                error.kind == BlobErrorKind::Retryable && error.message.contains("blob store unavailable"),
                "{error}"
            );
        }
    }
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0, "nothing is written below the mount point");
    fs::remove_dir(&root).unwrap();
    fs::rename(&elsewhere, &root).unwrap();
    assert_eq!(store.put_tx(txid, bytes.clone()).await.unwrap(), PutOutcome::AlreadyStored);
    assert_eq!(store.load_tx(txid, Blob::First(None), Reuse::Unlikely).await.unwrap(), Some(bytes));
}

#[tokio::test]
async fn a_file_in_the_place_of_a_blob_folder_denies_writes() {
    let root = tempfile::tempdir().unwrap();
    let store = directory(root.path()).await;
    let (txid, bytes) = small(1);
    let folder = root.path().join(&txid.to_string()[..2]);
    fs::remove_dir(&folder).unwrap();
    fs::write(&folder, "").unwrap();
    let error = store.put_tx(txid, bytes.clone()).await.unwrap_err();
    assert_eq!(error.kind, BlobErrorKind::Denied, "{error}");
    fs::remove_file(&folder).unwrap();
    assert_eq!(store.put_tx(txid, bytes).await.unwrap(), PutOutcome::Stored, "the folder is created again");
}

#[tokio::test]
async fn a_directory_is_opened_to_read_only_if_it_is_a_blob_store() {
    let parent = tempfile::tempdir().unwrap();
    let root = parent.path().join("a/blobs");
    let (txid, bytes) = small(1);
    let attempt = |intent| {
        let url = BlobUrl::Directory(root.clone());
        async move { open(&url, intent, &BlobAccess::default(), BlobOptions::default()).await }
    };
    let error = attempt(Intent::Read).await.unwrap_err();
    assert!(matches!(error, OpenBlobError::Missing { .. }) && !root.exists(), "{error}");
    directory(&root).await.put_tx(txid, bytes.clone()).await.unwrap();
    let reader = attempt(Intent::Read).await.unwrap();
    assert_eq!(reader.load_tx(txid, Blob::First(None), Reuse::Likely).await.unwrap(), Some(bytes.clone()));
    for error in
        [reader.put_tx(txid, bytes.clone()).await.unwrap_err(), reader.delete(BlobName::tx(txid)).await.unwrap_err()]
    {
        assert_eq!(error.kind, BlobErrorKind::Denied, "{error}");
    }
    assert_eq!(directory(&root).await.load_tx(txid, Blob::First(None), Reuse::Likely).await.unwrap(), Some(bytes));
}

#[cfg(not(any(feature = "aws", feature = "http")))]
#[tokio::test]
async fn a_scheme_that_is_not_built_is_refused_with_its_feature() {
    for (url, says) in [("s3://bucket", "--features aws"), ("http://host/a", "--features http")] {
        let url: BlobUrl = url.parse().unwrap();
        let error = open(&url, Intent::Write, &BlobAccess::default(), BlobOptions::default()).await.unwrap_err();
        assert!(error.to_string().contains(says) && !error.may_be_retried(), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn transactions_that_are_read_again_come_from_the_cache() {
    let metrics = Arc::new(Metrics::new());
    let (store, faults, _) = faulty(1, BlobOptions { metrics: metrics.clone(), ..BlobOptions::default() });
    let (txid, bytes) = small(1);
    store.put_tx(txid, bytes.clone()).await.unwrap();
    let before = faults.requests();
    let reads = (0..20).map(|_| store.load_tx(txid, Blob::First(None), Reuse::Likely));
    for found in futures_util::future::join_all(reads).await {
        assert_eq!(found.unwrap(), Some(bytes.clone()));
    }
    assert!(
        store.load_tx_outputs(txid, Blob::First(None), &[0], Reuse::Unlikely).await.unwrap().unwrap().contains_key(&0)
    );
    assert_eq!(faults.requests() - before, 1);
    assert!(metrics.blob_cache.of(true.into()).get() >= 1);
    tokio::time::advance(Duration::from_secs(10)).await;
    faults.fail_at(1, BlobFault::Slow(Duration::from_secs(60)));
    let reads = (0..20).map(|_| store.load_tx(txid, Blob::First(None), Reuse::Likely));
    let failed = futures_util::future::join_all(reads).await;
    assert!(failed.iter().all(|found| found.as_ref().is_err_and(BlobError::may_be_retried)));
    assert_eq!(faults.requests() - before, 2, "all callers share one timeout");
    store.load_tx(txid, Blob::First(None), Reuse::Unlikely).await.unwrap();
    store.load_tx(txid, Blob::First(None), Reuse::Unlikely).await.unwrap();
    assert_eq!(faults.requests() - before, 4, "the entry has expired, and an unlikely reuse is not cached");
}
