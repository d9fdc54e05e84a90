//! The one integration binary: what needs a real part beside it. A part that is missing is skipped, loudly: a line that
//! starts with `SKIPPED:` on standard error.

#![allow(clippy::unwrap_used)]

mod kafka;
mod kafka_server;
