//! Cases in processes of their own: what they take of memory and CPU is theirs.

use std::{
    env,
    process::{Command, Stdio},
};

use serde::de::DeserializeOwned;

/// Before the arguments of a child.
pub const CHILD: &str = "--case";

/// Runs this program for one case; it prints its outcome as JSON. `BENCH_UNDER` is what it runs under, e.g. `perf record -o /tmp/perf.data`.
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

/// Waits for what it prints.
pub fn outcome<T: DeserializeOwned>(arguments: &[String]) -> Result<T, String> {
    let output = command(arguments)?.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("the case ended with {}", output.status));
    }
    // What it runs under may say something, too.
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.starts_with('{')).ok_or("the case said nothing")?;
    serde_json::from_str(line).map_err(|error| error.to_string())
}

/// Cargo adds `--bench`; every other word picks the cases that contain it.
pub fn is_chosen(words: &[String], name: &str) -> bool {
    words.is_empty() || words.iter().any(|word| name.contains(word.as_str()))
}
