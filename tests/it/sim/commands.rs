//! Commands of operators in plans: their text form, and the generator that places them.

use std::{collections::BTreeMap, fmt};

use bytes::Bytes;
use utxo_store::{
    event::{Command, CommandAction, Event},
    rng::SplitMix64,
    tx::{Outpoint, utxo_hash},
};

use super::{
    plan::{BASE_HEIGHT, Lie, Plan, Step, Tx},
    swarm,
};
use crate::harness::{Coin, Made};

/// The action of a command; an output is (transaction, index).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlannedCommand {
    Lock {
        tx: u32,
    },
    Unlock {
        tx: u32,
    },
    FreezeTransaction {
        tx: u32,
    },
    UnfreezeTransaction {
        tx: u32,
    },
    Freeze {
        output: (u32, u32),
    },
    Unfreeze {
        output: (u32, u32),
    },
    FreezeUntil {
        output: (u32, u32),
        height: u32,
    },
    /// Reassigns to the one new owner of the simulator; `from_owner` says that this owner already has the output.
    Reassign {
        output: (u32, u32),
        height: u32,
        from_owner: bool,
    },
    Unspend {
        output: (u32, u32),
        spender: u32,
        input: u32,
    },
    SetConflicting {
        tx: u32,
    },
    Preserve {
        tx: u32,
        until: u32,
    },
    Delete {
        tx: u32,
    },
}

use PlannedCommand::{
    Delete, Freeze, FreezeTransaction, FreezeUntil, Lock, Preserve, Reassign, SetConflicting, Unfreeze,
    UnfreezeTransaction, Unlock, Unspend,
};

/// Locking script of the new owner.
const OWNER: &[u8] = &[0x53, 0x99];
/// Blocks from a reassignment until the new owner can spend.
const SPENDABLE_AFTER: u32 = 5;

/// Returns the output as the new owner holds it.
pub fn reassigned(coin: &Coin) -> Coin {
    Coin { script: OWNER.to_vec(), ..coin.clone() }
}

impl PlannedCommand {
    pub fn name(&self) -> &'static str {
        match self {
            Lock { .. } => "lock",
            Unlock { .. } => "unlock",
            FreezeTransaction { .. } => "freeze-transaction",
            UnfreezeTransaction { .. } => "unfreeze-transaction",
            Freeze { .. } => "freeze",
            Unfreeze { .. } => "unfreeze",
            FreezeUntil { .. } => "freeze-until",
            Reassign { .. } => "reassign",
            Unspend { .. } => "unspend",
            SetConflicting { .. } => "set-conflicting",
            Preserve { .. } => "preserve",
            Delete { .. } => "delete",
        }
    }

    /// Returns the transactions that the command names.
    pub fn transactions(&self) -> Vec<u32> {
        match *self {
            Lock { tx }
            | Unlock { tx }
            | FreezeTransaction { tx }
            | UnfreezeTransaction { tx }
            | SetConflicting { tx }
            | Preserve { tx, .. }
            | Delete { tx } => vec![tx],
            Freeze { output } | Unfreeze { output } | FreezeUntil { output, .. } | Reassign { output, .. } => {
                vec![output.0]
            }
            Unspend { output, spender, .. } => vec![output.0, spender],
        }
    }

    /// Returns whether the command may make this output unspendable by its transaction's script.
    pub fn may_bar(&self, spent: (u32, u32)) -> bool {
        match *self {
            Freeze { output } | FreezeUntil { output, .. } | Reassign { output, .. } => output == spent,
            FreezeTransaction { tx } => tx == spent.0,
            _ => false,
        }
    }

    /// Returns the transaction that the command may delete.
    pub fn deleted(&self) -> Option<u32> {
        match *self {
            Delete { tx } => Some(tx),
            _ => None,
        }
    }

    pub fn event(&self, id: u32, made: &BTreeMap<u32, Made>) -> Vec<u8> {
        let outpoint = |(tx, vout): (u32, u32)| Outpoint { txid: made[&tx].txid, vout };
        let txid = |tx: u32| made[&tx].txid;
        let action = match *self {
            Lock { tx } => CommandAction::Lock { txid: txid(tx) },
            Unlock { tx } => CommandAction::Unlock { txid: txid(tx) },
            FreezeTransaction { tx } => CommandAction::FreezeTransaction { txid: txid(tx) },
            UnfreezeTransaction { tx } => CommandAction::UnfreezeTransaction { txid: txid(tx) },
            SetConflicting { tx } => CommandAction::SetConflicting { txid: txid(tx) },
            Delete { tx } => CommandAction::Delete { txid: txid(tx) },
            Preserve { tx, until } => CommandAction::Preserve { txid: txid(tx), until },
            Freeze { output } => CommandAction::Freeze { outpoint: outpoint(output) },
            Unfreeze { output } => CommandAction::Unfreeze { outpoint: outpoint(output) },
            FreezeUntil { output, height } => CommandAction::FreezeUntil { outpoint: outpoint(output), height },
            Unspend { output, spender, input } => {
                CommandAction::Unspend { outpoint: outpoint(output), spender: txid(spender), input }
            }
            Reassign { output: (tx, vout), height, from_owner } => {
                let there = made[&tx].outputs.len() as u32;
                let coin = made[&tx].coin(vout.min(there.saturating_sub(1)));
                let now = if from_owner { reassigned(&coin) } else { coin.clone() };
                CommandAction::Reassign {
                    outpoint: outpoint((tx, vout)),
                    utxo_hash: utxo_hash(&txid(tx), vout, &now.script, now.satoshis),
                    new_script: OWNER,
                    satoshis: coin.satoshis,
                    height,
                    spendable_after: SPENDABLE_AFTER,
                }
            }
        };
        let mut name = [0; 16];
        name[..4].copy_from_slice(&id.to_be_bytes());
        Event::Command(Command { id: name, action }).encode()
    }
}

