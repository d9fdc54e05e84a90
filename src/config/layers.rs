//! The raw stage: merges the defaults, the file and the environment, each without its unknown keys.
//!
//! figment merges the layers, the later over the earlier, and records the layer of each value.

use std::{
    ffi::{OsStr, OsString},
    path::Path,
};

use figment::{
    Figment, Metadata, Profile, Provider,
    providers::{Format, Toml},
    value::{Dict, Map, Tag, Value},
};

use crate::broker::kafka::{self, PropertyRefusal};

use super::{
    check::ConfigError,
    reference::{self, Given, References},
    sample,
    settings::{self, SECTIONS},
    types::{Properties, ValueKind},
};

/// Prefix of every environment variable that is a setting. It ends with two underscores, because Kubernetes itself sets
/// `UTXO_STORE_PORT` and the like for a service of that name.
const PREFIX: &str = "UTXO_STORE__";

/// Name of the layer with the defaults.
const DEFAULTS: &str = "defaults";
/// Names of the layers with the names of the reference document.
const FILE_ALIASES: &str = "names of the reference in the file";
const VARIABLE_ALIASES: &str = "names of the reference in the environment";

/// Returns the names of variables that are settings with one underscore between section and key. Values are left out,
/// as they may be secrets.
fn misspelt_variables<'a>(names: impl IntoIterator<Item = &'a OsStr>) -> impl Iterator<Item = String> {
    let settings = SECTIONS.iter().flat_map(|section| section.settings);
    let single: Vec<String> =
        settings.map(|setting| variable_name(&setting.key.split('.').collect::<Vec<_>>()).replace("__", "_")).collect();
    let names = names.into_iter().filter_map(OsStr::to_str).filter(move |name| single.iter().any(|s| s == name));
    names.map(str::to_owned)
}

/// The sections that a command uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sections {
    /// All sections of the sample.
    All,
    /// The section of the store, with its subsections.
    Store,
    /// The section of the store, whose logins reach the place of the snapshots, and the section of the snapshots.
    Snapshots,
}

impl Sections {
    /// Returns whether the key is in one of the sections, or in no section at all: a misspelt name is never ignored.
    fn contains(self, key: &str) -> bool {
        let top = key.split('.').next().unwrap_or(key);
        match self {
            Sections::All => true,
            Sections::Store => top == "store" || !settings::is_section(top),
            Sections::Snapshots => ["store", "snapshot"].contains(&top) || !settings::is_section(top),
        }
    }
}

/// A source of settings: its values, and where they come from.
#[derive(Clone)]
struct Layer {
    metadata: Metadata,
    tree: Dict,
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        self.metadata.clone()
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        Ok(Profile::Default.collect(self.tree.clone()))
    }
}

/// The settings of all sources, merged.
pub(super) struct Merged {
    pub figment: Figment,
    /// Names in the environment and in the file that look like settings and are not read.
    pub ignored: Vec<String>,
    /// Names of the reference document that stand for a setting: each sets the setting, or is ignored because another
    /// source sets the setting.
    pub aliases: Vec<String>,
}

