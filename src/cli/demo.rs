//! `utxo-store demo`: real blocks through the whole store as processes of its own, killed in between, and a rebuild from
//! offset 0 to compare with.

mod child;
mod directory;
mod log;
mod progress;
mod report;
mod rivalry;
mod survive;
mod tell;
mod timeline;

use std::{
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use tokio_util::sync::CancellationToken;

use self::{
    directory::{Directory, Settings},
    log::Log,
    progress::Groups,
    report::{Checked, Report},
    rivalry::Rivalry,
    survive::{Survival, survive},
    timeline::Timeline,
};
use super::{
    CommandResult, Failure, UsageError, block_on,
    command::{self, audit},
    generate::{Feed, Loaded, SourceArgs, produce},
    opening::{self, Watched},
    stats::group,
    wiring,
};
use crate::{
    blob::Intent,
    broker::Broker,
    config::{Brokers, Config},
    engine::StoreUrl,
    event::Topic,
    generate::{Chain, Message, PreviousOutputs, Reorganised, Rivals, Scenario, SourceFile, Step, Story},
    instance,
    seeded::Seeded,
    store::Store,
    tx::Network,
};

const EXAMPLE: &str = "\
Example:
  utxo-store demo
  utxo-store demo --kills 10 --seed 7
  utxo-store demo --contended
  utxo-store demo --reorgs 100 --seed 7
  utxo-store demo --scenario double-spend
  utxo-store demo --blocks tests/data/mainnet-277647.block --prevouts tests/data/mainnet-277647.prevouts.csv
  utxo-store demo --brokers 127.0.0.1:9092 --events events.jsonl --json

Events of a file are JSON, one a line, as schemas/ has them. Between them a demo takes {\"demo\":\"settle\"}: what is before is consumed
before the rest is produced (so a command comes after the blocks before it); and {\"demo\":\"raw\",\"topic\":\"utxo.validated-txs\",
\"key\":\"<txid>\",\"payload\":\"<hex>\"}: bytes that need be no event, to make dead letters.

Without --blocks or --events it takes the main network's blocks 0 to 4,312, which are in the program. Without --brokers
it has a broker of its own, which holds little and is no evidence for Kafka. Exit code 0 only if the store and its rebuild
have the same digest, no invariant is broken, and of the kills at least one came before everything was consumed.";

/// Blocks 0 to 4,312 of the main network: see `tests/data/PROVENANCE.md`.
static FIRST_BLOCKS: &[u8] = include_bytes!("../../tests/data/mainnet-0-4312.blk");

/// Feeds blocks through a log into a store, kills the store's process in between, and compares with a rebuild
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct DemoArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// A real cluster, `host:port` separated by commas: topics with names of their own are created there
    #[arg(long, value_name = "HOST:PORT")]
    brokers: Option<Brokers>,
    /// Another store to fill, which must be empty; otherwise one in the data directory
    #[arg(long, value_name = "URL")]
    store: Option<StoreUrl>,
    /// Where stores, configuration and logs go, and stay; otherwise a temporary directory. With a broker of its own the
    /// log stays, too: `inspect`, `dead-letters list` and `command list` read it by the utxo-store.toml in the
    /// directory
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// How often the process is killed
    #[arg(long, value_name = "N", default_value_t = 1)]
    kills: u32,
    /// Add double spends, and transactions that depend on them
    #[arg(long, conflicts_with = "events")]
    contended: bool,
    /// Add so many artificial reorgs of 1 to 20 blocks, after each of which the blocks are back
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with_all = ["events", "contended"])]
    reorgs: u64,
    /// Tell a story instead, with the state before and after each chapter: double-spend, reorg, coinbase-reorg, freeze
    #[arg(long, value_name = "NAME", conflicts_with_all = ["events", "blocks", "contended", "kills", "reorgs"])]
    scenario: Option<Scenario>,
    /// With `--scenario`: show all that is known of each transaction that a chapter has changed, as `inspect tx --history` does
    #[arg(long, requires = "scenario")]
    inspect: bool,
    /// Chooses the moments of the kills, the double spends and the reorgs
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Partitions of the transactions' topic
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(i32).range(1..=1_000))]
    partitions: i32,
    /// Output slots a record, instead of the default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    utxo_batch_size: Option<u32>,
    /// Keep the body of every transaction in a blob store, which is in the data directory, too
    #[arg(long)]
    externalize_all: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

impl DemoArgs {
    /// Shows it all. Fails when the digests differ or an invariant is broken.
    ///
    /// # Errors
    /// That, and whatever keeps it from being shown.
    pub fn run(self) -> CommandResult {
        block_on(self.show())
    }

