//! Failures of commands: the printed line and the exit code.

use std::{
    error::Error,
    fmt,
    io::{self, Write},
    process::ExitCode,
};

use crate::{
    config::ConfigErrors,
    embed::{OpeningError, RunError},
    text::join_lines,
};

/// Result of a command.
pub type CliResult = Result<(), Failure>;

/// Reason why a command failed. The operator `?` converts any error to a failure.
// A failure does not implement `Error`: otherwise the conversion from every `Error` would be ambiguous.
#[derive(Debug)]
pub struct Failure(Box<dyn Error + Send + Sync>);

impl<E: Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure(Box::new(error))
    }
}

/// Wrong arguments that clap cannot recognise, such as two that exclude each other. Exit code 2.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Fenced, with advice of the command: a second process has joined the group with the same `kafka.instance_id`. Exit
/// code 5.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FencedError(pub String);

#[derive(Debug, thiserror::Error)]
#[error("{subject}")]
struct SubjectError {
    subject: &'static str,
    source: Box<dyn Error + Send + Sync>,
}

impl Failure {
    /// Makes a failure of a message in one line.
    pub fn new(message: impl Into<String>) -> Self {
        Failure(message.into().into())
    }

    /// Returns the message in one line, without `error: ` before it.
    pub fn message(&self) -> String {
        let text = self.to_string();
        text.strip_prefix("error: ").unwrap_or(&text).replace("\nerror: ", "; ")
    }

    /// Puts the option or object that the failure is about before the message.
    #[must_use]
    pub fn with_subject(self, subject: &'static str) -> Self {
        SubjectError { subject, source: self.0 }.into()
    }

    /// Returns the exit code: 2 for bad usage and bad configuration, 5 for a fenced process, otherwise 1.
    pub fn exit_code(&self) -> u8 {
        let opening = match self.0.downcast_ref() {
            Some(RunError::Opening(error)) => Some(error),
            _ => self.0.downcast_ref(),
        };
        if self.0.is::<ConfigErrors>()
            || self.0.is::<UsageError>()
            || opening.is_some_and(OpeningError::is_bad_settings)
        {
            2
        } else if self.is_fenced() {
            5
        } else {
            1
        }
    }

    /// Returns whether another process with the same `kafka.instance_id` has taken the place of this process.
    pub fn is_fenced(&self) -> bool {
        self.0.is::<FencedError>() || self.0.downcast_ref().is_some_and(RunError::is_fenced)
    }
}

impl fmt::Display for Failure {
    /// Writes one line `error: message: cause: cause of the cause`; each error of a configuration has its own line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(ConfigErrors(errors)) = self.0.downcast_ref() {
            let lines: Vec<_> =
                errors.iter().map(|error| format!("error: {}", join_lines(&error.to_string()))).collect();
            return f.write_str(&lines.join("\n"));
        }
        let mut message = self.0.to_string();
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let text = error.to_string();
            // Some errors have their cause in their own text.
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            cause = error.source();
        }
        write!(f, "error: {}", join_lines(&message))
    }
}

/// Prints a failure to standard error and returns the exit code of the process.
pub fn report(result: CliResult) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // The exit code still shows the failure where standard error cannot be written.
            let _ = writeln!(io::stderr(), "{failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        broker::{BrokerError, BrokerErrorKind},
        config::ConfigError,
        instance::InstanceError,
    };

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
        assert_eq!(Failure::new("no").with_subject("--against").to_string(), "error: --against: no");
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
        let settings = || OpeningError::Settings("kafka: contradiction".to_owned());
        assert_eq!((fail(settings()).exit_code(), fail(RunError::from(settings())).exit_code()), (2, 2));
        let fenced = BrokerError::new(BrokerErrorKind::Fenced, "poll", "another");
        assert_eq!(fail(RunError::from(InstanceError::from(fenced))).exit_code(), 5);
    }
}
