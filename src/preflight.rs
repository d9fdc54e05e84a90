//! Findings about topics, rights and offsets before an instance starts (`run --check`, `doctor`, `topics check`). Pure:
//! `cli::checks` asks the brokers and the store.

pub mod cause;
pub mod group;
pub mod message_size;
pub mod replication;
pub mod retention;
pub mod rights;
pub mod times;
pub mod topics;

use std::fmt;

use serde::Serialize;

use self::cause::Cause;
use crate::text::one_line;

/// Result of one check, from the least to the most serious.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckOutcome {
    /// The check was not made; the message has the reason.
    Skipped,
    /// The checked thing meets every requirement.
    Ok,
    /// An instance works, but a setting should be changed.
    Warning,
    /// An instance would not start, or could lose data.
    Failed,
}

/// A check with its result, as `run --check` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the checked thing, such as `topic utxo.chain`.
    pub check: String,
    /// Result of the check.
    pub outcome: CheckOutcome,
    /// State that was found, with the remedy where the check did not pass; one line.
    #[serde(rename = "told")]
    pub message: String,
    /// Cause of a warning or a failure, where the cause is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
}

impl Finding {
    /// Creates a finding whose message is made fit for one line.
    pub fn new(check: impl Into<String>, outcome: CheckOutcome, message: impl AsRef<str>) -> Self {
        Finding { check: check.into(), outcome, message: one_line(message.as_ref()).into_owned(), cause: None }
    }

    /// Adds the cause to a warning or a failure.
    pub fn with_cause(self, cause: Cause) -> Self {
        match self.outcome {
            CheckOutcome::Warning | CheckOutcome::Failed => Finding { cause: Some(cause), ..self },
            CheckOutcome::Skipped | CheckOutcome::Ok => self,
        }
    }

    /// Creates a finding that is `Failed` with the error.
    pub fn failed(check: impl Into<String>, error: impl fmt::Display) -> Self {
        Finding::new(check, CheckOutcome::Failed, error.to_string())
    }

    /// Creates a finding that is `Ok` with the message, or `Failed` with the error.
    pub fn from_result(check: impl Into<String>, result: Result<impl AsRef<str>, impl fmt::Display>) -> Self {
        match result {
            Ok(message) => Finding::new(check, CheckOutcome::Ok, message),
            Err(error) => Finding::failed(check, error),
        }
    }

    /// Creates a finding that is `Failed` with problems, `Warning` with cautions alone, and otherwise `Ok` with
    /// `message`.
    pub fn from_problems(check: impl Into<String>, message: &str, problems: &[String], cautions: &[String]) -> Self {
        let outcome = match (problems, cautions) {
            ([], []) => CheckOutcome::Ok,
            ([], _) => CheckOutcome::Warning,
            _ => CheckOutcome::Failed,
        };
        match outcome {
            CheckOutcome::Ok => Finding::new(check, outcome, message),
            _ => Finding::new(check, outcome, [problems, cautions].concat().join("; ")),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { check, outcome, message, .. } = self;
        // Capitals make warnings and failures visible in a long list.
        let outcome = match outcome {
            CheckOutcome::Skipped => "skipped",
            CheckOutcome::Ok => "ok",
            CheckOutcome::Warning => "WARNING",
            CheckOutcome::Failed => "FAILED",
        };
        write!(f, "{outcome:<8} {check}: {message}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line_with_problems_before_cautions() {
        let line = |problems: &[&str], cautions: &[&str]| {
            let owned = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect::<Vec<String>>();
            let [problems, cautions] = [problems, cautions].map(owned);
            Finding::from_problems("topic a", "is there", &problems, &cautions).to_string()
        };
        assert_eq!(line(&[], &[]), "ok       topic a: is there");
        assert_eq!(line(&[], &["has one copy"]), "WARNING  topic a: has one copy");
        assert_eq!(line(&["for\ngets"], &["has one copy"]), "FAILED   topic a: for\\ngets; has one copy");
        let skipped = Finding::new("blobs", CheckOutcome::Skipped, "there are none");
        assert_eq!(
            serde_json::to_string(&skipped).unwrap(),
            r#"{"check":"blobs","outcome":"skipped","told":"there are none"}"#
        );
        let failed: Result<&str, _> = Err("no");
        assert_eq!(Finding::from_result("x", failed).outcome, CheckOutcome::Failed);
    }
}
