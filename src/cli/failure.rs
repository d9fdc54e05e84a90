//! How a command fails: what is printed, and the exit code.

use std::{
    error::Error,
    fmt,
    io::{self, Write},
    process::ExitCode,
};

use crate::config::ConfigErrors;

/// What a command answers with.
pub type CommandResult = Result<(), Failure>;

/// Why a command failed. Any error becomes one with `?`.
// It is no `Error` itself: that is what makes the conversion from every `Error` possible.
#[derive(Debug)]
pub struct Failure(Box<dyn Error + Send + Sync>);

impl<E: Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure(Box::new(error))
    }
}

/// Arguments that make no sense together, where clap cannot tell.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Another process works under this one's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FencedError(pub String);

#[derive(Debug, thiserror::Error)]
#[error("{what}")]
struct Of {
    what: &'static str,
    source: Box<dyn Error + Send + Sync>,
}

impl Failure {
    /// A failure that is told in one line.
    pub fn new(message: impl Into<String>) -> Self {
        Failure(message.into().into())
    }

    /// What failed, in one line, without the word before it.
    pub fn told(&self) -> String {
        let told = self.to_string();
        told.strip_prefix("error: ").unwrap_or(&told).replace("\nerror: ", "; ")
    }

    /// The same, saying which of several things it is about.
    #[must_use]
    pub fn of(self, what: &'static str) -> Self {
        Of { what, source: self.0 }.into()
    }

    /// 2 for bad usage and bad configuration, 5 where another process goes on instead, otherwise 1.
    pub fn exit_code(&self) -> u8 {
        if self.0.is::<ConfigErrors>() || self.0.is::<UsageError>() {
            2
        } else if self.0.is::<FencedError>() {
            5
        } else {
            1
        }
    }
}

impl fmt::Display for Failure {
    /// A line `error: what: cause: cause of that`; each error of a configuration has a line of its own.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(ConfigErrors(errors)) = self.0.downcast_ref() {
            let lines: Vec<_> = errors.iter().map(|error| format!("error: {}", one_line(&error.to_string()))).collect();
            return f.write_str(&lines.join("\n"));
        }
        let mut told = self.0.to_string();
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let text = error.to_string();
            // Some errors tell their cause themselves.
            if !told.contains(&text) {
                told = format!("{told}: {text}");
            }
            cause = error.source();
        }
        write!(f, "error: {}", one_line(&told))
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Prints a failure to standard error and gives the process's exit code.
pub fn report(result: CommandResult) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // The exit code tells of the failure where nobody reads standard error, or where it cannot be written.
            let _ = writeln!(io::stderr(), "{failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigError;

    #[derive(Debug, thiserror::Error)]
    #[error("the store at {path} cannot be opened")]
    struct Opening {
        path: &'static str,
        source: io::Error,
    }

    fn fail(error: impl Error + Send + Sync + 'static) -> Failure {
        error.into()
    }

    #[test]
    fn a_failure_is_one_line_with_its_causes() {
        let failure = fail(Opening { path: "/x", source: io::Error::other("disk\non fire") });
        assert_eq!(failure.to_string(), "error: the store at /x cannot be opened: disk on fire");
        assert_eq!(failure.exit_code(), 1);
        assert_eq!(Failure::new("no").to_string(), "error: no");
        assert_eq!(Failure::new("no").of("--against").to_string(), "error: --against: no");
    }

    #[test]
    fn a_bad_configuration_has_a_line_for_each_error_and_code_2() {
        let error = |key: &str| ConfigError {
            key: key.to_owned(),
            source: "file".to_owned(),
            problem: "is unknown".to_owned(),
        };
        let failure = fail(ConfigErrors(vec![error("a"), error("b")]));
        assert_eq!(failure.to_string(), "error: a is unknown (file)\nerror: b is unknown (file)");
        assert_eq!(failure.exit_code(), 2);
        assert_eq!(fail(UsageError("either or".to_owned())).exit_code(), 2);
        assert_eq!(fail(FencedError("another".to_owned())).exit_code(), 5);
    }
}
