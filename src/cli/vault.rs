//! `utxo-store vault`: runs a vault, or asks one over HTTP.

#[cfg(not(feature = "vault"))]
mod absent;
#[cfg(feature = "vault")]
mod client;
#[cfg(feature = "vault")]
mod render;
#[cfg(feature = "vault")]
mod run;

#[cfg(not(feature = "vault"))]
pub use absent::AbsentVault as VaultCommand;

#[cfg(feature = "vault")]
use super::CliResult;

/// Arguments of the command `vault`.
#[cfg(feature = "vault")]
#[derive(Debug, clap::Args)]
pub struct VaultCommand {
    #[command(subcommand)]
    action: VaultAction,
}

#[cfg(feature = "vault")]
#[derive(Debug, clap::Subcommand)]
enum VaultAction {
    /// Keep the outputs of watched scripts in the database of `vault.url`, and serve the routes under /v1/vault
    Run(run::VaultRunArgs),
    #[command(flatten)]
    Ask(client::VaultQuestion),
}

#[cfg(feature = "vault")]
impl VaultCommand {
    pub(super) fn run(self) -> CliResult {
        match self.action {
            VaultAction::Run(args) => args.run(),
            VaultAction::Ask(question) => question.run(),
        }
    }
}
