//! The conformance suite on S3, with blobs in one request and in parts, and the errors for failures of S3.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    http::{Method, StatusCode, Uri},
};
use utxo_store::{
    blob::{
        BlobAccess, BlobErrorKind, BlobName, BlobOptions, BlobStore, BlobUrl, EventBodyLimits, Intent, OpenBlobError,
        PutOutcome, Reuse,
        conformance::{self, transaction},
        objects::ObjectError,
        open, open_event_bodies,
    },
    event::{BodyReference, ContentHash},
    record::Blob,
    telemetry::Metrics,
};

use crate::{
    acquire_serial_guard, block_on,
    s3_server::{Conditions, S3Server},
};

const STORE_ID: [u8; 16] = [1; 16];
/// Smallest part that S3 accepts, in bytes.
const MIN_PART_BYTES: usize = 5 << 20;

fn access(secret: &str) -> BlobAccess {
    BlobAccess { login: Some(("test".into(), secret.into())), retries: 2 }
}

fn url(server: &S3Server, prefix: &str) -> BlobUrl {
    format!("s3://bucket/{prefix}?region=us-east-1&endpoint={}", server.endpoint()).parse().unwrap()
}

async fn open_store(server: &S3Server, prefix: &str, options: BlobOptions) -> BlobStore {
    let store = open(&url(server, prefix), Intent::Write, &access("test"), options).await.unwrap();
    store.claim(STORE_ID, true).await.unwrap();
    store
}

#[test]
fn s3_store_conforms_and_reports_failures() {
    let _serial = acquire_serial_guard();
    let Some(server) = S3Server::start(Conditions::Honoured) else { return };
    block_on(async {
        check_conformance(&server).await;
        check_blobs_in_parts(&server).await;
        check_event_bodies(&server).await;
        check_missing_bucket(&server).await;
        // The unresponsive server comes last, because the check pauses the server for a while.
        check_unresponsive_server(&server).await;
    });
    let endpoint = server.endpoint();
    drop(server);
    block_on(check_unreachable_server(&endpoint));
}

#[test]
fn a_server_that_ignores_conditions_is_refused() {
    let _serial = acquire_serial_guard();
    let Some(server) = S3Server::start(Conditions::Ignored) else { return };
    block_on(async {
        for prefix in ["", "prefix"] {
            let store =
                open(&url(&server, prefix), Intent::Write, &access("test"), BlobOptions::default()).await.unwrap();
            for is_first in [true, false] {
                let error = store.claim(STORE_ID, is_first).await.unwrap_err();
                assert!(matches!(error, OpenBlobError::Overwrites { .. }), "{error}");
            }
        }
    });
}

/// A server answers an upload only after the last byte. On a slow connection that takes longer than the time limit for
/// an answer.
#[test]
fn an_upload_may_take_longer_than_the_time_limit_for_an_answer() {
    let _serial = acquire_serial_guard();
    block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer_late)).await });
        let url: BlobUrl = format!("s3://bucket?region=us-east-1&endpoint={endpoint}").parse().unwrap();
        let (txid, bytes) = transaction(904, 5, 30, 1);
        // At one byte per second the time limit grows by minutes.
        let options = BlobOptions { timeout: TIMEOUT, least_rate: 1, ..BlobOptions::default() };
        let store = open(&url, Intent::Write, &BlobAccess { retries: 0, ..access("test") }, options).await.unwrap();
        store.claim(STORE_ID, false).await.unwrap();
        assert_eq!(store.put_tx(txid, bytes).await.unwrap(), PutOutcome::Stored);
        server.abort();
    });
}

const TIMEOUT: Duration = Duration::from_secs(2);

/// Answers as a bucket that contains only the mark of the blob store, and answers a write late.
async fn answer_late(method: Method, uri: Uri) -> Result<([(&'static str, &'static str); 1], String), StatusCode> {
    let is_mark = uri.path().ends_with("utxo-store.blobs");
    match method {
        Method::GET if is_mark => {
            Ok(([("etag", "1")], format!("utxo-store blobs, layout 1\nstore {}\n", "01".repeat(16))))
        }
        Method::PUT if is_mark => Err(StatusCode::PRECONDITION_FAILED),
        Method::PUT => {
            tokio::time::sleep(2 * TIMEOUT).await;
            Ok(([("etag", "2")], String::new()))
        }
        _ => Err(StatusCode::NOT_FOUND),
    }
}

async fn check_conformance(server: &S3Server) {
    conformance::run(&open_store(server, "whole", BlobOptions::default()).await).await;
    // A reader sees a blob that another process has written, and cannot write.
    let (txid, bytes) = transaction(900, 5, 30, 1);
    open_store(server, "whole", BlobOptions::default()).await.put_tx(txid, bytes.clone()).await.unwrap();
    let reader = open(&url(server, "whole"), Intent::Read, &access("test"), BlobOptions::default()).await.unwrap();
    assert_eq!(reader.load_tx(txid, Blob::First(None), Reuse::Likely).await.unwrap(), Some(bytes.clone()));
    assert_eq!(reader.put_tx(txid, bytes).await.unwrap_err().kind, BlobErrorKind::Denied);
    let missing = open(&url(server, "nothing"), Intent::Read, &access("test"), BlobOptions::default()).await;
    assert!(matches!(missing, Err(OpenBlobError::Missing { .. })), "{missing:?}");
}

