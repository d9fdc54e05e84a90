//! Status, metrics and conditions of the pipeline.

use super::{PipelineServices, PipelineSettings, partition_reads::PartitionReads};
use crate::{
    clock::Clock,
    ingest::plan::Planner,
    status::{
        Condition,
        health::Workload,
        registry::{DrainStatus, GroupStatus, PipelineStatus},
    },
    telemetry::{DrainReason, Metrics},
};

/// Time from the first failed read of an object, ms, from which readiness names the object.
const LATE_OBJECT_MS: u64 = 10_000;

/// Progress and waits for the next status, and the wait of the last one.
#[derive(Debug, Default)]
pub(super) struct StatusReport {
    /// An event has made progress since the last status.
    made_progress: bool,
    /// The wait that was last written to the log.
    last_logged_wait: Option<String>,
    last_drain: Option<DrainStatus>,
}

impl StatusReport {
    /// Notes that an event has made progress.
    pub(super) fn record_progress(&mut self) {
        self.made_progress = true;
    }

    /// Records a drain that has ended.
    pub(super) fn record_drain(&mut self, why: DrainReason, seconds: f64, metrics: &Metrics, clock: &Clock) {
        metrics.drain_seconds.of(why).observe(seconds);
        let reason = metrics.drain_seconds.name_of(why);
        self.last_drain = Some(DrainStatus { reason, seconds, ended_ms: clock.now_ms() });
    }

    /// Updates metrics, health and status.
    pub(super) fn refresh(
        &mut self,
        settings: &PipelineSettings,
        services: &PipelineServices,
        reads: &PartitionReads,
        planner: &Planner,
        is_idle: bool,
    ) {
        let counts = planner.flights().counts();
        services.metrics.parked.set(counts.parked as i64);
        services.metrics.parked_max.set(counts.parked_max as i64);
        services.metrics.in_flight.set((counts.active + counts.parked) as i64);
        services.health.liveness().set_idle(Workload::Transactions, is_idle);
        if std::mem::take(&mut self.made_progress) {
            services.health.liveness().record_progress(Workload::Transactions);
        }
        self.publish(settings, services, reads, planner);
        let wait = planner.flights().oldest_wait();
        if services.modes.end_offsets().is_some() {
            // A rebuild reports its waits as a condition.
            services.health.set(Condition::PartitionsRunning, wait.map(|(_, what)| what));
        } else {
            let now_ms = services.clock.steady_ms();
            let waited = wait.map(|(since_ms, what)| (now_ms.saturating_sub(since_ms), what));
            self.report_long_wait(waited, settings.missing_parent_grace_ms, services);
        }
    }

    /// Updates the readiness of the objects. An object can be some seconds behind its event, so that only a longer wait
    /// counts. `wait`: since when, by the steady clock, and why.
    pub(super) fn report_body_wait(&self, wait: Option<(u64, String)>, services: &PipelineServices) {
        let now_ms = services.clock.steady_ms();
        let late = wait.filter(|(since_ms, _)| now_ms.saturating_sub(*since_ms) >= LATE_OBJECT_MS);
        services.health.set(Condition::ObjectsReadable, late.map(|(_, why)| why));
    }

    /// Publishes the status of the pipeline, its partitions and the group.
    pub(super) fn publish(
        &self,
        settings: &PipelineSettings,
        services: &PipelineServices,
        reads: &PartitionReads,
        planner: &Planner,
    ) {
        let (member, limits) = (&reads.member, reads.backpressure.limits());
        let counts = planner.flights().counts();
        let partitions = member.statuses(limits, |number| planner.flights().parked_of(number));
        let Metrics { rebalances, commit_failures, .. } = services.metrics.as_ref();
        let (rebalances, commit_failures) = (rebalances.now(), commit_failures.now());
        let group = GroupStatus { rebalances, commit_failures, last_drain: self.last_drain };
        services.health.status_registry().publish_group(group);
        services.health.status_registry().publish_pipeline(PipelineStatus {
            in_flight: counts.active as u64,
            parked: counts.parked as u64,
            not_durable: member.partitions.not_durable() as u64,
            unfinished_bytes: partitions.iter().map(|status| status.unfinished_bytes).sum(),
            unfinished_bytes_bound: settings.bytes_in_all,
            partition_bytes_bound: limits.bytes,
            nodes: services.nodes.status(),
            partitions,
        });
    }

    /// Reports a wait (in ms, with its description) beyond the grace of a missing parent. The cause lies elsewhere: a
    /// partition without an owner, or a chain without progress. The wait does not change readiness: neither a restart
    /// nor another instance would end it.
    fn report_long_wait(&mut self, waited: Option<(u64, String)>, grace_ms: u64, services: &PipelineServices) {
        let wait = waited.filter(|(waited_ms, _)| *waited_ms >= grace_ms);
        services.metrics.longest_wait_seconds.set(wait.as_ref().map_or(0, |(ms, _)| (ms / 1_000) as i64));
        let what = wait.map(|(_, what)| what);
        if what.is_some() && what != self.last_logged_wait {
            tracing::warn!(what, "pipeline: an event waits longer than the grace of a missing parent");
            self.last_logged_wait.clone_from(&what);
        }
        services.health.set_wait(what);
    }
}
