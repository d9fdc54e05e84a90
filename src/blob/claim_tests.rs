//! Whose blob store a place is, and what becomes of one that is nobody's, another's, or not there.

use std::{
    fs::{self, File},
    path::Path as FilePath,
    sync::Arc,
    time::{Duration, SystemTime},
};

use object_store::{ObjectStore, ObjectStoreExt, PutPayload, memory::InMemory, path::Path};

use super::{
    claim::MARK,
    conformance::transaction,
    fault::{Fault, FaultStore},
    store::Place,
    *,
};

const OURS: [u8; 16] = [1; 16];
const THEIRS: [u8; 16] = [2; 16];

async fn opened(root: &FilePath, intent: Intent) -> Result<BlobStore, OpenBlobError> {
    let url = BlobUrl::Directory(root.to_owned());
    open(&url, intent, &BlobAccess::default(), BlobOptions::default()).await
}

async fn writer(root: &FilePath) -> BlobStore {
    opened(root, Intent::Write).await.unwrap()
}

/// As on a server: with a mark, and no directory.
fn server(objects: Arc<dyn ObjectStore>, part_bytes: Option<usize>) -> BlobStore {
    let place = Place { url: Some("s3://bucket".into()), ..Place::default() };
    BlobStore::at(objects, BlobOptions { part_bytes, ..BlobOptions::default() }, place)
}

fn is_empty(root: &FilePath) -> bool {
    fs::read_dir(root).unwrap().next().is_none()
}