/// Merges the defaults, the file and the environment: first the names of the reference document in both, then the names
/// of this store. A host of the reference has variables that are meant for the reference. Adds unknown keys and
/// unreadable sources to `errors`. A section that is not in `sections` keeps its defaults, whatever the file and the
/// environment contain.
pub(super) fn merge(
    file: Option<&Path>,
    environment: &[(OsString, OsString)],
    sections: Sections,
    errors: &mut Vec<ConfigError>,
) -> Merged {
    let mut figment = Figment::new();
    let mut merge = |metadata: Metadata, mut tree: Dict, errors: &mut Vec<ConfigError>| {
        tree.retain(|name, _| metadata.name == DEFAULTS || sections.contains(name));
        let tree = Cleaner { metadata: &metadata, errors }.section("", tree);
        figment = std::mem::take(&mut figment).merge(Layer { metadata, tree });
    };
    let mut ignored: Vec<String> = misspelt_variables(environment.iter().map(|(name, _)| name.as_os_str())).collect();
    let defaults = Metadata::named(DEFAULTS).interpolater(|_, _| "its default".to_owned());
    match toml(Toml::string(&sample::sample())) {
        Ok(tree) => merge(defaults, tree, errors),
        Err(problem) => errors.push(ConfigError { key: String::new(), source: DEFAULTS.to_owned(), problem }),
    }
    let mut own = None;
    let mut aliases = Vec::new();
    if let Some(path) = file {
        let source = path.display().to_string();
        match toml(Toml::file_exact(path)) {
            Ok(mut tree) => {
                let references = References::take_from(&mut tree);
                let named = reference_tree(&references, &tree, sections, errors, |_| source.clone());
                let (names, source) = (source.clone(), move |_: &Profile, _: &[&str]| source.clone());
                merge(Metadata::named(FILE_ALIASES).interpolater(move |_, _| names.clone()), named, errors);
                own = Some((Metadata::named("file").interpolater(source), tree));
                aliases.push((FILE_ALIASES, references));
            }
            Err(problem) => errors.push(ConfigError { key: String::new(), source, problem }),
        }
    }
    let references = References::of_variables(environment);
    let named = reference_tree(&references, &Dict::new(), sections, errors, str::to_owned);
    let names: Vec<(&str, String)> = references.given.iter().map(|given| (given.key, given.name.clone())).collect();
    let name_of = move |_: &Profile, path: &[&str]| {
        let key = path.join(".");
        names.iter().find(|(given, _)| *given == key).map_or_else(|| key.clone(), |(_, name)| name.clone())
    };
    merge(Metadata::named(VARIABLE_ALIASES).interpolater(name_of), named, errors);
    aliases.push((VARIABLE_ALIASES, references));
    if let Some((metadata, tree)) = own {
        merge(metadata, tree, errors);
    }
    let (tree, unreadable) = variables(environment);
    merge(Metadata::named("environment").interpolater(|_, path| variable_name(path)), tree, errors);
    errors.extend(unreadable.into_iter().filter(|error| sections.contains(&error.key)));
    let mut named = Vec::new();
    for (layer, references) in aliases {
        ignored.extend(references.ignored);
        for Given { name, key, .. } in references.given.iter().filter(|given| sections.contains(given.key)) {
            named.extend(figment.find_metadata(key).map(|used| match used.name == layer {
                true => format!("{name} sets {key}"),
                false => {
                    let source = used.interpolate(&Profile::Default, &key.split('.').collect::<Vec<_>>());
                    format!("{name} is ignored because {key} is set in {source}")
                }
            }));
        }
    }
    ignored.sort();
    Merged { figment, ignored, aliases: named }
}

/// Returns the values that a source gives under names of the reference document. A setting that the same source gives
/// twice is an error; `own` has the settings that the source gives under names of this store.
fn reference_tree(
    references: &References,
    own: &Dict,
    sections: Sections,
    errors: &mut Vec<ConfigError>,
    source_of: impl Fn(&str) -> String,
) -> Dict {
    let mut tree = Dict::new();
    for Given { name, key, text } in references.given.iter().filter(|given| sections.contains(given.key)) {
        let path: Vec<&str> = key.split('.').collect();
        let mut refuse = |problem: String| {
            errors.push(ConfigError { key: (*key).to_owned(), source: source_of(name), problem });
        };
        match text {
            Err(problem) => refuse(problem.clone()),
            Ok(_) if reference::is_given(&tree, key) || reference::is_given(own, key) => {
                refuse(format!("is given twice, also as {name}: give it once"))
            }
            Ok(text) => {
                let kind = settings::find(key).map_or(ValueKind::Text, |setting| setting.kind);
                insert(&mut tree, &path, &value_of_kind(kind, Tag::Default, text.clone()));
            }
        }
    }
    tree
}

