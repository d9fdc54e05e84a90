//! `utxo-store command`: publishes commands to the sequencer, and waits for their results.

pub mod decide;
mod list;

use std::{
    fmt::Display,
    fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use clap::{Args, Subcommand};
use serde::Serialize;

use super::{CliResult, ConfigArgs, Failure, UsageError, block_on, offline::StoreArgs, opening, output};
use crate::{
    client::{PendingCommand, submit_commands},
    event::{Command, CommandAction, Event, from_json},
    rng::random_bytes,
    telemetry::Metrics,
    text::decode_utf8,
    tx::{Outpoint, Txid, UtxoHash},
};

use decide::{DecideArgs, DecideServices};
pub use list::{LoggedCommand, list_commands};

const AFTER_HELP: &str = "\
A command is published to the chain log; the sequencer handles each command once, in the order of
the log. The result is printed. The exit code is 1 if a command was refused or had no answer in
time. A command without an answer is still handled: run it again with the same --id, which changes
nothing and prints the first result.

Example:
  utxo-store command --config utxo-store.toml freeze 4a5e1e…a33b:0
  utxo-store command --config utxo-store.toml preserve 4a5e1e…a33b --until 900000
  utxo-store command --config utxo-store.toml unlock --from txids.txt
  utxo-store command --config utxo-store.toml list";

/// Command-line arguments of `utxo-store command`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct CommandArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Id of the command, 32 hexadecimal digits; random by default. With several outpoints or transactions each command
    /// gets an id derived from this one
    #[arg(long, global = true, value_name = "HEX", value_parser = parse_id)]
    id: Option<[u8; 16]>,
    /// Time to wait for the answer, seconds
    #[arg(long, global = true, value_name = "S", default_value_t = 120)]
    timeout_s: u64,
    /// Print one JSON object per command
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    kind: CommandKind,
}

#[derive(Debug, Subcommand)]
enum CommandKind {
    /// Make the outputs of transactions not spendable yet
    #[command(after_help = AFTER_HELP)]
    Lock(TxidArgs),
    /// Make the outputs of locked transactions spendable
    #[command(after_help = AFTER_HELP)]
    Unlock(TxidArgs),
    /// Bar outputs until they are unfrozen or reassigned. A block that spends a frozen output halts the chain until
    /// an operator decides: freeze only in agreement with the miners
    #[command(after_help = AFTER_HELP)]
    Freeze {
        /// Outputs, each as TXID:INDEX
        #[arg(required = true, value_name = "OUTPOINT")]
        outpoints: Vec<Outpoint>,
    },
    /// Make frozen outputs spendable again
    #[command(after_help = AFTER_HELP)]
    Unfreeze {
        /// Outputs, each as TXID:INDEX
        #[arg(required = true, value_name = "OUTPOINT")]
        outpoints: Vec<Outpoint>,
    },
    /// Bar all outputs of transactions until the transactions are unfrozen. A block that spends such an output halts
    /// the chain until an operator decides: freeze only in agreement with the miners
    #[command(after_help = AFTER_HELP)]
    FreezeTransaction(TxidArgs),
    /// End the freezing of transactions; outputs that were frozen alone stay frozen
    #[command(after_help = AFTER_HELP)]
    UnfreezeTransaction(TxidArgs),
    /// Bar an output below a height
    #[command(after_help = AFTER_HELP)]
    FreezeUntil {
        /// Output of a transaction, as TXID:INDEX
        outpoint: Outpoint,
        /// Block height from which the output is spendable
        #[arg(long)]
        height: u32,
    },
    /// Give a frozen output to a new owner
    Reassign(ReassignArgs),
    /// Free an output whose spender is not live
    #[command(after_help = AFTER_HELP)]
    Unspend {
        /// Output of a transaction, as TXID:INDEX
        outpoint: Outpoint,
        /// Transaction that spends the output
        #[arg(long)]
        spender: Txid,
        /// Index of the spender's input, from 0
        #[arg(long)]
        input: u32,
    },
    /// Make a transaction and its descendants conflicting
    #[command(after_help = AFTER_HELP)]
    SetConflicting {
        /// Id of the transaction
        txid: Txid,
    },
    /// Open the verdicts of conflicting transactions again
    #[command(after_help = AFTER_HELP)]
    Reconsider(TxidArgs),
    /// Keep transactions from being pruned until a height
    #[command(after_help = AFTER_HELP)]
    Preserve {
        #[command(flatten)]
        txids: TxidArgs,
        /// Block height below which the transactions are not pruned
        #[arg(long)]
        until: u32,
    },
    /// Turn a transaction that is conflicting by verdict into a tombstone
    #[command(after_help = AFTER_HELP)]
    Delete {
        /// Id of the transaction
        txid: Txid,
    },
    /// Let the block that halts the chain spend outputs that commands have frozen, delayed or reassigned. A store that
    /// only one process can open (fjall) must be closed
    #[command(after_help = AFTER_HELP)]
    Decide(DecideArgs),
    /// List the log's commands on frozen and reassigned outputs with their results
    #[command(after_help = AFTER_HELP)]
    List {
        /// List commands of every kind
        #[arg(long)]
        all: bool,
    },
}

