//! The problem of each error of the vault.

use axum::response::{IntoResponse, Response};

use crate::{
    api::problem::{ExtendedProblem, Problem, ProblemKind},
    vault::{
        VaultError,
        model::{MissingFunds, UnavailableOutput, UnavailableOutputs},
    },
};

/// Problem of a request to the vault.
pub enum VaultProblem {
    /// A problem without further members.
    Plain(Problem),
    /// Outputs that cannot be reserved.
    Outputs(Box<ExtendedProblem<UnavailableOutputs>>),
    /// Sums that do not suffice.
    Funds(Box<ExtendedProblem<MissingFunds>>),
}

impl From<Problem> for VaultProblem {
    fn from(problem: Problem) -> Self {
        VaultProblem::Plain(problem)
    }
}

impl From<VaultError> for VaultProblem {
    fn from(error: VaultError) -> Self {
        let detail = error.to_string();
        let kind = match error {
            VaultError::StatesNotAvailable(outputs) => {
                let outputs = outputs.iter().map(UnavailableOutput::of).collect();
                let problem = Problem::new(ProblemKind::StatesNotAvailable, detail);
                let members = UnavailableOutputs { outputs };
                return VaultProblem::Outputs(Box::new(ExtendedProblem { problem, members }));
            }
            VaultError::InsufficientBalance { asked, available, locked } => {
                let problem = Problem::new(ProblemKind::InsufficientBalance, detail);
                let members = MissingFunds { asked, available, locked };
                return VaultProblem::Funds(Box::new(ExtendedProblem { problem, members }));
            }
            VaultError::Database(_) | VaultError::Unknown(_) | VaultError::Source(_) => ProblemKind::Unavailable,
            VaultError::Fatal(_) => ProblemKind::Internal,
            VaultError::Invalid(_) => ProblemKind::BadRequest,
            VaultError::NoOwner(_) | VaultError::NoLock(_) => ProblemKind::NotFound,
            VaultError::LockEnded(_) => ProblemKind::LockEnded,
            VaultError::TooManyInputs(_)
            | VaultError::RequestReused
            | VaultError::OutputsLocked(_)
            | VaultError::OtherOwner(_) => ProblemKind::Conflict,
        };
        VaultProblem::Plain(Problem::new(kind, detail))
    }
}

impl VaultProblem {
    /// Returns the name of the kind: the last part of its URI.
    pub fn kind(&self) -> &str {
        let problem = match self {
            VaultProblem::Plain(problem) => problem,
            VaultProblem::Outputs(extended) => &extended.problem,
            VaultProblem::Funds(extended) => &extended.problem,
        };
        problem.uri.rsplit(':').next().unwrap_or_default()
    }
}

impl IntoResponse for VaultProblem {
    fn into_response(self) -> Response {
        match self {
            VaultProblem::Plain(problem) => problem.into_response(),
            VaultProblem::Outputs(problem) => problem.into_response(),
            VaultProblem::Funds(problem) => problem.into_response(),
        }
    }
}