/// Message key of commands in the chain topic.
pub fn key() -> Bytes {
    Bytes::from_static(b"command")
}

impl fmt::Display for PlannedCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name())?;
        match *self {
            Lock { tx }
            | Unlock { tx }
            | FreezeTransaction { tx }
            | UnfreezeTransaction { tx }
            | SetConflicting { tx }
            | Delete { tx } => write!(f, " {tx}"),
            Preserve { tx, until } => write!(f, " {tx} {until}"),
            Freeze { output: (tx, vout) } | Unfreeze { output: (tx, vout) } => write!(f, " {tx} {vout}"),
            FreezeUntil { output: (tx, vout), height } => write!(f, " {tx} {vout} {height}"),
            Reassign { output: (tx, vout), height, from_owner } => {
                write!(f, " {tx} {vout} {height} {}", u32::from(from_owner))
            }
            Unspend { output: (tx, vout), spender, input } => write!(f, " {tx} {vout} {spender} {input}"),
        }
    }
}

/// Parses the words after the id of a command.
pub fn parse(words: &[&str]) -> Result<PlannedCommand, String> {
    let number = |word: &&str| word.parse::<u32>().map_err(|_| format!("`{word}` is not a number"));
    let (name, rest) = words.split_first().ok_or("the name of the command is missing")?;
    let numbers = rest.iter().map(number).collect::<Result<Vec<u32>, String>>()?;
    Ok(match (*name, numbers[..].as_ref()) {
        ("lock", &[tx]) => Lock { tx },
        ("unlock", &[tx]) => Unlock { tx },
        ("freeze-transaction", &[tx]) => FreezeTransaction { tx },
        ("unfreeze-transaction", &[tx]) => UnfreezeTransaction { tx },
        ("set-conflicting", &[tx]) => SetConflicting { tx },
        ("delete", &[tx]) => Delete { tx },
        ("preserve", &[tx, until]) => Preserve { tx, until },
        ("freeze", &[tx, vout]) => Freeze { output: (tx, vout) },
        ("unfreeze", &[tx, vout]) => Unfreeze { output: (tx, vout) },
        ("freeze-until", &[tx, vout, height]) => FreezeUntil { output: (tx, vout), height },
        ("reassign", &[tx, vout, height, from]) => Reassign { output: (tx, vout), height, from_owner: from == 1 },
        ("unspend", &[tx, vout, spender, input]) => Unspend { output: (tx, vout), spender, input },
        _ => return Err(format!("`{}` is not a command", words.join(" "))),
    })
}

/// Adds commands of every kind at random times to a third of the histories, or to all with `SIM_COMMANDS=1`. Their
/// subjects are live, conflicting, in flight, or never produced. A separate generator keeps the rest of the plan as it
/// was.
pub fn add_commands(plan: &mut Plan, seed: u64) {
    let mut rng = SplitMix64::new(seed ^ u64::from_be_bytes(*b"commands"));
    let all = std::env::var("SIM_COMMANDS").is_ok_and(|text| text == "1");
    if swarm::is_excluded("commands") || (rng.below(3) > 0 && !all) {
        return;
    }
    let share = *rng.pick(&[0.05, 0.15, 0.4]);
    let flags = SplitMix64::new(seed ^ u64::from_be_bytes(*b"tx-flags"));
    let mut writer = CommandWriter { rng, flags, next_id: 0, issued: Vec::new(), frozen: Vec::new(), seen: Vec::new() };
    let mut at = 0;
    while at < plan.steps.len() {
        writer.record_step(plan, at);
        at += 1;
        if !writer.seen.is_empty() && writer.rng.chance(share) {
            for step in writer.next_steps(plan) {
                plan.steps.insert(at, step);
                at += 1;
            }
        }
    }
}

struct CommandWriter {
    rng: SplitMix64,
    /// Chooses between the two flags of a transaction. A generator of its own keeps the other commands of a seed.
    flags: SplitMix64,
    next_id: u32,
    issued: Vec<(u32, PlannedCommand)>,
    frozen: Vec<(u32, u32)>,
    /// Transactions named by the steps so far.
    seen: Vec<u32>,
}