/// The transactions of commands of one kind.
#[derive(Debug, Args)]
struct TxidArgs {
    /// Transactions, each for a command of its own
    #[arg(value_name = "TXID", required_unless_present = "from", conflicts_with = "from")]
    txids: Vec<Txid>,
    /// Read the transactions from this file, one txid per line; - reads standard input
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

impl TxidArgs {
    /// Returns the given transactions, or those of the file. Empty lines are skipped.
    fn read(&self) -> Result<Vec<Txid>, Failure> {
        let Some(file) = &self.from else { return Ok(self.txids.clone()) };
        let bytes = if file == Path::new("-") {
            let mut bytes = Vec::new();
            io::stdin().read_to_end(&mut bytes).map_err(|error| unreadable(file, &error))?;
            bytes
        } else {
            fs::read(file).map_err(|error| unreadable(file, &error))?
        };
        let text = decode_utf8(&bytes).map_err(|error| unreadable(file, &error))?;
        let lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, text)| !text.is_empty());
        let txids = lines
            .map(|(line, text)| {
                text.parse().map_err(|error| UsageError(format!("{}, line {line}: {error}", file.display())))
            })
            .collect::<Result<Vec<Txid>, UsageError>>()?;
        if txids.is_empty() {
            return Err(UsageError(format!("{}: there is no txid in this file", file.display())).into());
        }
        Ok(txids)
    }
}

fn unreadable(file: &Path, error: &dyn Display) -> Failure {
    Failure::new(format!("cannot read {}: {error}", file.display()))
}

const SET_HELP: &str = "\
Example:
  utxo-store command --config utxo-store.toml reassign 4a5e1e…a33b:0 --utxo-hash 0123…cdef \\
    --script 76a9…88ac --satoshis 5000000000 --height 900000

