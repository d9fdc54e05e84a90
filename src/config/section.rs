//! Descriptions of settings: what the list declares of each.

use super::types::ValueKind;

/// A group of settings: a table of the TOML file.
#[derive(Debug)]
pub struct Section {
    /// Path of the table, e.g. `kafka.topics`.
    pub key: &'static str,
    /// Description of the section, line by line.
    pub help: &'static [&'static str],
    /// Settings of the section, in the order of the sample.
    pub settings: &'static [Setting],
}

/// Description of one setting, as the list declares it.
#[derive(Debug)]
pub struct Setting {
    /// Full path, e.g. `kafka.brokers`.
    pub key: &'static str,
    /// Kind of TOML value that the setting takes.
    pub kind: ValueKind,
    /// Default as TOML; `None`: absent unless given.
    pub default: Option<&'static str>,
    /// Example value as TOML, for a setting without a default.
    pub example: Option<&'static str>,
    /// Least and greatest accepted number.
    pub range: Option<(u64, u64)>,
    /// Unit of a number.
    pub unit: Option<&'static str>,
    /// Name of this setting in the reference document.
    pub reference: Option<&'static str>,
    /// Description of the setting, line by line.
    pub help: &'static [&'static str],
}

impl Setting {
    /// Returns the last part of the key.
    pub fn name(&self) -> &'static str {
        self.key.rsplit_once('.').map_or(self.key, |(_, name)| name)
    }
}
