//! `utxo-store replay --rebuild`: builds the whole state from the log into an empty store.

use std::{io::Write, time::Instant};

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        CliResult, Failure,
        empty_store::EmptyStoreArgs,
        inspect,
        opening::{self, LogObjects, Monitoring},
        serving::{self, HttpOptions},
        signals,
        spinner::Spinner,
        wiring,
    },
    progress::ReplayProgress,
};
use crate::cli::output;
use crate::{
    config::Config,
    instance::{self, InstanceParts},
    record::Rebuilding,
    status::health::Workload,
    store::{
        StateStore,
        digest::{self, StateDigest, Survey},
        stats::StoreStats,
    },
    telemetry::Metrics,
};

/// Options of a rebuild.
#[derive(Debug)]
pub(super) struct Rebuild {
    /// The empty store, which becomes the state of the log.
    pub target: EmptyStoreArgs,
    /// Continues a rebuild that did not reach its end.
    pub resume: bool,
    /// Prints one JSON object.
    pub json: bool,
}

/// Result of a rebuild; the JSON object of `--json`.
#[derive(Debug, Serialize)]
struct RebuildSummary<'a> {
    digest: StateDigest,
    /// Number of events of validated transactions that this process completed.
    events: u64,
    /// Number of contests without a decision: until they are decided the live store can have another digest.
    undecided: usize,
    chain_offset: u64,
    seconds: f64,
    #[serde(flatten)]
    stats: &'a StoreStats,
}

impl Rebuild {
    /// Checks that the rebuilt store has its own blob store: two stores cannot share one.
    pub(super) fn check_blobs(&self, config: &Config) -> Result<(), String> {
        let live = config.store.blob_url()?;
        match &self.target.blobs {
            None if live.is_some() => {
                Err("--blobs must be given, since store.blobs.url is set: name an empty blob store".to_owned())
            }
            Some(url) if live.as_ref() == Some(url) => {
                Err("--blobs is store.blobs.url: a rebuilt store needs a blob store of its own".to_owned())
            }
            _ => self.target.check_blobs(),
        }
    }

    pub(super) async fn run(self, config: Config, http: &HttpOptions) -> CliResult {
        let shutdown = CancellationToken::new();
        signals::cancel_on_signals(shutdown.clone())?;
        let monitoring = Monitoring::new(&config);
        let started = Instant::now();
        let rebuilding = Box::pin(self.rebuild(&config, &monitoring, shutdown.clone()));
        let (report, survey) = serving::serve(http, &monitoring, shutdown, rebuilding).await?;
        let summary = RebuildSummary {
            digest: survey.digest,
            events: report.pipeline.completed,
            undecided: report.undecided,
            chain_offset: u64::try_from(monitoring.metrics.chain_offset.get()).unwrap_or(0),
            seconds: started.elapsed().as_secs_f64(),
            stats: &survey.stats,
        };
        self.print(&summary, &mut output::stdout())
    }

    async fn rebuild(
        &self,
        config: &Config,
        monitoring: &Monitoring,
        shutdown: CancellationToken,
    ) -> Result<(instance::RebuildReport, Survey), Failure> {
        let broker = opening::open_watched_broker(config, monitoring.health.liveness())?;
        let blobs = self.target.open_blobs(config, &monitoring.metrics).await?;
        let objects = LogObjects::open(config, &monitoring.metrics).await?;
        opening::with_store(config, &self.target.store, &monitoring.metrics, async |store: &StateStore| {
            let store = objects.attach_to(store.clone().with_blobs(blobs));
            let parts = opening::build_parts(broker, store.clone(), monitoring)?;
            let report = self.replay(config, parts, shutdown).await?;
            // Counting the store is no work of the loops: without this the stall check would report them.
            Workload::ALL.into_iter().for_each(|workload| monitoring.health.liveness().set_idle(workload, true));
            Ok((report, survey(&store).await?))
        })
        .await
    }

