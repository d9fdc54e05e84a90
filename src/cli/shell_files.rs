//! `utxo-store completions` and `utxo-store man`: files for shells and for `man`, made from the commands' arguments.

use std::{io::Write, path::PathBuf};

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, CliResult, Failure, output};

/// Name of the program in the files.
const PROGRAM: &str = "utxo-store";

/// Command-line arguments of `utxo-store completions`.
#[derive(Debug, Args)]
#[command(after_help = "Example: utxo-store completions bash > /usr/share/bash-completion/completions/utxo-store")]
pub struct CompletionsArgs {
    /// Shell that reads the script
    shell: Shell,
}

impl CompletionsArgs {
    pub(super) fn run(self) -> CliResult {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), PROGRAM, &mut script);
        Ok(output::stdout().write_all(&script)?)
    }
}

/// Command-line arguments of `utxo-store man`.
#[derive(Debug, Args)]
#[command(after_help = "Example: utxo-store man --to /usr/local/share/man/man1")]
pub struct ManArgs {
    /// Directory that gets one page for each command
    #[arg(long, value_name = "DIRECTORY")]
    to: PathBuf,
}

impl ManArgs {
    pub(super) fn run(self) -> CliResult {
        let failed =
            |error: std::io::Error| Failure::new(format!("cannot write man pages to {}: {error}", self.to.display()));
        std::fs::create_dir_all(&self.to).map_err(failed)?;
        clap_mangen::generate_to(Cli::command(), &self.to).map_err(failed)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_gets_a_script_that_names_the_commands() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), PROGRAM, &mut script);
            let script = String::from_utf8(script).unwrap();
            for word in ["dead-letters", "migrate", "--config"] {
                let word = if shell == Shell::Fish { word.trim_start_matches('-') } else { word };
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }

    #[test]
    fn every_command_gets_a_man_page() {
        let folder = tempfile::tempdir().unwrap();
        ManArgs { to: folder.path().join("man1") }.run().unwrap();
        let page = |name: &str| std::fs::read_to_string(folder.path().join("man1").join(name)).unwrap();
        for command in Cli::command().get_subcommands() {
            let page = page(&format!("{PROGRAM}-{}.1", command.get_name()));
            assert!(page.contains(".SH SYNOPSIS"), "{}", command.get_name());
        }
        assert!(page("utxo-store-snapshot-restore.1").contains("Example"), "the example of a subcommand");
        let file = folder.path().join("man1/utxo-store.1/under-a-file");
        assert!(ManArgs { to: file }.run().unwrap_err().message().contains("cannot write man pages"));
    }
}
