//! [`SubmitOutcome`]: what became of a submitted transaction.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Outcome of a submitted transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "status", rename_all = "lowercase")]
pub enum SubmitOutcome {
    /// The transaction is live: its outputs exist, and its inputs are spent by it. The log has the event, so that the
    /// answer survives every failure of the store.
    Live,
    /// The transaction is conflicting.
    Conflicting {
        /// Reason of the verdict.
        reason: String,
    },
    /// The event was refused, and has changed nothing.
    Refused {
        /// Class of the refusal: `DECODE`, `INVALID`, `SEED_MISMATCH`, `UNSUPPORTED`.
        code: String,
        /// Reason in one line.
        message: String,
    },
    /// The wait was too short: the event is in the log, and is handled later.
    Pending,
}
