//! `utxo-store prune`: prunes the transactions that are due at a height, by hand.

use std::{io::Write, time::Duration};

use clap::Args;
use serde::Serialize;
use tokio::time::Instant;

use super::{
    CliResult, ConfigArgs, Failure, block_on,
    opening::{self, Monitoring},
    output,
    spinner::Spinner,
    wiring,
};
use crate::{
    blob::Intent,
    broker::{Broker, TopicPartition},
    clock::Clock,
    config::Config,
    engine::RecordEngine,
    instance::offset_reset::describe_members,
    sequencer::{CommittedChain, ValidatedSource, chain_group, read_replay_floor},
    store::{
        StateStore,
        meta::{StoreMeta, check_blobs},
        prune::{PruneBasis, PrunePass, PruneSettings, PruneStep, PruneTerms, PruneTotals},
        restart_detector::{RestartDetector, durability_lag},
        topics::LogIdentity,
    },
};

/// Form of the progress line.
const PROGRESS_TEMPLATE: &str = "{spinner} {human_pos} transactions, {per_sec}: {msg}";

const AFTER_HELP: &str = "\
Prunes transactions whose outputs are all spent by mined transactions, and conflicting
transactions, both store.block_height_retention blocks later. Bodies of conflicting transactions
that are blobs are deleted only from a store on fjall, which no instance can open meanwhile.
--height is at most the greatest height of the chain that the group has committed. Instances prune
by themselves (prune.enabled); this command is for stores without a running instance, and is
refused while an instance runs. After a kill the same command continues.

Example: utxo-store prune --config deploy/utxo-store.toml --height 850000 --dry-run";

/// Command-line arguments of `utxo-store prune`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct PruneArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Block height up to which records must be due
    #[arg(long, value_name = "HEIGHT")]
    height: u32,
    /// Change nothing: count what would be pruned
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Result of the command; the JSON object of `--json`.
#[derive(Debug, Serialize)]
struct PruneSummary {
    height: u32,
    dry_run: bool,
    /// Every due transaction is pruned; `false`: some were changed by events that are not committed.
    complete: bool,
    #[serde(flatten)]
    pruned: PruneTotals,
    seconds: f64,
}

impl PruneArgs {
    pub(super) fn run(self) -> CliResult {
        let config = self.config.load()?;
        block_on(async {
            let broker = opening::open_broker(&config).await?;
            let committed_chain = self.check(broker.as_ref(), &config).await?;
            let monitoring = Monitoring::new(&config);
            let blobs = opening::open_blobs(&config, Intent::Write, &monitoring.metrics).await?;
            let summary =
                opening::with_store(&config, &config.store.url, &monitoring.metrics, async |store: &StateStore| {
                    self.prune(&config, broker.as_ref(), &store.clone().with_blobs(blobs), committed_chain).await
                });
            self.print(&summary.await?, &mut output::stdout())
        })
    }

    /// Returns the committed chain, if no instance runs, the chain is committed to its end, and `--height` is not above
    /// the chain. An instance that starts nevertheless does no harm: records that the sequencer changes have a later
    /// stamp and refuse the pruner's writes, and each operation of the pruner checks claims and preservations itself.
    async fn check(&self, broker: &dyn Broker, config: &Config) -> Result<CommittedChain, Failure> {
        let group = chain_group(config.kafka.group.as_str());
        if config.store.block_height_retention == 0 {
            return Err(Failure::new("cannot prune: store.block_height_retention is 0, so no record is ever due"));
        }
        if let Some(running) = describe_members(broker, &group).await? {
            return Err(Failure::new(format!("{running}, or let them prune (prune.enabled)")));
        }
        let chain = TopicPartition { topic: config.kafka.topics.chain.as_str().into(), partition: 0 };
        let committed = broker.committed(&group, std::slice::from_ref(&chain)).await?.pop().flatten();
        let committed_chain = CommittedChain::of(committed.as_ref())
            .map_err(|error| Failure::new(format!("the group {group}: {error}")))?;
        if committed_chain.offset == 0 {
            return Err(Failure::new(format!("cannot prune: the group {group} has committed no block")));
        }
        let (_, end) = broker.watermarks(&chain).await?;
        if committed_chain.offset < end {
            // An event that is not committed can be decided without its writes being in the store.
            return Err(Failure::new(format!(
                "the group {group} has committed the chain up to offset {}, and the chain ends at {end}: run an \
                 instance until the chain is committed to its end",
                committed_chain.offset
            )));
        }
        if self.height > committed_chain.height {
            return Err(Failure::new(format!(
                "--height is {}, above the greatest height {} of the chain",
                self.height, committed_chain.height
            )));
        }
        Ok(committed_chain)
    }

