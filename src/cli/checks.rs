//! The checks of `utxo-store run --check` and `utxo-store doctor`: whether an instance could start with these settings
//! and continue. The checks join no group and write nothing.
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

use super::{CliResult, Failure, opening, output, wiring};
use crate::{
    broker::kafka::KafkaBroker,
    config::{Config, ConfigErrors},
    instance::frontier::Frontier,
    preflight::{CheckOutcome, Finding, cause::Cause},
    store::topics::LogIdentity,
};

/// Longest wait for one answer of the store or the blob store; longer than the timeouts of their clients.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Form in which findings are printed while the checks run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Printed {
    /// Each finding is one line.
    Lines,
    /// Each finding is one JSON object.
    Json,
    /// Findings are kept and not printed.
    Nothing,
}

/// Findings in the order of their checks.
pub(super) struct CheckReport {
    printed: Printed,
    pub(super) findings: Vec<Finding>,
}

impl CheckReport {
    pub(super) fn new(printed: Printed) -> Self {
        CheckReport { printed, findings: Vec::new() }
    }

    /// Adds findings, and prints each in the form of this report.
    pub(super) fn add(&mut self, findings: impl IntoIterator<Item = Finding>) -> io::Result<()> {
        let mut out = output::stdout();
        for finding in findings {
            match self.printed {
                Printed::Json => writeln!(out, "{}", serde_json::to_string(&finding)?)?,
                Printed::Lines => writeln!(out, "{finding}")?,
                Printed::Nothing => {}
            }
            self.findings.push(finding);
        }
        Ok(())
    }

    /// Returns the number of findings with this outcome.
    pub(super) fn count(&self, outcome: CheckOutcome) -> usize {
        self.findings.iter().filter(|finding| finding.outcome == outcome).count()
    }

    pub(super) fn result(&self) -> CliResult {
        let checked = self.findings.len() - self.count(CheckOutcome::Skipped);
        match self.count(CheckOutcome::Failed) {
            0 => Ok(()),
            failed => Err(Failure::new(format!("{failed} of {checked} checks failed"))),
        }
    }
}

/// State of the log and the group, which the store is compared with.
pub(super) struct LogState {
    /// Identity of the topics whose events make the state.
    identity: LogIdentity,
    /// Committed offsets of the group.
    frontier: Frontier,
    /// Members and messages to read: of the group of the validated transactions, and of that of the chain.
    pub(super) groups: [GroupLag; 2],
}

/// Members of one group, and messages that the group has not completed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct GroupLag {
    pub(super) members: usize,
    pub(super) lag: u64,
}

/// Settings and brokers that the checks have used.
pub(super) struct Checked {
    pub(super) config: Config,
    pub(super) broker: KafkaBroker,
    /// State of the log; `None`: too little could be read.
    pub(super) log_state: Option<LogState>,
}

/// Runs all checks and prints their findings, for `run --check`.
///
/// # Errors
/// A check failed, or a finding cannot be printed.
pub(super) async fn check(loaded: Result<Config, ConfigErrors>, json: bool) -> CliResult {
    let mut report = CheckReport::new(if json { Printed::Json } else { Printed::Lines });
    Box::pin(run(loaded, &mut report)).await?;
    report.result()
}

/// Runs all checks, and keeps their findings.
///
/// # Errors
/// The configuration is wrong, which is a finding, too; or a finding cannot be printed.
pub(super) async fn run(loaded: Result<Config, ConfigErrors>, report: &mut CheckReport) -> Result<Checked, Failure> {
    let prepared = loaded.map_err(Failure::from).and_then(|config| {
        let broker = opening::build_kafka(wiring::kafka_settings(&config))?;
        Ok((config, broker))
    });
    let (config, broker) = match prepared {
        Ok(prepared) => prepared,
        Err(failure) => {
            report.add([Finding::failed("configuration", failure.message()).with_cause(Cause::Configuration)])?;
            return Err(failure);
        }
    };
    let message = "every setting is known and in range";
    let finding = Finding::from_problems("configuration", message, &[], &config.warnings());
    report.add([finding.with_cause(Cause::Configuration)])?;
    let settings = wiring::instance_settings(&config);
    let log_state = log::check_log(&config, &settings, &broker, report).await?;
    state::check_state(&config, &settings, log_state.as_ref(), report).await?;
    Ok(Checked { config, broker, log_state })
}

/// Returns the answer, or an error after [`ANSWER_TIMEOUT`].
async fn with_timeout<T, E: std::fmt::Display>(request: impl Future<Output = Result<T, E>>) -> Result<T, String> {
    match tokio::time::timeout(ANSWER_TIMEOUT, request).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(no_answer()),
    }
}

fn no_answer() -> String {
    format!("no answer within {ANSWER_TIMEOUT:?}")
}
