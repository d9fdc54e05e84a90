//! `utxo-store config`: prints a commented sample of the settings, or checks settings.

use std::io::Write;

use clap::{Args, Subcommand};

use super::{CliResult, ConfigArgs, output};
use crate::config;

/// Command-line arguments of `utxo-store config`.
#[derive(Debug, Args)]
pub struct ConfigCommand {
    #[command(subcommand)]
    action: ConfigAction,
}

#[derive(Debug, Subcommand)]
enum ConfigAction {
    /// Print every setting with its description and default, as TOML
    #[command(after_help = "Example: utxo-store config sample > utxo-store.toml")]
    Sample,
    /// Check the settings of the file and the environment, without connecting; exit code 2 on an error
    #[command(
        after_help = "Example: UTXO_STORE__KAFKA__BROKERS=kafka:9092 utxo-store config check --config utxo-store.toml"
    )]
    Check(ConfigArgs),
}

impl ConfigCommand {
    pub(super) fn run(self) -> CliResult {
        match self.action {
            ConfigAction::Sample => output::stdout().write_all(config::sample().as_bytes())?,
            ConfigAction::Check(args) => {
                // librdkafka checks its own properties when the client is built; the client does not connect.
                let config = args.load()?;
                let settings = super::wiring::kafka_settings(&config);
                super::opening::build_kafka(settings)?;
                for warning in config.warnings() {
                    writeln!(output::stderr(), "warning: {warning}")?;
                }
                writeln!(output::stdout(), "the configuration is good")?;
            }
        }
        Ok(())
    }
}
