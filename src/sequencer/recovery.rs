//! Recovery in the background: the instance that has the chain completes half-created transactions of a certain age.
//!
//! A half-created transaction becomes live with the next read of its event, or of its record by the sequencer. Neither
//! comes while the partition of the event is halted, paused or without an owner, and the children wait meanwhile. The
//! sweep only clears flags of a transaction that counts as live. A sweep of an instance that has lost the chain thus
//! does no harm, nor does a creation that still runs (`docs/protocols/paged-create.md`).

use std::{convert::Infallible, time::Duration};

use crate::{
    engine::EngineError,
    sequencer::SequencerParts,
    status::registry::RecoveryStatus,
    store::recovery::{Sweep, SweepCursor, Swept, count_old},
};

/// The times and the size of the recovery in the background.
#[derive(Debug, Clone, Copy)]
pub struct RecoveryTask {
    /// Time between two passes.
    pub interval: Duration,
    /// Least age of a transaction that is completed: longer than a creation takes.
    pub older_than: Duration,
    /// Most pages, and so most transactions, that one pass looks at.
    pub batch_size: usize,
}

/// Runs a pass every interval; never returns. A pass that the store answers with an error is logged, and the next pass
/// begins anew: recovery must not end an instance.
pub(super) async fn run_recovery(parts: &SequencerParts, task: RecoveryTask) -> Infallible {
    let _published = PublishedRecovery(parts);
    let mut cursor = SweepCursor::new(task.batch_size);
    let mut completed = 0;
    loop {
        tokio::time::sleep(task.interval).await;
        match run_pass(parts, &task, &mut cursor).await {
            Ok((swept, old)) => {
                completed += swept.completed.len() as u64;
                let ended_ms = parts.clock.now_ms();
                report(parts, &swept, RecoveryStatus { completed, older_than_an_hour: old, ended_ms });
            }
            Err(error) => {
                tracing::error!(%error, "recovery: pass failed; the next pass begins anew");
                cursor = SweepCursor::new(task.batch_size);
            }
        }
    }
}

async fn run_pass(
    parts: &SequencerParts,
    task: &RecoveryTask,
    cursor: &mut SweepCursor,
) -> Result<(Swept, u64), EngineError> {
    let now_ms = parts.clock.now_ms();
    let sweep = Sweep { now_ms, older_than_ms: task.older_than.as_millis() as u64, dry_run: false };
    let swept = sweep.run_pass(&parts.store, cursor).await?;
    Ok((swept, count_old(&parts.store, now_ms).await? as u64))
}

fn report(parts: &SequencerParts, swept: &Swept, status: RecoveryStatus) {
    for damaged in &swept.damaged {
        tracing::error!(txid = %damaged.txid, problem = damaged.problem, "recovery: transaction cannot be completed");
    }
    let Swept { completed, running, contested, orphaned, .. } = swept;
    if !completed.is_empty() {
        let (completed, running, orphaned) = (completed.len(), running.len(), orphaned.len());
        tracing::warn!(completed, running, contested, orphaned, "recovery: half-created transactions completed");
    }
    parts.metrics.recovered.inc_by(completed.len() as u64);
    parts.metrics.half_created_old.set(status.older_than_an_hour as i64);
    parts.health.status_registry().publish_recovery(Some(status));
}

/// Removes gauge and status when the chain is released: another instance publishes its own.
struct PublishedRecovery<'a>(pub &'a SequencerParts);

impl Drop for PublishedRecovery<'_> {
    fn drop(&mut self) {
        self.0.metrics.half_created_old.set(0);
        self.0.health.status_registry().publish_recovery(None);
    }
}
