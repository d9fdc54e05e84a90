//! Tests of the forms of a blob's bytes: which are read, and which damage is detected.

use std::sync::Arc;

use bytes::Bytes;
use object_store::ObjectStoreExt;

use super::{
    conformance::{hash_of, transaction},
    fault::BlobFault,
    tests::{faulty, overwrite, small},
    *,
};
use crate::{
    engine::ErrorKind,
    record::{Blob, StoredOutput},
    telemetry::Metrics,
    tx::Txid,
};

fn with_checksum(content: &[u8]) -> Vec<u8> {
    [content, blake3::hash(content).as_bytes()].concat()
}

#[tokio::test]
async fn transfer_damage_is_read_again_and_stored_damage_is_an_error() {
    let metrics = Arc::new(Metrics::new());
    let (store, faults, objects) = faulty(1, BlobOptions { metrics: metrics.clone(), ..BlobOptions::default() });
    let (txid, bytes) = small(1);
    let name = BlobName::tx(txid);
    store.put_tx(txid, bytes.clone()).await.unwrap();
    let (_, other) = small(2);
    // As a record of an early version has the blob, and as a record has the blob today.
    let (unhashed, hashed) = (Blob::First(None), Blob::First(Some(hash_of(&bytes))));
    let (_, other_claims) = transaction(1, 3, 30, 2);
    for (blob, damaged, says) in [
        (hashed, other_claims.to_vec(), "hash in its record"),
        (hashed, bytes[..bytes.len() - 1].to_vec(), "is no transaction"),
        (unhashed, with_checksum(&other), "hashes to"),
        (unhashed, with_checksum(&bytes[..bytes.len() / 2]), "is no transaction"),
        (unhashed, with_checksum(&bytes)[..bytes.len() + 31].to_vec(), "checksum"),
        (unhashed, [b"T-1.0   ", &with_checksum(&bytes)[..]].concat(), "checksum"),
        (unhashed, [b"T-1.0   ", &bytes[..bytes.len() - 1]].concat(), "is no transaction"),
        (unhashed, b"".to_vec(), "is no transaction"),
        (unhashed, b"<html>this is not the page that you are looking for</html>".to_vec(), "is no transaction"),
    ] {
        overwrite(&objects, name, &damaged).await;
        for error in [
            store.load_tx(txid, blob, Reuse::Likely).await.unwrap_err(),
            store.load_tx(txid, blob, Reuse::Unlikely).await.unwrap_err(),
            store.load_tx_outputs(txid, blob, &[0], Reuse::Unlikely).await.unwrap_err(),
        ] {
            assert!(error.kind == BlobErrorKind::Corrupt && !error.may_be_retried(), "{error}");
            assert!(error.message.contains(says), "{error}");
        }
        // Only the record says that a body with other claims is damage.
        let put = store.put_tx(txid, bytes.clone()).await;
        match damaged == other_claims {
            true => assert_eq!(put.unwrap(), PutOutcome::OtherStored),
            false => assert_eq!(put.unwrap_err().kind, BlobErrorKind::Corrupt),
        }
    }
    assert_eq!(metrics.blob_errors.of(BlobErrorKind::Corrupt).get(), 35);
    assert_eq!(metrics.store_errors.of(ErrorKind::Storage).get(), 35);

    store.delete(name).await.unwrap();
    store.put_tx(txid, bytes.clone()).await.unwrap();
    for _ in 0..200 {
        faults.fail_at(1, BlobFault::OtherBytes);
        assert_eq!(store.load_tx(txid, hashed, Reuse::Unlikely).await.unwrap(), Some(bytes.clone()));
        faults.fail_at(1, BlobFault::OtherBytes);
        let outputs = store.load_tx_outputs(txid, hashed, &[0], Reuse::Unlikely).await;
        assert!(outputs.unwrap().unwrap().contains_key(&0));
        faults.fail_at(2, BlobFault::OtherBytes);
        assert_eq!(store.put_tx(txid, bytes.clone()).await.unwrap(), PutOutcome::AlreadyStored);
    }
    assert_eq!(faults.injected_by_kind()["blob: other bytes"], 600);
    faults.fail_all(Some(BlobFault::OtherBytes));
    assert_eq!(store.load_tx(txid, hashed, Reuse::Unlikely).await.unwrap_err().kind, BlobErrorKind::Corrupt);
    faults.fail_all(None);
    assert_eq!(store.load_tx(txid, hashed, Reuse::Unlikely).await.unwrap(), Some(bytes));
}

