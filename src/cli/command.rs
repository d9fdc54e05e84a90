//! `utxo-store command`: asks the sequencer for a change, and waits for what became of it.

mod ask;
mod line;
mod list;

use std::{
    fmt::Display,
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Subcommand};
use serde::Serialize;

use super::{CommandResult, ConfigArgs, Failure, UsageError, block_on, opening, output};
use crate::{
    event::{Action, Command, Event, from_json},
    text::text_of,
    tx::{Outpoint, Txid, UtxoHash},
};

pub use ask::{Answer, Asked, Became, Topics, ask};
pub(super) use ask::{Asker, PAUSE};
pub(super) use line::Line;
pub use list::{Entry, audit};
pub(super) use list::{each, only};

const AFTER_HELP: &str = "\
A command is published to the chain topic and handled once, in its turn, by whoever holds the chain. What became of it is printed; the exit
code is 1 where anything was refused, or had no answer in time. A command that had no answer is handled all the same: ask again with the
same --id, which changes nothing and answers what became of it.

Example:
  utxo-store command --config utxo-store.toml freeze 4a5e1e4baab89f3a32518a88c31bc87f618f76673e2cc77ab2127b7afdeda33b:0
  utxo-store command --config utxo-store.toml preserve 4a5e1e…a33b --until 900000
  utxo-store command --config utxo-store.toml list";

/// Asks the sequencer for a change, and waits for what became of it
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct CommandArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Under which id, 32 hexadecimal digits; chosen by chance if not given. Of several commands each gets one that follows from it
    #[arg(long, value_name = "HEX", value_parser = id)]
    id: Option<[u8; 16]>,
    /// How long to wait for an answer, seconds
    #[arg(long, value_name = "S", default_value_t = 120)]
    timeout_s: u64,
    /// Print one JSON object a command
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Debug, Subcommand)]
enum Kind {
    /// Make the outputs of a transaction not spendable yet
    #[command(after_help = AFTER_HELP)]
    Lock { txid: Txid },
    /// Make the outputs of a locked transaction spendable
    #[command(after_help = AFTER_HELP)]
    Unlock { txid: Txid },
    /// Bar outputs until they are unfrozen or reassigned. A block that spends one of them halts the chain, for good: whoever freezes must be
    /// with the miners
    #[command(after_help = AFTER_HELP)]
    Freeze {
        #[arg(required = true)]
        outpoints: Vec<Outpoint>,
    },
    /// Free frozen outputs
    #[command(after_help = AFTER_HELP)]
    Unfreeze {
        #[arg(required = true)]
        outpoints: Vec<Outpoint>,
    },
    /// Bar an output below a height
    #[command(after_help = AFTER_HELP)]
    FreezeUntil {
        outpoint: Outpoint,
        /// The height from which it is spendable
        #[arg(long)]
        height: u32,
    },
    /// Give a frozen output to a new owner
    Reassign(ReassignArgs),
    /// Free an output that a transaction holds which is not live
    #[command(after_help = AFTER_HELP)]
    Unspend {
        outpoint: Outpoint,
        /// The transaction
        #[arg(long)]
        spender: Txid,
        /// The index of its input
        #[arg(long)]
        input: u32,
    },
    /// Make a transaction, and all that descends from it, conflicting
    #[command(after_help = AFTER_HELP)]
    SetConflicting { txid: Txid },
    /// Look again at a conflicting transaction
    #[command(after_help = AFTER_HELP)]
    Reconsider { txid: Txid },
    /// Keep a transaction from being pruned
    #[command(after_help = AFTER_HELP)]
    Preserve {
        txid: Txid,
        /// Until this height
        #[arg(long)]
        until: u32,
    },
    /// Forget a transaction that is conflicting by verdict
    #[command(after_help = AFTER_HELP)]
    Delete { txid: Txid },
    /// List the commands about frozen and reassigned outputs in the log, each with what became of it
    #[command(after_help = AFTER_HELP)]
    List {
        /// Commands of every kind
        #[arg(long)]
        all: bool,
    },
}

const SET_HELP: &str = "\
Example:
  utxo-store command --config utxo-store.toml reassign 4a5e1e…a33b:0 --utxo-hash 0123…cdef --script 76a9…88ac --satoshis 5000000000 --height 900000

