//! The report at the end of a demo.

use std::io::{self, Write};

use serde::Serialize;

use super::{KillReport, rivalry::Rivalry};
use crate::cli::output;
use crate::{
    cli::{CliResult, Failure, command::LoggedCommand, stats::group_digits},
    client::CommandOutcome,
    generate::LeftOutCounts,
    store::{
        StateStore,
        digest::{StateDigest, Survey, survey},
        stats::{SeededStats, StoreStats},
        verify::{Violation, verify},
    },
};

/// Number of violations that are printed; every violation is counted.
const MAX_PRINTED: usize = 10;

/// Counts, digests and violations of one store.
pub struct CheckedStore {
    stats: StoreStats,
    digest: StateDigest,
    digest_without_conflicting: StateDigest,
    violations: u64,
    shown: Vec<Violation>,
}

impl CheckedStore {
    /// Scans the store twice: once to count, once to verify.
    pub async fn check(store: &StateStore) -> Result<Self, Failure> {
        let survey = survey(store, |_| {}).await?;
        let (mut violations, mut shown) = (0, Vec::new());
        let found = |violation| {
            violations += 1;
            if shown.len() < MAX_PRINTED {
                shown.push(violation);
            }
        };
        verify(store, |_| {}, found).await?;
        let Survey { stats, digest, digest_without_conflicting } = survey;
        Ok(CheckedStore { stats, digest, digest_without_conflicting, violations, shown })
    }

    /// Describes the comparison with the rebuilt store in one line.
    pub fn describe_comparison(&self, rebuilt: &CheckedStore) -> String {
        let violations = self.violations + rebuilt.violations;
        if self.digest == rebuilt.digest {
            format!("digests are equal: {}; {violations} violations", self.digest)
        } else {
            format!("digests DIFFER: {} and {} of the rebuild; {violations} violations", self.digest, rebuilt.digest)
        }
    }
}

/// Report of a demo, as `--json` prints it. Counts are of the live store without partial transactions, which `seeded`
/// counts.
#[derive(Debug, Serialize)]
pub struct DemoReport {
    blocks: u64,
    /// Live transactions, partial ones excluded.
    live_transactions: u64,
    /// `live_transactions` under its old name.
    transactions: u64,
    inputs: u64,
    outputs: u64,
    slots: u64,
    spent_inside: u64,
    spent_outside: u64,
    unspent: u64,
    unspent_satoshis: u128,
    unmined: u64,
    conflicting: u64,
    seeded: SeededStats,
    kills: u32,
    kills_midway: u32,
    replayed_events: u64,
    parked_max: u64,
    contests: u64,
    dead_letters: u64,
    commands: u64,
    refused_commands: Vec<LoggedCommand>,
    digest_live: StateDigest,
    digest_without_conflicting: StateDigest,
    digest_rebuilt: StateDigest,
    violations: u64,
    seconds: f64,
    transactions_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    rivalry: Option<Rivalry>,
    /// Counts of the block files' content that the feed does not have.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<LeftOutCounts>,
    #[serde(skip)]
    kills_prove_nothing: bool,
    #[serde(skip)]
    shown: Vec<Violation>,
    #[serde(skip)]
    blocks_given: u64,
}

impl DemoReport {
    /// Creates the report of a live store and its rebuild.
    #[allow(clippy::too_many_arguments, reason = "each argument is a line of the report")]
    pub fn new(
        blocks_given: u64,
        live: CheckedStore,
        rebuilt: CheckedStore,
        kill_report: KillReport,
        rivalry: Option<Rivalry>,
        contests: u64,
        dead_letters: u64,
        seconds: f64,
    ) -> Self {
        let stats = live.stats;
        let seconds_or_one = if seconds > 0.0 { seconds } else { 1.0 };
        DemoReport {
            blocks: stats.blocks,
            live_transactions: stats.transactions,
            transactions: stats.transactions,
            inputs: stats.inputs,
            outputs: stats.outputs,
            slots: stats.slots,
            spent_inside: stats.spent_inside,
            spent_outside: stats.spent_outside,
            unspent: stats.unspent,
            unspent_satoshis: stats.unspent_satoshis,
            unmined: stats.unmined,
            conflicting: stats.conflicting,
            seeded: stats.seeded,
            kills: kill_report.kills,
            kills_midway: kill_report.kills_midway,
            kills_prove_nothing: kill_report.proves_nothing(),
            replayed_events: kill_report.replayed_events,
            parked_max: kill_report.parked_max,
            contests,
            dead_letters,
            commands: 0,
            refused_commands: Vec::new(),
            digest_live: live.digest,
            digest_without_conflicting: live.digest_without_conflicting,
            digest_rebuilt: rebuilt.digest,
            violations: live.violations + rebuilt.violations,
            seconds: (seconds * 1_000.0).round() / 1_000.0,
            transactions_per_second: (stats.transactions as f64 / seconds_or_one).round(),
            rivalry,
            left_out: None,
            shown: live.shown.into_iter().chain(rebuilt.shown).take(MAX_PRINTED).collect(),
            blocks_given,
        }
    }

