//! `utxo-store demo`: feeds real blocks through a log into the store's own processes, kills the processes meanwhile,
//! and compares the store with a rebuild from offset 0.

mod child;
mod directory;
mod kept;
mod kills;
mod log;
mod progress;
mod report;
mod rivalry;
mod story;
mod timeline;
#[cfg(feature = "vault")]
mod wallets;

use std::{
    fs,
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use tokio_util::sync::CancellationToken;

use self::{
    directory::{DemoDirectory, DemoSettings},
    kills::{KillReport, run_with_kills},
    log::DemoLog,
    progress::DemoGroups,
    report::{CheckedStore, DemoReport},
    rivalry::Rivalry,
    timeline::Timeline,
};
use super::{
    CliResult, Failure, UsageError, block_on,
    command::list_commands,
    generate::{EventSink, EventSource, LoadedSource, SourceArgs, produce},
    opening::{self, Monitoring},
    stats::group_digits,
    wiring,
};
use crate::{
    blob::Intent,
    broker::Broker,
    config::{Brokers, Config},
    engine::StoreUrl,
    event::Topic,
    generate::{
        Chain, DemoStep, Message, PreviousOutputs, ReorgInjector, Rivals, Scenario, SourceFile, Story, UnknownScenario,
    },
    instance,
    rng::SplitMix64,
    store::StateStore,
    tx::Network,
};

const EXAMPLE: &str = "\
Example:
  utxo-store demo
  utxo-store demo --kills 10 --seed 7
  utxo-store demo --contended
  utxo-store demo --reorgs 100 --seed 7
  utxo-store demo --scenario double-spend
  utxo-store demo --scenario wallets
  utxo-store demo --contended --keep
  utxo-store demo --blocks tests/data/mainnet-277647.block \\
    --prevouts tests/data/mainnet-277647.prevouts.csv
  utxo-store demo --brokers 127.0.0.1:9092 --events events.jsonl --json

A file of events has one JSON object per line, as schemas/ describes. Two further lines are
accepted: {\"demo\":\"settle\"} produces the rest only after every event before is consumed (so that a
command comes after the blocks before it). Any bytes, for example a dead letter, are produced by
{\"demo\":\"raw\",\"topic\":\"utxo.validated-txs\",\"key\":\"<txid>\",\"payload\":\"<hex>\"}.

Without --blocks or --events the demo feeds blocks 0 to 4,312 of the main network, which are part
of the program. Without --brokers the demo starts a mock broker, which holds little and is no
evidence for Kafka. The exit code is 0 only if the store and its rebuild have the same digest, no
invariant is broken, and at least one kill came before every event was consumed.";

/// Address of `--keep` without a value.
const KEPT_ADDRESS: &str = "127.0.0.1:8080";

/// Blocks 0 to 4,312 of the main network; `tests/data/PROVENANCE.md` has their origin.
static FIRST_BLOCKS: &[u8] = include_bytes!("../../tests/data/mainnet-0-4312.blk");

/// Feeds blocks through a log into a store, kills the store's process meanwhile, and compares with a rebuild
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct DemoArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Real cluster, `host:port` separated by commas; the demo creates topics with unique names there
    #[arg(long, value_name = "HOST:PORT")]
    brokers: Option<Brokers>,
    /// Store to fill, which must be empty; by default a store in the data directory
    #[arg(long, value_name = "URL")]
    store: Option<StoreUrl>,
    /// Directory for stores, configuration and logs, which stay; by default a temporary directory. With the mock broker
    /// the log of events is saved, too: `inspect`, `dead-letters list` and `command list` read it with the
    /// utxo-store.toml in the directory
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Number of kills of the process
    #[arg(long, value_name = "N", default_value_t = 1)]
    kills: u32,
    /// Add double spends, and transactions that spend their outputs
    #[arg(long, conflicts_with = "events")]
    contended: bool,
    /// Add this number of artificial reorgs of 1 to 20 blocks, each followed by a reorg back
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with_all = ["events", "contended"])]
    reorgs: u64,
    /// Play a story instead and print the state after each chapter: double-spend, reorg, coinbase-reorg, freeze, or
    /// wallets (which needs a program with the feature vault)
    #[arg(long, value_name = "NAME", value_parser = DemoScenario::parse)]
    #[arg(conflicts_with_all = ["events", "blocks", "contended", "kills", "reorgs"])]
    scenario: Option<DemoScenario>,
    /// With `--scenario`: print each transaction that a chapter has changed, as `inspect tx --history` does
    #[arg(long, requires = "scenario")]
    inspect: bool,
    /// Seed for the moments of the kills, the double spends and the reorgs
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Number of partitions of the topic of validated transactions
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(i32).range(1..=1_000))]
    partitions: i32,
    /// Output slots per record, instead of the default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    utxo_batch_size: Option<u32>,
    /// Store the body of every transaction in a blob store in the data directory
    #[arg(long)]
    externalize_all: bool,
    /// At the end start an instance that serves the page and the API at this address, until Ctrl-C
    #[arg(
        long, value_name = "HOST:PORT", num_args = 0..=1, default_missing_value = KEPT_ADDRESS, conflicts_with = "json"
    )]
    keep: Option<SocketAddr>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// A story of the demo.