    async fn show(&self) -> CommandResult {
        if let Some(scenario) = self.scenario {
            return Box::pin(self.tell(&scenario.story())).await;
        }
        let (loaded, pauses) = self.load()?;
        let feed = loaded.feed()?;
        let rivals = self.rivals(&feed);
        let blocks = feed.counts().map_or(0, |counts| counts.blocks);
        let messages = || -> Box<dyn Iterator<Item = Message> + Send + '_> {
            match &rivals {
                Some(rivals) => Box::new(rivals.among(feed.messages())),
                None if self.reorgs > 0 => Box::new(Reorganised::new(feed.messages(), blocks, self.reorgs, self.seed)),
                None => feed.messages(),
            }
        };

        let log = Log::start(self.brokers.as_ref(), self.partitions)?;
        log.check_room(messages())?;
        let mut directory = Directory::new(self.data_dir.as_deref())?;
        let settings = self.settings(&log, network_of(&loaded)?);
        let config = begin(&directory, &settings).await?;
        let result =
            Box::pin(self.through(&config, &log, &directory, messages, &pauses, rivals.as_ref(), blocks)).await;
        if result.is_err() {
            directory.keep();
        }
        let kept = log.keep(&config, &directory, &settings).await;
        // The log ends after its clients.
        drop(log);
        let report = result.map_err(|failure| directory.named(failure))?.leaving_out(feed.left_out());
        kept?;
        report.print(self.json)?;
        report.verdict()
    }

    async fn tell(&self, story: &Story) -> CommandResult {
        let log = Log::start(self.brokers.as_ref(), self.partitions)?;
        let mut directory = Directory::new(self.data_dir.as_deref())?;
        let settings = self.settings(&log, Network::default());
        let config = begin(&directory, &settings).await?;
        let told = Box::pin(tell::tell(story, &config, &log, &directory, self.inspect)).await;
        if told.is_err() {
            directory.keep();
        }
        let kept = log.keep(&config, &directory, &settings).await;
        drop(log);
        told.map_err(|failure| directory.named(failure)).and(kept)
    }

    fn settings<'a>(&'a self, log: &'a Log, network: Network) -> Settings<'a> {
        Settings {
            brokers: log.brokers(),
            suffix: log.suffix(),
            store: self.store.as_ref(),
            network,
            utxo_batch_size: self.utxo_batch_size,
            externalize_all: self.externalize_all,
        }
    }

    #[allow(clippy::too_many_arguments, reason = "all that a demo is made of")]
    async fn through<'m>(
        &self,
        config: &Config,
        log: &Log,
        directory: &Directory,
        messages: impl Fn() -> Box<dyn Iterator<Item = Message> + Send + 'm>,
        pauses: &[usize],
        rivals: Option<&Rivals>,
        blocks: u64,
    ) -> Result<Report, Failure> {
        log.create_topics(config).await?;
        let broker = opening::broker(config).await?;
        let count = messages().count();
        let timeline = Timeline::new();
        let bar = timeline.phase("published", count as u64);
        let producer = broker.producer().await?;
        let groups = Groups::new(broker.clone(), config);
        let (mut started, mut survival, mut first_process) = (Instant::now(), Survival::default(), 0);
        let mut from = 0;
        for to in pauses.iter().copied().filter(|to| (1..count).contains(to)).chain([count]) {
            let phase = || messages().skip(from).take(to - from);
            let produced = produce(producer.as_ref(), &config.kafka.topics, phase(), &bar).await?;
            timeline.note(format!(
                "{} events published ({} bytes)",
                group(produced.events.into()),
                group(produced.bytes.into())
            ));
            if from == 0 {
                log.check_kept(broker.as_ref(), config, phase()).await?;
                started = Instant::now();
            }
            // Kills are for the last phase: the others only bring the store to where it begins.
            let kills = if to == count { self.kills } else { 0 };
            survival = survive(directory, first_process, &groups, kills, Seeded::new(self.seed), &timeline).await?;
            (from, first_process) = (to, first_process + kills + 1);
        }
        bar.finish_and_clear();
        let seconds = started.elapsed().as_secs_f64() - survival.stopping.as_secs_f64();
        log.check_unbroken(broker.as_ref(), config).await?;

        let metrics = Arc::default();
        let blobs = opening::blobs(config, Intent::Read, &metrics).await?;
        let live = opening::store(config, &config.store.url, &metrics).await?.with_blobs(blobs);
        let blobs = opening::blobs_at(config, &directory.rebuilt_blobs(), Intent::Write, &metrics).await?;
        let rebuilt = opening::store(config, &directory.rebuilt(), &metrics).await?.with_blobs(Some(blobs));
        timeline.note("rebuild started from offset 0 into a second, empty store");
        rebuild(config, broker.clone(), &rebuilt, survival.events, &timeline).await?;
        timeline.note("rebuild finished; both stores are scanned and verified");
        let rivalry = match rivals {
            Some(rivals) => Some(Rivalry::of(&live, rivals).await?),
            None => None,
        };
        let (checked, again) = (Checked::of(&live).await?, Checked::of(&rebuilt).await?);
        timeline.note(checked.compared_with(&again));
        let contests = groups.contests().await?;
        let dead_letters = groups.messages_in(Topic::DeadLetters).await?;
        let commands = audit(broker.as_ref(), &command::Topics::of(&config.kafka.topics), true).await?;
        live.engine.close().await?;
        rebuilt.engine.close().await?;
        let report = Report::new(blocks, checked, again, survival, rivalry, contests, dead_letters, seconds);
        Ok(report.with_commands(commands))
    }

    /// The source, and before which of its messages everything is to be consumed.
    fn load(&self) -> Result<(Loaded, Vec<usize>), Failure> {
        if let Some(steps) = self.source.steps()? {
            let (mut messages, mut pauses) = (Vec::new(), Vec::new());
            for step in steps {
                match step {
                    Step::Produce(message) => messages.push(message),
                    Step::Settle => pauses.push(messages.len()),
                }
            }
            return Ok((Loaded::Lines(messages), pauses));
        }
        if self.source.blocks.is_empty() {
            let file = SourceFile { name: "blocks 0 to 4,312".to_owned(), bytes: FIRST_BLOCKS.to_vec() };
            let previous = PreviousOutputs::InTheFiles;
            return Ok((Loaded::Blocks { files: vec![file], first_height: None, previous }, Vec::new()));
        }
        Ok((self.source.load()?, Vec::new()))
    }

    fn rivals(&self, feed: &Feed<'_>) -> Option<Rivals> {
        match feed {
            Feed::Chain(chain) if self.contended => Some(rivals_of(chain, self.seed)),
            _ => None,
        }
    }
}