FILE has one reassignment per line, a JSON object as `utxo-store events` prints it:
  {\"event\":\"command\",\"id\":\"000102030405060708090a0b0c0d0e0f\",\"action\":{\"reassign\":{\"outpoint\":…}}}";

#[derive(Debug, Args)]
#[command(after_help = SET_HELP)]
struct ReassignArgs {
    /// Outpoint of the frozen output
    #[arg(required_unless_present = "set", conflicts_with = "set")]
    outpoint: Option<Outpoint>,
    /// UTXO hash that the slot must have now
    #[arg(long, required_unless_present = "set")]
    utxo_hash: Option<UtxoHash>,
    /// New locking script, hexadecimal digits, at most 10,000 bytes
    #[arg(long, value_name = "HEX", required_unless_present = "set", value_parser = parse_hex)]
    script: Option<std::vec::Vec<u8>>,
    /// Amount of the output, satoshis
    #[arg(long, required_unless_present = "set")]
    satoshis: Option<u64>,
    /// Block height of the reassignment
    #[arg(long, required_unless_present = "set")]
    height: Option<u32>,
    /// Number of blocks after --height from which the new owner can spend
    #[arg(long, default_value_t = 1_000)]
    spendable_after: u32,
    /// Publish the reassignments of this file instead, each with its own id
    #[arg(long, value_name = "FILE")]
    set: Option<PathBuf>,
}

fn parse_id(text: &str) -> Result<[u8; 16], String> {
    let mut id = [0; 16];
    hex::decode_to_slice(text, &mut id).map_err(|_| "an id is 32 hexadecimal digits".to_owned())?;
    Ok(id)
}

fn parse_hex(text: &str) -> Result<Vec<u8>, String> {
    hex::decode(text).map_err(|error| format!("not hexadecimal: {error}"))
}

impl CommandArgs {
    /// Publishes the commands and prints their results, or prints the commands of the log.
    ///
    /// # Errors
    /// The brokers do not answer, a command was refused or had no answer in time, or the file of `--set` cannot be
    /// read.
    pub fn run(self) -> CliResult {
        let config = self.config.load()?;
        let topics = &config.kafka.topics;
        let mut out = output::stdout();
        if let CommandKind::List { all } = self.kind {
            return block_on(async {
                let broker = opening::open_broker(&config).await?;
                let entries = list_commands(broker.as_ref(), topics, all).await?;
                self.print(&entries, &mut out)
            });
        }
        if let CommandKind::Decide(decide) = &self.kind {
            let store = StoreArgs { config: self.config.clone(), ..StoreArgs::default() };
            return block_on(async {
                let broker = opening::open_broker(&config).await?;
                let (store, _) = store.open().await?;
                let objects = opening::open_objects(&config, &Arc::new(Metrics::new())).await?;
                let (group, objects) = (config.kafka.group.as_str(), objects.as_ref());
                let services = DecideServices { broker: &broker, topics, group, store: &store, objects };
                let decided = services.decide(decide.chain_offset, decide.accept).await?;
                self.print(&[decided], &mut out)
            });
        }
        let commands = self.build_commands()?;
        let timeout = Duration::from_secs(self.timeout_s);
        block_on(async {
            let broker = opening::open_broker(&config).await?;
            let answers = submit_commands(broker.as_ref(), topics, &commands, timeout).await?;
            self.print(&answers, &mut out)?;
            match answers.iter().filter(|answer| !answer.is_done()).count() {
                0 => Ok(()),
                failed => Err(Failure::new(format!("{failed} of {} commands not done", answers.len()))),
            }
        })
    }

    fn print<T: Serialize + Display>(&self, lines: &[T], out: &mut impl Write) -> CliResult {
        for line in lines {
            match self.json {
                true => writeln!(out, "{}", serde_json::to_string(line)?)?,
                false => writeln!(out, "{line}")?,
            }
        }
        Ok(())
    }

    /// Returns the commands to publish.
    fn build_commands(&self) -> Result<Vec<PendingCommand>, Failure> {
        if let CommandKind::Reassign(ReassignArgs { set: Some(file), .. }) = &self.kind {
            return read_set(file);
        }
        let first = self.id.map_or_else(random_bytes, Ok)?;
        let several = |actions: Vec<CommandAction<'static>>| {
            let id = |number| if actions.len() > 1 { nth_id(first, number) } else { first };
            (0..).zip(&actions).map(|(number, action)| PendingCommand::new(id(number), action.clone())).collect()
        };
        let each = |txids: &TxidArgs, action: &dyn Fn(Txid) -> CommandAction<'static>| {
            Ok(several(txids.read()?.into_iter().map(action).collect()))
        };
        let each_output = |outpoints: &[Outpoint], action: fn(Outpoint) -> CommandAction<'static>| {
            Ok(several(outpoints.iter().copied().map(action).collect()))
        };
        let action = match &self.kind {
            CommandKind::Freeze { outpoints } => {
                return each_output(outpoints, |outpoint| CommandAction::Freeze { outpoint });
            }
            CommandKind::Unfreeze { outpoints } => {
                return each_output(outpoints, |outpoint| CommandAction::Unfreeze { outpoint });
            }
            CommandKind::FreezeUntil { outpoint, height } => {
                CommandAction::FreezeUntil { outpoint: *outpoint, height: *height }
            }
            CommandKind::Reassign(args) => args.build_action()?,
            CommandKind::Lock(txids) => return each(txids, &|txid| CommandAction::Lock { txid }),
            CommandKind::Unlock(txids) => return each(txids, &|txid| CommandAction::Unlock { txid }),
            CommandKind::FreezeTransaction(txids) => {
                return each(txids, &|txid| CommandAction::FreezeTransaction { txid });
            }
            CommandKind::UnfreezeTransaction(txids) => {
                return each(txids, &|txid| CommandAction::UnfreezeTransaction { txid });
            }
            CommandKind::Reconsider(txids) => return each(txids, &|txid| CommandAction::Reconsider { txid }),
            CommandKind::Preserve { txids, until } => {
                return each(txids, &|txid| CommandAction::Preserve { txid, until: *until });
            }
            CommandKind::SetConflicting { txid } => CommandAction::SetConflicting { txid: *txid },
            CommandKind::Delete { txid } => CommandAction::Delete { txid: *txid },
            CommandKind::Unspend { outpoint, spender, input } => {
                CommandAction::Unspend { outpoint: *outpoint, spender: *spender, input: *input }
            }
            CommandKind::List { .. } | CommandKind::Decide(_) => return Ok(Vec::new()),
        };
        Ok(vec![PendingCommand::new(first, action)])
    }
}