impl CommandWriter {
    fn record_step(&mut self, plan: &Plan, at: usize) {
        match &plan.steps[at] {
            Step::Seed { tx, .. } | Step::Validate { tx, .. } => self.seen.push(*tx),
            Step::Mine { coinbase, .. } | Step::MineSideChain { coinbase, .. } => self.seen.push(*coinbase),
            Step::Reorg { connect, .. } => self.seen.extend(connect.iter().map(|run| run.coinbase)),
            _ => {}
        }
    }

    fn below(&mut self, bound: u32) -> u32 {
        self.rng.below(u64::from(bound)) as u32
    }

    /// Chooses mostly a recent transaction; sometimes any, which may never be produced.
    fn choose_transaction(&mut self, plan: &Plan) -> u32 {
        let any = *self.rng.pick(&plan.txs.keys().copied().collect::<Vec<_>>());
        if self.rng.below(5) == 0 {
            return any;
        }
        let steps_back = self.below(self.seen.len().min(8) as u32) as usize;
        self.seen[self.seen.len() - 1 - steps_back]
    }

    fn choose_output(&mut self, plan: &Plan) -> (u32, u32) {
        let tx = self.choose_transaction(plan);
        // An output that the transaction spends, or one of its own; sometimes one that does not exist.
        match &plan.txs[&tx] {
            Tx::Spend { inputs, .. } if self.rng.below(2) == 0 => *self.rng.pick(inputs),
            Tx::Spend { outputs, .. } | Tx::Seed { outputs } => (tx, self.below(outputs + 1)),
            Tx::Coinbase => (tx, self.below(2)),
        }
    }

    fn next_steps(&mut self, plan: &mut Plan) -> Vec<Step> {
        if self.rng.below(6) == 0
            && let Some((id, command)) = self.issued.last().copied()
        {
            return vec![Step::Command { id, command }];
        }
        let command = self.choose_command(plan);
        let id = self.next_id;
        self.next_id += 1;
        self.issued.push((id, command));
        let mut steps = vec![Step::Command { id, command }];
        if let Reassign { output, .. } = command
            && output.1 < outputs_of(&plan.txs[&output.0])
        {
            let tx = plan.txs.keys().last().map_or(0, |last| last + 1);
            plan.txs.insert(tx, Tx::Spend { inputs: vec![output], outputs: 1 });
            let height = *self.rng.pick(&[BASE_HEIGHT, 100_000]);
            let lie = if self.rng.below(4) == 0 { None } else { Some(Lie::Owner) };
            steps.push(Step::Validate { tx, height, locked: false, lie });
        }
        steps
    }

    fn choose_command(&mut self, plan: &Plan) -> PlannedCommand {
        let height = *self.rng.pick(&[BASE_HEIGHT - 10, BASE_HEIGHT + 3, 99_999, 100_001, u32::MAX]);
        let frozen = if self.rng.below(4) == 0 { None } else { self.frozen.pop() };
        match (self.rng.below(14), frozen) {
            (0..4, Some(output)) => Unfreeze { output },
            (4..7, Some(output)) => {
                let from_owner = self.rng.below(4) == 0;
                self.frozen.push(output);
                Reassign { output, height: *self.rng.pick(&[BASE_HEIGHT - 10, 100_000]), from_owner }
            }
            (choice, kept) => {
                self.frozen.extend(kept);
                self.choose_other(choice, plan, height)
            }
        }
    }

    fn choose_other(&mut self, choice: u64, plan: &Plan, height: u32) -> PlannedCommand {
        match choice {
            0..3 => {
                let output = self.choose_output(plan);
                self.frozen.push(output);
                Freeze { output }
            }
            3 => Unfreeze { output: self.choose_output(plan) },
            4 => FreezeUntil { output: self.choose_output(plan), height },
            5 => Reassign { output: self.choose_output(plan), height, from_owner: false },
            6..9 => {
                let tx = self.choose_transaction(plan);
                match (choice, self.flags.below(2)) {
                    (8, 0) => Unlock { tx },
                    (8, _) => UnfreezeTransaction { tx },
                    (_, 0) => Lock { tx },
                    _ => FreezeTransaction { tx },
                }
            }
            9 | 10 => SetConflicting { tx: self.choose_transaction(plan) },
            11 => Preserve { tx: self.choose_transaction(plan), until: height },
            12 => Delete { tx: self.choose_transaction(plan) },
            _ => {
                let spender = self.choose_transaction(plan);
                match &plan.txs[&spender] {
                    Tx::Spend { inputs, .. } => {
                        let input = self.below(inputs.len() as u32);
                        Unspend { output: inputs[input as usize], spender, input }
                    }
                    _ => Unspend { output: self.choose_output(plan), spender, input: 0 },
                }
            }
        }
    }
}

fn outputs_of(tx: &Tx) -> u32 {
    match tx {
        Tx::Seed { outputs } | Tx::Spend { outputs, .. } => *outputs,
        Tx::Coinbase => 1,
    }
}
