//! Commands that ask a vault over HTTP.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use serde::Serialize;

use super::render::Render;
use crate::{
    cli::{CliResult, Failure, UsageError, block_on, output},
    text::{duration::parse_duration, not_one_of},
    tx::Outpoint,
    vault::{
        LockCondition, LockId, Owner, RequestId, Strategy, VaultClient,
        model::{OwnerOutputs, RescanSource, ScriptName, SelectRequest},
    },
};

/// Address of the vault, unless `--url` names one: the default of `http.listen`.
const DEFAULT_URL: &str = "http://127.0.0.1:9464";
/// Outputs, and scripts, that one request reads.
const PART: u64 = 1_000;
/// Pause between two looks at a rescan.
const RESCAN_LOOK: Duration = Duration::from_millis(500);

/// Vault and owner of a question.
#[derive(Debug, Args)]
pub struct ClientArgs {
    /// URL of the vault (`utxo-store vault run`)
    #[arg(long, value_name = "URL", default_value = DEFAULT_URL)]
    url: String,
    /// Name of the owner
    #[arg(long, value_name = "NAME")]
    owner: Owner,
    /// File with the bearer token: one of the role wallet with this owner, or of the role command
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A question to a vault.
#[derive(Debug, Subcommand)]
pub enum VaultQuestion {
    /// Watch addresses or scripts under the name of an owner
    Watch(WatchArgs),
    /// Watch addresses or scripts no longer, and forget their outputs
    Unwatch(UnwatchArgs),
    /// List the watched scripts
    Scripts(ScriptsArgs),
    /// Print the balance in its parts
    Balance(BalanceArgs),
    /// List the outputs that are not spent
    Outputs(OutputsArgs),
    /// Reserve outputs under a lock id, all or none
    Reserve(ReserveArgs),
    /// Release outputs of a lock, or end the lock with all its outputs
    Release(ReleaseArgs),
    /// Choose free outputs that fund an amount and its fee, and reserve them
    Select(SelectArgs),
    /// List locks and sessions; open, extend or end a session
    Sessions(SessionsArgs),
    /// Look for earlier outputs of all scripts of the owner
    Rescan(RescanArgs),
}

/// Command-line arguments of `utxo-store vault watch`.
#[derive(Debug, Args)]
#[command(after_help = "Example: utxo-store vault watch --owner alice 1BgGZ9tcN4rm9KBzDn7KprQz87SZ26SAMH --rescan log")]
pub struct WatchArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Addresses, public keys in hexadecimal digits, or scripts as hex:DIGITS
    #[arg(required = true, value_name = "SCRIPT")]
    scripts: Vec<ScriptName>,
    /// Look for earlier outputs of the scripts: in the log, or in the store of the server
    #[arg(long, value_name = "log|store", value_parser = read_source)]
    rescan: Option<RescanSource>,
}

/// Command-line arguments of `utxo-store vault unwatch`.
#[derive(Debug, Args)]
#[command(after_help = "Example: utxo-store vault unwatch --owner alice 1BgGZ9tcN4rm9KBzDn7KprQz87SZ26SAMH")]
pub struct UnwatchArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Addresses, public keys in hexadecimal digits, or scripts as hex:DIGITS
    #[arg(required = true, value_name = "SCRIPT")]
    scripts: Vec<ScriptName>,
}

/// Command-line arguments of `utxo-store vault scripts`.
#[derive(Debug, Args)]
#[command(after_help = "Example: utxo-store vault scripts --owner alice")]
pub struct ScriptsArgs {
    #[command(flatten)]
    client: ClientArgs,
}

/// Command-line arguments of `utxo-store vault balance`.
#[derive(Debug, Args)]
#[command(after_help = "Example: utxo-store vault balance --owner alice --json")]
pub struct BalanceArgs {
    #[command(flatten)]
    client: ClientArgs,
}

/// Command-line arguments of `utxo-store vault outputs`.
#[derive(Debug, Args)]
#[command(after_help = "Example: utxo-store vault outputs --owner alice --locks unlocked-only")]
pub struct OutputsArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Condition on soft locks: any, unlocked-only, locked-only, specified or unlocked-and-specified
    #[arg(long, value_name = "CONDITION", default_value = "any")]
    locks: String,
    /// Lock id of the conditions specified and unlocked-and-specified; may be repeated
    #[arg(long = "lock-id", value_name = "UUID")]
    lock_ids: Vec<LockId>,
}

/// Command-line arguments of `utxo-store vault reserve`.
#[derive(Debug, Args)]
#[command(after_help = "Example: utxo-store vault reserve --owner alice --ttl 10m TXID:0 TXID:1")]
pub struct ReserveArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Lock or session; a new lock by default
    #[arg(long, value_name = "UUID")]
    lock_id: Option<LockId>,
    /// Time after which the lock ends by itself, such as 10m; by default the lock lasts until released
    #[arg(long, value_name = "TIME", value_parser = read_duration)]
    ttl: Option<Duration>,
    /// Outpoints to reserve, each TXID:VOUT
    #[arg(required = true, value_name = "OUTPOINT")]
    outpoints: Vec<Outpoint>,
}

