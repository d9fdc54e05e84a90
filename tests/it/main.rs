//! The one integration binary. A test that needs a server which cannot be had is skipped, loudly: a line that starts with
//! `SKIPPED:` on standard error.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod kafka;
mod kafka_server;
mod pipeline;
mod world;
