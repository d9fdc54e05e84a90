//! Tests of the ownership of a blob store: places that are unclaimed, owned by another store, or unavailable.

use std::{
    fs::{self, File},
    path::Path as FilePath,
    sync::Arc,
    time::{Duration, SystemTime},
};

use object_store::{ObjectStore, ObjectStoreExt, PutPayload, memory::InMemory, path::Path};

use super::{
    claim::{BlobLocation, MARK},
    conformance::transaction,
    fault::{BlobFault, FaultStore},
    *,
};
use crate::record::Blob;

const OURS: [u8; 16] = [1; 16];
const THEIRS: [u8; 16] = [2; 16];

async fn opened(root: &FilePath, intent: Intent) -> Result<BlobStore, OpenBlobError> {
    let url = BlobUrl::Directory(root.to_owned());
    open(&url, intent, &BlobAccess::default(), BlobOptions::default()).await
}

async fn writer(root: &FilePath) -> BlobStore {
    opened(root, Intent::Write).await.unwrap()
}

/// Opens a blob store as on a server: with a mark and without a directory.
fn server(objects: Arc<dyn ObjectStore>, part_bytes: Option<usize>) -> BlobStore {
    let location = BlobLocation { url: Some("s3://bucket".into()), ..BlobLocation::default() };
    BlobStore::at(objects, BlobOptions { part_bytes, ..BlobOptions::default() }, location)
}

fn is_empty(root: &FilePath) -> bool {
    fs::read_dir(root).unwrap().next().is_none()
}

#[tokio::test]
async fn an_empty_place_becomes_a_blob_store_only_at_the_first_claim() {
    let parent = tempfile::tempdir().unwrap();
    let root = parent.path().join("a/blobs");
    let objects = Arc::new(InMemory::new());
    for directory in [true, false] {
        let open = || async { if directory { writer(&root).await } else { server(objects.clone(), None) } };
        let missing = open().await.claim(OURS, false).await.unwrap_err();
        assert!(matches!(missing, OpenBlobError::Missing { .. }) && missing.to_string().contains(MARK), "{missing}");
        assert!(!directory || is_empty(&root), "nothing is created in a mount point");

        // The second claim is that of an instance that was killed before it wrote `has_blobs`; the third comes after.
        for is_first in [true, true, false] {
            open().await.claim(OURS, is_first).await.unwrap();
        }
        for is_first in [true, false] {
            let error = open().await.claim(THEIRS, is_first).await.unwrap_err().to_string();
            assert!(error.contains(&hex::encode(OURS)) && error.contains(&hex::encode(THEIRS)), "{error}");
        }
    }
}

#[tokio::test]
async fn two_first_claims_of_the_same_store_share_the_place() {
    let root = tempfile::tempdir().unwrap();
    let (one, other) = (writer(root.path()).await, writer(root.path()).await);
    let (txid, bytes) = transaction(1, 3, 30, 1);
    one.claim(OURS, true).await.unwrap();
    one.put_tx(txid, bytes.clone()).await.unwrap();
    other.claim(OURS, true).await.unwrap();
    assert_eq!(other.put_tx(txid, bytes).await.unwrap(), PutOutcome::AlreadyStored);

    let objects = Arc::new(InMemory::new());
    let [one, other] = [(); 2].map(|()| server(objects.clone(), None));
    let (first, second) = tokio::join!(one.claim(OURS, true), other.claim(OURS, true));
    first.and(second).unwrap();
}

#[tokio::test]
async fn an_unclaimed_store_denies_writes_and_reports_no_blob_as_absent() {
    let root = tempfile::tempdir().unwrap();
    writer(root.path()).await.claim(OURS, true).await.unwrap();
    let objects = Arc::new(InMemory::new());
    server(objects.clone(), None).claim(OURS, true).await.unwrap();
    let (txid, bytes) = transaction(1, 3, 30, 1);
    for store in [writer(root.path()).await, server(objects, None)] {
        for error in [
            store.put_tx(txid, bytes.clone()).await.unwrap_err(),
            store.load_tx(txid, Blob::First(None), Reuse::Likely).await.unwrap_err(),
            store.delete(BlobName::tx(txid)).await.unwrap_err(),
        ] {
            assert!(error.kind == BlobErrorKind::Denied && error.message.contains("is not claimed"), "{error}");
        }
        store.claim(OURS, false).await.unwrap();
        assert_eq!(store.load_tx(txid, Blob::First(None), Reuse::Likely).await.unwrap(), None);
        assert_eq!(store.put_tx(txid, bytes.clone()).await.unwrap(), PutOutcome::Stored);
    }
}