    async fn replay(
        &self,
        config: &Config,
        parts: InstanceParts,
        shutdown: CancellationToken,
    ) -> Result<instance::RebuildReport, Failure> {
        let groups = inspect::offsets::read_group_offsets(parts.broker.as_ref(), config).await?;
        let positions = groups.iter().flat_map(|group| &group.partitions);
        let mut total = positions.filter_map(|position| position.committed).sum();
        let mut before = 0;
        let begun = if self.resume { parts.store.meta().await?.and_then(|meta| meta.rebuilding) } else { None };
        if let Some(Rebuilding { log, reached, .. }) = begun.as_deref() {
            total = log.committed.chain + log.committed.validated.values().sum::<u64>();
            before = reached.validated.values().sum();
        }
        let (metrics, settings) = (parts.metrics.clone(), wiring::instance_settings(config));
        let replay = async {
            match self.resume {
                true => Box::pin(instance::resume_rebuild(settings, parts, shutdown.clone())).await,
                false => Box::pin(instance::rebuild(settings, parts, shutdown.clone())).await,
            }
        };
        let progress = ReplayProgress::start(total, "events").follow(|| before + count_completed(&metrics));
        let report = tokio::select! {
            report = replay => report.map_err(|error| Failure::new(format!("{}: {error}", self.target.store)))?,
            never = progress => match never {},
        };
        // A stopped rebuild returns the same report as a complete one.
        match shutdown.is_cancelled() {
            true => Err(Failure::new(format!(
                "stopped before the end: {} is incomplete; continue with --resume, or remove the store",
                self.target.store
            ))),
            false => Ok(report),
        }
    }

    fn print(&self, summary: &RebuildSummary<'_>, out: &mut impl Write) -> CliResult {
        if self.json {
            output::write_json(summary, out)?;
        } else {
            let RebuildSummary { digest, events, undecided, chain_offset, seconds, stats } = summary;
            writeln!(out, "{events} events of transactions and {chain_offset} of the chain in {seconds:.1} s")?;
            writeln!(out, "{} blocks, {} transactions, {} unspent", stats.blocks, stats.transactions, stats.unspent)?;
            writeln!(out, "digest {digest}")?;
            if *undecided > 0 {
                writeln!(
                    out,
                    "{undecided} contests are not decided yet: until then the live store can have another digest"
                )?;
            }
        }
        Ok(())
    }
}

async fn survey(store: &StateStore) -> Result<Survey, Failure> {
    let progress = Spinner::of_activity("digest");
    Ok(digest::survey(store, |seen| progress.update(seen)).await?)
}

/// Counts the completed events of the validated transactions and of the chain.
fn count_completed(metrics: &Metrics) -> u64 {
    metrics.completed.total() + u64::try_from(metrics.chain_offset.get()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Completion;

    #[test]
    fn a_store_with_limited_records_is_not_rebuilt_without_a_blob_store() {
        let checked = |store: &str, blobs: Option<&str>| {
            let (store, blobs) = (store.parse().unwrap(), blobs.map(|url| url.parse().unwrap()));
            Rebuild { target: EmptyStoreArgs { store, blobs }, resume: false, json: false }
                .check_blobs(&Config::default())
        };
        assert!(checked("aerospike://a/ns", None).unwrap_err().starts_with("--blobs must be given"));
        assert_eq!(checked("aerospike://a/ns", Some("file:///b")), Ok(()));
        assert_eq!(checked("fjall:///f", None), Ok(()));
    }

    #[test]
    fn completed_events_of_both_logs_are_counted() {
        let metrics = Metrics::new();
        metrics.completed.of(Completion::Live).inc_by(3);
        metrics.completed.of(Completion::Contested).inc_by(4);
        metrics.completed.of(Completion::DeadLetter).inc_by(5);
        metrics.completed.of(Completion::PassedOver).inc_by(6);
        metrics.chain_offset.set(7);
        assert_eq!(count_completed(&metrics), 25);
    }
}