    /// Adds the commands of the log to the report.
    #[must_use]
    pub fn with_commands(self, commands: Vec<LoggedCommand>) -> Self {
        let count = commands.len() as u64;
        let refused =
            commands.into_iter().filter(|entry| matches!(entry.outcome, Some(CommandOutcome::Refused { .. })));
        DemoReport { commands: count, refused_commands: refused.collect(), ..self }
    }

    /// Adds the counts of what the block files hold and the feed does not.
    #[must_use]
    pub fn with_left_out(self, left_out: Option<&LeftOutCounts>) -> Self {
        DemoReport { left_out: left_out.cloned(), ..self }
    }

    /// Prints a table, or one JSON object.
    ///
    /// # Errors
    /// Standard output cannot be written to.
    pub fn print(&self, json: bool) -> io::Result<()> {
        let mut out = output::stdout();
        match json {
            true => writeln!(out, "{}", serde_json::to_string(self)?),
            false => self.write_table(&mut out),
        }
    }

    fn write_table(&self, out: &mut impl Write) -> io::Result<()> {
        for (name, count) in self.counts() {
            writeln!(out, "{name:<34}{:>24}", group_digits(count))?;
        }
        writeln!(out, "{:<34}{:>24}", "seconds", self.seconds)?;
        if let Some(rivalry) = &self.rivalry {
            rivalry.write(out)?;
        }
        if self.kills_midway < self.kills {
            let late = self.kills - self.kills_midway;
            writeln!(
                out,
                "note: {late} of {} kills came when every event was consumed, and prove nothing",
                self.kills
            )?;
        }
        if self.commands > 0 {
            writeln!(out, "commands: {}, of which {} refused", self.commands, self.refused_commands.len())?;
        }
        for command in &self.refused_commands {
            writeln!(out, "refused command: {command}")?;
        }
        if let Some(left_out) = &self.left_out {
            writeln!(out, "{left_out}")?;
        }
        for violation in &self.shown {
            writeln!(out, "violation: {violation}")?;
        }
        writeln!(out, "digest            {}", self.digest_live)?;
        writeln!(out, "digest of rebuild {}", self.digest_rebuilt)?;
        if self.conflicting > 0 {
            writeln!(out, "  of what is not conflicting {}", self.digest_without_conflicting)?;
        }
        Ok(())
    }

    fn counts(&self) -> Vec<(&'static str, u128)> {
        vec![
            ("blocks", self.blocks.into()),
            ("live transactions", self.live_transactions.into()),
            ("  unmined", self.unmined.into()),
            ("inputs", self.inputs.into()),
            ("outputs", self.outputs.into()),
            ("slots", self.slots.into()),
            ("  spent", self.spent_inside.into()),
            ("  unspent", self.unspent.into()),
            ("unspent satoshis", self.unspent_satoshis),
            ("seeded parents", self.seeded.transactions.into()),
            ("  outputs spent", self.spent_outside.into()),
            ("conflicting transactions", self.conflicting.into()),
            ("contests", self.contests.into()),
            ("dead letters", self.dead_letters.into()),
            ("kills survived", self.kills.into()),
            ("  before everything was consumed", self.kills_midway.into()),
            ("events read again, at least", self.replayed_events.into()),
            ("most transactions parked at once", self.parked_max.into()),
            ("violations", self.violations.into()),
            ("transactions a second", self.transactions_per_second as u128),
        ]
    }

    /// Returns the result of the demo.
    ///
    /// # Errors
    /// The digests differ, an invariant is broken, every kill came too late, or a block is missing.
    pub fn verdict(&self) -> CliResult {
        if self.digest_live != self.digest_rebuilt {
            return Err(Failure::new("the store and its rebuild differ"));
        }
        if self.violations > 0 {
            return Err(Failure::new(format!("{} invariants are broken", self.violations)));
        }
        if self.kills_prove_nothing {
            let why =
                format!("none of the {} kills came before every event was consumed: use more --kills", self.kills);
            return Err(Failure::new(why));
        }
        if self.blocks != self.blocks_given && self.blocks_given > 0 {
            return Err(Failure::new(format!("the store has {} of {} blocks", self.blocks, self.blocks_given)));
        }
        Ok(())
    }
}
