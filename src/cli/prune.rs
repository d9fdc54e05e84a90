//! `utxo-store prune`: forgets what is due at a height, by hand.

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::time::Instant;

use super::{
    CommandResult, ConfigArgs, Failure, block_on,
    opening::{self, Watched},
    output, wiring,
};
use crate::{
    blob::Intent,
    broker::{Broker, TopicPartition},
    config::Config,
    instance::checks::store_topics,
    sequencer::{Safe, ValidatedSource, chain_group, floor_of},
    store::{
        Store,
        meta::{MetaError, is_rebuilt},
        nodes::{Nodes, durability_lag},
        prune::{Pass, PruneSettings, Pruned, Step, Terms, Under},
        topics::{find_topics, is_bound_to},
        whole::{GroupStore, WholeStore},
    },
};

const AFTER_HELP: &str = "\
Forgets transactions whose outputs are all spent by transactions that are mined, and conflicting ones,
store.block_height_retention blocks behind that, up to --height: at the most the greatest height of the chain that the
group has committed. Instances do so by themselves (prune.enabled); this is for stores on which none runs, and it is
refused while one does. What was done before is not done again: after a kill the same command goes on.

With --dry-run nothing is changed: what would go is counted. With --json one object.

Example: utxo-store prune --config deploy/utxo-store.toml --height 850000 --dry-run";

/// Arguments of `prune`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct PruneArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Block height by which what goes must be due
    #[arg(long, value_name = "HEIGHT")]
    height: u32,
    /// Change nothing: count what would go
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What it came to.
#[derive(Debug, Serialize)]
struct Shown {
    height: u32,
    dry_run: bool,
    /// Everything that was due is gone; `false`: some was changed by what is not committed.
    complete: bool,
    #[serde(flatten)]
    pruned: Pruned,
    seconds: f64,
}

impl PruneArgs {
    pub(super) fn run(self) -> CommandResult {
        let config = self.config.load()?;
        block_on(async {
            let broker = opening::broker(&config).await?;
            let safe = self.check(broker.as_ref(), &config).await?;
            let watched = Watched::new(&config);
            let blobs = opening::blobs(&config, Intent::Write, &watched.metrics).await?;
            let shown = opening::with_store(&config, &config.store.url, &watched.metrics, async |store: &Store| {
                self.prune(&config, broker.as_ref(), &store.clone().with_blobs(blobs), safe).await
            });
            self.print(&shown.await?, &mut output::stdout())
        })
    }

    /// What the group has committed of the chain, where nobody holds that, it is all, and the height is not above it. An instance that is
    /// started nevertheless does no harm: whatever the chain changes bears a later stamp than what is written here, and refuses it; what events
    /// take or keep for longer, each operation of the pruner looks at itself.
    async fn check(&self, broker: &dyn Broker, config: &Config) -> Result<Safe, Failure> {
        let group = chain_group(config.kafka.group.as_str());
        if config.store.block_height_retention == 0 {
            return Err(Failure::new("store.block_height_retention is 0: nothing is ever due"));
        }
        match broker.member_count(&group).await? {
            0 => {}
            running => {
                return Err(Failure::new(format!(
                    "{running} of the instances of this store run (members of the consumer group {group}): stop them, or let \
                     them prune (prune.enabled)"
                )));
            }
        }
        let chain = TopicPartition { topic: config.kafka.topics.chain.as_str().into(), partition: 0 };
        let committed = broker.committed(&group, std::slice::from_ref(&chain)).await?.pop().flatten();
        let safe = Safe::of(committed.as_ref()).map_err(|error| Failure::new(format!("the group {group}: {error}")))?;
        if safe.offset == 0 {
            return Err(Failure::new(format!("the group {group} has committed nothing: no block is handled for good")));
        }
        let (_, end) = broker.watermarks(&chain).await?;
        if safe.offset < end {
            // What is half done may have been decided, and not be in the store.
            return Err(Failure::new(format!(
                "the group {group} has committed the chain up to offset {}, and it ends at {end}: run an instance until it has, first",
                safe.offset
            )));
        }
        if self.height > safe.height {
            return Err(Failure::new(format!(
                "--height is {}, and the chain has come to {} so far",
                self.height, safe.height
            )));
        }
        Ok(safe)
    }

