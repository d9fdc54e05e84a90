//! Counters of what the histories have exercised.

use std::{collections::BTreeMap, fmt};

/// Counts by group and kind of occurrence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage(BTreeMap<&'static str, BTreeMap<String, u64>>);

impl Coverage {
    /// Adds `count` occurrences of a kind.
    pub fn add(&mut self, group: &'static str, kind: &str, count: u64) {
        let kinds = self.0.entry(group).or_default();
        match kinds.get_mut(kind) {
            Some(counted) => *counted += count,
            None => drop(kinds.insert(kind.to_owned(), count)),
        }
    }

    /// Adds all counts of another coverage.
    pub fn absorb(&mut self, other: Coverage) {
        for (group, kinds) in other.0 {
            for (kind, count) in kinds {
                self.add(group, &kind, count);
            }
        }
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (group, kinds) in &self.0 {
            writeln!(f, "{group}")?;
            for (kind, count) in kinds {
                writeln!(f, "  {kind:<32} {count:>12}")?;
            }
        }
        Ok(())
    }
}