/// Command-line arguments of `utxo-store vault release`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: utxo-store vault release --owner alice --lock-id f81d4fae-7dec-4d00-a765-00a0c91e6bf6"
)]
pub struct ReleaseArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Lock or session that has the outputs
    #[arg(long, value_name = "UUID")]
    lock_id: LockId,
    /// Outpoints, each TXID:VOUT; without any the lock ends
    #[arg(value_name = "OUTPOINT")]
    outpoints: Vec<Outpoint>,
}

/// Command-line arguments of `utxo-store vault select`.
#[derive(Debug, Args)]
#[command(after_help = "Example: utxo-store vault select --owner alice --amount 150000 --fee-rate 1000 --wait 5s")]
pub struct SelectArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Sum of the payments, satoshis
    #[arg(long, value_name = "SATOSHIS")]
    amount: u64,
    /// Fee rate, satoshis for 1,000 virtual bytes
    #[arg(long, value_name = "SATOSHIS", required_unless_present = "fee", conflicts_with = "fee")]
    fee_rate: Option<u64>,
    /// Fee of every size of transaction, satoshis
    #[arg(long, value_name = "SATOSHIS")]
    fee: Option<u64>,
    /// Order in which outputs are taken: largest-first, oldest-first, lowest-fee or without-change
    #[arg(long, value_name = "STRATEGY", default_value = "largest-first", value_parser = read_strategy)]
    strategy: Strategy,
    /// Fewest blocks that confirm an output; 0: unconfirmed outputs of the owner's own transactions, too
    #[arg(long, value_name = "N", default_value_t = 1)]
    min_confirmations: u32,
    /// Take unconfirmed outputs of other transactions, too, with --min-confirmations 0
    #[arg(long)]
    foreign_unconfirmed: bool,
    /// Take only outputs of this address or script; may be repeated
    #[arg(long = "from", value_name = "SCRIPT")]
    scripts: Vec<ScriptName>,
    /// Number of payments, without the change
    #[arg(long, value_name = "N", default_value_t = 1)]
    payments: u32,
    /// Most inputs of the transaction
    #[arg(long, value_name = "N")]
    most_inputs: Option<u32>,
    /// Lock or session; a new lock by default, which ends after vault.selection_ttl_ms
    #[arg(long, value_name = "UUID")]
    lock_id: Option<LockId>,
    /// Time after which the lock ends by itself, such as 10m
    #[arg(long, value_name = "TIME", value_parser = read_duration)]
    ttl: Option<Duration>,
    /// Id with which a repeat of the command has the same answer
    #[arg(long, value_name = "ID")]
    request_id: Option<RequestId>,
    /// Time to wait for outputs that others have locked, at most 60s
    #[arg(long, value_name = "TIME", value_parser = read_duration, default_value = "0s")]
    wait: Duration,
}

/// Command-line arguments of `utxo-store vault sessions`.
#[derive(Debug, Args)]
#[command(after_help = "Example: utxo-store vault sessions --owner alice --open --lease 60s")]
pub struct SessionsArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Open a session with a lease
    #[arg(long, group = "change")]
    open: bool,
    /// Extend the lease of this session
    #[arg(long, value_name = "UUID", group = "change")]
    heartbeat: Option<LockId>,
    /// End this session, and free its outputs
    #[arg(long, value_name = "UUID", group = "change", conflicts_with = "lease")]
    end: Option<LockId>,
    /// Time without a heartbeat after which the session ends, such as 60s
    #[arg(long, value_name = "TIME", value_parser = read_duration, requires = "change")]
    lease: Option<Duration>,
}

/// Command-line arguments of `utxo-store vault rescan`.
#[derive(Debug, Args)]
#[command(after_help = "Example: utxo-store vault rescan --owner alice --from log --wait")]
pub struct RescanArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Source of earlier outputs: the log, or the store of the server
    #[arg(long, value_name = "log|store", default_value = "log", value_parser = read_source)]
    from: RescanSource,
    /// Wait until no rescan is left
    #[arg(long)]
    wait: bool,
}

fn read_duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "write a time such as 500ms, 30s or 10m".to_owned())
}

fn read_source(text: &str) -> Result<RescanSource, String> {
    text.parse().map_err(|_| not_one_of::<RescanSource>(text))
}

fn read_strategy(text: &str) -> Result<Strategy, String> {
    text.parse().map_err(|_| not_one_of::<Strategy>(text))
}

impl ClientArgs {
    fn open(self) -> Result<(VaultClient, bool), UsageError> {
        let client = VaultClient::open(&self.url, self.owner, self.token_file);
        Ok((client.map_err(|error| UsageError(error.to_string()))?, self.json))
    }
}

