//! The command line: one file per command.
//!
//! A command is a struct of arguments (`clap::Args`, with an example in `after_help`) with a method `run(self)`, which
//! returns a [`CliResult`] or any `Result<(), impl Error>`. A new command needs a `mod` line and a line in
//! `commands!`.
//!
//! # Exit codes
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | failed; standard error has the reason in one line |
//! | 2 | bad usage or bad configuration; standard error has one line per error |
//! | 3 | stopped at once, by a second signal or because the parent process ended |
//! | 4 | ended by the watchdog: a loop of `run` or `replay` stalled for `run.watchdog_ms`; the log names the loop |
//! | 5 | fenced: another process has the same `kafka.instance_id` and continues; do not start this process again |

mod bridge;
mod checks;
pub mod command;
mod config;
mod dead_letters;
pub mod demo;
mod doctor;
mod dump;
mod empty_store;
pub mod events;
mod failure;
pub mod generate;
mod inspect;
mod migrate;
mod offline;
mod output;
mod prune;
mod recover;
mod replay;
mod run;
mod serve;
mod serving;
mod shell_files;
mod signals;
mod size;
mod snapshot;
mod spinner;
mod stats;
mod timestamp;
pub mod topics;
mod utxo_set;
mod vault;
mod verify;
mod watchdog;

use std::{future::Future, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};

use crate::{
    config::{Config, ConfigErrors},
    embed::{opening, wiring},
};

pub use failure::{CliResult, Failure, FencedError, UsageError, report};

/// An event-sourced store of Bitcoin transaction outputs: Kafka holds the log, the store holds the state.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true, propagate_version = true, after_help = AFTER_HELP)]
pub struct Cli {
    #[command(subcommand)]
    command: SelectedCommand,
}

const AFTER_HELP: &str = "\
Exit codes: 0 done, 1 failed, 2 bad usage or bad configuration, 3 stopped at once by a second
signal, 4 ended by the watchdog (run, replay), 5 fenced: another process has the same
kafka.instance_id and continues (run, replay --from-…).

Example: utxo-store config check --config deploy/utxo-store.toml";

impl Cli {
    /// Runs the selected command.
    ///
    /// # Errors
    /// The command failed; [`report`] prints the failure and returns the exit code.
    pub fn run(self) -> CliResult {
        self.command.run()
    }
}

/// Lists the commands: for each its line in the help, its name and its arguments.
macro_rules! commands {
    ($($(#[doc = $help:literal])+ $name:ident($args:ty)),* $(,)?) => {
        #[derive(Debug, Subcommand)]
        enum SelectedCommand {
            $($(#[doc = $help])+ $name($args)),*
        }

        impl SelectedCommand {
            fn run(self) -> CliResult {
                match self {
                    $(SelectedCommand::$name(args) => Ok(args.run()?)),*
                }
            }
        }
    };
}

commands! {
    /// Run an instance: consume the log, keep the state
    Run(run::RunArgs),
    /// Turn Kafka messages and subtrees of the reference system into events of this store
    Bridge(bridge::BridgeArgs),
    /// Serve the API over HTTP: questions about the store, transactions and commands for the log
    Serve(serve::ServeArgs),
    /// Rebuild the state from the log, or read validated transactions again
    Replay(replay::ReplayArgs),
    /// Run real blocks through the whole store, with kills, and compare the state with a rebuild
    Demo(demo::DemoArgs),
    /// Turn block files into events and produce them to the log
    Generate(generate::GenerateArgs),
    /// Look for everything that needs an operator, and print what to do first
    Doctor(doctor::DoctorArgs),
    /// Create the topics, or check existing topics
    Topics(topics::TopicsCommand),
    /// Count the content of a store and print its state digest
    Stats(stats::StatsArgs),
    /// Check the invariants of a store, or compare two stores; exit code 1 on a violation or a difference
    Verify(verify::VerifyArgs),
    /// Complete half-created transactions of several pages
    Recover(recover::RecoverArgs),
    /// Prune transactions spent by mined transactions, and conflicting ones, while no instance runs
    Prune(prune::PruneArgs),
    /// Copy a store at rest into an empty store of another engine or layout
    Migrate(migrate::MigrateArgs),
    /// Create, restore, verify, list or delete snapshots of a store
    Snapshot(snapshot::SnapshotCommand),
    /// Import a UTXO-set file into an empty store, export one, or verify one
    UtxoSet(utxo_set::UtxoSetCommand),
    /// Show transactions, outputs, blocks, lock records, offsets, decisions or blobs
    Inspect(inspect::InspectCommand),
    /// Print the content of the state digest: one JSON object per transaction
    Dump(dump::DumpArgs),
    /// Publish a command to the sequencer (freeze, reassign, unlock, …) and wait for the result; or list commands
    Command(command::CommandArgs),
    /// List, replay or discard dead letters: events that could not be applied
    DeadLetters(dead_letters::DeadLettersCommand),
    /// Convert events between JSON and the binary form
    Events(events::EventsArgs),
    /// Keep the outputs of watched scripts with soft locks and coin selection, or ask such a vault
    Vault(vault::VaultCommand),
    /// Print a commented sample of the settings, or check settings
    Config(config::ConfigCommand),
    /// Compute what a rate and a number of outputs need
    Size(size::SizeArgs),
    /// Print the completions of a shell
    Completions(shell_files::CompletionsArgs),
    /// Write man pages, one for each command
    Man(shell_files::ManArgs),
}

/// Source of the configuration, the same for every command that needs a configuration.
#[derive(Debug, Clone, Default, Args)]
pub struct ConfigArgs {
    /// TOML file with settings; the environment (UTXO_STORE__SECTION__KEY) has precedence
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

impl ConfigArgs {
    /// Reads and checks the configuration.
    ///
    /// # Errors
    /// All errors of the configuration; the exit code is then 2.
    pub fn load(&self) -> Result<Config, ConfigErrors> {
        Config::load(self.config.as_deref())
    }

    /// Reads and checks the settings of the store, for a command that uses no other section.
    ///
    /// # Errors
    /// As [`load`](Self::load), for the section `store`.
    pub fn load_store(&self) -> Result<Config, ConfigErrors> {
        Config::load_store(self.config.as_deref())
    }

    /// Reads and checks the settings of the store and of the snapshots, for a command that needs the place of the
    /// snapshots and the logins to it.
    ///
    /// # Errors
    /// All errors of these settings; the exit code is then 2.
    fn load_snapshots(&self) -> Result<Config, ConfigErrors> {
        Config::load_snapshots(self.config.as_deref())
    }
}

/// Runs a command's future to its end on a new runtime: no layer below `cli` starts threads.
///
/// # Errors
/// The future fails, or the runtime cannot be started.
pub fn block_on(command: impl Future<Output = CliResult>) -> CliResult {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(command);
    // A request that still waits for a broker must not keep the process alive.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

#[cfg(test)]
mod tests;