#[tokio::test]
async fn an_empty_place_becomes_a_blob_store_for_who_has_none_yet_and_for_nobody_else() {
    let parent = tempfile::tempdir().unwrap();
    let root = parent.path().join("a/blobs");
    let objects = Arc::new(InMemory::new());
    for directory in [true, false] {
        let open = || async { if directory { writer(&root).await } else { server(objects.clone(), None) } };
        let missing = open().await.claim(OURS, false).await.unwrap_err();
        assert!(matches!(missing, OpenBlobError::Missing { .. }) && missing.to_string().contains(MARK), "{missing}");
        assert!(!directory || is_empty(&root), "nothing is made of a mount point");

        // The second is who was killed before he could say that he has one; the third, who has said so.
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
async fn two_who_begin_with_the_same_new_store_share_it() {
    let root = tempfile::tempdir().unwrap();
    let (one, other) = (writer(root.path()).await, writer(root.path()).await);
    let (txid, bytes) = transaction(1, 3, 30, 1);
    one.claim(OURS, true).await.unwrap();
    one.put_tx(txid, bytes.clone()).await.unwrap();
    other.claim(OURS, true).await.unwrap();
    assert_eq!(other.put_tx(txid, bytes).await.unwrap(), Put::AlreadyStored);

    let objects = Arc::new(InMemory::new());
    let [one, other] = [(); 2].map(|()| server(objects.clone(), None));
    let (first, second) = tokio::join!(one.claim(OURS, true), other.claim(OURS, true));
    first.and(second).unwrap();
}

#[tokio::test]
async fn what_is_not_claimed_takes_nothing_and_misses_nothing() {
    let root = tempfile::tempdir().unwrap();
    writer(root.path()).await.claim(OURS, true).await.unwrap();
    let objects = Arc::new(InMemory::new());
    server(objects.clone(), None).claim(OURS, true).await.unwrap();
    let (txid, bytes) = transaction(1, 3, 30, 1);
    for store in [writer(root.path()).await, server(objects, None)] {
        for error in [
            store.put_tx(txid, bytes.clone()).await.unwrap_err(),
            store.get_tx(txid, Reuse::Likely).await.unwrap_err(),
            store.delete(BlobName::tx(txid)).await.unwrap_err(),
        ] {
            assert!(error.kind == BlobErrorKind::Denied && error.message.contains("whose blobs"), "{error}");
        }
        store.claim(OURS, false).await.unwrap();
        assert_eq!(store.get_tx(txid, Reuse::Likely).await.unwrap(), None);
        assert_eq!(store.put_tx(txid, bytes.clone()).await.unwrap(), Put::Stored);
    }
}

#[tokio::test]
async fn what_holds_something_else_does_not_become_a_blob_store() {
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
    writer(root.path()).await.claim(THEIRS, true).await.expect("folders are what a killed set-up leaves");

    let objects = Arc::new(InMemory::new());
    objects.put(&Path::from("ab/letter"), PutPayload::from_static(b"dear diary")).await.unwrap();
    not_empty(server(objects, None).claim(OURS, true).await.unwrap_err());
}

#[tokio::test]
async fn a_look_finds_what_a_claim_would_and_makes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let look =
        async |store_id, is_first| opened(root.path(), Intent::Look).await.unwrap().look(store_id, is_first).await;
    assert!(!look(None, true).await.unwrap(), "it would be made");
    assert!(matches!(look(Some(OURS), false).await, Err(OpenBlobError::Missing { .. })), "it has been there before");
    assert!(is_empty(root.path()));
    fs::write(root.path().join("letter.txt"), "dear diary").unwrap();
    assert!(matches!(look(Some(OURS), true).await, Err(OpenBlobError::NotEmpty { .. })));
    fs::remove_file(root.path().join("letter.txt")).unwrap();
    writer(root.path()).await.claim(OURS, true).await.unwrap();
    for is_first in [true, false] {
        assert!(look(Some(OURS), is_first).await.unwrap());
        assert!(matches!(look(Some(THEIRS), is_first).await, Err(OpenBlobError::OtherStore { .. })));
    }
    let error = look(None, true).await.unwrap_err().to_string();
    assert!(error.contains(&hex::encode(OURS)) && error.contains("not of a new one"), "{error}");
    let written = opened(root.path(), Intent::Look).await.unwrap().claim(OURS, true).await;
    assert!(matches!(written, Err(OpenBlobError::ReadOnly { .. })));
    assert!(matches!(opened(&root.path().join("none"), Intent::Look).await, Err(OpenBlobError::Missing { .. })));

    let objects = Arc::new(InMemory::new());
    assert!(!server(objects.clone(), None).look(Some(OURS), true).await.unwrap());
    objects.put(&Path::from("ab/letter"), PutPayload::from_static(b"dear diary")).await.unwrap();
    let error = server(objects, None).look(Some(OURS), true).await;
    assert!(matches!(error, Err(OpenBlobError::NotEmpty { .. })));
}

#[tokio::test]
async fn a_mark_that_nobody_here_has_written_is_told() {
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
async fn a_store_in_whose_place_there_is_another_or_none_is_away() {
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
        store.get_tx(txid, Reuse::Unlikely).await.unwrap_err(),
        reader.get_tx(txid, Reuse::Unlikely).await.unwrap_err(),
        store.put_tx(txid, bytes.clone()).await.unwrap_err(),
    ] {
        assert!(error.kind == BlobErrorKind::Denied && error.message.contains(&hex::encode(THEIRS)), "{error}");
    }
    assert!(!root.join(BlobName::tx(txid).to_string()).exists());
}

#[tokio::test]
async fn a_server_that_overwrites_on_condition_that_there_is_none_is_refused() {
    let overwrites = |claimed: Result<(), OpenBlobError>, what: &str| {
        let error = claimed.unwrap_err();
        assert!(matches!(error, OpenBlobError::Overwrites { .. }) && error.to_string().contains(what), "{error}");
    };
    let objects = Arc::new(InMemory::new());
    let faults = FaultStore::new(objects, 1);
    let store = |part_bytes| server(Arc::new(faults.clone()), part_bytes);
    faults.fail_all(Some(Fault::Unconditional));
    overwrites(store(None).claim(OURS, true).await, "asked to write");
    overwrites(store(None).claim(OURS, false).await, "asked to write");
    faults.fail_all(None);
    // The mark is read, and written again; then copied.
    faults.fail_at(3, Fault::Unconditional);
    overwrites(store(Some(5)).claim(OURS, false).await, "asked to copy");
    store(Some(5)).claim(OURS, false).await.expect("the mark is what it was");
    faults.fail_at(3, Fault::Unconditional);
    store(None).claim(OURS, false).await.expect("nothing is copied by who sends no parts");
}

#[tokio::test]
async fn what_killed_writers_left_goes_at_an_opening_once_it_is_old_and_never_from_under_a_writer() {
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
    // Whoever stores this blob meanwhile leaves them alone.
    for expected in [Put::Stored, Put::AlreadyStored] {
        assert_eq!(store.put_tx(txid, bytes.clone()).await.unwrap(), expected);
        assert!((1..=3).all(|number| staged(number).exists()) && !staged(4).exists());
    }
    aged(&blob, 1_000);
    opened(root.path(), Intent::Read).await.unwrap();
    assert!(staged(1).exists(), "who only reads changes nothing");
    writer(root.path()).await.claim(OURS, false).await.unwrap();
    assert_eq!((1..=3).map(|number| staged(number).exists()).collect::<Vec<_>>(), [false, true, true]);
    assert_eq!(store.get_tx(txid, Reuse::Unlikely).await.unwrap(), Some(bytes));
}