    async fn prune(&self, config: &Config, broker: &dyn Broker, store: &Store, safe: Safe) -> Result<Shown, Failure> {
        let instance = wiring::instance(config);
        let meta = store.meta().await?.ok_or(MetaError::Absent)?;
        is_rebuilt(&meta)?;
        let topics = find_topics(broker, &store_topics(&instance)).await?;
        topics.iter().try_for_each(|topic| is_bound_to(&meta, topic))?;
        store.check_blobs(&meta)?;
        let validated = ValidatedSource {
            topic: instance.pipeline.topic.clone(),
            group: instance.pipeline.group.clone(),
            grace: Duration::ZERO,
        };
        let floor = floor_of(broker, &validated, safe.offset).await?;
        let expected = crate::instance::expectations(store);
        GroupStore { store: store.clone(), expected }.holds(&floor).await?;
        let lag = durability_lag(store.engine.as_ref(), instance.durability_lag)
            .ok_or_else(|| Failure::new("ingest.durability_lag_ms is too short for this store"))?;
        let mut nodes = Nodes::new(store.engine.clone(), lag);
        nodes.meet().await?;
        let retention = store.settings.rules.retention;
        let terms = Terms { height: self.height, retention, safe: safe.offset };
        if !self.dry_run {
            store.begin_pruning(&floor, &terms).await?;
        }
        let settings = PruneSettings { dry_run: self.dry_run, alone: true, ..wiring::prune(config).pass };
        let (shown, started) = (Bar::start(), Instant::now());
        let mut pass = Pass::new(settings, Under::new(terms, safe.era));
        let complete = loop {
            match pass.step(store, &nodes).await? {
                Step::Did(_) => shown.tell(&pass.pruned()),
                Step::Until(at) => tokio::time::sleep_until(at).await,
                Step::Unsafe => break false,
                Step::Done => break true,
            }
        };
        if complete && !self.dry_run {
            store.end_pruning(self.height).await?;
        }
        let seconds = started.elapsed().as_secs_f64();
        Ok(Shown { height: self.height, dry_run: self.dry_run, complete, pruned: pass.pruned(), seconds })
    }

    fn print(&self, shown: &Shown, out: &mut impl Write) -> CommandResult {
        if self.json {
            serde_json::to_writer(&mut *out, shown)?;
            return Ok(writeln!(out)?);
        }
        let Pruned { examined, spent, conflicting, kept, tombstones, damaged } = shown.pruned;
        let what = if shown.dry_run { "would be forgotten" } else { "forgotten" };
        writeln!(out, "{examined:>12} transactions looked at, up to height {}", shown.height)?;
        writeln!(out, "{spent:>12} {what}: all outputs spent by what is mined")?;
        writeln!(out, "{conflicting:>12} {what}: conflicting")?;
        writeln!(out, "{tombstones:>12} tombstones {what}")?;
        writeln!(out, "{kept:>12} kept for now")?;
        if damaged > 0 {
            writeln!(out, "{damaged:>12} kept, since their bodies are damaged: run `utxo-store verify`")?;
        }
        writeln!(out, "{:>12.1} seconds", shown.seconds)?;
        if !shown.complete {
            writeln!(
                out,
                "Not all of it: some was changed by what the group has not committed. Run an instance first."
            )?;
        }
        Ok(())
    }
}

/// How far it is, on standard error, where that is a terminal.
struct Bar(ProgressBar);

impl Bar {
    fn start() -> Self {
        let bar = if io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {human_pos} transactions, {per_sec}: {msg}") {
            bar.set_style(style);
        }
        Bar(bar)
    }

    fn tell(&self, pruned: &Pruned) {
        self.0.set_position(pruned.examined);
        self.0.set_message(format!("{} forgotten, {} kept for now", pruned.total(), pruned.kept));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
