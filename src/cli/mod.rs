//! The command line: one file a command.
//!
//! A command is a struct of arguments (`clap::Args`, with an example in `after_help`) with `run(self)`, which answers with
//! a [`CommandResult`] or any `Result<(), impl Error>`. To add one, add a `mod` line and a line in `commands!`.
//!
//! # Exit codes
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | failed; standard error says why, in one line |
//! | 2 | bad usage or bad configuration; each error in a line of its own |
//! | 3 | told to stop at once, by a second signal or by a parent that is gone |
//! | 4 | ended by its watchdog: a loop of `run` or `replay` stood still for `run.watchdog_ms`; the log says which |
//! | 5 | another process was started with the same `kafka.instance_id` and goes on instead: do not start this one again |

pub mod command;
mod config;
mod dead_letters;
pub mod demo;
mod dump;
pub mod events;
mod failure;
pub mod generate;
mod inspect;
mod offline;
mod opening;
mod output;
mod prune;
mod recover;
mod replay;
mod run;
mod serving;
mod signals;
mod stats;
mod timestamp;
pub mod topics;
mod verify;
mod watchdog;
pub mod wiring;

use std::{future::Future, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};

use crate::config::{Config, ConfigErrors};

pub use failure::{CommandResult, Failure, FencedError, UsageError, report};

/// An event-sourced store of Bitcoin transaction outputs: Kafka holds the log, the store holds the state.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true, propagate_version = true, after_help = AFTER_HELP)]
pub struct Cli {
    #[command(subcommand)]
    command: Chosen,
}

const AFTER_HELP: &str = "\
Exit codes: 0 done, 1 failed, 2 bad usage or bad configuration, 3 stopped at once by a second signal,
4 ended by its watchdog (run, replay), 5 another process has its kafka.instance_id and goes on instead (run).

Example: utxo-store config check --config deploy/utxo-store.toml";

impl Cli {
    /// Runs the command that was asked for.
    ///
    /// # Errors
    /// Whatever the command failed with; [`report`] prints it and gives the exit code.
    pub fn run(self) -> CommandResult {
        self.command.run()
    }
}

/// Lists the commands: the line that each has in the help, its name and its arguments.
macro_rules! commands {
    ($($(#[doc = $help:literal])+ $name:ident($args:ty)),* $(,)?) => {
        #[derive(Debug, Subcommand)]
        enum Chosen {
            $($(#[doc = $help])+ $name($args)),*
        }

        impl Chosen {
            fn run(self) -> CommandResult {
                match self {
                    $(Chosen::$name(args) => Ok(args.run()?)),*
                }
            }
        }
    };
}

commands! {
    /// Run an instance: consume the log, keep the state
    Run(run::RunArgs),
    /// Build the state anew from the log
    Replay(replay::ReplayArgs),
    /// Real blocks through the whole store, with kills in between, and a rebuild to compare with
    Demo(demo::DemoArgs),
    /// Turn block files into events, and feed them to the log
    Generate(generate::GenerateArgs),
    /// Create the topics, or check those that are there
    Topics(topics::TopicsCommand),
    /// Count what a store holds, and print its digest
    Stats(stats::StatsArgs),
    /// Check the invariants of a store, in both directions; exit code 1 when one is broken
    Verify(verify::VerifyArgs),
    /// Complete transactions over several pages that are half created
    Recover(recover::RecoverArgs),
    /// Forget what is spent by what is mined, and what is conflicting, while no instance runs
    Prune(prune::PruneArgs),
    /// Show a transaction, an output, lock records, the consumer's offsets or the sequencer's decisions
    Inspect(inspect::InspectCommand),
    /// Print what the digest covers: one JSON object a transaction, ordered by txid
    Dump(dump::DumpArgs),
    /// Ask the sequencer for a change (freeze, reassign, unlock, …) and wait for what became of it; or list such commands
    Command(command::CommandArgs),
    /// List what could not be applied, and replay or discard it
    DeadLetters(dead_letters::DeadLettersCommand),
    /// Turn events into their binary form and back
    Events(events::EventsArgs),
    /// Print a commented sample of the configuration, or check one
    Config(config::ConfigCommand),
}

/// Where the configuration comes from: the same for every command that needs one.
#[derive(Debug, Clone, Default, Args)]
pub struct ConfigArgs {
    /// TOML file with settings; the environment (UTXO_STORE__SECTION__KEY) goes before it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

impl ConfigArgs {
    /// Reads and checks it.
    ///
    /// # Errors
    /// Everything that is wrong with it; the exit code is then 2.
    pub fn load(&self) -> Result<Config, ConfigErrors> {
        Config::load(self.config.as_deref())
    }
}

/// Runs a command's future to its end on a runtime of its own: nothing below this layer starts threads by itself.
///
/// # Errors
/// What the future answers with, or that the runtime cannot be started.
pub fn block_on(command: impl Future<Output = CommandResult>) -> CommandResult {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(command);
    // A request that still waits for a broker must not hold the process.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

#[cfg(test)]
mod tests;