async fn check_blobs_in_parts(server: &S3Server) {
    let metrics = Arc::new(Metrics::new());
    let options = BlobOptions { part_bytes: Some(MIN_PART_BYTES), metrics, ..BlobOptions::default() };
    let store = open_store(server, "parts", options).await;
    conformance::run(&store).await;
    // The first blob has three parts. Then two writers upload different claims of one transaction at once.
    let (txid, bytes) = transaction(901, 6_000, 2_000, 1);
    assert!(bytes.len() > 2 * MIN_PART_BYTES);
    assert_eq!(store.put_tx(txid, bytes.clone()).await.unwrap(), PutOutcome::Stored);
    assert_eq!(store.put_tx(txid, bytes.clone()).await.unwrap(), PutOutcome::AlreadyStored);
    assert_eq!(store.load_tx(txid, Blob::First(None), Reuse::Unlikely).await.unwrap(), Some(bytes));
    let [(txid, one), (_, other)] = [1, 2].map(|claim| transaction(902, 6_000, 2_000, claim));
    let (first, second) = tokio::join!(store.put_tx(txid, one.clone()), store.put_tx(txid, other.clone()));
    let stored = store.load_tx(txid, Blob::First(None), Reuse::Unlikely).await.unwrap().unwrap();
    match (first.unwrap(), second.unwrap()) {
        (PutOutcome::Stored, PutOutcome::OtherStored) => assert!(stored == one),
        (PutOutcome::OtherStored, PutOutcome::Stored) => assert!(stored == other),
        outcomes => panic!("{outcomes:?}"),
    }
}

/// Bodies of events in one request and in parts; a bucket beside blobs.
async fn check_event_bodies(server: &S3Server) {
    let options = BlobOptions { part_bytes: Some(MIN_PART_BYTES), ..BlobOptions::default() };
    let (url, limits) = (url(server, "objects"), EventBodyLimits::default());
    let bodies = open_event_bodies(&url, Intent::Write, &access("test"), &options, limits).await.unwrap();
    for (txid, bytes) in [transaction(905, 5, 30, 1), transaction(906, 6_000, 2_000, 1)] {
        let reference = bodies.put(bytes.clone()).await.unwrap();
        assert_eq!(bodies.put(bytes.clone()).await.unwrap(), reference, "{txid}");
        assert!(bodies.read(&reference).await.unwrap() == bytes, "{txid}");
        let shorter = BodyReference { length: reference.length - 1, ..reference.clone() };
        let other = BodyReference { blake3: ContentHash([0; 32]), ..reference.clone() };
        for wrong in [shorter, other] {
            let error = bodies.read(&wrong).await.unwrap_err();
            assert!(matches!(error, ObjectError::Wrong { .. }), "{error}");
        }
        let absent = BodyReference { key: "bodies/absent".into(), ..reference };
        assert!(matches!(bodies.read(&absent).await, Err(ObjectError::Missing(_))));
    }
}

async fn check_missing_bucket(server: &S3Server) {
    let url: BlobUrl = format!("s3://nowhere?region=us-east-1&endpoint={}", server.endpoint()).parse().unwrap();
    let store = open(&url, Intent::Write, &access("test"), BlobOptions::default()).await.unwrap();
    assert!(matches!(store.claim(STORE_ID, false).await, Err(OpenBlobError::Missing { .. })));
    let error = store.claim(STORE_ID, true).await.unwrap_err();
    assert!(error.to_string().contains("utxo-store.blobs") && !error.to_string().contains('\n'), "{error}");
}

async fn check_unresponsive_server(server: &S3Server) {
    let options = BlobOptions { timeout: Duration::from_secs(1), ..BlobOptions::default() };
    let store = open_store(server, "whole", options).await;
    let (txid, bytes) = transaction(903, 5, 30, 1);
    server.pause();
    let error = store.put_tx(txid, bytes.clone()).await.unwrap_err();
    assert!(error.may_be_retried(), "{error}");
    let error = store.load_tx(txid, Blob::First(None), Reuse::Likely).await.unwrap_err();
    assert_eq!(error.kind, BlobErrorKind::Retryable, "{error}");
    server.resume();
    let mut attempts = 0;
    let put = loop {
        match store.put_tx(txid, bytes.clone()).await {
            Ok(put) => break put,
            Err(error) => assert!(error.may_be_retried() && attempts < 100, "{error}"),
        }
        attempts += 1;
    };
    assert_ne!(put, PutOutcome::OtherStored);
    assert_eq!(store.load_tx(txid, Blob::First(None), Reuse::Likely).await.unwrap(), Some(bytes));
    assert!(store.exists(BlobName::tx(txid)).await.unwrap());
}

async fn check_unreachable_server(endpoint: &str) {
    let url: BlobUrl = format!("s3://bucket?region=us-east-1&endpoint={endpoint}").parse().unwrap();
    let options = BlobOptions { timeout: Duration::from_secs(2), ..BlobOptions::default() };
    let store = open(&url, Intent::Write, &access("secret-word"), options).await.unwrap();
    let error = store.claim(STORE_ID, false).await.unwrap_err();
    assert!(error.may_be_retried() && !error.to_string().contains("secret-word"), "{error}");
}
