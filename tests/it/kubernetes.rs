//! `deploy/kubernetes` uses settings, commands and rules that exist. `scripts/check-kubernetes.py` checks the rendered
//! manifests where `kubectl` and PyYAML are installed.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use clap::Parser;
use utxo_store::{cli::Cli, config::Config};

/// Folder of the secrets that containers have.
const SECRETS: &str = "/run/secrets/utxo-store";
const RULES: &str = include_str!("../../deploy/prometheus/utxo-store.rules.yml");
const RULES_OBJECT: &str = include_str!("../../deploy/kubernetes/monitoring/prometheusrule.yaml");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/kubernetes")
}

/// Returns the files below a folder whose names end so, ascending.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path, ending)),
            false if path.to_string_lossy().ends_with(ending) => found.push(path),
            false => {}
        }
    }
    found.sort();
    found
}

/// Returns the variables of a container that are settings: `- name: UTXO_STORE__…` and the line of its value.
fn variables(manifest: &str) -> BTreeMap<String, String> {
    let mut lines = manifest.lines().peekable();
    let mut found = BTreeMap::new();
    while let Some(line) = lines.next() {
        let Some(name) = line.trim().strip_prefix("- name: ").filter(|name| name.starts_with("UTXO_STORE__")) else {
            continue;
        };
        let value = lines.peek().and_then(|line| line.trim().strip_prefix("value: "));
        // Another value is a field of the pod: its name.
        found.insert(name.to_owned(), value.map_or("utxo-store-0", |value| value.trim_matches('"')).to_owned());
    }
    found
}

/// Every key of the settings and every variable exists, has a value of its type, and agrees with the others.
#[test]
fn its_settings_are_valid_configurations() {
    let secrets = tempfile::tempdir().unwrap();
    let settings = files(&root(), "utxo-store.toml");
    assert_eq!(settings.len(), 3, "{settings:?}");
    for file in settings {
        let mut text = fs::read_to_string(&file).unwrap();
        for name in text.clone().split('"').filter_map(|value| value.strip_prefix(SECRETS)) {
            let content = "read 0123456789abcdef0123456789abcdef\n";
            fs::write(secrets.path().join(name.trim_start_matches('/')), content).unwrap();
        }
        text = text.replace(SECRETS, secrets.path().to_str().unwrap());
        if !cfg!(feature = "aws") {
            text = text.replace("\"s3://", "\"file:///");
        }
        let copy = secrets.path().join("utxo-store.toml");
        fs::write(&copy, text).unwrap();
        for manifest in ["base/statefulset.yaml", "serve/deployment.yaml", "topics/job.yaml"] {
            let variables = variables(&fs::read_to_string(root().join(manifest)).unwrap());
            assert!(variables.contains_key("UTXO_STORE__HTTP__LISTEN") || manifest.starts_with("topics"));
            let given = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
            let config = Config::load_from(Some(&copy), given);
            let config = config.unwrap_or_else(|errors| panic!("{} with {manifest}: {errors}", file.display()));
            assert_eq!(config.ignored_names, [""; 0], "{} with {manifest}", file.display());
        }
    }
}

#[test]
fn its_command_lines_are_those_of_the_program() {
    let mut commands = 0;
    for manifest in files(&root(), ".yaml") {
        let text = fs::read_to_string(&manifest).unwrap();
        for args in text.lines().filter_map(|line| line.trim().strip_prefix("args: [")?.strip_suffix(']')) {
            let words = args.split(", ").map(|word| word.trim_matches('"'));
            Cli::try_parse_from(["utxo-store"].into_iter().chain(words)).unwrap_or_else(|error| panic!("{error}"));
            commands += 1;
        }
    }
    assert_eq!(commands, 4);
}

/// kustomize cannot put a file of rules into the object.
#[test]
fn its_rules_are_those_of_prometheus() {
    let (_, rules) = RULES_OBJECT.split_once("\nspec:\n").unwrap();
    let lines = rules.lines().map(|line| line.strip_prefix("  ").unwrap_or(line));
    assert!(lines.eq(RULES.lines()), "write the lines again, as the head of prometheusrule.yaml says");
}

#[test]
fn its_overlays_render_and_agree_with_the_settings() {
    let has_yaml = Command::new("python3").args(["-c", "import yaml"]).stderr(Stdio::null()).status();
    let kubectl = Command::new("kubectl").arg("version").arg("--client").output();
    if kubectl.is_err() || !has_yaml.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: kubernetes manifests: kubectl or PyYAML is not installed");
        return;
    }
    for overlay in ["small", "production", "small/topics", "production/topics"] {
        let rendered =
            Command::new("kubectl").arg("kustomize").arg(root().join("overlays").join(overlay)).output().unwrap();
        assert!(rendered.status.success(), "{overlay}: {}", String::from_utf8_lossy(&rendered.stderr));
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/check-kubernetes.py");
        let mut check =
            Command::new("python3").arg(script).arg("-").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut check.stdin.take().unwrap(), &rendered.stdout).unwrap();
        let checked = check.wait_with_output().unwrap();
        assert!(checked.status.success(), "{overlay}: {}", String::from_utf8_lossy(&checked.stdout));
    }
}
