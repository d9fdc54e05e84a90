//! Cases in child processes, which have their own memory and CPU time.

use std::{
    env,
    process::{Command, Stdio},
};

use serde::de::DeserializeOwned;

/// Flag before the arguments of a child.
pub const CHILD: &str = "--case";

/// Returns the command that runs one case; the child prints its outcome as JSON. `BENCH_UNDER` is a command to run the
/// child under, for example `perf record -o /tmp/perf.data`.
pub fn command(arguments: &[String]) -> Result<Command, String> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let under = env::var("BENCH_UNDER").unwrap_or_default();
    let mut words = under.split_whitespace();
    let mut command = match words.next() {
        Some(first) => {
            let mut command = Command::new(first);
            command.args(words).arg(program);
            command
        }
        None => Command::new(program),
    };
    command.arg(CHILD).args(arguments).stderr(Stdio::inherit());
    Ok(command)
}

/// Runs a case and returns its outcome.
pub fn outcome<T: DeserializeOwned>(arguments: &[String]) -> Result<T, String> {
    let output = command(arguments)?.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("the case ended with {}", output.status));
    }
    // The `BENCH_UNDER` command may print lines, too.
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.starts_with('{')).ok_or("the case printed no outcome")?;
    serde_json::from_str(line).map_err(|error| error.to_string())
}

/// Whether a case is selected: every word but Cargo's `--bench` selects the cases that contain it.
pub fn is_chosen(words: &[String], name: &str) -> bool {
    words.is_empty() || words.iter().any(|word| name.contains(word.as_str()))
}