#[tokio::test]
async fn a_place_with_other_files_does_not_become_a_blob_store() {
    let not_empty = |error: OpenBlobError| {
        assert!(matches!(error, OpenBlobError::NotEmpty { .. }) && error.to_string().contains(MARK), "{error}");
    };
    let root = tempfile::tempdir().unwrap();
    let letter = root.path().join("letter.txt");
    fs::write(&letter, "dear diary").unwrap();
    not_empty(writer(root.path()).await.claim(OURS, true).await.unwrap_err());
    fs::remove_file(&letter).unwrap();
    let store = writer(root.path()).await;
    store.claim(OURS, true).await.unwrap();
    let (txid, bytes) = transaction(1, 3, 30, 1);
    store.put_tx(txid, bytes.clone()).await.unwrap();
    fs::remove_file(root.path().join(MARK)).unwrap();
    not_empty(writer(root.path()).await.claim(THEIRS, true).await.unwrap_err());
    store.delete(BlobName::tx(txid)).await.unwrap_err();
    fs::remove_file(root.path().join(BlobName::tx(txid).to_string())).unwrap();
    writer(root.path()).await.claim(THEIRS, true).await.expect("a killed set-up leaves empty folders");

    let objects = Arc::new(InMemory::new());
    objects.put(&Path::from("ab/letter"), PutPayload::from_static(b"dear diary")).await.unwrap();
    not_empty(server(objects, None).claim(OURS, true).await.unwrap_err());
}

#[tokio::test]
async fn check_claim_predicts_the_claim_and_writes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let check = async |store_id, is_first| {
        opened(root.path(), Intent::Check).await.unwrap().check_claim(store_id, is_first).await
    };
    assert!(!check(None, true).await.unwrap(), "a claim would mark the place");
    assert!(matches!(check(Some(OURS), false).await, Err(OpenBlobError::Missing { .. })), "the mark is lost");
    assert!(is_empty(root.path()));
    fs::write(root.path().join("letter.txt"), "dear diary").unwrap();
    assert!(matches!(check(Some(OURS), true).await, Err(OpenBlobError::NotEmpty { .. })));
    fs::remove_file(root.path().join("letter.txt")).unwrap();
    writer(root.path()).await.claim(OURS, true).await.unwrap();
    for is_first in [true, false] {
        assert!(check(Some(OURS), is_first).await.unwrap());
        assert!(matches!(check(Some(THEIRS), is_first).await, Err(OpenBlobError::OtherStore { .. })));
    }
    let error = check(None, true).await.unwrap_err().to_string();
    assert!(error.contains(&hex::encode(OURS)) && error.contains("not to a new store"), "{error}");
    let written = opened(root.path(), Intent::Check).await.unwrap().claim(OURS, true).await;
    assert!(matches!(written, Err(OpenBlobError::ReadOnly { .. })));
    assert!(matches!(opened(&root.path().join("none"), Intent::Check).await, Err(OpenBlobError::Missing { .. })));

    let objects = Arc::new(InMemory::new());
    assert!(!server(objects.clone(), None).check_claim(Some(OURS), true).await.unwrap());
    objects.put(&Path::from("ab/letter"), PutPayload::from_static(b"dear diary")).await.unwrap();
    let error = server(objects, None).check_claim(Some(OURS), true).await;
    assert!(matches!(error, Err(OpenBlobError::NotEmpty { .. })));
}

#[tokio::test]
async fn a_mark_of_another_layout_is_refused_and_quoted() {
    let root = tempfile::tempdir().unwrap();
    writer(root.path()).await.claim(OURS, true).await.unwrap();
    fs::write(root.path().join(MARK), "utxo-store blobs, layout 2\n").unwrap();
    for error in [
        writer(root.path()).await.claim(OURS, true).await.unwrap_err(),
        opened(root.path(), Intent::Read).await.unwrap_err(),
    ] {
        assert!(error.to_string().contains("layout 2") && !error.to_string().contains('\n'), "{error}");
    }
}

