//! The suite on S3, in one request and in parts, and what its failures come to.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    http::{Method, StatusCode, Uri},
};
use utxo_store::{
    blob::{
        BlobAccess, BlobErrorKind, BlobName, BlobOptions, BlobStore, BlobUrl, Intent, OpenBlobError, Put, Reuse,
        conformance::{self, transaction},
        open,
    },
    telemetry::Metrics,
};

use crate::{
    alone, block_on,
    s3_server::{Conditions, S3Server},
};

const OURS: [u8; 16] = [1; 16];
/// The least that S3 takes as a part.
const PART: usize = 5 << 20;

fn access(secret: &str) -> BlobAccess {
    BlobAccess { login: Some(("test".into(), secret.into())), retries: 2 }
}

fn url(server: &S3Server, prefix: &str) -> BlobUrl {
    format!("s3://bucket/{prefix}?region=us-east-1&endpoint={}", server.endpoint()).parse().unwrap()
}

async fn opened(server: &S3Server, prefix: &str, options: BlobOptions) -> BlobStore {
    let store = open(&url(server, prefix), Intent::Write, &access("test"), options).await.unwrap();
    store.claim(OURS, true).await.unwrap();
    store
}

#[test]
fn s3() {
    let _alone = alone();
    let Some(server) = S3Server::start(Conditions::Honoured) else { return };
    block_on(async {
        conforms(&server).await;
        large_ones_go_in_parts(&server).await;
        a_bucket_that_is_not_there_is_not_empty(&server).await;
        // Last: the server is stopped for a while.
        a_server_that_does_not_answer_is_given_up(&server).await;
    });
    let endpoint = server.endpoint();
    drop(server);
    block_on(a_server_that_is_away_is_retryable(&endpoint));
}

#[test]
fn a_server_that_ignores_conditions_is_refused() {
    let _alone = alone();
    let Some(server) = S3Server::start(Conditions::Ignored) else { return };
    block_on(async {
        for prefix in ["", "prefix"] {
            let store =
                open(&url(&server, prefix), Intent::Write, &access("test"), BlobOptions::default()).await.unwrap();
            for is_first in [true, false] {
                let error = store.claim(OURS, is_first).await.unwrap_err();
                assert!(matches!(error, OpenBlobError::Overwrites { .. }), "{error}");
            }
        }
    });
}

/// Nothing comes back while a body is sent: on a slow line that is longer than an answer may take.
#[test]
fn a_body_may_take_longer_than_an_answer() {
    let _alone = alone();
    block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move { axum::serve(listener, Router::new().fallback(slow)).await });
        let url: BlobUrl = format!("s3://bucket?region=us-east-1&endpoint={endpoint}").parse().unwrap();
        let (txid, bytes) = transaction(904, 5, 30, 1);
        // The bytes have minutes.
        let options = BlobOptions { timeout: TIMEOUT, least_rate: 1, ..BlobOptions::default() };
        let store = open(&url, Intent::Write, &BlobAccess { retries: 0, ..access("test") }, options).await.unwrap();
        store.claim(OURS, false).await.unwrap();
        assert_eq!(store.put_tx(txid, bytes).await.unwrap(), Put::Stored);
        server.abort();
    });
}

const TIMEOUT: Duration = Duration::from_secs(2);

