//! `utxo-store replay --rebuild`: the state anew, from the log, into an empty store.

use std::{io::Write, time::Instant};

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        CommandResult, Failure, inspect,
        offline::Progress,
        opening::{self, Watched},
        serving::{self, Place},
        signals, wiring,
    },
    shown::Bar,
};
use crate::cli::output;
use crate::{
    blob::{BlobUrl, Intent},
    config::{Config, writable_blobs},
    engine::StoreUrl,
    instance::{self, InstanceParts},
    record::Rebuilding,
    status::health::Part,
    store::{
        Store,
        digest::{StateDigest, Survey},
        stats::StoreStats,
    },
    telemetry::{Completion, Metrics},
};

/// A rebuild as it was asked for.
#[derive(Debug)]
pub(super) struct Rebuild {
    /// An empty store.
    pub store: StoreUrl,
    /// Its blob store.
    pub blobs: Option<BlobUrl>,
    /// It goes on with one that did not reach its end.
    pub resume: bool,
    /// Print JSON.
    pub json: bool,
}

/// What a rebuild came to.
#[derive(Debug, Serialize)]
struct Rebuilt<'a> {
    digest: StateDigest,
    /// That this process was done with.
    events: u64,
    /// Contests without a decision: until they have one, the live store's digest may be another.
    undecided: usize,
    chain_offset: u64,
    seconds: f64,
    #[serde(flatten)]
    stats: &'a StoreStats,
}

impl Rebuild {
    /// The live store's bodies are no place for those of another: each changes its own.
    pub(super) fn check_blobs(&self, config: &Config) -> Result<(), String> {
        let live = config.store.blob_url()?;
        match &self.blobs {
            None if live.is_some() => Err("--blobs must be given, as store.blobs.url is: an empty place".to_owned()),
            None if self.store.bounds_records() => {
                Err("--blobs must be given: --store bounds its records, and large bodies go to an empty place"
                    .to_owned())
            }
            None => Ok(()),
            Some(url) if live.as_ref() == Some(url) => {
                Err("--blobs is store.blobs.url: a rebuilt store needs a blob store of its own".to_owned())
            }
            Some(url) => writable_blobs(url, &self.store).map_err(|problem| format!("--blobs {problem}")),
        }
    }

    pub(super) async fn run(self, config: Config, place: &Place) -> CommandResult {
        let shutdown = CancellationToken::new();
        signals::cancel_on_signals(shutdown.clone())?;
        let watched = Watched::new(&config);
        let started = Instant::now();
        let rebuilding = Box::pin(self.rebuild(&config, &watched, shutdown.clone()));
        let (report, survey) = serving::serve(place, &watched, shutdown, rebuilding).await?;
        let rebuilt = Rebuilt {
            digest: survey.digest,
            events: report.pipeline.completed,
            undecided: report.undecided,
            chain_offset: u64::try_from(watched.metrics.chain_offset.get()).unwrap_or(0),
            seconds: started.elapsed().as_secs_f64(),
            stats: &survey.stats,
        };
        self.print(&rebuilt, &mut output::stdout())
    }

    async fn rebuild(
        &self,
        config: &Config,
        watched: &Watched,
        shutdown: CancellationToken,
    ) -> Result<(instance::Rebuilt, Survey), Failure> {
        let broker = opening::watched_broker(config, watched.health.liveness())?;
        let blobs = match &self.blobs {
            Some(url) => Some(opening::blobs_at(config, url, Intent::Write, &watched.metrics).await?),
            None => None,
        };
        let objects = opening::objects(config, &watched.metrics).await?;
        opening::with_store(config, &self.store, &watched.metrics, async |store: &Store| {
            let store = store.clone().with_blobs(blobs).with_objects(objects);
            let parts = opening::parts(broker, store.clone(), watched)?;
            let report = self.replay(config, parts, shutdown).await?;
            // Nothing moves any more, however long it takes to count what is there: that is no stall.
            [Part::Transactions, Part::Chain].into_iter().for_each(|part| watched.health.set_idle(part, true));
            Ok((report, survey(&store).await?))
        })
        .await
    }