#[derive(Debug, Clone, Copy)]
enum DemoScenario {
    /// A history of the log.
    Story(Scenario),
    /// Wallets that share the outputs of an owner.
    Wallets,
}

impl DemoScenario {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "wallets" => Ok(DemoScenario::Wallets),
            story => {
                story.parse().map(DemoScenario::Story).map_err(|error: UnknownScenario| format!("{error}, wallets"))
            }
        }
    }
}

impl DemoArgs {
    /// Runs the demo and prints the report.
    ///
    /// # Errors
    /// The digests differ, an invariant is broken, or a step of the demo failed.
    pub fn run(self) -> CliResult {
        self.keep.map(kept::check_address).transpose()?;
        block_on(self.show())
    }

    async fn show(&self) -> CliResult {
        match self.scenario {
            Some(DemoScenario::Story(scenario)) => return Box::pin(self.play(&scenario.story())).await,
            Some(DemoScenario::Wallets) => return Box::pin(self.play_wallets()).await,
            None => {}
        }
        let (loaded, pauses) = self.load()?;
        let event_source = loaded.event_source()?;
        let rivals = self.rivals(&event_source);
        let blocks = event_source.counts().map_or(0, |counts| counts.blocks);
        let messages = || -> Box<dyn Iterator<Item = Message> + Send + '_> {
            match &rivals {
                Some(rivals) => Box::new(rivals.interleave(event_source.messages())),
                None if self.reorgs > 0 => {
                    Box::new(ReorgInjector::new(event_source.messages(), blocks, self.reorgs, self.seed))
                }
                None => event_source.messages(),
            }
        };

