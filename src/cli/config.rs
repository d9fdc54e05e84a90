//! `utxo-store config`: a commented sample of the configuration, and a check of one.

use std::io::Write;

use clap::{Args, Subcommand};

use super::{CommandResult, ConfigArgs, output};
use crate::config;

/// Arguments of `config`.
#[derive(Debug, Args)]
pub struct ConfigCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print every setting with its default and what it does, as TOML
    #[command(after_help = "Example: utxo-store config sample > utxo-store.toml")]
    Sample,
    /// Check a configuration: the file, and the environment over it; exit code 2 when it is wrong
    #[command(
        after_help = "Example: UTXO_STORE__KAFKA__BROKERS=kafka:9092 utxo-store config check --config utxo-store.toml"
    )]
    Check(ConfigArgs),
}

impl ConfigCommand {
    pub(super) fn run(self) -> CommandResult {
        match self.action {
            Action::Sample => output::stdout().write_all(config::sample().as_bytes())?,
            Action::Check(args) => {
                // What goes through to librdkafka is checked by librdkafka; nothing is connected yet.
                let config = args.load()?;
                let settings = super::wiring::kafka(&config);
                super::opening::kafka(settings)?;
                for warning in config.warnings() {
                    writeln!(output::stderr(), "warning: {warning}")?;
                }
                writeln!(output::stdout(), "the configuration is good")?;
            }
        }
        Ok(())
    }
}