    async fn replay(
        &self,
        config: &Config,
        parts: InstanceParts,
        shutdown: CancellationToken,
    ) -> Result<instance::Rebuilt, Failure> {
        let groups = inspect::offsets::groups(parts.broker.as_ref(), config).await?;
        let places = groups.iter().flat_map(|group| &group.partitions);
        let mut total = places.filter_map(|place| place.committed).sum();
        let mut before = 0;
        let begun = if self.resume { parts.store.meta().await?.and_then(|meta| meta.rebuilding) } else { None };
        if let Some(Rebuilding { log, reached, .. }) = begun.as_deref() {
            total = log.committed.chain + log.committed.validated.values().sum::<u64>();
            before = reached.validated.values().sum();
        }
        let (metrics, settings) = (parts.metrics.clone(), wiring::instance(config));
        let replay = async {
            match self.resume {
                true => Box::pin(instance::resume_rebuild(settings, parts, shutdown.clone())).await,
                false => Box::pin(instance::rebuild(settings, parts, shutdown.clone())).await,
            }
        };
        let report = tokio::select! {
            report = replay => report.map_err(|error| Failure::new(format!("{}: {error}", self.store)))?,
            never = Bar::start(total, "events").follow(|| before + done(&metrics)) => match never {},
        };
        // A rebuild that was stopped looks like one that has ended.
        match shutdown.is_cancelled() {
            true => Err(Failure::new(format!(
                "stopped before the end: {} is incomplete; go on with --resume, or remove it",
                self.store
            ))),
            false => Ok(report),
        }
    }

    fn print(&self, rebuilt: &Rebuilt<'_>, out: &mut impl Write) -> CommandResult {
        if self.json {
            serde_json::to_writer(&mut *out, rebuilt)?;
            writeln!(out)?;
        } else {
            let Rebuilt { digest, events, undecided, chain_offset, seconds, stats } = rebuilt;
            writeln!(out, "{events} events and {chain_offset} of the chain in {seconds:.1} s")?;
            writeln!(out, "{} blocks, {} transactions, {} unspent", stats.blocks, stats.transactions, stats.unspent)?;
            writeln!(out, "digest {digest}")?;
            if *undecided > 0 {
                writeln!(
                    out,
                    "{undecided} contests are not decided yet: the live store may differ by the slots that they hold"
                )?;
            }
        }
        Ok(())
    }
}

async fn survey(store: &Store) -> Result<Survey, Failure> {
    let progress = Progress::start("digest");
    Ok(store.survey(|seen| progress.seen(seen)).await?)
}

/// Events that are done: those of the validated transactions, and those of the chain.
fn done(metrics: &Metrics) -> u64 {
    let ways = [Completion::Live, Completion::Contested, Completion::DeadLetter, Completion::PassedOver];
    let completed: u64 = ways.map(|how| metrics.completed.of(how).get()).iter().sum();
    completed + u64::try_from(metrics.chain_offset.get()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_bounds_its_records_is_not_rebuilt_without_a_blob_store() {
        let checked = |store: &str, blobs: Option<&str>| {
            let (store, blobs) = (store.parse().unwrap(), blobs.map(|url| url.parse().unwrap()));
            Rebuild { store, blobs, resume: false, json: false }.check_blobs(&Config::default())
        };
        assert!(checked("aerospike://a/ns", None).unwrap_err().starts_with("--blobs must be given"));
        assert_eq!(checked("aerospike://a/ns", Some("file:///b")), Ok(()));
        assert_eq!(checked("fjall:///f", None), Ok(()));
    }

    #[test]
    fn what_is_done_is_counted_over_both_logs() {
        let metrics = Metrics::new();
        metrics.completed.of(Completion::Live).inc_by(3);
        metrics.completed.of(Completion::Contested).inc_by(4);
        metrics.completed.of(Completion::DeadLetter).inc_by(5);
        metrics.completed.of(Completion::PassedOver).inc_by(6);
        metrics.chain_offset.set(7);
        assert_eq!(done(&metrics), 25);
    }
}
