//! The commented sample of all settings: documentation, the contents of `deploy/utxo-store.toml`, and the defaults.

use super::settings::{SECTIONS, Section, Setting};
use super::types::Kind;

const HEAD: &str = "\
# Every setting of utxo-store with its default. This file is written by `utxo-store config sample`; a test holds it to
# the code. Each setting can also be given in the environment: UTXO_STORE__KAFKA__TOPICS__CHAIN sets kafka.topics.chain.
# Seed: the name of the setting in the documents that this store implements.
";

/// Sample lines of `kafka.properties`.
const PROPERTIES: &str = "\
# [kafka.properties]
# \"ssl.cipher.suites\" = \"ECDHE-RSA-AES256-GCM-SHA384\"
# \"socket.keepalive.enable\" = true
";

/// The sample, as TOML.
pub fn sample() -> String {
    let mut out = HEAD.to_owned();
    for section in SECTIONS {
        write_section(&mut out, section);
    }
    out
}

fn write_section(out: &mut String, section: &Section) {
    out.push('\n');
    comment(out, section.help);
    out.push_str(&format!("[{}]\n", section.key));
    let (tables, settings): (Vec<_>, Vec<_>) = section.settings.iter().partition(|s| s.kind == Kind::Table);
    for setting in settings {
        write_setting(out, setting);
    }
    // TOML takes whatever follows a table's head as the table's own.
    for table in tables {
        out.push('\n');
        comment(out, table.help);
        out.push_str(PROPERTIES);
    }
}

fn write_setting(out: &mut String, setting: &Setting) {
    out.push('\n');
    comment(out, setting.help);
    let facts = [
        setting.unit.map(|unit| format!("Unit: {unit}.")),
        setting.range.map(|(low, high)| format!("From {low} to {high}.")),
        setting.seed.map(|seed| format!("Seed: {seed}.")),
    ];
    let facts = facts.into_iter().flatten().collect::<Vec<_>>().join(" ");
    if !facts.is_empty() {
        out.push_str(&format!("# {facts}\n"));
    }
    match (setting.default, setting.example) {
        (Some(default), _) => out.push_str(&format!("{} = {default}\n", setting.name())),
        (None, example) => out.push_str(&format!("# {} = {}\n", setting.name(), example.unwrap_or_default())),
    }
}

fn comment(out: &mut String, lines: &[&str]) {
    for line in lines {
        out.push_str(&format!("# {}\n", line.trim()));
    }
}