fn print(answer: &(impl Render + Serialize), json: bool) -> CliResult {
    let mut out = output::stdout();
    match json {
        true => output::write_json(answer, &mut out)?,
        false => answer.render(&mut out)?,
    }
    Ok(())
}

impl VaultQuestion {
    /// Asks, and prints the answer.
    ///
    /// # Errors
    /// The vault does not answer, or refuses the request.
    pub fn run(self) -> CliResult {
        block_on(async {
            match self {
                VaultQuestion::Watch(args) => args.run().await,
                VaultQuestion::Unwatch(args) => args.run().await,
                VaultQuestion::Scripts(args) => args.run().await,
                VaultQuestion::Balance(args) => args.run().await,
                VaultQuestion::Outputs(args) => args.run().await,
                VaultQuestion::Reserve(args) => args.run().await,
                VaultQuestion::Release(args) => args.run().await,
                VaultQuestion::Select(args) => args.run().await,
                VaultQuestion::Sessions(args) => args.run().await,
                VaultQuestion::Rescan(args) => args.run().await,
            }
        })
    }
}

impl WatchArgs {
    async fn run(self) -> CliResult {
        let (client, json) = self.client.open()?;
        print(&client.watch(self.scripts, self.rescan).await?, json)
    }
}

impl UnwatchArgs {
    async fn run(self) -> CliResult {
        let (client, json) = self.client.open()?;
        print(&client.unwatch(self.scripts).await?, json)
    }
}

impl ScriptsArgs {
    async fn run(self) -> CliResult {
        let (client, json) = self.client.open()?;
        let mut all = client.scripts(0, PART).await?;
        let mut has_more = all.scripts.len() as u64 == PART;
        while has_more {
            let part = client.scripts(all.scripts.len() as u64, PART).await?.scripts;
            has_more = part.len() as u64 == PART;
            all.scripts.extend(part);
        }
        print(&all, json)
    }
}

impl BalanceArgs {
    async fn run(self) -> CliResult {
        let (client, json) = self.client.open()?;
        print(&client.balance().await?, json)
    }
}

impl OutputsArgs {
    async fn run(self) -> CliResult {
        let condition = LockCondition::of_name(&self.locks, self.lock_ids);
        let condition = condition.map_err(|error| UsageError(error.to_string()))?;
        let (client, json) = self.client.open()?;
        let (mut outputs, mut after) = (Vec::new(), None);
        loop {
            let part = client.outputs(&condition, after, PART).await?;
            outputs.extend(part.outputs);
            match part.next {
                Some(next) => after = Some(next.parse::<Outpoint>()?),
                None => return print(&OwnerOutputs { outputs, next: None }, json),
            }
        }
    }
}

impl ReserveArgs {
    async fn run(self) -> CliResult {
        let (client, json) = self.client.open()?;
        let lock_id = self.lock_id.unwrap_or_else(LockId::random);
        let reserved = client.reserve(lock_id, &self.outpoints, self.ttl).await;
        let reserved = reserved.map_err(|error| Failure::new(format!("lock {lock_id}: {error}")))?;
        print(&reserved, json)
    }
}

impl ReleaseArgs {
    async fn run(self) -> CliResult {
        let (client, json) = self.client.open()?;
        let outpoints = (!self.outpoints.is_empty()).then_some(&self.outpoints[..]);
        print(&client.release(self.lock_id, outpoints).await?, json)
    }
}

impl SelectArgs {
    async fn run(self) -> CliResult {
        let (client, json) = self.client.open()?;
        let request = SelectRequest {
            fee_rate: self.fee_rate,
            fee: self.fee,
            request_id: self.request_id,
            lock_id: self.lock_id,
            ttl_ms: self.ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
            strategy: Some(self.strategy),
            min_confirmations: Some(self.min_confirmations),
            foreign_unconfirmed: Some(self.foreign_unconfirmed),
            scripts: self.scripts,
            payments: Some(self.payments),
            most_inputs: self.most_inputs,
            ..SelectRequest::at_rate(self.amount, 0)
        };
        print(&client.select(&request, self.wait).await?, json)
    }
}

impl SessionsArgs {
    async fn run(self) -> CliResult {
        let (client, json) = self.client.open()?;
        match (self.open, self.heartbeat, self.end) {
            (true, ..) => print(&client.open_session(self.lease, None).await?, json),
            (_, Some(lock_id), _) => print(&client.heartbeat(lock_id, self.lease).await?, json),
            (_, _, Some(lock_id)) => print(&client.release(lock_id, None).await?, json),
            (false, None, None) => print(&client.locks().await?, json),
        }
    }
}

impl RescanArgs {
    async fn run(self) -> CliResult {
        let (client, json) = self.client.open()?;
        let mut left = client.rescan(self.from).await?;
        while self.wait && !left.rescans.is_empty() {
            tokio::time::sleep(RESCAN_LOOK).await;
            left = client.rescans().await?;
        }
        print(&left, json)
    }
}
