//! Integration tests: the binary and the library from outside.

// The lint's exemption for tests does not reach the helpers beside them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cli;
mod pipeline;
mod world;
