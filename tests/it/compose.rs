//! `docker-compose.yml` uses settings, commands and files that exist.

use std::{collections::BTreeMap, fs, path::Path};

use clap::Parser;
use utxo_store::{blob::BlobUrl, cli::Cli, config::Config};

const COMPOSE: &str = include_str!("../../docker-compose.yml");

/// Folder of the file's secrets, which the containers have.
const SECRETS: &str = "/run/utxo-secrets";

#[test]
fn its_environment_is_a_valid_configuration() {
    let secrets = tempfile::tempdir().unwrap();
    fs::write(secrets.path().join("s3"), "password").unwrap();
    let variables = COMPOSE.lines().filter_map(|line| line.trim().split_once(": "));
    let mut variables: BTreeMap<&str, String> = variables
        .filter(|(name, _)| name.starts_with("UTXO_STORE_"))
        .map(|(name, value)| (name, value.replace(SECRETS, secrets.path().to_str().unwrap())))
        .collect();
    assert!(variables.len() >= 9, "{variables:?}");
    let blobs = variables.get_mut("UTXO_STORE__STORE__BLOBS__URL").unwrap();
    assert!(matches!(blobs.parse(), Ok(BlobUrl::S3(_))), "{blobs}");
    // The image has the feature; a build without it refuses the URL.
    if !cfg!(feature = "aws") {
        *blobs = "file:///bodies".to_owned();
    }
    let config = Config::load_from(None, variables.into_iter().map(|(name, value)| (name.into(), value.into())));
    let config = config.unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.ignored_names, [""; 0]);
}

#[test]
fn its_command_lines_are_those_of_the_binary() {
    // A blank line ends a service.
    let services = COMPOSE.split("\n\n").filter(|service| service.contains("<<: *utxo-store"));
    let commands: Vec<&str> = services
        .flat_map(|service| service.lines().find_map(|line| line.trim().strip_prefix("command: [")?.strip_suffix(']')))
        .collect();
    assert_eq!(commands.len(), 2, "{commands:?}");
    for command in commands {
        let words = command.split(", ").map(|word| word.trim_matches('"'));
        Cli::try_parse_from(["utxo-store"].into_iter().chain(words)).unwrap_or_else(|error| panic!("{error}"));
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