impl ReassignArgs {
    fn build_action(&self) -> Result<CommandAction<'_>, UsageError> {
        let missing =
            || UsageError("give an outpoint, --utxo-hash, --script, --satoshis and --height; or --set".to_owned());
        Ok(CommandAction::Reassign {
            outpoint: self.outpoint.ok_or_else(missing)?,
            utxo_hash: self.utxo_hash.ok_or_else(missing)?,
            new_script: self.script.as_deref().ok_or_else(missing)?,
            satoshis: self.satoshis.ok_or_else(missing)?,
            height: self.height.ok_or_else(missing)?,
            spendable_after: self.spendable_after,
        })
    }
}

/// Reads reassignments, one JSON object per line. Empty lines are skipped.
fn read_set(file: &Path) -> Result<Vec<PendingCommand>, Failure> {
    let bytes = fs::read(file).map_err(|error| unreadable(file, &error))?;
    let text = decode_utf8(&bytes).map_err(|error| unreadable(file, &error))?;
    let mut commands = Vec::new();
    for (line, json) in (1..).zip(text.lines()).filter(|(_, json)| !json.trim().is_empty()) {
        let wrong = |why: &str| UsageError(format!("{}, line {line}: {why}", file.display()));
        let message = from_json(json).map_err(|error| wrong(&error.to_string()))?;
        match Event::decode(&message) {
            Ok(Event::Command(Command { id, action: action @ CommandAction::Reassign { .. } })) => {
                commands.push(PendingCommand::new(id, action));
            }
            _ => return Err(wrong("is not a command that reassigns an output").into()),
        }
    }
    if commands.is_empty() {
        return Err(UsageError(format!("{}: there is no command in this file", file.display())).into());
    }
    Ok(commands)
}