fn toml(provider: impl Provider) -> Result<Dict, String> {
    let mut profiles = provider.data().map_err(|error| one_line(&error.to_string()))?;
    Ok(profiles.remove(&Profile::Default).unwrap_or_default())
}

/// Joins the first and the last line of a parse error: the lines between quote the file, which may hold a password.
fn one_line(error: &str) -> String {
    let mut lines = error.lines().map(str::trim).filter(|line| !line.is_empty());
    match (lines.next(), lines.next_back()) {
        (Some(first), Some(last)) => format!("{first}: {last}"),
        (first, _) => first.unwrap_or_default().to_owned(),
    }
}

/// Returns the name of the variable that sets the setting at `path`.
fn variable_name(path: &[&str]) -> String {
    format!("{PREFIX}{}", path.join("__").replace('.', "_").to_ascii_uppercase())
}

/// Builds the tree of settings that the environment gives, with every value as text.
fn variables(environment: &[(OsString, OsString)]) -> (Dict, Vec<ConfigError>) {
    let mut tree = Dict::new();
    let mut errors = Vec::new();
    let mut named: Vec<_> = environment
        .iter()
        .filter_map(|(name, value)| Some((name.to_str()?.strip_prefix(PREFIX)?.to_ascii_lowercase(), value)))
        .collect();
    named.sort();
    for (name, value) in &named {
        let path: Vec<&str> = name.split("__").collect();
        let mut refuse = |problem: &str| {
            let key = path.join(".");
            errors.push(ConfigError { key, source: variable_name(&path), problem: problem.to_owned() });
        };
        let within = format!("{name}__");
        if named.iter().any(|(other, _)| other.starts_with(&within)) {
            refuse("is a section, not a setting");
        } else if let Some(text) = value.to_str() {
            insert(&mut tree, &path, &Value::from(text));
        } else {
            refuse("must be UTF-8 text");
        }
    }
    (tree, errors)
}

fn insert(tree: &mut Dict, path: &[&str], value: &Value) {
    match path {
        [] => {}
        [name] => {
            tree.insert((*name).to_owned(), value.clone());
        }
        ["kafka", "properties", first, rest @ ..] => {
            // No property of librdkafka has an underscore in its name, and no shell accepts a dot in a variable name.
            let name = [&[*first], rest].concat().join(".").replace('_', ".");
            if let Some(table) = subtable(tree, "kafka").and_then(|kafka| subtable(kafka, "properties")) {
                insert(table, &[&name], value);
            }
        }
        [first, rest @ ..] => {
            if let Some(table) = subtable(tree, first) {
                insert(table, rest, value);
            }
        }
    }
}

/// Returns the table `name` within `tree`, creating a missing table; `None` if the name has another kind of value.
fn subtable<'a>(tree: &'a mut Dict, name: &str) -> Option<&'a mut Dict> {
    match tree.entry(name.to_owned()).or_insert_with(|| Value::from(Dict::new())) {
        Value::Dict(_, table) => Some(table),
        _ => None,
    }
}

/// Removes the unknown keys of one layer, and reports each as an error.
struct Cleaner<'a> {
    metadata: &'a Metadata,
    errors: &'a mut Vec<ConfigError>,
}

