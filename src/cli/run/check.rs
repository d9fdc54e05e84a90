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
    instance::frontier::Frontier,
    preflight::{CheckOutcome, Finding},
    store::topics::LogIdentity,
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
    fn print(&mut self, findings: impl IntoIterator<Item = Finding>) -> io::Result<()> {
        let mut out = output::stdout();
        for finding in findings {
            self.checked += usize::from(finding.outcome != CheckOutcome::Skipped);
            self.failed += usize::from(finding.outcome == CheckOutcome::Failed);
            match self.json {
                true => writeln!(out, "{}", serde_json::to_string(&finding)?)?,
                false => writeln!(out, "{finding}")?,
            }
        }
        Ok(())
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
    /// Identity of the topics whose events make the state.
    identity: LogIdentity,
    /// Committed offsets of the group.
    frontier: Frontier,
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
            report.print([Finding::failed("configuration", failure.message())])?;
            return Err(failure);
        }
    };
    let message = "every setting is known and in range";
    report.print([Finding::from_problems("configuration", message, &[], &config.warnings())])?;
    let settings = wiring::instance_settings(&config);
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
