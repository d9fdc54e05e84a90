//! What a demo shows in the end.

use std::io::{self, Write};

use serde::Serialize;

use super::{Survival, rivalry::Rivalry};
use crate::cli::output;
use crate::{
    cli::{
        CommandResult, Failure,
        command::{Became, Entry},
        stats::group,
    },
    generate::LeftOutOfFiles,
    store::{
        Store,
        digest::{StateDigest, Survey},
        stats::{SeededStats, StoreStats},
        verify::Violation,
    },
};

/// Violations that are shown; all are counted.
const SHOWN: usize = 10;

/// One store, counted, digested and verified.
pub struct Checked {
    stats: StoreStats,
    digest: StateDigest,
    digest_without_conflicting: StateDigest,
    violations: u64,
    shown: Vec<Violation>,
}

impl Checked {
    /// Scans the store twice: once to count, once to verify.
    ///
    /// # Errors
    /// The engine failed.
    pub async fn of(store: &Store) -> Result<Self, Failure> {
        let survey = store.survey(|_| {}).await?;
        let (mut violations, mut shown) = (0, Vec::new());
        let found = |violation| {
            violations += 1;
            if shown.len() < SHOWN {
                shown.push(violation);
            }
        };
        store.verify(|_| {}, found).await?;
        let Survey { stats, digest, digest_without_conflicting } = survey;
        Ok(Checked { stats, digest, digest_without_conflicting, violations, shown })
    }
}

impl Checked {
    /// The line of the demo that tells the outcome of the comparison with a rebuild.
    pub fn compared_with(&self, rebuilt: &Checked) -> String {
        let violations = self.violations + rebuilt.violations;
        if self.digest == rebuilt.digest {
            format!("digests are equal: {}; {violations} violations", self.digest)
        } else {
            format!("digests DIFFER: {} and {} of the rebuild; {violations} violations", self.digest, rebuilt.digest)
        }
    }
}

/// Everything, as `--json` prints it. Counts are of the live store and of transactions that came whole; partial parents
/// are in `seeded`.
#[derive(Debug, Serialize)]
pub struct Report {
    blocks: u64,
    /// Live ones that came whole.
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
    refused_commands: Vec<Entry>,
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
    left_out: Option<LeftOutOfFiles>,
    #[serde(skip)]
    kills_show_nothing: bool,
    #[serde(skip)]
    shown: Vec<Violation>,
    #[serde(skip)]
    blocks_given: u64,
}

impl Report {
    /// Of the live store and its rebuild.
    #[allow(clippy::too_many_arguments, reason = "each is one line of the report")]
    pub fn new(
        blocks_given: u64,
        live: Checked,
        rebuilt: Checked,
        survival: Survival,
        rivalry: Option<Rivalry>,
        contests: u64,
        dead_letters: u64,
        seconds: f64,
    ) -> Self {
        let stats = live.stats;
        let seconds_or_one = if seconds > 0.0 { seconds } else { 1.0 };
        Report {
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
            kills: survival.kills,
            kills_midway: survival.kills_midway,
            kills_show_nothing: survival.shows_nothing(),
            replayed_events: survival.replayed_events,
            parked_max: survival.parked_max,
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
            shown: live.shown.into_iter().chain(rebuilt.shown).take(SHOWN).collect(),
            blocks_given,
        }
    }

    /// Adds the commands of the log to the report.
    #[must_use]
    pub fn with_commands(self, commands: Vec<Entry>) -> Self {
        let count = commands.len() as u64;
        let refused = commands.into_iter().filter(|entry| matches!(entry.became, Some(Became::Refused { .. })));
        Report { commands: count, refused_commands: refused.collect(), ..self }
    }

    /// Adds the counts of what the block files hold and the feed does not.
    #[must_use]
    pub fn leaving_out(self, left_out: Option<&LeftOutOfFiles>) -> Self {
        Report { left_out: left_out.cloned(), ..self }
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
            writeln!(out, "{name:<34}{:>24}", group(count))?;
        }
        writeln!(out, "{:<34}{:>24}", "seconds", self.seconds)?;
        if let Some(rivalry) = &self.rivalry {
            rivalry.write(out)?;
        }
        if self.kills_midway < self.kills {
            let late = self.kills - self.kills_midway;
            writeln!(out, "note: {late} of {} kills came when everything was consumed, and show nothing", self.kills)?;
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

    /// Whether everything came out as it must.
    ///
    /// # Errors
    /// It did not.
    pub fn verdict(&self) -> CommandResult {
        if self.digest_live != self.digest_rebuilt {
            return Err(Failure::new("the store and its rebuild differ"));
        }
        if self.violations > 0 {
            return Err(Failure::new(format!("{} invariants are broken", self.violations)));
        }
        if self.kills_show_nothing {
            let why =
                format!("none of the {} kills came before everything was consumed: they show nothing", self.kills);
            return Err(Failure::new(why));
        }
        if self.blocks != self.blocks_given && self.blocks_given > 0 {
            return Err(Failure::new(format!("{} of {} blocks are there", self.blocks, self.blocks_given)));
        }
        Ok(())
    }
}