    async fn prune(
        &self,
        config: &Config,
        broker: &dyn Broker,
        store: &StateStore,
        committed_chain: CommittedChain,
    ) -> Result<PruneSummary, Failure> {
        let instance = wiring::instance_settings(config);
        let log = LogIdentity::read(broker, &instance.state_topics()).await?;
        let validated = ValidatedSource {
            topic: instance.pipeline.topic.clone(),
            group: instance.pipeline.group.clone(),
            grace: Duration::ZERO,
        };
        let floor = read_replay_floor(broker, &validated, committed_chain.offset).await?;
        let meta = StoreMeta::of(store).verify_made_from(&log, &floor).await?;
        check_blobs(&meta, store)?;
        let lag = durability_lag(store.engine.as_ref(), instance.durability_lag)?;
        let mut nodes = RestartDetector::new(store.engine.clone(), lag);
        nodes.baseline().await?;
        let retention = store.settings.rules.retention;
        let terms = PruneTerms { height: self.height, retention, committed: committed_chain.offset };
        if !self.dry_run {
            StoreMeta::of(store).begin_pruning(&floor, &terms, Clock::System.now_ms()).await?;
        }
        let settings = self.pass_settings(config, store.engine.as_ref());
        let (progress, started) = (Spinner::start(PROGRESS_TEMPLATE, ""), Instant::now());
        let mut pass = PrunePass::new(settings, PruneBasis::new(terms, committed_chain.era));
        let complete = loop {
            match pass.step(store, &nodes).await? {
                PruneStep::Progressed(_) => show_progress(&progress, &pass.pruned()),
                PruneStep::WaitUntil(at) => tokio::time::sleep_until(at).await,
                PruneStep::Uncommitted => break false,
                PruneStep::Done => break true,
            }
        };
        if complete && !self.dry_run {
            StoreMeta::of(store).end_pruning(self.height).await?;
        }
        let seconds = started.elapsed().as_secs_f64();
        Ok(PruneSummary { height: self.height, dry_run: self.dry_run, complete, pruned: pass.pruned(), seconds })
    }

    /// Returns the settings of the pass. An instance that starts meanwhile on a shared store could bring a conflicting
    /// transaction back while its blob is deleted, so that only the pass over a store of this process deletes such a
    /// blob.
    fn pass_settings(&self, config: &Config, engine: &dyn RecordEngine) -> PruneSettings {
        let pass = wiring::prune_task(config).pass;
        PruneSettings { dry_run: self.dry_run, is_exclusive: engine.is_exclusive(), ..pass }
    }

    fn print(&self, summary: &PruneSummary, out: &mut impl Write) -> CliResult {
        if self.json {
            return Ok(output::write_json(summary, out)?);
        }
        let PruneTotals { examined, spent, conflicting, kept, tombstones, damaged } = summary.pruned;
        let pruned = if summary.dry_run { "would be pruned" } else { "pruned" };
        let stripped = if summary.dry_run { "would be stripped" } else { "stripped" };
        writeln!(out, "{examined:>12} transactions examined, up to height {}", summary.height)?;
        writeln!(out, "{spent:>12} {pruned}: all outputs spent by mined transactions")?;
        writeln!(out, "{conflicting:>12} {pruned}: conflicting")?;
        writeln!(out, "{tombstones:>12} tombstones {stripped} to their names")?;
        writeln!(out, "{kept:>12} not due yet")?;
        if damaged > 0 {
            writeln!(out, "{damaged:>12} not pruned, since their bodies are damaged: run `utxo-store verify`")?;
        }
        writeln!(out, "{:>12.1} seconds", summary.seconds)?;
        if !summary.complete {
            writeln!(
                out,
                "Incomplete: some transactions were changed by events that the group has not committed. Run an \
                 instance, then prune again."
            )?;
        }
        Ok(())
    }
}

/// Shows the progress of pruning.
fn show_progress(progress: &Spinner, pruned: &PruneTotals) {
    progress.update(pruned.examined);
    progress.set_message(format!("{} pruned, {} not due yet", pruned.total(), pruned.kept));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{conformance::RULES, fjall::FjallEngine, memory::MemoryEngine};

    /// Protects: the blob of a conflicting transaction stays where another process may bring the transaction back.
    #[tokio::test]
    async fn blobs_of_conflicting_transactions_are_deleted_only_in_a_store_of_this_process() {
        let args = PruneArgs { config: ConfigArgs::default(), height: 1, dry_run: false, json: false };
        let directory = tempfile::tempdir().unwrap();
        let own = FjallEngine::open(directory.path(), RULES, Default::default()).unwrap();
        let deletes = |engine: &dyn RecordEngine| args.pass_settings(&Config::default(), engine).is_exclusive;
        assert!(deletes(&own) && !deletes(&MemoryEngine::new(RULES)));
        own.close().await.unwrap();
    }
}