        let log = DemoLog::start(self.brokers.as_ref(), self.partitions)?;
        log.check_capacity(messages())?;
        let mut directory = DemoDirectory::new(self.data_dir.as_deref())?;
        let settings = self.settings(&log, network_of(&loaded)?);
        let config = begin(&directory, &settings).await?;
        let result = async {
            let fed = self.feed_and_compare(&config, &log, &directory, messages, &pauses, rivals.as_ref(), blocks);
            let report = Box::pin(fed).await?.with_left_out(event_source.left_out());
            report.print(self.json)?;
            report.verdict()?;
            self.serve_if_kept(&directory).await
        };
        let result = result.await;
        Self::end(result, &log, &config, &mut directory, &settings).await
    }

    async fn play(&self, story: &Story) -> CliResult {
        let log = DemoLog::start(self.brokers.as_ref(), self.partitions)?;
        let mut directory = DemoDirectory::new(self.data_dir.as_deref())?;
        let settings = self.settings(&log, Network::default());
        let config = begin(&directory, &settings).await?;
        let result = match Box::pin(story::run_story(story, &config, &log, &directory, self.inspect)).await {
            Ok(()) => self.serve_if_kept(&directory).await,
            failed => failed,
        };
        Self::end(result, &log, &config, &mut directory, &settings).await
    }

    #[cfg(feature = "vault")]
    async fn play_wallets(&self) -> CliResult {
        let log = DemoLog::start(self.brokers.as_ref(), self.partitions)?;
        let mut directory = DemoDirectory::new(self.data_dir.as_deref())?;
        let settings = self.settings(&log, Network::default());
        let config = begin(&directory, &settings).await?;
        let result = Box::pin(wallets::run_wallets(&config, &log, &directory, self.keep)).await;
        Self::end(result, &log, &config, &mut directory, &settings).await
    }

    #[cfg(not(feature = "vault"))]
    async fn play_wallets(&self) -> CliResult {
        let problem = "--scenario wallets: this program was built without the vault; build with `--features vault`";
        Err(UsageError(problem.to_owned()).into())
    }

    async fn serve_if_kept(&self, directory: &DemoDirectory) -> CliResult {
        match self.keep {
            Some(listen) => kept::serve_until_signal(directory, listen).await,
            None => Ok(()),
        }
    }

    /// Saves the log. The directory of a failed demo stays.
    async fn end(
        result: CliResult,
        log: &DemoLog,
        config: &Config,
        directory: &mut DemoDirectory,
        settings: &DemoSettings<'_>,
    ) -> CliResult {
        if result.is_err() {
            directory.keep();
        }
        let saved = log.save(config, directory, settings).await;
        result.map_err(|failure| directory.with_path(failure)).and(saved)
    }

    fn settings<'a>(&'a self, log: &'a DemoLog, network: Network) -> DemoSettings<'a> {
        DemoSettings {
            brokers: log.brokers(),
            suffix: log.suffix(),
            store: self.store.as_ref(),
            network,
            utxo_batch_size: self.utxo_batch_size,
            externalize_all: self.externalize_all,
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of a demo")]
    async fn feed_and_compare<'m>(
        &self,
        config: &Config,
        log: &DemoLog,
        directory: &DemoDirectory,
        messages: impl Fn() -> Box<dyn Iterator<Item = Message> + Send + 'm>,
        pauses: &[usize],
        rivals: Option<&Rivals>,
        blocks: u64,
    ) -> Result<DemoReport, Failure> {
        log.create_topics(config).await?;
        let broker = opening::open_broker(config).await?;
        let count = messages().count();
        let timeline = Timeline::new();
        let bar = timeline.phase("published", count as u64);
        let producer = broker.producer().await?;
        let groups = DemoGroups::new(broker.clone(), config);
        let (mut started, mut kill_report, mut first_process) = (Instant::now(), KillReport::default(), 0);
        let mut from = 0;
        for to in pauses.iter().copied().filter(|to| (1..count).contains(to)).chain([count]) {
            let phase = || messages().skip(from).take(to - from);
            let sink = EventSink { producer: producer.as_ref(), topics: &config.kafka.topics, bodies: None };
            let produced = produce(&sink, phase(), &bar).await?;
            timeline.note(format!(
                "{} events published ({} bytes)",
                group_digits(produced.events.into()),
                group_digits(produced.bytes.into())
            ));
            if from == 0 {
                log.check_retained(broker.as_ref(), config, phase()).await?;
                started = Instant::now();
            }
            // Kills happen in the last phase only: the phases before bring the store to its begin.
            let kills = if to == count { self.kills } else { 0 };
            let rng = SplitMix64::new(self.seed);
            kill_report = run_with_kills(directory, first_process, &groups, kills, rng, &timeline).await?;
            (from, first_process) = (to, first_process + kills + 1);
        }
        bar.finish_and_clear();
        let seconds = started.elapsed().as_secs_f64() - kill_report.stopping.as_secs_f64();
        log.check_complete(broker.as_ref(), config).await?;

        let metrics = Arc::default();
        let blobs = opening::open_blobs(config, Intent::Read, &metrics).await?;
        let live = opening::open_store(config, &config.store.url, &metrics).await?.with_blobs(blobs);
        let blobs = opening::open_blobs_at(config, &directory.rebuilt_blobs(), Intent::Write, &metrics).await?;
        let rebuilt = opening::open_store(config, &directory.rebuilt(), &metrics).await?.with_blobs(Some(blobs));
        timeline.note("rebuild started from offset 0 into a second, empty store");
        Box::pin(rebuild(config, broker.clone(), &rebuilt, kill_report.events, &timeline)).await?;
        timeline.note("rebuild finished; both stores are scanned and verified");
        let rivalry = match rivals {
            Some(rivals) => Some(Rivalry::read(&live, rivals).await?),
            None => None,
        };
        let (checked, again) = (CheckedStore::check(&live).await?, CheckedStore::check(&rebuilt).await?);
        timeline.note(checked.describe_comparison(&again));
        let contests = groups.count_contests().await?;
        let dead_letters = groups.count_messages(Topic::DeadLetters).await?;
        let commands = list_commands(broker.as_ref(), &config.kafka.topics, true).await?;
        live.engine.close().await?;
        rebuilt.engine.close().await?;
        let report = DemoReport::new(blocks, checked, again, kill_report, rivalry, contests, dead_letters, seconds);
        Ok(report.with_commands(commands))
    }

    /// Loads the source, with the indexes of the messages before which every earlier event is consumed.
    fn load(&self) -> Result<(LoadedSource, Vec<usize>), Failure> {
        if let Some(steps) = self.source.load_steps()? {
            let (mut messages, mut pauses) = (Vec::new(), Vec::new());
            for step in steps {
                match step {
                    DemoStep::Produce(message) => messages.push(message),
                    DemoStep::Settle => pauses.push(messages.len()),
                }
            }
            return Ok((LoadedSource::Lines(messages), pauses));
        }
        if self.source.blocks.is_empty() {
            let file = SourceFile { name: "blocks 0 to 4,312".to_owned(), bytes: FIRST_BLOCKS.to_vec() };
            let previous = PreviousOutputs::InTheFiles;
            return Ok((LoadedSource::Blocks { files: vec![file], first_height: None, previous }, Vec::new()));
        }
        Ok((self.source.load()?, Vec::new()))
    }

    fn rivals(&self, event_source: &EventSource<'_>) -> Option<Rivals> {
        match event_source {
            EventSource::Chain(chain) if self.contended => Some(rivals_of(chain, self.seed)),
            _ => None,
        }
    }
}

