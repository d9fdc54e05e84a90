//! `docker-compose.yml` uses settings, commands and files that exist.

use std::{collections::BTreeMap, fs, path::Path};

use clap::Parser;
use utxo_store::{blob::BlobUrl, cli::Cli, config::Config};

const COMPOSE: &str = include_str!("../../docker-compose.yml");

/// Folder of the file's secrets, which the containers have.
const SECRETS: &str = "/run/utxo-secrets";

/// Returns the settings of the anchor with this name, with the secrets in another folder.
fn settings_of(anchor: &str, secrets: &Path) -> BTreeMap<&'static str, String> {
    let start = format!("environment: &{anchor}");
    let after = COMPOSE.lines().skip_while(|line| line.trim() != start).skip(1);
    let pairs =
        after.map_while(|line| line.trim().split_once(": ").filter(|(name, _)| name.starts_with("UTXO_STORE_")));
    pairs.map(|(name, value)| (name, value.replace(SECRETS, secrets.to_str().unwrap()))).collect()
}

fn assert_valid(variables: BTreeMap<&str, String>) {
    let config = Config::load_from(None, variables.into_iter().map(|(name, value)| (name.into(), value.into())));
    let config = config.unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.ignored_names, [""; 0]);
}

#[test]
fn its_environment_is_a_valid_configuration() {
    let secrets = tempfile::tempdir().unwrap();
    fs::write(secrets.path().join("s3"), "password").unwrap();
    let mut variables = settings_of("settings", secrets.path());
    assert!(variables.len() >= 8, "{variables:?}");
    let blobs = variables.get_mut("UTXO_STORE__STORE__BLOBS__URL").unwrap();
    assert!(matches!(blobs.parse(), Ok(BlobUrl::S3(_))), "{blobs}");
    // The image has the feature; a build without it refuses the URL.
    if !cfg!(feature = "aws") {
        *blobs = "file:///bodies".to_owned();
    }
    assert_valid(variables);
    let demo = settings_of("demo-settings", secrets.path());
    assert_eq!((demo.len(), demo["UTXO_STORE__STORE__URL"].as_str()), (5, "fjall:///var/lib/utxo-store/store"));
    assert_valid(demo);
}

/// Protects: a service without a profile starts in both, and must need no server of one profile alone.
#[test]
fn its_profiles_have_the_servers_that_they_need() {
    let services = COMPOSE.split_once("\nservices:\n").unwrap().1.split_once("\nvolumes:\n").unwrap().0;
    let blocks = services.split("\n\n").filter_map(|block| {
        let block = block.lines().skip_while(|line| line.trim_start().starts_with('#'));
        let lines: Vec<&str> = block.collect();
        Some((lines.first()?.trim().strip_suffix(':')?, lines))
    });
    let mut profiles = BTreeMap::new();
    let mut needs = Vec::new();
    for (name, lines) in blocks {
        let has = |text: &str| lines.iter().any(|line| line.trim() == text);
        let profile = match () {
            () if has("profiles: [full]") || has("<<: *instance") => "full",
            () if has("<<: *demo") => "demo",
            () => "both",
        };
        profiles.insert(name, profile);
        let needed = lines.iter().skip_while(|line| line.trim() != "depends_on:").skip(1);
        let needed =
            needed.take_while(|line| line.starts_with("      ")).filter_map(|line| line.trim().strip_suffix(':'));
        needs.extend(needed.map(|other| (name, other)));
    }
    assert_eq!((profiles["kafka"], profiles["topics"], profiles["demo-store"]), ("both", "both", "demo"));
    assert_eq!((profiles["aerospike"], profiles["utxo-store-2"], profiles["grafana"]), ("full", "full", "full"));
    assert!(needs.contains(&("demo-blocks", "topics")) && needs.contains(&("topics", "kafka")), "{needs:?}");
    for (name, other) in needs {
        let fits = profiles[other] == "both" || profiles[other] == profiles[name];
        assert!(fits, "{name} ({}) needs {other} ({})", profiles[name], profiles[other]);
    }
}

#[test]
fn its_command_lines_are_those_of_the_binary() {
    // A blank line ends a service.
    let uses = |service: &&str| service.contains("<<: *utxo-store") || service.contains("<<: *demo");
    let services = COMPOSE.split("\n\n").filter(uses);
    let commands: Vec<&str> = services
        .flat_map(|service| service.lines().find_map(|line| line.trim().strip_prefix("command: [")?.strip_suffix(']')))
        .collect();
    assert_eq!(commands.len(), 4, "{commands:?}");
    for command in commands {
        let words = command.split(", ").map(|word| word.trim_matches('"'));
        Cli::try_parse_from(["utxo-store"].into_iter().chain(words)).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Protects: the image is built by a Rust that the crates permit.
#[test]
fn its_image_is_built_by_the_oldest_supported_rust() {
    let oldest = env!("CARGO_PKG_RUST_VERSION");
    let dockerfile = include_str!("../../deploy/Dockerfile");
    assert!(dockerfile.contains(&format!("FROM rust:{oldest}-bookworm AS build")), "{oldest}");
    for document in [include_str!("../../README.md"), include_str!("../../docs/operating/install.md")] {
        assert!(document.contains(&format!("{oldest} or newer")), "{oldest}");
    }
}

#[test]
fn its_mounted_files_and_its_dockerfile_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mounts =
        COMPOSE.lines().filter_map(|line| line.trim().strip_prefix("- ./")?.split_once(':')).map(|(path, _)| path);
    let dockerfile = COMPOSE.lines().filter_map(|line| line.trim().strip_prefix("dockerfile: "));
    let paths: Vec<&str> = mounts.chain(dockerfile).collect();
    assert!(paths.len() >= 7, "{paths:?}");
    for path in paths {
        assert!(root.join(path).exists(), "{path}");
    }
}