/// A bucket with a mark and nothing else, whose line is slow: an answer to a write comes late.
async fn slow(method: Method, uri: Uri) -> Result<([(&'static str, &'static str); 1], String), StatusCode> {
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

async fn conforms(server: &S3Server) {
    conformance::run(&opened(server, "whole", BlobOptions::default()).await).await;
    // What another process has written, and one that only reads.
    let (txid, bytes) = transaction(900, 5, 30, 1);
    opened(server, "whole", BlobOptions::default()).await.put_tx(txid, bytes.clone()).await.unwrap();
    let reader = open(&url(server, "whole"), Intent::Read, &access("test"), BlobOptions::default()).await.unwrap();
    assert_eq!(reader.get_tx(txid, Reuse::Likely).await.unwrap(), Some(bytes.clone()));
    assert_eq!(reader.put_tx(txid, bytes).await.unwrap_err().kind, BlobErrorKind::Denied);
    let missing = open(&url(server, "nothing"), Intent::Read, &access("test"), BlobOptions::default()).await;
    assert!(matches!(missing, Err(OpenBlobError::Missing { .. })), "{missing:?}");
}

async fn large_ones_go_in_parts(server: &S3Server) {
    let metrics = Arc::new(Metrics::new());
    let options = BlobOptions { part_bytes: Some(PART), metrics, ..BlobOptions::default() };
    let store = opened(server, "parts", options).await;
    conformance::run(&store).await;
    // Three parts; then two who claim differently at once.
    let (txid, bytes) = transaction(901, 6_000, 2_000, 1);
    assert!(bytes.len() > 2 * PART);
    assert_eq!(store.put_tx(txid, bytes.clone()).await.unwrap(), Put::Stored);
    assert_eq!(store.put_tx(txid, bytes.clone()).await.unwrap(), Put::AlreadyStored);
    assert_eq!(store.get_tx(txid, Reuse::Unlikely).await.unwrap(), Some(bytes));
    let [(txid, one), (_, other)] = [1, 2].map(|claim| transaction(902, 6_000, 2_000, claim));
    let (first, second) = tokio::join!(store.put_tx(txid, one.clone()), store.put_tx(txid, other.clone()));
    let stored = store.get_tx(txid, Reuse::Unlikely).await.unwrap().unwrap();
    match (first.unwrap(), second.unwrap()) {
        (Put::Stored, Put::OtherStored) => assert!(stored == one),
        (Put::OtherStored, Put::Stored) => assert!(stored == other),
        both => panic!("{both:?}"),
    }
}

async fn a_bucket_that_is_not_there_is_not_empty(server: &S3Server) {
    let url: BlobUrl = format!("s3://nowhere?region=us-east-1&endpoint={}", server.endpoint()).parse().unwrap();
    let store = open(&url, Intent::Write, &access("test"), BlobOptions::default()).await.unwrap();
    assert!(matches!(store.claim(OURS, false).await, Err(OpenBlobError::Missing { .. })));
    let error = store.claim(OURS, true).await.unwrap_err();
    assert!(error.to_string().contains("utxo-store.blobs") && !error.to_string().contains('\n'), "{error}");
}

async fn a_server_that_does_not_answer_is_given_up(server: &S3Server) {
    let options = BlobOptions { timeout: Duration::from_secs(1), ..BlobOptions::default() };
    let store = opened(server, "whole", options).await;
    let (txid, bytes) = transaction(903, 5, 30, 1);
    server.pause();
    let error = store.put_tx(txid, bytes.clone()).await.unwrap_err();
    assert!(error.may_be_repeated(), "{error}");
    let error = store.get_tx(txid, Reuse::Likely).await.unwrap_err();
    assert_eq!(error.kind, BlobErrorKind::Retryable, "{error}");
    server.resume();
    let mut tries = 0;
    let put = loop {
        match store.put_tx(txid, bytes.clone()).await {
            Ok(put) => break put,
            Err(error) => assert!(error.may_be_repeated() && tries < 100, "{error}"),
        }
        tries += 1;
    };
    assert_ne!(put, Put::OtherStored);
    assert_eq!(store.get_tx(txid, Reuse::Likely).await.unwrap(), Some(bytes));
    assert!(store.exists(BlobName::tx(txid)).await.unwrap());
}

async fn a_server_that_is_away_is_retryable(endpoint: &str) {
    let url: BlobUrl = format!("s3://bucket?region=us-east-1&endpoint={endpoint}").parse().unwrap();
    let options = BlobOptions { timeout: Duration::from_secs(2), ..BlobOptions::default() };
    let store = open(&url, Intent::Write, &access("secret-word"), options).await.unwrap();
    let error = store.claim(OURS, false).await.unwrap_err();
    assert!(error.may_be_repeated() && !error.to_string().contains("secret-word"), "{error}");
}