A set is a file of commands, one JSON object a line, as `utxo-store events` has them; only reassignments:
  {\"event\":\"command\",\"id\":\"000102030405060708090a0b0c0d0e0f\",\"action\":{\"reassign\":{\"outpoint\":…}}}";

#[derive(Debug, Args)]
#[command(after_help = SET_HELP)]
struct ReassignArgs {
    /// The output
    #[arg(required_unless_present = "set", conflicts_with = "set")]
    outpoint: Option<Outpoint>,
    /// The UTXO hash that it must have now
    #[arg(long, required_unless_present = "set")]
    utxo_hash: Option<UtxoHash>,
    /// The new owner's locking script, hexadecimal digits
    #[arg(long, value_name = "HEX", required_unless_present = "set", value_parser = bytes)]
    script: Option<std::vec::Vec<u8>>,
    /// Its amount
    #[arg(long, required_unless_present = "set")]
    satoshis: Option<u64>,
    /// Block height of the reassignment
    #[arg(long, required_unless_present = "set")]
    height: Option<u32>,
    /// Blocks after that height from which the new owner can spend
    #[arg(long, default_value_t = 1_000)]
    spendable_after: u32,
    /// Reassign all outputs that this file lists, each under its own id
    #[arg(long, value_name = "FILE")]
    set: Option<PathBuf>,
}

fn id(text: &str) -> Result<[u8; 16], String> {
    let mut id = [0; 16];
    hex::decode_to_slice(text, &mut id).map_err(|_| "an id is 32 hexadecimal digits".to_owned())?;
    Ok(id)
}

fn bytes(text: &str) -> Result<Vec<u8>, String> {
    hex::decode(text).map_err(|error| format!("not hexadecimal: {error}"))
}

impl CommandArgs {
    /// Publishes, waits and prints; or lists.
    ///
    /// # Errors
    /// The log does not answer, something was refused or had no answer in time, or the set cannot be read.
    pub fn run(self) -> CommandResult {
        let config = self.config.load()?;
        let topics = Topics::of(&config.kafka.topics);
        let mut out = output::stdout();
        if let Kind::List { all } = self.kind {
            return block_on(async {
                let broker = opening::broker(&config).await?;
                let entries = audit(broker.as_ref(), &topics, all).await?;
                self.print(&entries, &mut out)
            });
        }
        let commands = self.commands()?;
        let timeout = Duration::from_secs(self.timeout_s);
        block_on(async {
            let broker = opening::broker(&config).await?;
            let answers = ask(broker.as_ref(), &topics, &commands, timeout).await?;
            self.print(&answers, &mut out)?;
            match answers.iter().filter(|answer| !answer.is_done()).count() {
                0 => Ok(()),
                failed => Err(Failure::new(format!("{failed} of {} commands not done", answers.len()))),
            }
        })
    }

    /// One line each.
    fn print<T: Serialize + Display>(&self, lines: &[T], out: &mut impl Write) -> CommandResult {
        for line in lines {
            match self.json {
                true => writeln!(out, "{}", serde_json::to_string(line)?)?,
                false => writeln!(out, "{line}")?,
            }
        }
        Ok(())
    }

    /// What is to be published.
    fn commands(&self) -> Result<Vec<Asked>, Failure> {
        if let Kind::Reassign(ReassignArgs { set: Some(file), .. }) = &self.kind {
            return read_set(file);
        }
        let first = self.id.map_or_else(random_id, Ok)?;
        let several = |outpoints: &[Outpoint], action: fn(Outpoint) -> Action<'static>| {
            let id = |number| if outpoints.len() > 1 { nth_id(first, number) } else { first };
            outpoints.iter().zip(0..).map(|(outpoint, number)| Asked::new(id(number), action(*outpoint))).collect()
        };
        let action = match &self.kind {
            Kind::Freeze { outpoints } => return Ok(several(outpoints, |outpoint| Action::Freeze { outpoint })),
            Kind::Unfreeze { outpoints } => return Ok(several(outpoints, |outpoint| Action::Unfreeze { outpoint })),
            Kind::FreezeUntil { outpoint, height } => Action::FreezeUntil { outpoint: *outpoint, height: *height },
            Kind::Reassign(args) => args.action()?,
            Kind::Lock { txid } => Action::Lock { txid: *txid },
            Kind::Unlock { txid } => Action::Unlock { txid: *txid },
            Kind::SetConflicting { txid } => Action::SetConflicting { txid: *txid },
            Kind::Reconsider { txid } => Action::Reconsider { txid: *txid },
            Kind::Delete { txid } => Action::Delete { txid: *txid },
            Kind::Preserve { txid, until } => Action::Preserve { txid: *txid, until: *until },
            Kind::Unspend { outpoint, spender, input } => {
                Action::Unspend { outpoint: *outpoint, spender: *spender, input: *input }
            }
            Kind::List { .. } => return Ok(Vec::new()),
        };
        Ok(vec![Asked::new(first, action)])
    }
}

