//! Tests of blobs behind a web server, which are read and never written.

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::{Path, State},
    http::StatusCode,
    routing::get,
};
use utxo_store::{
    blob::{
        BlobAccess, BlobErrorKind, BlobName, BlobOptions, BlobStore, BlobUrl, EventBodyLimits, Intent, OpenBlobError,
        Reuse, conformance::transaction, open, open_event_bodies,
    },
    record::Blob,
};

use crate::{acquire_serial_guard, block_on};

/// A web server's state: the directory that it serves, and the status of every answer. With status 0 the server answers
/// with the files of the directory.
#[derive(Clone)]
struct WebServer {
    root: PathBuf,
    status: Arc<AtomicU16>,
}

async fn serve_file(State(server): State<WebServer>, Path(path): Path<String>) -> Result<Bytes, StatusCode> {
    match server.status.load(Ordering::SeqCst) {
        0 => fs::read(server.root.join(path)).map(Bytes::from).map_err(|_| StatusCode::NOT_FOUND),
        200 => Ok(Bytes::from_static(b"<html>Under maintenance, please come back later</html>")),
        status => Err(StatusCode::from_u16(status).unwrap()),
    }
}

async fn open_store(url: &BlobUrl) -> Result<BlobStore, OpenBlobError> {
    let options = BlobOptions { timeout: Duration::from_secs(5), ..BlobOptions::default() };
    open(url, Intent::Write, &BlobAccess { retries: 1, ..BlobAccess::default() }, options).await
}

#[test]
fn blobs_behind_a_web_server_are_read_and_never_written() {
    let _serial = acquire_serial_guard();
    let root = tempfile::tempdir().unwrap();
    block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let status = Arc::new(AtomicU16::new(0));
        let state = WebServer { root: root.path().to_owned(), status: status.clone() };
        let app = Router::new().route("/utxo/{*path}", get(serve_file)).with_state(state);
        let server = tokio::spawn(async move { axum::serve(listener, app).await });
        let url: BlobUrl = format!("http://{address}/utxo").parse().unwrap();
        assert!(matches!(open_store(&url).await, Err(OpenBlobError::Missing { .. })));

        let directory = BlobUrl::Directory(root.path().to_owned());
        let writer = open(&directory, Intent::Write, &BlobAccess::default(), BlobOptions::default()).await.unwrap();
        writer.claim([1; 16], true).await.unwrap();
        let [(small, small_bytes), (large, large_bytes)] = [transaction(1, 5, 30, 1), transaction(2, 3_000, 2_000, 1)];
        writer.put_tx(small, small_bytes.clone()).await.unwrap();
        writer.put_tx(large, large_bytes.clone()).await.unwrap();

        let store = open_store(&url).await.unwrap();
        assert_eq!(store.load_tx(small, Blob::First(None), Reuse::Unlikely).await.unwrap(), Some(small_bytes.clone()));
        assert_eq!(store.load_tx(large, Blob::First(None), Reuse::Unlikely).await.unwrap(), Some(large_bytes));
        assert!(
            store
                .load_tx_outputs(large, Blob::First(None), &[2_999], Reuse::Unlikely)
                .await
                .unwrap()
                .unwrap()
                .contains_key(&2_999)
        );
        assert!(store.exists(BlobName::tx(small)).await.unwrap());
        let (absent, bytes) = transaction(3, 5, 30, 1);
        assert_eq!(store.load_tx(absent, Blob::First(None), Reuse::Unlikely).await.unwrap(), None);
        assert!(!store.exists(BlobName::tx(absent)).await.unwrap());
        for error in
            [store.put_tx(absent, bytes).await.unwrap_err(), store.delete(BlobName::tx(small)).await.unwrap_err()]
        {
            assert_eq!(error.kind, BlobErrorKind::Denied, "{error}");
        }

        for (code, kind) in [
            (404, BlobErrorKind::Retryable),
            (403, BlobErrorKind::Denied),
            (503, BlobErrorKind::Retryable),
            (200, BlobErrorKind::Corrupt),
        ] {
            status.store(code, Ordering::SeqCst);
            let error = store.load_tx(small, Blob::First(None), Reuse::Unlikely).await.unwrap_err();
            assert_eq!(error.kind, kind, "status {code}: {error}");
            assert!(!error.to_string().contains('\n'), "{error}");
            status.store(0, Ordering::SeqCst);
            assert_eq!(
                store.load_tx(small, Blob::First(None), Reuse::Unlikely).await.unwrap(),
                Some(small_bytes.clone()),
                "after {code}"
            );
        }
        // Bodies of events are read the same way, and are refused before a request.
        let (options, limits) = (BlobOptions::default(), EventBodyLimits::default());
        let open_bodies =
            async |url, intent| open_event_bodies(url, intent, &BlobAccess::default(), &options, limits).await.unwrap();
        let reference = open_bodies(&directory, Intent::Write).await.put(small_bytes.clone()).await.unwrap();
        let bodies = open_bodies(&url, Intent::Write).await;
        assert_eq!(bodies.read(&reference).await.unwrap(), small_bytes);
        let error = bodies.put(small_bytes).await.unwrap_err();
        assert!(error.kind == BlobErrorKind::Denied && error.message.contains("set objects.url to s3://"), "{error}");
        server.abort();
    });
}
