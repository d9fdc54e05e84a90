//! `utxo-store replay`: rebuilds the state into an empty store, or reads validated transactions again into the live
//! store.

mod dry_run;
mod positions;
mod progress;
mod rebuild;
mod reread;

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

use super::{
    CliResult, ConfigArgs, UsageError, block_on, empty_store::EmptyStoreArgs, opening, serving::HttpOptions,
    timestamp::Timestamp,
};
use crate::{
    blob::BlobUrl,
    config::{Config, Http, listen_address},
    engine::StoreUrl,
    instance::offset_reset::RereadBound,
};
use positions::{ReplayEnd, read_offsets};

const AFTER_HELP: &str = "\
--rebuild reads every topic from offset 0 to the offsets that the group has committed. A rebuild
publishes nothing, commits nothing and joins no group, so it can run beside the instances. The
printed digest equals the digest of the live store once the live store has committed all events
and no contest is undecided. If the group was stopped before, its instances can continue with the
new store: set store.url (and store.blobs.url) and start the instances.

--resume continues a rebuild that was stopped or killed, from the offsets reached some seconds
before, to the end offsets of its first start, whatever the group has committed since. Make sure
that the first process has ended. If a server of the store has restarted since, begin again in an
empty set.

--from-timestamp and --from-offsets read validated transactions again into store.url. The command
sets the committed offsets of the stopped group back, and works as one instance of the group until
the group has committed --until (by default the offsets that were committed at the begin). Events
are idempotent; events that halted a partition or became a dead letter do so again. However the
command ends, `run` continues at the offsets that the group has committed by then. Refused: while
instances run, below the replay floor of a pruned store, below the first offset of the topic. The
chain cannot be set back, since its committed offset has the state of the chain in its metadata.

FILE has a line `partition offset` per partition. Text after `#` is ignored. Partitions that are
not named keep their offsets. A timestamp is RFC 3339 (2026-11-23T10:00:00Z) or milliseconds since
1970.

During a replay http.listen answers as with `run`, and the watchdog checks the loops (exit code
4). If an instance has that address, use --listen or --no-http. Without a terminal the progress is
logged every 30 s.

--dry-run changes nothing and prints what would be read, the bytes (from samples) and the duration
at --rate, by default the rate at which the samples were read, which is faster than any store.
Exit code 1 if the replay would be refused.

Example: utxo-store replay --rebuild --config deploy/utxo-store.toml \\
    --store fjall:///var/lib/utxo-store-rebuilt
Example: utxo-store replay --rebuild --resume --config deploy/utxo-store.toml \\
    --store fjall:///var/lib/utxo-store-rebuilt
Example: utxo-store replay --from-timestamp 2026-11-23T10:00:00Z \\
    --config deploy/utxo-store.toml --dry-run";

/// Command-line arguments of `utxo-store replay`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct ReplayArgs {
    #[command(flatten)]
    kind: ReplayKind,
    #[command(flatten)]
    config: ConfigArgs,
    /// With --rebuild: URL of an empty store (store.url is not touched)
    #[arg(long, value_name = "URL", conflicts_with_all = ["from_timestamp", "from_offsets"])]
    store: Option<StoreUrl>,
    /// With --store: URL of an empty blob store, required if store.blobs.url is set or --store is in Aerospike
    /// (store.blobs.url is not touched)
    #[arg(long, value_name = "URL", requires = "store")]
    blobs: Option<BlobUrl>,
    /// Continue the rebuild of --store that was stopped or killed; without a begun rebuild, begin one
    #[arg(long, requires = "rebuild", conflicts_with = "dry_run")]
    resume: bool,
    /// With --from-…: last position, as a timestamp, a file of offsets, or `end` for the present end offsets; the
    /// committed offsets at the begin by default
    #[arg(long, value_name = "T|FILE|end", conflicts_with = "rebuild")]
    until: Option<ReplayEnd>,
    /// Change nothing: print what would be read
    #[arg(long)]
    dry_run: bool,
    /// With --dry-run: messages per second for the duration; the rate of the samples by default
    #[arg(long, value_name = "N", requires = "dry_run", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Address of metrics, health and state during the replay; http.listen by default
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["no_http", "dry_run"], value_parser = listen_address)]
    listen: Option<SocketAddr>,
    /// Serve no metrics, health or state
    #[arg(long, conflicts_with = "dry_run")]
    no_http: bool,
    /// File for the bound address of metrics and health, written once the server listens
    #[arg(long, value_name = "PATH", hide = true)]
    http_address_file: Option<PathBuf>,
}

