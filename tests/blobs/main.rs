//! Blob stores on what they are used on: S3 and a web server, and processes that are killed. And how much memory a large
//! transaction takes. A binary of its own, because it counts every allocation.

// The lint's exemption for tests does not reach the helpers beside them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod killed;
mod memory;
#[cfg(feature = "aws")]
mod s3;
#[cfg(feature = "aws")]
mod s3_server;
#[cfg(feature = "http")]
mod web;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Tests here run one by one: what one allocates must not be counted as another's.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(work)
}

#[cfg(not(feature = "aws"))]
#[test]
fn s3() {
    eprintln!("SKIPPED: tests on S3: built without --features aws");
}

#[cfg(not(feature = "http"))]
#[test]
fn web() {
    eprintln!("SKIPPED: tests of blobs behind a web server: built without --features http");
}
