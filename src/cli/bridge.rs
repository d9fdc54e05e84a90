//! `utxo-store bridge`: turns Kafka messages of the reference system into events of this store.

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::Args;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    CliResult, ConfigArgs, Failure, UsageError, block_on,
    opening::{self, Monitoring},
    serving::{self, HttpOptions},
    signals, wiring,
};
use crate::{
    blob::{self, BlobUrl},
    bridge::{BridgeCounts, BridgeError, blocks::BlockBridge, transactions::TransactionBridge},
    status::health::{Condition, Health},
    tx::Txid,
};

const AFTER_HELP: &str = "\
Reads the reference's transactions (KafkaTxValidationTopicMessage, unkeyed) and final blocks
(KafkaBlocksFinalTopicMessage, with their subtree objects), and publishes validated transactions
under their txids, block-mined and reorg events with a sequence to the topics of the
configuration. Continues at the committed offsets of its group; one process is enough, and a
second one changes nothing.

Example: utxo-store bridge --config deploy/utxo-store.toml --transactions validatortxs \\
    --blocks blocks-final --subtrees file:///var/lib/teranode/subtrees";

/// Command-line arguments of `utxo-store bridge`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct BridgeArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Topic of the reference's transactions
    #[arg(long, value_name = "TOPIC", default_value = "validatortxs")]
    transactions: String,
    /// Topic of the reference's final blocks, one partition
    #[arg(long, value_name = "TOPIC", default_value = "blocks-final")]
    blocks: String,
    /// Place of the subtree objects (HASH.subtree, or in a folder of two digits): a URL as store.blobs.url accepts,
    /// reached by the settings of the blob store
    #[arg(long, value_name = "URL")]
    subtrees: BlobUrl,
    /// Hash of the block before the first event, as explorers show it: for a store that was imported as of that block,
    /// and a topic that begins elsewhere. Not used once the bridge has published a block
    #[arg(long, value_name = "HASH")]
    after: Option<Txid>,
    /// Group under which the bridge commits its offsets
    #[arg(long, value_name = "GROUP", default_value = "utxo-store-bridge")]
    group: String,
    /// File for the bound address, written once the server listens
    #[arg(long, value_name = "PATH", hide = true)]
    http_address_file: Option<PathBuf>,
}

/// Time between two log records with the counts.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

impl BridgeArgs {
    pub(super) fn run(self) -> CliResult {
        let config = self.config.load()?;
        opening::start_logging(&config)?;
        if self.group == config.kafka.group {
            let problem = "--group is kafka.group: the offsets of the bridge need a group of their own";
            return Err(UsageError(problem.to_owned()).into());
        }
        if config.sequencer.objects_url.is_some() && config.sequencer.objects_url != config.objects.url {
            let problem = "the bridge stores the txids of large blocks in objects.url, and instances look in \
                           sequencer.objects_url: remove sequencer.objects_url";
            return Err(UsageError(problem.to_owned()).into());
        }
        let dead_letter_limits = wiring::dead_letter_limits(&config);
        block_on(async move {
            let monitoring = Monitoring::new(&config);
            let broker = opening::open_broker(&config).await?;
            let (access, options) = wiring::blob_settings(&config, &monitoring.metrics);
            let subtrees = blob::open_objects(&self.subtrees, &access, &options).await;
            let subtrees = subtrees.map_err(|error| Failure::new(format!("cannot open --subtrees: {error}")))?;
            let bodies = opening::open_event_bodies(&config).await?;
            let counts = Arc::new(BridgeCounts::register(&monitoring.metrics)?);
            let (tip, next_height) = watch::channel(None);
            let transactions = TransactionBridge {
                broker: broker.clone(),
                topic: self.transactions.clone(),
                group: self.group.clone(),
                topics: config.kafka.topics.clone(),
                bodies: bodies.clone(),
                next_height,
                dead_letter_limits,
                counts: counts.clone(),
            };
            let blocks = BlockBridge {
                broker,
                topic: self.blocks.clone(),
                group: self.group.clone(),
                topics: config.kafka.topics.clone(),
                subtrees,
                bodies,
                inline_bytes: config.objects.inline_event_bytes as usize,
                next_height: tip,
                begin_after: self.after.map(|hash| hash.0),
                dead_letter_limits,
                counts: counts.clone(),
            };
            for condition in [Condition::Assigned, Condition::StoreReachable] {
                monitoring.health.set(condition, None);
            }
            let http_settings = config.http.clone();
            let http = HttpOptions { address_file: self.http_address_file, ..HttpOptions::of(http_settings) };
            let shutdown = CancellationToken::new();
            signals::cancel_on_signals(shutdown.clone())?;
            let work = Box::pin(async {
                let forwarded = tokio::select! {
                    forwarded = forward(&transactions, &blocks, &shutdown) => forwarded,
                    never = report(&counts, &monitoring.health) => match never {},
                };
                tracing::info!("bridge: ended after {}", counts.describe());
                Ok(forwarded?)
            });
            serving::serve(&http, &monitoring, shutdown.clone(), work).await
        })
    }
}

/// Forwards transactions and blocks until `shutdown`, or until one of both fails.
async fn forward(
    transactions: &TransactionBridge,
    blocks: &BlockBridge,
    shutdown: &CancellationToken,
) -> Result<(), BridgeError> {
    tokio::try_join!(Box::pin(transactions.run(shutdown)), Box::pin(blocks.run(shutdown))).map(drop)
}

async fn report(counts: &BridgeCounts, health: &Health) -> std::convert::Infallible {
    let mut last = String::new();
    loop {
        tokio::time::sleep(REPORT_INTERVAL).await;
        health.set(Condition::ChainFed, counts.missing_block());
        health.set(Condition::ObjectsReadable, counts.missing_subtree());
        let now = counts.describe();
        if now != last {
            tracing::info!("bridge: {now}");
            last = now;
        }
    }
}
