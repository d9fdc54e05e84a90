//! `utxo-store run --check`: checks whether an instance could start with these settings and continue. The command joins
//! no group and writes nothing.
//!
//! This module reads the state of brokers and store. [`preflight`](crate::preflight) and the checks of a start judge
//! the state.

mod log;
mod state;

use std::{
    future::Future,
    io::{self, Write},
    time::Duration,
};

use super::super::{CliResult, Failure, opening, wiring};
use crate::cli::output;
use crate::{
    config::{Config, ConfigErrors},
    instance::InstanceSettings,
    preflight::{CheckOutcome, Finding},
    record::ConsumedOffsets,
    store::topics::FoundTopic,
};

/// Longest wait for one answer of the store or the blob store; longer than the timeouts of their clients.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Prints one line per check and counts the failed checks.
struct CheckReport {
    json: bool,
    checked: usize,
    failed: usize,
}

impl CheckReport {
    fn print(&mut self, finding: &Finding) -> io::Result<()> {
        self.checked += usize::from(finding.outcome != CheckOutcome::Skipped);
        self.failed += usize::from(finding.outcome == CheckOutcome::Failed);
        let mut out = output::stdout();
        match self.json {
            true => writeln!(out, "{}", serde_json::to_string(finding)?),
            false => writeln!(out, "{finding}"),
        }
    }

    fn result(&self) -> CliResult {
        match self {
            CheckReport { failed: 0, .. } => Ok(()),
            CheckReport { failed, checked, .. } => Err(Failure::new(format!("{failed} of {checked} checks failed"))),
        }
    }
}

/// State of the log and the group, which the store is compared with.
struct LogState {
    /// Number of partitions of the validated transactions.
    partitions: u32,
    /// Id from the first record of the chain log; `None`: the chain log is empty.
    chain_id: Option<[u8; 32]>,
    /// Topics whose events make the state.
    topics: Vec<FoundTopic>,
    /// The group has committed at least one offset.
    has_commits: bool,
    /// Offsets that instances have committed.
    consumed: ConsumedOffsets,
    /// Offsets at which the group continues, committed by instances or set by an operator.
    resume: ConsumedOffsets,
}

/// Runs all checks and prints their findings.
///
/// # Errors
/// A check failed, or a finding cannot be printed.
pub(super) async fn check(loaded: Result<Config, ConfigErrors>, json: bool) -> CliResult {
    let mut report = CheckReport { json, checked: 0, failed: 0 };
    let prepared = loaded.map_err(Failure::from).and_then(|config| {
        let broker = opening::build_kafka(wiring::kafka_settings(&config))?;
        Ok((config, broker))
    });
    let (config, broker) = match prepared {
        Ok(prepared) => prepared,
        Err(failure) => {
            report.print(&Finding::from_result("configuration", Err::<&str, _>(failure.message())))?;
            return Err(failure);
        }
    };
    report.print(&Finding::from_problems(
        "configuration",
        "every setting is known and in range",
        &[],
        &config.warnings(),
    ))?;
    let settings: InstanceSettings = wiring::instance_settings(&config);
    let log_state = log::check_log(&config, &settings, &broker, &mut report).await?;
    state::check_state(&config, &settings, log_state.as_ref(), &mut report).await?;
    report.result()
}

/// Returns the answer, or an error after [`ANSWER_TIMEOUT`].
async fn with_timeout<T, E: std::fmt::Display>(request: impl Future<Output = Result<T, E>>) -> Result<T, String> {
    match tokio::time::timeout(ANSWER_TIMEOUT, request).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {ANSWER_TIMEOUT:?}")),
    }
}
