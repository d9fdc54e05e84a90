//! `utxo-store replay`: the state anew, into an empty store; or validated transactions once more, into the store that has them.

mod again;
mod dry_run;
mod place;
mod rebuild;
mod shown;

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

use super::{CommandResult, ConfigArgs, UsageError, block_on, opening, serving::Place, timestamp::Timestamp};
use crate::{
    blob::BlobUrl,
    config::{Config, listen_address},
    engine::StoreUrl,
    instance::set_back::Position,
};
use place::{Until, read_offsets};

const AFTER_HELP: &str = "\
--rebuild reads every topic from its beginning up to what the group has committed, and ends there. Publishes nothing,
commits nothing, and joins no group: it can run beside the instances. The digest that it prints equals that of the live
store, once that has committed everything and stands with no contest undecided. Where the group was stopped before, its
instances can go on with the new store: point store.url (and store.blobs.url) at it and start them.

A rebuild that was stopped or killed goes on with --resume, from what it had reached some seconds before, up to where it was to
end when it began, however far the group has come since. See to it that its process has ended. Over a server that has
restarted since, begin again, in an empty set.

--from-timestamp and --from-offsets read validated transactions once more, into store.url: the group of the stopped
instances is set back there, and this process works as one of them until the group has committed --until (by default what
it had). All of it is idempotent. However it ends, the group stands where it has come to: `run` goes on there, as it does
behind --until. What halts or becomes a dead letter does so again. Refused while instances run, below what was pruned, and
below what the topic still holds. The chain cannot be set back: its position carries its state.

FILE has a line for each partition, `partition offset`; what follows `#` is passed over, and partitions that are not named
stay where they are. A timestamp is RFC 3339 (2026-11-23T10:00:00Z) or milliseconds since 1970.

While it works, http.listen answers as with `run`, and the watchdog looks at it (exit code 4). Where an instance has that address, say
--listen, or --no-http. Without a terminal a line in the log says every 30 s how far it is.

--dry-run touches nothing: it shows what would be read, how many bytes (from samples) and for how long: at --rate, or else
as fast as the samples were read, which no store keeps up with. Exit code 1 where it would be refused.

Example: utxo-store replay --rebuild --config deploy/utxo-store.toml --store fjall:///var/lib/utxo-store-rebuilt
Example: utxo-store replay --rebuild --resume --config deploy/utxo-store.toml --store fjall:///var/lib/utxo-store-rebuilt
Example: utxo-store replay --from-timestamp 2026-11-23T10:00:00Z --config deploy/utxo-store.toml --dry-run";

/// Arguments of `replay`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct ReplayArgs {
    #[command(flatten)]
    what: What,
    #[command(flatten)]
    config: ConfigArgs,
    /// Where to build it: an empty store (store.url is not touched)
    #[arg(long, value_name = "URL", conflicts_with_all = ["from_timestamp", "from_offsets"])]
    store: Option<StoreUrl>,
    /// Where its bodies of large transactions go, where the configuration names a blob store, or --store is in Aerospike: an empty place
    /// (store.blobs.url is not touched)
    #[arg(long, value_name = "URL", requires = "store")]
    blobs: Option<BlobUrl>,
    /// Go on with the rebuild of --store that was stopped or killed, up to where that was to end; begin where none was begun
    #[arg(long, requires = "rebuild", conflicts_with = "dry_run")]
    resume: bool,
    /// How far this process reads: a timestamp, a file of offsets, or `end` (of the partitions, as they are now)
    #[arg(long, value_name = "T|FILE|end", conflicts_with = "rebuild")]
    until: Option<Until>,
    /// Show what would be read, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// With --dry-run: messages a second
    #[arg(long, value_name = "N", requires = "dry_run", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Where metrics, health and state are served meanwhile, instead of http.listen
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["no_http", "dry_run"], value_parser = listen_address)]
    listen: Option<SocketAddr>,
    /// Serve no metrics, health or state meanwhile
    #[arg(long, conflicts_with = "dry_run")]
    no_http: bool,
    /// Write the address of metrics and health to this file, once it is known
    #[arg(long, value_name = "PATH", hide = true)]
    http_address_file: Option<PathBuf>,
}

const OCCUPIED: &str = "say --listen ADDRESS for another one, or --no-http (an instance of this machine may have it)";

/// What is replayed.
#[derive(Debug, Default, Args)]
#[group(required = true, multiple = false)]
struct What {
    /// Build the whole state, from offset 0
    #[arg(long)]
    rebuild: bool,
    /// Read validated transactions again, from this time on
    #[arg(long, value_name = "T")]
    from_timestamp: Option<Timestamp>,
    /// Read validated transactions again, from these offsets on
    #[arg(long, value_name = "FILE")]
    from_offsets: Option<PathBuf>,
}

impl ReplayArgs {
    pub(super) fn run(self) -> CommandResult {
        let config = self.config.load()?;
        let from = self.from()?;
        let until = self.until(from.as_ref())?;
        let place = Place {
            listen: (!self.no_http).then_some(self.listen.unwrap_or(config.http.listen)),
            // Nothing of a rebuild halts, and one that is paused would be taken for one that stands.
            control: config.http.control && from.is_some(),
            address_file: self.http_address_file.clone(),
            otherwise: Some(OCCUPIED),
        };
        match (from, self.dry_run) {
            (Some(from), true) => block_on(dry_run::again(&config, &from, &until, self.rate, self.json)),
            (None, true) => block_on(dry_run::rebuild(&config, self.rate, self.json)),
            (Some(from), false) => {
                opening::logging(&config)?;
                block_on(again::run(&config, &from, &until, self.json, &place))
            }
            (None, false) => {
                let Some(store) = self.store else {
                    return Err(UsageError("--rebuild needs --store: an empty one".to_owned()).into());
                };
                let rebuild = rebuild::Rebuild { store, blobs: self.blobs, resume: self.resume, json: self.json };
                rebuild.check_blobs(&config).map_err(UsageError)?;
                opening::logging(&config)?;
                block_on(rebuild.run(config, &place))
            }
        }
    }

    /// Where the group is set back to; `None`: it is not.
    fn from(&self) -> Result<Option<Position>, UsageError> {
        match (&self.what.from_timestamp, &self.what.from_offsets) {
            (Some(Timestamp(time)), _) => Ok(Some(Position::Time(*time))),
            (None, Some(path)) => {
                read_offsets(path).map(|offsets| Some(Position::Offsets(offsets))).map_err(UsageError)
            }
            (None, None) => Ok(None),
        }
    }

    fn until(&self, from: Option<&Position>) -> Result<Position, UsageError> {
        let until = match &self.until {
            None => Position::Committed,
            Some(Until::End) => Position::End,
            Some(Until::Time(Timestamp(time))) => Position::Time(*time),
            Some(Until::File(path)) => Position::Offsets(read_offsets(path).map_err(UsageError)?),
        };
        match (from, &until) {
            (Some(Position::Time(from)), Position::Time(until)) if until < from => {
                Err(UsageError("--until is before --from-timestamp".to_owned()))
            }
            _ => Ok(until),
        }
    }
}

/// The configured topic and group of validated transactions.
fn reading(config: &Config) -> crate::instance::set_back::Reading<'_> {
    let (topic, group) = (config.kafka.topics.validated_txs.as_str(), config.kafka.group.as_str());
    crate::instance::set_back::Reading { topic, group }
}
