//! `utxo-store run --check`: whether an instance could start here and go on. Joins no group, and writes nothing anywhere.
//!
//! What is looked at is judged by [`preflight`](crate::preflight) and by what a start itself judges by; here it is asked for.

mod log;
mod state;

use std::{
    future::Future,
    io::{self, Write},
    time::Duration,
};

use super::super::{CommandResult, Failure, opening, wiring};
use crate::cli::output;
use crate::{
    config::{Config, ConfigErrors},
    instance::InstanceSettings,
    preflight::{Finding, Outcome},
    record::Consumed,
    store::topics::FoundTopic,
};

/// Whoever does not answer a question within it is not there. Longer than the brokers are given by themselves.
const PATIENCE: Duration = Duration::from_secs(60);

/// Prints what is found, a line a check.
struct Report {
    json: bool,
    looked: usize,
    failed: usize,
}

impl Report {
    fn tell(&mut self, finding: &Finding) -> io::Result<()> {
        self.looked += usize::from(finding.outcome != Outcome::Skipped);
        self.failed += usize::from(finding.outcome == Outcome::Failed);
        let mut out = output::stdout();
        match self.json {
            true => writeln!(out, "{}", serde_json::to_string(finding)?),
            false => writeln!(out, "{finding}"),
        }
    }

    fn verdict(&self) -> CommandResult {
        match self {
            Report { failed: 0, .. } => Ok(()),
            Report { failed, looked, .. } => Err(Failure::new(format!("{failed} of {looked} checks failed"))),
        }
    }
}

/// What the log says that the store is held against.
struct Logged {
    /// Partitions of the validated transactions.
    partitions: u32,
    /// The id of the chain topic, where it has a first record.
    chain_id: Option<[u8; 32]>,
    /// The topics that make the state.
    topics: Vec<FoundTopic>,
    /// Whether the group has committed anything.
    any: bool,
    /// What instances have committed.
    consumed: Consumed,
    /// Where the group goes on, whoever has said so.
    from: Consumed,
}

/// Looks at everything, and prints what it finds.
///
/// # Errors
/// A check failed.
pub(super) async fn check(loaded: Result<Config, ConfigErrors>, json: bool) -> CommandResult {
    let mut report = Report { json, looked: 0, failed: 0 };
    let prepared = loaded.map_err(Failure::from).and_then(|config| {
        let broker = opening::kafka(wiring::kafka(&config))?;
        Ok((config, broker))
    });
    let (config, broker) = match prepared {
        Ok(prepared) => prepared,
        Err(failure) => {
            report.tell(&Finding::of("configuration", Err::<&str, _>(failure.told())))?;
            return Err(failure);
        }
    };
    report.tell(&Finding::weighed("configuration", "every setting is known and in range", &[], &config.warnings()))?;
    let settings: InstanceSettings = wiring::instance(&config);
    let logged = log::look(&config, &settings, &broker, &mut report).await?;
    state::look(&config, &settings, logged.as_ref(), &mut report).await?;
    report.verdict()
}

/// The answer, or that there was none in time.
async fn in_time<T, E: std::fmt::Display>(asked: impl Future<Output = Result<T, E>>) -> Result<T, String> {
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {PATIENCE:?}")),
    }
}
