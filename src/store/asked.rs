//! What the store is asked before a group commits.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    meta::MetaError,
    nodes::{Look, Nodes},
    whole::WholeStore,
};
use crate::{
    engine::{EngineError, ErrorKind},
    record::Consumed,
    telemetry::CommitFailure,
};

/// The store may take so long to write down what is consumed; a commit is tried again soon enough.
const PATIENCE: Duration = Duration::from_secs(2);

/// What it said.
#[derive(Debug)]
pub struct Asked {
    /// What was written into it, and when that was there.
    pub noted: Option<(Instant, Consumed)>,
    /// What its nodes said.
    pub look: Result<Look, Unasked>,
}

/// Why nothing may be committed.
#[derive(Debug)]
pub enum Unasked {
    /// What to count, and to tell: it may be better next time.
    Now(CommitFailure, String),
    /// The store cannot go on.
    Store(MetaError),
    /// Its engine cannot go on.
    Engine(EngineError),
}

/// Writes into the store what is consumed, then asks its nodes. In this order: what was there for longer than the lag when they were
/// asked is there for good.
pub async fn ask(whole: &dyn WholeStore, nodes: &Nodes, consumed: Option<Consumed>) -> Asked {
    let mut noted = None;
    if let Some(consumed) = consumed {
        let why = match tokio::time::timeout(PATIENCE, whole.note(&consumed)).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) if !error.may_be_retried() => return Asked { noted, look: Err(Unasked::Store(error)) },
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {PATIENCE:?}")),
        };
        if let Some(why) = why {
            let why = format!("what is consumed cannot be written into the store: {why}");
            return Asked { noted, look: Err(Unasked::Now(CommitFailure::Store, why)) };
        }
        noted = Some((Instant::now(), consumed));
    }
    let look = nodes.look().await.map_err(|error| match error.kind {
        ErrorKind::Fatal => Unasked::Engine(error),
        _ => {
            let why = format!("nobody knows whether a node of the store has restarted: {error}");
            Unasked::Now(CommitFailure::Nodes, why)
        }
    });
    Asked { noted, look }
}
