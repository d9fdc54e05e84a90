//! Answers of a vault as text for people.

use std::io::{self, Write};

use crate::{
    cli::stats,
    text::one_line,
    vault::model::{
        BalanceView, LockList, LockView, OwnerOutput, OwnerOutputs, ReleaseAnswer, RescanList, RescanView,
        ReserveAnswer, ScriptList, SelectAnswer, SessionView, UnwatchAnswer, WatchAnswer,
    },
};
use chrono::{DateTime, SecondsFormat};

/// An answer that is printed for people.
pub trait Render {
    /// Writes the answer as lines.
    ///
    /// # Errors
    /// The output cannot be written.
    fn render(&self, out: &mut impl Write) -> io::Result<()>;
}

/// Returns a time as text, from milliseconds since the epoch.
fn time(ms: i64) -> String {
    let time = DateTime::from_timestamp_millis(ms);
    time.map_or_else(|| format!("{ms} ms"), |time| time.to_rfc3339_opts(SecondsFormat::Secs, true))
}

fn group_digits(number: u64) -> String {
    stats::group_digits(number.into())
}

/// Returns the end of a lock as text.
fn end(expires_at: Option<i64>) -> String {
    expires_at.map_or_else(|| "lasts until released".to_owned(), |end| format!("ends at {}", time(end)))
}

fn write_output(output: &OwnerOutput, out: &mut impl Write) -> io::Result<()> {
    let height = output.height.map_or_else(|| "unconfirmed".to_owned(), |height| format!("height {height}"));
    let standing: &'static str = output.standing.into();
    let place = output.address.clone().unwrap_or_else(|| format!("hex:{}", output.script));
    let lock = output.lock_id.map(|id| format!(", lock {id}")).unwrap_or_default();
    let satoshis = group_digits(output.satoshis);
    writeln!(out, "{}  {satoshis:>15}  {standing}, {height}{lock}  {}", output.outpoint, one_line(&place))
}

impl Render for WatchAnswer {
    fn render(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{} scripts added", self.added)
    }
}

impl Render for UnwatchAnswer {
    fn render(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{} scripts removed", self.removed)
    }
}

impl Render for ScriptList {
    fn render(&self, out: &mut impl Write) -> io::Result<()> {
        for script in &self.scripts {
            let name = script.address.clone().unwrap_or_else(|| format!("hex:{}", script.script));
            writeln!(out, "{}  watched since {}", one_line(&name), time(script.watched_at))?;
        }
        Ok(())
    }
}

impl Render for BalanceView {
    fn render(&self, out: &mut impl Write) -> io::Result<()> {
        for (sum, part) in [
            (self.available, "available"),
            (self.soft_locked, "soft-locked"),
            (self.immature, "immature"),
            (self.own_unconfirmed, "unconfirmed, of own transactions"),
            (self.foreign_unconfirmed, "unconfirmed, of other transactions"),
            (self.frozen, "frozen or locked by a command"),
            (self.pending, "not known to the store yet"),
        ] {
            writeln!(out, "{:>20} satoshis in {:>8} outputs  {part}", group_digits(sum.satoshis), sum.outputs)?;
        }
        let as_of = self.as_of.map(|as_of| format!(", oldest answer of the store {}", time(as_of)));
        writeln!(out, "under the tip at height {}{}", self.height, as_of.unwrap_or_default())
    }
}

impl Render for OwnerOutputs {
    fn render(&self, out: &mut impl Write) -> io::Result<()> {
        self.outputs.iter().try_for_each(|output| write_output(output, out))
    }
}

impl Render for ReserveAnswer {
    fn render(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "lock {} {}", self.lock_id, end(self.expires_at))
    }
}

impl Render for ReleaseAnswer {
    fn render(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{} outputs released", self.released)
    }
}

impl Render for SelectAnswer {
    fn render(&self, out: &mut impl Write) -> io::Result<()> {
        match self.held {
            true => writeln!(out, "lock {} {}", self.lock_id, end(self.expires_at))?,
            false => writeln!(out, "lock {} has ended: the answer is a repeat", self.lock_id)?,
        }
        self.outputs.iter().try_for_each(|output| write_output(output, out))?;
        let change = self.change.map_or_else(|| "none".to_owned(), group_digits);
        writeln!(out, "sum {}, fee {}, change {change}", group_digits(self.sum), group_digits(self.fee))
    }
}

impl Render for LockList {
    fn render(&self, out: &mut impl Write) -> io::Result<()> {
        for LockView { lock_id, session, expires_at } in &self.locks {
            let kind = if *session { "session" } else { "lock" };
            writeln!(out, "{kind} {lock_id} {}", end(*expires_at))?;
        }
        Ok(())
    }
}

impl Render for SessionView {
    fn render(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "session {} {}", self.lock_id, end(Some(self.expires_at)))
    }
}

impl Render for RescanList {
    fn render(&self, out: &mut impl Write) -> io::Result<()> {
        if self.rescans.is_empty() {
            return writeln!(out, "no rescan is left");
        }
        for RescanView { topic, partition, snapshot, next, end, .. } in &self.rescans {
            match (topic, partition, snapshot) {
                (Some(topic), Some(partition), _) => writeln!(out, "{topic} partition {partition}: {next} of {end}")?,
                (_, _, Some(name)) => writeln!(out, "snapshot {name}: chunk {next} of {end}")?,
                _ => writeln!(out, "store")?,
            }
        }
        Ok(())
    }
}
