//! Tests of blobs and event bodies on S3 and behind a web server, of killed writers, and of the memory that a large
//! transaction takes. The tests are a binary of their own, because its allocator counts every allocation.

// Clippy exempts tests from these lints, but not the helper functions of tests.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[allow(dead_code, reason = "the tests of the engine need more of it")]
#[path = "../it/aerospike_server.rs"]
mod aerospike_server;
mod killed_writer;
mod large;
mod memory;
#[path = "../it/ports.rs"]
mod ports;
#[cfg(feature = "aws")]
mod python;
#[cfg(any(feature = "aws", feature = "http"))]
mod referred;
#[cfg(feature = "aws")]
mod s3;
#[cfg(feature = "aws")]
mod s3_server;
#[cfg(feature = "http")]
mod web;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits until no other test runs. Tests of this binary run one at a time, because the allocator counts the allocations
/// of all threads together.
fn acquire_serial_guard() -> MutexGuard<'static, ()> {
    static SERIAL: Mutex<()> = Mutex::new(());
    SERIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(work)
}

#[cfg(not(feature = "aws"))]
#[test]
fn s3_tests_are_skipped_without_the_feature_aws() {
    eprintln!("SKIPPED: tests on S3: built without the feature aws");
}

#[cfg(not(feature = "http"))]
#[test]
fn web_tests_are_skipped_without_the_feature_http() {
    eprintln!("SKIPPED: tests of blobs behind a web server: built without the feature http");
}
