//! What is looked at before an instance starts (`run --check`, `topics check`), and what is made of it. Pure: who asks brokers and stores
//! is `cli::run::check`.

pub mod group;
pub mod rights;
pub mod times;
pub mod topics;

use std::fmt;

use serde::Serialize;

use crate::text::one_line;

/// What a check came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It was not looked at, and why.
    Skipped,
    /// As it has to be.
    Ok,
    /// It works, and something should be otherwise.
    Warning,
    /// An instance would not start, or would lose something.
    Failed,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at, such as `topic utxo.chain`.
    pub check: String,
    /// What came of it.
    pub outcome: Outcome,
    /// What was found, and, where that is not as it has to be, what to do; in one line.
    pub told: String,
}

impl Finding {
    /// What a check came to.
    pub fn new(check: impl Into<String>, outcome: Outcome, told: impl AsRef<str>) -> Self {
        Finding { check: check.into(), outcome, told: one_line(told.as_ref()).into_owned() }
    }

    /// All is well where it was looked at, else it failed, for that reason.
    pub fn of(check: impl Into<String>, looked: Result<impl AsRef<str>, impl fmt::Display>) -> Self {
        match looked {
            Ok(told) => Finding::new(check, Outcome::Ok, told),
            Err(why) => Finding::new(check, Outcome::Failed, why.to_string()),
        }
    }

    /// With what is wrong and what should be otherwise; where there is neither, all is well, which `told` says.
    pub fn weighed(check: impl Into<String>, told: &str, problems: &[String], cautions: &[String]) -> Self {
        let outcome = match (problems, cautions) {
            ([], []) => Outcome::Ok,
            ([], _) => Outcome::Warning,
            _ => Outcome::Failed,
        };
        match outcome {
            Outcome::Ok => Finding::new(check, outcome, told),
            _ => Finding::new(check, outcome, [problems, cautions].concat().join("; ")),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { check, outcome, told } = self;
        // What failed has to be found by the eye, too.
        let outcome = match outcome {
            Outcome::Skipped => "skipped",
            Outcome::Ok => "ok",
            Outcome::Warning => "WARNING",
            Outcome::Failed => "FAILED",
        };
        write!(f, "{outcome:<8} {check}: {told}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_a_line_that_says_what_matters_most() {
        let line = |problems: &[&str], cautions: &[&str]| {
            let [problems, cautions] = [problems, cautions].map(|told| told.iter().map(|it| it.to_string()).collect());
            let (problems, cautions): (Vec<String>, Vec<String>) = (problems, cautions);
            Finding::weighed("topic a", "is there", &problems, &cautions).to_string()
        };
        assert_eq!(line(&[], &[]), "ok       topic a: is there");
        assert_eq!(line(&[], &["has one copy"]), "WARNING  topic a: has one copy");
        assert_eq!(line(&["for\ngets"], &["has one copy"]), "FAILED   topic a: for\\ngets; has one copy");
        let skipped = Finding::new("blobs", Outcome::Skipped, "there are none");
        assert_eq!(
            serde_json::to_string(&skipped).unwrap(),
            r#"{"check":"blobs","outcome":"skipped","told":"there are none"}"#
        );
        let failed: Result<&str, _> = Err("no");
        assert_eq!(Finding::of("x", failed).outcome, Outcome::Failed);
    }
}