#[tokio::test]
async fn a_store_is_unavailable_while_its_place_is_empty_or_anothers() {
    let parent = tempfile::tempdir().unwrap();
    let (root, elsewhere) = (parent.path().join("blobs"), parent.path().join("unmounted"));
    let store = writer(&root).await;
    store.claim(OURS, true).await.unwrap();
    let reader = opened(&root, Intent::Read).await.unwrap();
    let (txid, bytes) = transaction(1, 3, 30, 1);
    store.put_tx(txid, bytes.clone()).await.unwrap();
    fs::rename(&root, &elsewhere).unwrap();

    fs::create_dir(&root).unwrap();
    let error = writer(&root).await.claim(OURS, false).await.unwrap_err();
    assert!(matches!(error, OpenBlobError::Missing { .. }) && is_empty(&root), "{error}");

    writer(&root).await.claim(THEIRS, true).await.unwrap();
    for error in [
        store.load_tx(txid, Blob::First(None), Reuse::Unlikely).await.unwrap_err(),
        reader.load_tx(txid, Blob::First(None), Reuse::Unlikely).await.unwrap_err(),
        store.put_tx(txid, bytes.clone()).await.unwrap_err(),
    ] {
        assert!(error.kind == BlobErrorKind::Denied && error.message.contains(&hex::encode(THEIRS)), "{error}");
    }
    assert!(!root.join(BlobName::tx(txid).to_string()).exists());
}

#[tokio::test]
async fn a_server_that_ignores_conditions_is_refused() {
    let overwrites = |claimed: Result<(), OpenBlobError>, what: &str| {
        let error = claimed.unwrap_err();
        assert!(matches!(error, OpenBlobError::Overwrites { .. }) && error.to_string().contains(what), "{error}");
    };
    let objects = Arc::new(InMemory::new());
    let faults = FaultStore::new(objects, 1);
    let store = |part_bytes| server(Arc::new(faults.clone()), part_bytes);
    faults.fail_all(Some(BlobFault::Unconditional));
    overwrites(store(None).claim(OURS, true).await, "conditional write");
    overwrites(store(None).claim(OURS, false).await, "conditional write");
    faults.fail_all(None);
    // Requests of a claim: read the mark, write the mark, copy the mark.
    faults.fail_at(3, BlobFault::Unconditional);
    overwrites(store(Some(5)).claim(OURS, false).await, "conditional copy");
    store(Some(5)).claim(OURS, false).await.expect("the mark is unchanged");
    faults.fail_at(3, BlobFault::Unconditional);
    store(None).claim(OURS, false).await.expect("a store without parts copies nothing");
}

#[tokio::test]
async fn a_claim_removes_the_staged_files_of_killed_writers_once_they_are_old() {
    let root = tempfile::tempdir().unwrap();
    let store = writer(root.path()).await;
    store.claim(OURS, true).await.unwrap();
    let (txid, bytes) = transaction(1, 3, 30, 1);
    let blob = root.path().join(BlobName::tx(txid).to_string());
    let staged = |number: u32| FilePath::new(&format!("{}#{number}", blob.display())).to_owned();
    let aged = |path: &FilePath, hours: u64| {
        let written = SystemTime::now() - Duration::from_secs(hours * 60 * 60);
        File::options().write(true).open(path).unwrap().set_modified(written).unwrap();
    };
    for number in 1..=3 {
        fs::write(staged(number), &bytes[..bytes.len() / 2]).unwrap();
    }
    aged(&staged(1), 25);
    aged(&staged(2), 23);
    // A put of this blob does not remove the staged files.
    for expected in [PutOutcome::Stored, PutOutcome::AlreadyStored] {
        assert_eq!(store.put_tx(txid, bytes.clone()).await.unwrap(), expected);
        assert!((1..=3).all(|number| staged(number).exists()) && !staged(4).exists());
    }
    aged(&blob, 1_000);
    opened(root.path(), Intent::Read).await.unwrap();
    assert!(staged(1).exists(), "a reader changes nothing");
    writer(root.path()).await.claim(OURS, false).await.unwrap();
    assert_eq!((1..=3).map(|number| staged(number).exists()).collect::<Vec<_>>(), [false, true, true]);
    assert_eq!(store.load_tx(txid, Blob::First(None), Reuse::Unlikely).await.unwrap(), Some(bytes));
}