impl Cleaner<'_> {
    fn refuse(&mut self, key: &str, problem: impl Into<String>) {
        let path: Vec<&str> = match key.strip_prefix("kafka.properties.") {
            Some(property) => vec!["kafka", "properties", property],
            None => key.split('.').collect(),
        };
        let source = self.metadata.interpolate(&Profile::Default, &path);
        self.errors.push(ConfigError { key: key.to_owned(), source, problem: problem.into() });
    }

    fn section(&mut self, section: &str, tree: Dict) -> Dict {
        let mut clean = Dict::new();
        for (name, value) in tree {
            let key = if section.is_empty() { name.clone() } else { format!("{section}.{name}") };
            if let Some(value) = self.entry(&key, value) {
                clean.insert(name, value);
            }
        }
        clean
    }

    fn entry(&mut self, key: &str, value: Value) -> Option<Value> {
        match (settings::find(key), value) {
            (Some(setting), Value::Dict(tag, table)) if setting.kind == ValueKind::Table => {
                let mut properties = Dict::new();
                self.properties("", table, &mut properties);
                Some(Value::Dict(tag, properties))
            }
            (Some(setting), Value::String(tag, text)) if self.metadata.name == "environment" => {
                Some(value_of_kind(setting.kind, tag, text))
            }
            (Some(_), value) => Some(value),
            (None, Value::Dict(tag, table)) if settings::is_section(key) => {
                Some(Value::Dict(tag, self.section(key, table)))
            }
            (None, _) if settings::is_section(key) => {
                self.refuse(key, "is a section, not a setting");
                None
            }
            (None, _) => {
                self.refuse(key, unknown_key(key));
                None
            }
        }
    }

    /// Flattens the table of properties: `sasl.password = "…"` is a table in a table to TOML, and one name to
    /// librdkafka.
    fn properties(&mut self, prefix: &str, table: Dict, into: &mut Dict) {
        for (name, value) in table {
            let name = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
            let key = format!("kafka.properties.{name}");
            // A property with a setting in `[kafka.security]` is checked later, beside that section.
            let refusal = kafka::refusal(&name).filter(|refusal| !matches!(refusal, PropertyRefusal::SetBySecurity(_)));
            if let Some(refusal) = refusal {
                self.refuse(&key, refusal.to_string());
            } else if let Value::Dict(_, table) = value {
                self.properties(&name, table, into);
            } else if Properties::value_text(&value).is_none() {
                self.refuse(&key, "must be text, a number or true or false");
            } else {
                into.insert(name, value);
            }
        }
    }
}

/// Converts the text of a variable, which has no type, into the kind of value that the setting takes, where possible.
fn value_of_kind(kind: ValueKind, tag: Tag, text: String) -> Value {
    let value = match kind {
        ValueKind::Integer => text.parse::<i64>().ok().map(Value::from),
        ValueKind::Number => text.parse::<f64>().ok().map(Value::from),
        ValueKind::Boolean => text.parse::<bool>().ok().map(Value::from),
        ValueKind::Text | ValueKind::Table => None,
    };
    value.unwrap_or(Value::String(tag, text))
}

/// Settings that have another name since, with that name.
const RENAMED: &[(&str, &str)] = &[
    ("ingest.max_unsafe_transactions", "ingest.max_not_durable_transactions"),
    ("ingest.unfinished_bytes", "ingest.unfinished_bytes_per_partition"),
    ("ingest.unfinished_bytes_in_all", "ingest.unfinished_bytes_total"),
    ("sequencer.cone_chunk", "sequencer.descendants_per_decision"),
    ("store.blobs.cache_ms", "store.blobs.cache_ttl_ms"),
    ("store.blobs.least_bytes_per_s", "store.blobs.min_bytes_per_s"),
];

/// Settings that earlier releases had, with the reason for which nothing replaces them.
const REMOVED: [(&str, &str); 1] = [(
    "store.aerospike.accept_replication",
    "a cluster with several copies needs no acceptance (docs/operating/aerospike.md)",
)];

/// Describes an unknown key, and names the settings of the same name in other sections.
fn unknown_key(key: &str) -> String {
    if let Some((_, new)) = RENAMED.iter().find(|(old, _)| *old == key) {
        return format!("is renamed: set {new} instead");
    }
    if let Some((_, reason)) = REMOVED.iter().find(|(old, _)| *old == key) {
        return format!("is gone: leave it out; {reason}");
    }
    let name = key.rsplit('.').next().unwrap_or(key);
    let settings = SECTIONS.iter().flat_map(|section| section.settings);
    let namesakes: Vec<&str> = settings.filter(|setting| setting.name() == name).map(|setting| setting.key).collect();
    match namesakes.as_slice() {
        [] => "is unknown".to_owned(),
        keys => format!("is unknown (there is {})", keys.join(", ")),
    }
}