/// The network whose rules the store follows: the main one where the source does not tell.
fn network_of(loaded: &Loaded) -> Result<Network, Failure> {
    let Some(network) = loaded.network() else { return Ok(Network::default()) };
    network.store_network().ok_or_else(|| {
        Failure::new(format!(
            "the blocks are of {network}, which no store can follow: give blocks of main, test or regtest"
        ))
    })
}

/// Time between two updates of the rebuild's bar.
const BAR_INTERVAL: Duration = Duration::from_millis(100);

/// How many of the blocks' transactions get a rival.
const CONTENDED_SHARE: f64 = 0.3;

fn rivals_of(chain: &Chain<'_>, seed: u64) -> Rivals {
    Rivals::new(chain, seed, CONTENDED_SHARE)
}

/// Writes the configuration, once the store is known to be empty: where it is not, that of the demo that filled it
/// stays.
async fn begin(directory: &Directory, settings: &Settings<'_>) -> Result<Config, Failure> {
    let before = fs::read(directory.config_file()).ok();
    let config = directory.configure(settings)?;
    let empty = check_empty(&config).await;
    if let (Err(_), Some(before)) = (&empty, before) {
        fs::write(directory.config_file(), before)?;
    }
    empty.map(|()| config)
}

/// Filling a store that holds something would show nothing.
async fn check_empty(config: &Config) -> Result<(), Failure> {
    if matches!(config.store.url, StoreUrl::Memory | StoreUrl::Null) {
        let problem = format!("--store {}: a demo needs a store that outlives its process", config.store.url);
        return Err(UsageError(problem).into());
    }
    let store = opening::store(config, &config.store.url, &Arc::default()).await?;
    let meta = store.meta().await?;
    store.engine.close().await?;
    match meta {
        None => Ok(()),
        Some(_) => Err(Failure::new(format!("{}: the store is not empty", config.store.url))),
    }
}

/// Rebuilds from offset 0 into an empty store, as far as the live store has come: about `events` events.
async fn rebuild(
    config: &Config,
    broker: Arc<dyn Broker>,
    store: &Store,
    events: u64,
    timeline: &Timeline,
) -> CommandResult {
    let bar = timeline.phase("rebuilt", events);
    let watched = Watched::new(config);
    let parts = opening::parts(broker, store.clone(), &watched)?;
    let rebuilding = instance::rebuild(wiring::instance(config), parts, CancellationToken::new());
    let mut rebuilding = std::pin::pin!(rebuilding);
    loop {
        tokio::select! {
            rebuilt = &mut rebuilding => {
                bar.finish_and_clear();
                return Ok(rebuilt.map(drop)?);
            }
            () = tokio::time::sleep(BAR_INTERVAL) => {
                let metrics = &watched.metrics;
                let completed = metrics.completed.now().values().sum::<u64>();
                bar.set_position(completed + u64::try_from(metrics.chain_offset.get()).unwrap_or(0));
            }
        }
    }
}
