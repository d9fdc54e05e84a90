//! The check of the store before a group commits its offsets.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    meta::MetaError,
    ownership::StoreOwnership,
    restart_detector::{RestartDetector, RestartPoll},
};
use crate::{
    engine::{EngineError, ErrorKind},
    record::ConsumedOffsets,
    telemetry::CommitFailure,
};

/// Time within which the store must have recorded the consumed offsets. A commit is tried again soon, so that a short
/// time does no harm.
const RECORD_TIMEOUT: Duration = Duration::from_secs(2);

/// Answer of the store to a commit.
#[derive(Debug)]
pub struct Permit {
    /// Consumed offsets that the meta record has now, and the time at which the store acknowledged them.
    pub recorded: Option<(Instant, ConsumedOffsets)>,
    /// Poll of the nodes after the record, or the reason against a commit.
    pub restarts: Result<RestartPoll, Blocked>,
}

/// Reasons against a commit.
#[derive(Debug)]
pub enum Blocked {
    /// Failure to count, with its text for the log; the next commit may succeed.
    Temporary(CommitFailure, String),
    /// Failure of the store that no retry heals.
    Store(MetaError),
    /// Failure of the engine that no retry heals.
    Engine(EngineError),
}

/// Records the consumed offsets in the meta record, then polls the nodes for a restart.
///
/// The order matters: writes that were acknowledged longer than the durability lag before the poll are durable.
pub async fn check(
    ownership: &dyn StoreOwnership,
    nodes: &RestartDetector,
    consumed: Option<ConsumedOffsets>,
) -> Permit {
    let mut recorded = None;
    if let Some(consumed) = consumed {
        let why = match tokio::time::timeout(RECORD_TIMEOUT, ownership.record_consumed(&consumed)).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) if !error.may_be_retried() => {
                return Permit { recorded, restarts: Err(Blocked::Store(error)) };
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {RECORD_TIMEOUT:?}")),
        };
        if let Some(why) = why {
            let why = format!("cannot record the consumed offsets in the meta record: {why}");
            return Permit { recorded, restarts: Err(Blocked::Temporary(CommitFailure::Store, why)) };
        }
        recorded = Some((Instant::now(), consumed));
    }
    let restarts = nodes.poll().await.map_err(|error| match error.kind {
        ErrorKind::Fatal => Blocked::Engine(error),
        _ => {
            let why = format!("cannot read the incarnation of the store's nodes: {error}");
            Blocked::Temporary(CommitFailure::Nodes, why)
        }
    });
    Permit { recorded, restarts }
}