/// A blob is header and content, as the reference system writes and reads its files. A body of an early version of this
/// store has no header, and a checksum behind.
#[tokio::test]
async fn bodies_of_every_form_are_read_and_not_stored_again() {
    let (txid, bytes) = small(1);
    let output = StoredOutput { satoshis: 1, script: Bytes::from_static(b"\x51") };
    let partial = PartialTx { txid: Txid([1; 32]), height: 1, coinbase: true, outputs: vec![(0, output)] };
    let outputs = partial.encode().unwrap();
    let (store, _, objects) = faulty(1, BlobOptions::default());
    let written = store.store_tx(txid, bytes.clone()).await.unwrap();
    let outputs_written = store.store_outputs(&partial).await.unwrap();
    assert_eq!([written, outputs_written], [Blob::First(Some(hash_of(&bytes))), Blob::First(Some(hash_of(&outputs)))]);
    let headers = ["T-1.0   ", "O-1.0   "];
    let names = [(BlobName::tx(txid), &bytes), (BlobName::outputs(partial.txid), &outputs)];
    for ((name, content), header) in names.into_iter().zip(headers) {
        let stored = objects.get(&name.path()).await.unwrap().bytes().await.unwrap();
        assert_eq!(stored, [header.as_bytes(), content].concat(), "{name}");
    }
    let zeros = ["T-1.0\0\0\0", "O-1.0\0\0\0"];
    for (headers, has_checksum) in [(["", ""], false), (["", ""], true), (headers, false), (zeros, false)] {
        let form = |header: &str, content: &[u8]| {
            let content = if has_checksum { with_checksum(content) } else { content.to_vec() };
            [header.as_bytes(), &content].concat()
        };
        overwrite(&objects, BlobName::tx(txid), &form(headers[0], &bytes)).await;
        overwrite(&objects, BlobName::outputs(partial.txid), &form(headers[1], &outputs)).await;
        for blob in [Blob::First(None), written] {
            assert_eq!(store.load_tx(txid, blob, Reuse::Unlikely).await.unwrap().as_ref(), Some(&bytes));
            let outputs = store.load_tx_outputs(txid, blob, &[2], Reuse::Unlikely).await.unwrap().unwrap();
            assert!(outputs.contains_key(&2));
        }
        for blob in [Blob::First(None), outputs_written] {
            assert_eq!(store.load_outputs(partial.txid, blob).await.unwrap().as_ref(), Some(&partial));
        }
        assert_eq!(store.store_tx(txid, bytes.clone()).await.unwrap(), written);
        assert_eq!(store.store_outputs(&partial).await.unwrap(), outputs_written);
        assert_eq!(store.put_tx(txid, bytes.clone()).await.unwrap(), PutOutcome::AlreadyStored);
        assert_eq!(store.put_outputs(&partial).await.unwrap(), PutOutcome::AlreadyStored);
    }
}

/// The cache and a shared read give no content that another caller's hash verified.
#[tokio::test]
async fn a_cached_body_is_compared_with_the_hash_of_each_record() {
    let (txid, bytes) = small(1);
    let (store, _, _) = faulty(1, BlobOptions::default());
    let right = store.store_tx(txid, bytes.clone()).await.unwrap();
    let wrong = Blob::First(Some([9; 32]));
    for _ in 0..2 {
        assert_eq!(store.load_tx(txid, right, Reuse::Likely).await.unwrap().as_ref(), Some(&bytes));
        assert_eq!(store.load_tx(txid, Blob::First(None), Reuse::Likely).await.unwrap().as_ref(), Some(&bytes));
        for reuse in [Reuse::Likely, Reuse::Unlikely] {
            assert_eq!(store.load_tx(txid, wrong, reuse).await.unwrap_err().kind, BlobErrorKind::Corrupt);
            let outputs = store.load_tx_outputs(txid, wrong, &[0], reuse).await;
            assert_eq!(outputs.unwrap_err().kind, BlobErrorKind::Corrupt);
        }
    }
    let store = faulty(1, BlobOptions::default()).0;
    store.store_tx(txid, bytes.clone()).await.unwrap();
    for _ in 0..2 {
        let load = |blob| store.load_tx(txid, blob, Reuse::Likely);
        let (of_other, of_one, again) = tokio::join!(load(wrong), load(right), load(wrong));
        assert_eq!(of_one.unwrap().as_ref(), Some(&bytes));
        assert_eq!([of_other, again].map(|read| read.unwrap_err().kind), [BlobErrorKind::Corrupt; 2]);
    }
}

#[tokio::test]
async fn outputs_of_another_transaction_are_damage() {
    let (store, _, objects) = faulty(1, BlobOptions::default());
    let output = StoredOutput { satoshis: 1, script: Bytes::from_static(b"\x51") };
    let partial = |txid| PartialTx { txid, height: 1, coinbase: true, outputs: vec![(0, output.clone())] };
    let (wanted, other) = (Txid([1; 32]), Txid([2; 32]));
    overwrite(&objects, BlobName::outputs(wanted), &with_checksum(&partial(other).encode().unwrap())).await;
    let error = store.load_outputs(wanted, Blob::First(None)).await.unwrap_err();
    assert!(error.kind == BlobErrorKind::Corrupt && error.message.contains(&other.to_string()), "{error}");
    assert_eq!(store.put_outputs(&partial(wanted)).await.unwrap_err().kind, BlobErrorKind::Corrupt);
    overwrite(&objects, BlobName::outputs(wanted), b"\0").await;
    assert_eq!(store.load_outputs(wanted, Blob::First(None)).await.unwrap_err().kind, BlobErrorKind::Corrupt);
}
