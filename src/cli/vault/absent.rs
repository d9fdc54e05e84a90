//! The command `vault` of a program that was built without the vault.

use std::ffi::OsString;

use clap::Args;

use crate::cli::{CliResult, UsageError};

/// Arguments of the command `vault`, which are refused.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct AbsentVault {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<OsString>,
}

impl AbsentVault {
    pub(in crate::cli) fn run(self) -> CliResult {
        drop(self.arguments);
        let problem = "this program was built without the vault; build with `--features vault`";
        Err(UsageError(problem.to_owned()).into())
    }
}