const OCCUPIED: &str =
    "use --listen ADDRESS for another address, or --no-http (an instance on this machine may use the address)";

/// Kind of replay; exactly one option is required.
#[derive(Debug, Default, Args)]
#[group(required = true, multiple = false)]
struct ReplayKind {
    /// Build the whole state from offset 0 into an empty store
    #[arg(long)]
    rebuild: bool,
    /// Read validated transactions again from this time on, into store.url
    #[arg(long, value_name = "T")]
    from_timestamp: Option<Timestamp>,
    /// Read validated transactions again from the offsets of a file on, into store.url
    #[arg(long, value_name = "FILE")]
    from_offsets: Option<PathBuf>,
}

impl ReplayArgs {
    pub(super) fn run(self) -> CliResult {
        let config = self.config.load()?;
        let from = self.from()?;
        let until = self.until(from.as_ref())?;
        // A rebuild has no halts to lift, and the watchdog would take a paused rebuild for a stalled one.
        let settings = Http { control: config.http.control && from.is_some(), ..config.http.clone() };
        let http = HttpOptions {
            listen: (!self.no_http).then_some(self.listen.unwrap_or(config.http.listen)),
            address_file: self.http_address_file.clone(),
            bind_hint: Some(OCCUPIED),
            ..HttpOptions::of(settings)
        };
        match (from, self.dry_run) {
            (Some(from), true) => block_on(dry_run::plan_reread(&config, &from, &until, self.rate, self.json)),
            (None, true) => block_on(dry_run::plan_rebuild(&config, self.rate, self.json)),
            (Some(from), false) => {
                opening::start_logging(&config)?;
                block_on(reread::run(&config, &from, &until, self.json, &http))
            }
            (None, false) => {
                let Some(store) = self.store else {
                    return Err(UsageError("--rebuild needs --store with the URL of an empty store".to_owned()).into());
                };
                let target = EmptyStoreArgs { store, blobs: self.blobs };
                let rebuild = rebuild::Rebuild { target, resume: self.resume, json: self.json };
                rebuild.check_blobs(&config).map_err(UsageError)?;
                opening::start_logging(&config)?;
                block_on(rebuild.run(config, &http))
            }
        }
    }

    /// Returns the position to which the group is set back; `None` with `--rebuild`.
    fn from(&self) -> Result<Option<RereadBound>, UsageError> {
        match (&self.kind.from_timestamp, &self.kind.from_offsets) {
            (Some(Timestamp(time)), _) => Ok(Some(RereadBound::Time(*time))),
            (None, Some(path)) => {
                read_offsets(path).map(|offsets| Some(RereadBound::Offsets(offsets))).map_err(UsageError)
            }
            (None, None) => Ok(None),
        }
    }

    fn until(&self, from: Option<&RereadBound>) -> Result<RereadBound, UsageError> {
        let until = match &self.until {
            None => RereadBound::Committed,
            Some(ReplayEnd::End) => RereadBound::End,
            Some(ReplayEnd::Time(Timestamp(time))) => RereadBound::Time(*time),
            Some(ReplayEnd::File(path)) => RereadBound::Offsets(read_offsets(path).map_err(UsageError)?),
        };
        match (from, &until) {
            (Some(RereadBound::Time(from)), RereadBound::Time(until)) if until < from => {
                Err(UsageError("--until is before --from-timestamp".to_owned()))
            }
            _ => Ok(until),
        }
    }
}

/// Returns the configured topic and group of the validated transactions.
pub(super) fn offset_reset(config: &Config) -> crate::instance::offset_reset::OffsetReset<'_> {
    let (topic, group) = (config.kafka.topics.validated_txs.as_str(), config.kafka.group.as_str());
    crate::instance::offset_reset::OffsetReset { topic, group }
}
