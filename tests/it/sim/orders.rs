//! Commands in plans: what they ask for, as text and back, and where a seed puts them.

use std::{collections::BTreeMap, fmt};

use bytes::Bytes;
use utxo_store::{
    event::{Action, Command, Event},
    seeded::Seeded,
    tx::{Outpoint, utxo_hash},
};

use super::{
    plan::{BASE_HEIGHT, Lie, Plan, Step, Tx},
    swarm,
};
use crate::world::{Coin, Made};

/// What a command asks for; outputs are (transaction, index).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Lock {
        tx: u32,
    },
    Unlock {
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
    /// To the one new owner that there is; `from_owner`: who has it already.
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

use Order::{Delete, Freeze, FreezeUntil, Lock, Preserve, Reassign, SetConflicting, Unfreeze, Unlock, Unspend};

/// The new owner's script.
const OWNER: &[u8] = &[0x53, 0x99];
/// Blocks from a reassignment on until its new owner can spend.
const SPENDABLE_AFTER: u32 = 5;

/// What an output is once its new owner has it.
pub fn owned(coin: &Coin) -> Coin {
    Coin { script: OWNER.to_vec(), ..coin.clone() }
}

impl Order {
    pub fn name(&self) -> &'static str {
        match self {
            Lock { .. } => "lock",
            Unlock { .. } => "unlock",
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

    /// The transactions that it names.
    pub fn names(&self) -> Vec<u32> {
        match *self {
            Lock { tx } | Unlock { tx } | SetConflicting { tx } | Preserve { tx, .. } | Delete { tx } => vec![tx],
            Freeze { output } | Unfreeze { output } | FreezeUntil { output, .. } | Reassign { output, .. } => {
                vec![output.0]
            }
            Unspend { output, spender, .. } => vec![output.0, spender],
        }
    }

    /// The output that it may keep from being spent as its transaction says.
    pub fn bars(&self) -> Option<(u32, u32)> {
        match *self {
            Freeze { output } | FreezeUntil { output, .. } | Reassign { output, .. } => Some(output),
            _ => None,
        }
    }

    /// The transaction that it may delete.
    pub fn deletes(&self) -> Option<u32> {
        match *self {
            Delete { tx } => Some(tx),
            _ => None,
        }
    }

    pub fn event(&self, id: u32, made: &BTreeMap<u32, Made>) -> Vec<u8> {
        let outpoint = |(tx, vout): (u32, u32)| Outpoint { txid: made[&tx].txid, vout };
        let txid = |tx: u32| made[&tx].txid;
        let action = match *self {
            Lock { tx } => Action::Lock { txid: txid(tx) },
            Unlock { tx } => Action::Unlock { txid: txid(tx) },
            SetConflicting { tx } => Action::SetConflicting { txid: txid(tx) },
            Delete { tx } => Action::Delete { txid: txid(tx) },
            Preserve { tx, until } => Action::Preserve { txid: txid(tx), until },
            Freeze { output } => Action::Freeze { outpoint: outpoint(output) },
            Unfreeze { output } => Action::Unfreeze { outpoint: outpoint(output) },
            FreezeUntil { output, height } => Action::FreezeUntil { outpoint: outpoint(output), height },
            Unspend { output, spender, input } => {
                Action::Unspend { outpoint: outpoint(output), spender: txid(spender), input }
            }
            Reassign { output: (tx, vout), height, from_owner } => {
                let there = made[&tx].outputs.len() as u32;
                let coin = made[&tx].coin(vout.min(there.saturating_sub(1)));
                let now = if from_owner { owned(&coin) } else { coin.clone() };
                Action::Reassign {
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

/// The key of a command in the chain.
pub fn key() -> Bytes {
    Bytes::from_static(b"command")
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name())?;
        match *self {
            Lock { tx } | Unlock { tx } | SetConflicting { tx } | Delete { tx } => write!(f, " {tx}"),
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

/// The words behind the id of a command.
pub fn read(words: &[&str]) -> Result<Order, String> {
    let number = |word: &&str| word.parse::<u32>().map_err(|_| format!("`{word}` is no number"));
    let (name, rest) = words.split_first().ok_or("which command?")?;
    let numbers = rest.iter().map(number).collect::<Result<Vec<u32>, String>>()?;
    Ok(match (*name, numbers[..].as_ref()) {
        ("lock", &[tx]) => Lock { tx },
        ("unlock", &[tx]) => Unlock { tx },
        ("set-conflicting", &[tx]) => SetConflicting { tx },
        ("delete", &[tx]) => Delete { tx },
        ("preserve", &[tx, until]) => Preserve { tx, until },
        ("freeze", &[tx, vout]) => Freeze { output: (tx, vout) },
        ("unfreeze", &[tx, vout]) => Unfreeze { output: (tx, vout) },
        ("freeze-until", &[tx, vout, height]) => FreezeUntil { output: (tx, vout), height },
        ("reassign", &[tx, vout, height, from]) => Reassign { output: (tx, vout), height, from_owner: from == 1 },
        ("unspend", &[tx, vout, spender, input]) => Unspend { output: (tx, vout), spender, input },
        _ => return Err(format!("`{}` is no command", words.join(" "))),
    })
}

/// Commands of every kind at random times, in a third of the histories or in all with `SIM_COMMANDS=1`: on what is live, conflicting, in
/// flight, or never comes. Of dice of their own: all else stays as it is without them.
pub fn command_some(plan: &mut Plan, seed: u64) {
    let mut dice = Seeded::new(seed ^ u64::from_be_bytes(*b"commands"));
    let all = std::env::var("SIM_COMMANDS").is_ok_and(|text| text == "1");
    if swarm::is_out("commands") || (dice.below(3) > 0 && !all) {
        return;
    }
    let share = *dice.pick(&[0.05, 0.15, 0.4]);
    let mut author = Author { dice, next_id: 0, given: Vec::new(), frozen: Vec::new(), seen: Vec::new() };
    let mut at = 0;
    while at < plan.steps.len() {
        author.see(plan, at);
        at += 1;
        if !author.seen.is_empty() && author.dice.chance(share) {
            for step in author.steps(plan) {
                plan.steps.insert(at, step);
                at += 1;
            }
        }
    }
}

struct Author {
    dice: Seeded,
    next_id: u32,
    given: Vec<(u32, Order)>,
    frozen: Vec<(u32, u32)>,
    /// Transactions that steps so far have named.
    seen: Vec<u32>,
}

impl Author {
    fn see(&mut self, plan: &Plan, at: usize) {
        match &plan.steps[at] {
            Step::Seed { tx, .. } | Step::Validate { tx, .. } => self.seen.push(*tx),
            Step::Mine { coinbase, .. } | Step::MineAside { coinbase, .. } => self.seen.push(*coinbase),
            Step::Reorg { come, .. } => self.seen.extend(come.iter().map(|run| run.coinbase)),
            _ => {}
        }
    }

    fn below(&mut self, bound: u32) -> u32 {
        self.dice.below(u64::from(bound)) as u32
    }

    /// One of those that came last, mostly; sometimes any, which may never come.
    fn target(&mut self, plan: &Plan) -> u32 {
        let any = *self.dice.pick(&plan.txs.keys().copied().collect::<Vec<_>>());
        if self.dice.below(5) == 0 {
            return any;
        }
        let back = self.below(self.seen.len().min(8) as u32) as usize;
        self.seen[self.seen.len() - 1 - back]
    }

    fn output(&mut self, plan: &Plan) -> (u32, u32) {
        let tx = self.target(plan);
        // What somebody spends, or an output of it; sometimes one that does not exist.
        match &plan.txs[&tx] {
            Tx::Spend { inputs, .. } if self.dice.below(2) == 0 => *self.dice.pick(inputs),
            Tx::Spend { outputs, .. } | Tx::Seed { outputs } => (tx, self.below(outputs + 1)),
            Tx::Coinbase => (tx, self.below(2)),
        }
    }

    fn steps(&mut self, plan: &mut Plan) -> Vec<Step> {
        if self.dice.below(6) == 0
            && let Some((id, order)) = self.given.last().copied()
        {
            return vec![Step::Command { id, order }];
        }
        let order = self.order(plan);
        let id = self.next_id;
        self.next_id += 1;
        self.given.push((id, order));
        let mut steps = vec![Step::Command { id, order }];
        if let Reassign { output, .. } = order
            && output.1 < outputs_of(&plan.txs[&output.0])
        {
            let tx = plan.txs.keys().last().map_or(0, |last| last + 1);
            plan.txs.insert(tx, Tx::Spend { inputs: vec![output], outputs: 1 });
            let height = *self.dice.pick(&[BASE_HEIGHT, 100_000]);
            let lie = if self.dice.below(4) == 0 { None } else { Some(Lie::Owner) };
            steps.push(Step::Validate { tx, height, locked: false, lie });
        }
        steps
    }

    fn order(&mut self, plan: &Plan) -> Order {
        let height = *self.dice.pick(&[BASE_HEIGHT - 10, BASE_HEIGHT + 3, 99_999, 100_001, u32::MAX]);
        let frozen = if self.dice.below(4) == 0 { None } else { self.frozen.pop() };
        match (self.dice.below(14), frozen) {
            (0..4, Some(output)) => Unfreeze { output },
            (4..7, Some(output)) => {
                let from_owner = self.dice.below(4) == 0;
                self.frozen.push(output);
                Reassign { output, height: *self.dice.pick(&[BASE_HEIGHT - 10, 100_000]), from_owner }
            }
            (choice, kept) => {
                self.frozen.extend(kept);
                self.other(choice, plan, height)
            }
        }
    }

    fn other(&mut self, choice: u64, plan: &Plan, height: u32) -> Order {
        match choice {
            0..3 => {
                let output = self.output(plan);
                self.frozen.push(output);
                Freeze { output }
            }
            3 => Unfreeze { output: self.output(plan) },
            4 => FreezeUntil { output: self.output(plan), height },
            5 => Reassign { output: self.output(plan), height, from_owner: false },
            6 | 7 => Lock { tx: self.target(plan) },
            8 => Unlock { tx: self.target(plan) },
            9 | 10 => SetConflicting { tx: self.target(plan) },
            11 => Preserve { tx: self.target(plan), until: height },
            12 => Delete { tx: self.target(plan) },
            _ => {
                let spender = self.target(plan);
                match &plan.txs[&spender] {
                    Tx::Spend { inputs, .. } => {
                        let input = self.below(inputs.len() as u32);
                        Unspend { output: inputs[input as usize], spender, input }
                    }
                    _ => Unspend { output: self.output(plan), spender, input: 0 },
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