/// Derives the id of a command from the given id, so that the same command line has the same ids again.
fn nth_id(first: [u8; 16], number: u64) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&first).update(&number.to_le_bytes());
    let mut id = [0; 16];
    id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    id
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        command: CommandArgs,
    }

    const TXID: &str = "4a5e1e4baab89f3a32518a88c31bc87f618f76673e2cc77ab2127b7afdeda33b";

    fn parsed(line: &str) -> Result<Program, clap::Error> {
        let line = line.replace("TX", TXID);
        Program::try_parse_from(std::iter::once("command").chain(line.split_whitespace()))
    }

    fn commands(line: &str) -> Result<Vec<PendingCommand>, String> {
        let program = parsed(line).map_err(|error| error.to_string())?;
        program.command.build_commands().map_err(|failure| failure.to_string())
    }

    #[test]
    fn help_has_an_example() {
        let mut command = Program::command();
        command.clone().debug_assert();
        assert!(command.render_help().to_string().contains("utxo-store command --config"));
    }

    #[test]
    fn a_reassignment_is_spendable_a_thousand_blocks_later() {
        let hash = "ab".repeat(32);
        let line = format!("reassign TX:1 --utxo-hash {hash} --script 51 --satoshis 7 --height 900");
        let CommandKind::Reassign(args) = parsed(&line).unwrap().command.kind else { panic!() };
        let action = args.build_action().unwrap();
        assert!(
            matches!(action, CommandAction::Reassign { spendable_after: 1_000, new_script: [0x51], .. }),
            "{action:?}"
        );
        assert!(commands("reassign TX:1 --script 51").unwrap_err().contains("--utxo-hash"));
    }

    #[test]
    fn several_commands_have_ids_derived_from_the_given_one() {
        let id = "00".repeat(16);
        let line = format!("--id {id} freeze TX:0 TX:1");
        let ids = || commands(&line).unwrap().iter().map(|command| format!("{command:?}")).collect::<Vec<_>>();
        assert_eq!((ids().len(), ids()), (2, ids()));
        assert_ne!(ids()[0], ids()[1]);
        assert!(commands("--id 00 freeze TX:0").unwrap_err().contains("32 hexadecimal digits"));
    }

    #[test]
    fn transactions_are_read_from_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let line = format!("--id {} unlock --from {}", "11".repeat(16), file.path().display());
        let [one, other] = ["ab".repeat(32), "cd".repeat(32)];
        fs::write(file.path(), format!("{one}\n\n  {other}\r\n")).unwrap();
        assert_eq!(commands(&line), commands(&format!("--id {} unlock {one} {other}", "11".repeat(16))));
        assert_eq!(commands(&line).unwrap().len(), 2);
        fs::write(file.path(), format!("{one}\nabc\n")).unwrap();
        assert!(commands(&line).unwrap_err().contains(", line 2: "), "{:?}", commands(&line));
        fs::write(file.path(), "\n").unwrap();
        assert!(commands(&line).unwrap_err().contains("there is no txid in this file"));
        assert!(commands("unlock --from /no/such/file").unwrap_err().contains("cannot read /no/such/file"));
        assert!(commands("unlock").is_err() && commands("preserve --until 3").is_err());
        assert!(commands(&format!("{line} TX")).is_err(), "either transactions or a file");
    }

    /// Each command line gives one action, and the action is printed as that command line.
    #[test]
    fn command_lines_and_actions_correspond() {
        let hash = "ab".repeat(32);
        let (txid, spender): (Txid, Txid) = (TXID.parse().unwrap(), "cd".repeat(32).parse().unwrap());
        let outpoint = Outpoint { txid, vout: 7 };
        let reassign =
            format!("reassign TX:7 --utxo-hash {hash} --script 5152 --satoshis 9 --height 3 --spendable-after 4");
        let actions = [
            ("lock TX", CommandAction::Lock { txid }),
            ("unlock TX", CommandAction::Unlock { txid }),
            ("freeze TX:7", CommandAction::Freeze { outpoint }),
            ("unfreeze TX:7", CommandAction::Unfreeze { outpoint }),
            ("freeze-until TX:7 --height 5", CommandAction::FreezeUntil { outpoint, height: 5 }),
            (
                reassign.as_str(),
                CommandAction::Reassign {
                    outpoint,
                    utxo_hash: hash.parse().unwrap(),
                    new_script: &[0x51, 0x52],
                    satoshis: 9,
                    height: 3,
                    spendable_after: 4,
                },
            ),
            (
                "unspend TX:7 --input 2 --spender cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd",
                CommandAction::Unspend { outpoint, spender, input: 2 },
            ),
            ("set-conflicting TX", CommandAction::SetConflicting { txid }),
            ("reconsider TX", CommandAction::Reconsider { txid }),
            ("preserve TX --until 6", CommandAction::Preserve { txid, until: 6 }),
            ("delete TX", CommandAction::Delete { txid }),
            ("freeze-transaction TX", CommandAction::FreezeTransaction { txid }),
            ("unfreeze-transaction TX", CommandAction::UnfreezeTransaction { txid }),
        ];
        let id = [0x11; 16];
        for (line, action) in actions {
            let parsed = commands(&format!("--id {} {line}", "11".repeat(16))).unwrap();
            assert_eq!(parsed, [PendingCommand::new(id, action.clone())], "{line}");
            assert_eq!(crate::client::command_line::CommandLine(&action).to_string(), line.replace("TX", TXID));
        }
        assert_eq!(commands("list").unwrap(), []);
    }

    #[test]
    fn a_set_is_read_line_by_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let line = format!("reassign --set {}", file.path().display());
        let golden = include_str!("../../schemas/golden/command.jsonl");
        let reassignments: String = golden.lines().filter(|line| line.contains("reassign")).collect();
        fs::write(file.path(), format!("\n{reassignments}\n")).unwrap();
        assert_eq!(commands(&line).unwrap().len(), 1);
        fs::write(file.path(), format!("\u{feff}{reassignments}\n")).unwrap();
        assert_eq!(commands(&line).unwrap().len(), 1);
        fs::write(file.path(), golden).unwrap();
        assert!(commands(&line).unwrap_err().contains("line 1: is not a command that reassigns"));
        fs::write(file.path(), "").unwrap();
        assert!(commands(&line).unwrap_err().contains("no command in this file"));
    }
}
