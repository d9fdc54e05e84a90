//! Reasons for which a view of the cluster is not used.

use super::{connection::OpenAerospikeError, view::UnsafeView};

/// A reason for which the present view is not used.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    #[error(transparent)]
    Unsafe(#[from] UnsafeView),
    #[error(transparent)]
    Unfit(#[from] OpenAerospikeError),
    /// A reason that passes by itself, or once an operator brings a node back.
    #[error("{0}")]
    Passing(String),
}

impl From<String> for ViewError {
    fn from(problem: String) -> Self {
        ViewError::Passing(problem)
    }
}
