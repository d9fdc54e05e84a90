//! Stands for `instances.rs` in a build without an HTTP client.

use super::AskedInstances;
use crate::{
    config::Config,
    preflight::{CheckOutcome, Finding},
};

/// Returns the finding that this build asks no instance.
pub async fn ask(_urls: &[String], _config: &Config) -> AskedInstances {
    let reason = "this build has no client for HTTP: build with the feature `web`, or read /health/ready";
    AskedInstances { findings: vec![Finding::new("instances", CheckOutcome::Skipped, reason)], answered: 0 }
}