impl ReassignArgs {
    fn action(&self) -> Result<Action<'_>, UsageError> {
        let missing = || UsageError("an outpoint, --utxo-hash, --script, --satoshis and --height, or --set".to_owned());
        Ok(Action::Reassign {
            outpoint: self.outpoint.ok_or_else(missing)?,
            utxo_hash: self.utxo_hash.ok_or_else(missing)?,
            new_script: self.script.as_deref().ok_or_else(missing)?,
            satoshis: self.satoshis.ok_or_else(missing)?,
            height: self.height.ok_or_else(missing)?,
            spendable_after: self.spendable_after,
        })
    }
}

/// Reassignments, one JSON object a line; empty lines are left out.
fn read_set(file: &Path) -> Result<Vec<Asked>, Failure> {
    let unreadable = |error: &dyn Display| Failure::new(format!("cannot read {}: {error}", file.display()));
    let bytes = fs::read(file).map_err(|error| unreadable(&error))?;
    let text = text_of(&bytes).map_err(|error| unreadable(&error))?;
    let mut commands = Vec::new();
    for (line, json) in (1..).zip(text.lines()).filter(|(_, json)| !json.trim().is_empty()) {
        let wrong = |why: &str| UsageError(format!("{}, line {line}: {why}", file.display()));
        let message = from_json(json).map_err(|error| wrong(&error.to_string()))?;
        match Event::decode(&message) {
            Ok(Event::Command(Command { id, action: action @ Action::Reassign { .. } })) => {
                commands.push(Asked::new(id, action));
            }
            _ => return Err(wrong("is no command that reassigns an output").into()),
        }
    }
    if commands.is_empty() {
        return Err(UsageError(format!("{} lists nothing", file.display())).into());
    }
    Ok(commands)
}

/// The same command line gives the same ids again.
fn nth_id(first: [u8; 16], number: u64) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&first).update(&number.to_le_bytes());
    let mut id = [0; 16];
    id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    id
}

pub(super) fn random_id() -> io::Result<[u8; 16]> {
    let mut id = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut id)?;
    Ok(id)
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

    fn commands(line: &str) -> Result<Vec<Asked>, String> {
        let program = parsed(line).map_err(|error| error.to_string())?;
        program.command.commands().map_err(|failure| failure.to_string())
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
        let Kind::Reassign(args) = parsed(&line).unwrap().command.kind else { panic!() };
        let action = args.action().unwrap();
        assert!(matches!(action, Action::Reassign { spendable_after: 1_000, new_script: [0x51], .. }), "{action:?}");
        assert!(commands("reassign TX:1 --script 51").unwrap_err().contains("--utxo-hash"));
    }

    #[test]
    fn each_of_several_has_an_id_that_follows_from_the_given_one() {
        let id = "00".repeat(16);
        let line = format!("--id {id} freeze TX:0 TX:1");
        let ids = || commands(&line).unwrap().iter().map(|asked| format!("{asked:?}")).collect::<Vec<_>>();
        assert_eq!((ids().len(), ids()), (2, ids()));
        assert_ne!(ids()[0], ids()[1]);
        assert!(commands("--id 00 freeze TX:0").unwrap_err().contains("32 hexadecimal digits"));
    }

    /// Every command, as it is written, as it is published, and as it is shown.
    #[test]
    fn each_line_is_the_action_that_it_names() {
        let hash = "ab".repeat(32);
        let (txid, spender): (Txid, Txid) = (TXID.parse().unwrap(), "cd".repeat(32).parse().unwrap());
        let outpoint = Outpoint { txid, vout: 7 };
        let reassign =
            format!("reassign TX:7 --utxo-hash {hash} --script 5152 --satoshis 9 --height 3 --spendable-after 4");
        let actions = [
            ("lock TX", Action::Lock { txid }),
            ("unlock TX", Action::Unlock { txid }),
            ("freeze TX:7", Action::Freeze { outpoint }),
            ("unfreeze TX:7", Action::Unfreeze { outpoint }),
            ("freeze-until TX:7 --height 5", Action::FreezeUntil { outpoint, height: 5 }),
            (
                reassign.as_str(),
                Action::Reassign {
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
                Action::Unspend { outpoint, spender, input: 2 },
            ),
            ("set-conflicting TX", Action::SetConflicting { txid }),
            ("reconsider TX", Action::Reconsider { txid }),
            ("preserve TX --until 6", Action::Preserve { txid, until: 6 }),
            ("delete TX", Action::Delete { txid }),
        ];
        let id = [0x11; 16];
        for (line, action) in actions {
            let asked = commands(&format!("--id {} {line}", "11".repeat(16))).unwrap();
            assert_eq!(asked, [Asked::new(id, action.clone())], "{line}");
            assert_eq!(Line(&action).to_string(), line.replace("TX", TXID));
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
        assert!(commands(&line).unwrap_err().contains("line 1: is no command that reassigns"));
        fs::write(file.path(), "").unwrap();
        assert!(commands(&line).unwrap_err().contains("lists nothing"));
    }
}
