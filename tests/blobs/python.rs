//! Packages of PyPI for tests, in virtual environments in folders of the checkout. The first use installs them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
};

/// Tests of one process run at the same time and may need the same folder.
static INSTALLING: Mutex<()> = Mutex::new(());

/// Returns the Python interpreter of a virtual environment with these packages, which the first call installs.
/// `folder`: its folder in the checkout; another version of a package has another folder.
///
/// # Errors
/// Returns the command that failed and the last line of its error output.
pub fn install(folder: &str, packages: &[&str]) -> Result<PathBuf, String> {
    let _installing = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let python = directory.join("bin/python");
    if directory.join("complete").exists() {
        return Ok(python);
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&directory))?;
    run(Command::new(&python).args(["-m", "pip", "install", "-q", "--disable-pip-version-check"]).args(packages))?;
    fs::write(directory.join("complete"), "").map_err(|error| error.to_string())?;
    Ok(python)
}

fn run(command: &mut Command) -> Result<(), String> {
    let command_line = format!("{command:?}");
    match command.stdin(Stdio::null()).output() {
        Err(error) => Err(format!("{command_line}: {error}")),
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            Err(format!("{command_line}: {}", stderr.lines().last().unwrap_or("failed without a message")))
        }
    }
}