/// Returns the network of the source; the main network where the source names none.
fn network_of(loaded: &LoadedSource) -> Result<Network, Failure> {
    let Some(network) = loaded.network() else { return Ok(Network::default()) };
    network.store_network().ok_or_else(|| {
        Failure::new(format!(
            "the blocks are of {network}, a network that no store supports: give blocks of main, test or regtest"
        ))
    })
}

/// Time between two updates of the rebuild's bar.
const BAR_INTERVAL: Duration = Duration::from_millis(100);

/// Share of the transactions of the blocks that get a rival.
const CONTENDED_SHARE: f64 = 0.3;

fn rivals_of(chain: &Chain<'_>, seed: u64) -> Rivals {
    Rivals::new(chain, seed, CONTENDED_SHARE)
}

/// Writes the configuration and checks that the store is empty. For a store that is not empty the configuration of the
/// demo that filled it is restored.
async fn begin(directory: &DemoDirectory, settings: &DemoSettings<'_>) -> Result<Config, Failure> {
    let before = fs::read(directory.config_file()).ok();
    let config = directory.configure(settings)?;
    let empty = check_empty(&config).await;
    if let (Err(_), Some(before)) = (&empty, before) {
        fs::write(directory.config_file(), before)?;
    }
    empty.map(|()| config)
}

/// Checks that the store is empty and outlives its process: the comparison with a rebuild needs both.
async fn check_empty(config: &Config) -> Result<(), Failure> {
    if config.store.url.is_volatile() {
        let problem = format!("--store {}: a demo needs a store that outlives its process", config.store.url);
        return Err(UsageError(problem).into());
    }
    let store = opening::open_store(config, &config.store.url, &Arc::default()).await?;
    let meta = store.meta().await?;
    store.engine.close().await?;
    match meta {
        None => Ok(()),
        Some(_) => Err(Failure::new(format!("{}: the store is not empty; name an empty one", config.store.url))),
    }
}

/// Rebuilds from offset 0 into an empty store, up to the committed offsets of the live store: about `events` events.
async fn rebuild(
    config: &Config,
    broker: Arc<dyn Broker>,
    store: &StateStore,
    events: u64,
    timeline: &Timeline,
) -> CliResult {
    let bar = timeline.phase("rebuilt", events);
    let monitoring = Monitoring::new(config);
    let parts = opening::build_parts(broker, store.clone(), &monitoring)?;
    let rebuilding = instance::rebuild(wiring::instance_settings(config), parts, CancellationToken::new());
    let mut rebuilding = std::pin::pin!(rebuilding);
    loop {
        tokio::select! {
            rebuilt = &mut rebuilding => {
                bar.finish_and_clear();
                return Ok(rebuilt.map(drop)?);
            }
            () = tokio::time::sleep(BAR_INTERVAL) => {
                let metrics = &monitoring.metrics;
                let completed = metrics.completed.now().values().sum::<u64>();
                bar.set_position(completed + u64::try_from(metrics.chain_offset.get()).unwrap_or(0));
            }
        }
    }
}
