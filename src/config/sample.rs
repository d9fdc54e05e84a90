//! Prints the commented sample of all settings. The sample is the content of `deploy/utxo-store.toml`, and the raw
//! stage reads the defaults from the same text.

use super::settings::{SECTIONS, Section, Setting};
use super::types::ValueKind;

const HEAD: &str = "\
# Every setting of utxo-store with its default. `utxo-store config sample` writes this file; a test compares the file
# with the code. Each setting can also be given in the environment: UTXO_STORE__KAFKA__TOPICS__CHAIN sets
# kafka.topics.chain.
# Reference: the name of the setting in the reference document that this store implements.
";

/// Sample lines of the table `kafka.properties`.
const PROPERTIES: &str = "\
# [kafka.properties]
# \"ssl.cipher.suites\" = \"ECDHE-RSA-AES256-GCM-SHA384\"
# \"socket.keepalive.enable\" = true
";

/// Returns the commented sample of all settings, as TOML.
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
    let (tables, settings): (Vec<_>, Vec<_>) = section.settings.iter().partition(|s| s.kind == ValueKind::Table);
    for setting in settings {
        write_setting(out, setting);
    }
    // Tables come last: TOML assigns every line after the head of a table to that table.
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
        setting.reference.map(|name| format!("Reference: {name}.")),
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
