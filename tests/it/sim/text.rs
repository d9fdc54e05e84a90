//! Text form of a plan: one item a line (or between semicolons), written and parsed.

use std::{collections::BTreeMap, fmt, str::FromStr};

use super::{
    commands,
    plan::{Lie, ONE_PAGE, Plan, Poison, Run, Step, Tx},
    swarm,
};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "dice {}", self.rng_seed)?;
        writeln!(f, "heights {}", self.height_step)?;
        writeln!(f, "session {}", self.session_ms)?;
        writeln!(f, "batch {}", self.batch)?;
        writeln!(f, "pages {}", self.page_size)?;
        self.inline_limit.iter().try_for_each(|limit| writeln!(f, "inline {limit}"))?;
        self.longest_body.iter().try_for_each(|longest| writeln!(f, "longest {longest}"))?;
        self.prune_after.iter().try_for_each(|blocks| writeln!(f, "prune {blocks}"))?;
        for (name, rate) in &self.faults {
            writeln!(f, "fault {name} {rate}")?;
        }
        for id in self.used() {
            match &self.txs[&id] {
                Tx::Seed { outputs } => writeln!(f, "tx {id} seed {outputs}")?,
                Tx::Coinbase => writeln!(f, "tx {id} coinbase")?,
                Tx::Spend { inputs, outputs } => {
                    write!(f, "tx {id} spends")?;
                    for (tx, vout) in inputs {
                        write!(f, " {tx}:{vout}")?;
                    }
                    writeln!(f, " makes {outputs}")?;
                }
            }
        }
        for step in &self.steps {
            writeln!(f, "{step}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Seed { tx, other } => write!(f, "seed {tx}{}", if *other { " other" } else { "" }),
            Step::Validate { tx, height, locked, lie } => {
                write!(f, "validate {tx} height {height}")?;
                if *locked {
                    write!(f, " locked")?;
                }
                match lie {
                    None => Ok(()),
                    Some(Lie::Amount) => write!(f, " lie-amount"),
                    Some(Lie::Script) => write!(f, " lie-script"),
                    Some(Lie::Owner) => write!(f, " lie-owner"),
                }
            }
            Step::Poison { kind } => write!(f, "poison {}", poison_name(*kind)),
            Step::Mine { coinbase, listed } => {
                write!(f, "mine {coinbase}")?;
                listed.iter().try_for_each(|tx| write!(f, " {tx}"))
            }
            Step::MineSideChain { below, coinbase, listed } => {
                write!(f, "mine-aside {below} {coinbase}")?;
                listed.iter().try_for_each(|tx| write!(f, " {tx}"))
            }
            Step::Reorg { disconnect, connect } => {
                write!(f, "reorg {disconnect}")?;
                for Run { coinbase, listed } in connect {
                    write!(f, " / {coinbase}")?;
                    listed.iter().try_for_each(|tx| write!(f, " {tx}"))?;
                }
                Ok(())
            }
            Step::Reconsider { tx } => write!(f, "reconsider {tx}"),
            Step::Command { id, command } => write!(f, "command {id} {command}"),
            Step::Sleep { ms } => write!(f, "sleep {ms}"),
            Step::Start { slot } => write!(f, "start {slot}"),
            Step::Stop { slot } => write!(f, "stop {slot}"),
            Step::Crash { slot, ticks } => write!(f, "crash {slot} after {ticks}"),
            Step::Pause { slot, lost: false } => write!(f, "pause {slot}"),
            Step::Pause { slot, lost: true } => write!(f, "pause {slot} lost"),
            Step::Deafen { slot } => write!(f, "deafen {slot}"),
            Step::Wake { slot } => write!(f, "wake {slot}"),
            Step::Rebalance => write!(f, "rebalance"),
            Step::LoseAssignments => write!(f, "lose-assignments"),
            Step::DeliverLate => write!(f, "deliver-late"),
        }
    }
}

const POISONS: [(Poison, &str); 4] = [
    (Poison::Garbage, "garbage"),
    (Poison::WrongKey, "wrong-key"),
    (Poison::WrongTopic, "wrong-topic"),
    (Poison::Chain, "chain"),
];

fn poison_name(kind: Poison) -> &'static str {
    POISONS.iter().find(|(poison, _)| *poison == kind).map_or("", |(_, name)| name)
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut plan = Plan {
            rng_seed: 0,
            height_step: 1,
            session_ms: 0,
            batch: 16,
            page_size: ONE_PAGE,
            inline_limit: None,
            longest_body: None,
            prune_after: None,
            faults: BTreeMap::new(),
            txs: BTreeMap::new(),
            steps: Vec::new(),
        };
        for line in text.split(['\n', ';']) {
            let line = line.split('#').next().unwrap_or("");
            let words: Vec<&str> = line.split_whitespace().collect();
            if !words.is_empty() {
                plan.parse_line(&words).map_err(|why| format!("`{line}`: {why}"))?;
            }
        }
        Ok(plan)
    }
}

fn number<T: FromStr>(words: &[&str], at: usize) -> Result<T, String> {
    let word = words.get(at).ok_or("a number is missing")?;
    word.parse().map_err(|_| format!("`{word}` is not a number"))
}

fn numbers<T: FromStr>(words: &[&str]) -> Result<Vec<T>, String> {
    (0..words.len()).map(|at| number(words, at)).collect()
}

impl Plan {
    fn parse_line(&mut self, words: &[&str]) -> Result<(), String> {
        match words[0] {
            "dice" => self.rng_seed = number(words, 1)?,
            "heights" => self.height_step = number(words, 1)?,
            "session" => self.session_ms = number(words, 1)?,
            "batch" => self.batch = number(words, 1)?,
            "pages" => self.page_size = number(words, 1)?,
            "inline" => self.inline_limit = Some(number(words, 1)?),
            "longest" => self.longest_body = Some(number(words, 1)?),
            "prune" => self.prune_after = Some(number(words, 1)?),
            "fault" => {
                let known = words.get(1).and_then(|name| swarm::find_fault(name));
                let name = known.ok_or("the fault is unknown")?;
                self.faults.insert(name, number(words, 2)?);
            }
            "tx" => drop(self.txs.insert(number(words, 1)?, parse_tx(&words[2..])?)),
            _ => self.steps.push(parse_step(words)?),
        }
        Ok(())
    }
}

fn parse_tx(words: &[&str]) -> Result<Tx, String> {
    match *words {
        ["seed", outputs] => Ok(Tx::Seed { outputs: number(&[outputs], 0)? }),
        ["coinbase"] => Ok(Tx::Coinbase),
        ["spends", ref inputs @ .., "makes", outputs] => {
            let outpoint = |word: &&str| {
                let (tx, vout) =
                    word.split_once(':').ok_or(format!("`{word}` is not an output (transaction:index)"))?;
                Ok((number(&[tx], 0)?, number(&[vout], 0)?))
            };
            let inputs = inputs.iter().map(outpoint).collect::<Result<_, String>>()?;
            Ok(Tx::Spend { inputs, outputs: number(&[outputs], 0)? })
        }
        _ => Err("expected `seed N`, `coinbase`, or `spends T:N … makes N`".to_owned()),
    }
}

fn parse_step(words: &[&str]) -> Result<Step, String> {
    let slot = || number(words, 1);
    Ok(match words[0] {
        "seed" => Step::Seed { tx: number(words, 1)?, other: words.contains(&"other") },
        "validate" => {
            let lies = [("lie-amount", Lie::Amount), ("lie-script", Lie::Script), ("lie-owner", Lie::Owner)];
            let lie = lies.into_iter().find(|(name, _)| words.contains(name)).map(|(_, lie)| lie);
            Step::Validate { tx: number(words, 1)?, height: number(words, 3)?, locked: words.contains(&"locked"), lie }
        }
        "poison" => {
            let named = POISONS.iter().find(|(_, name)| words.get(1) == Some(name));
            Step::Poison { kind: named.ok_or("the kind of poison is unknown")?.0 }
        }
        "mine" => Step::Mine { coinbase: number(words, 1)?, listed: numbers(&words[2..])? },
        "mine-aside" => {
            Step::MineSideChain { below: number(words, 1)?, coinbase: number(words, 2)?, listed: numbers(&words[3..])? }
        }
        "reorg" => {
            let run = |words: &[&str]| Ok(Run { coinbase: number(words, 0)?, listed: numbers(&words[1..])? });
            let connect = words.split(|word| *word == "/").skip(1).map(run).collect::<Result<_, String>>()?;
            Step::Reorg { disconnect: number(words, 1)?, connect }
        }
        "reconsider" => Step::Reconsider { tx: number(words, 1)? },
        "command" => Step::Command { id: number(words, 1)?, command: commands::parse(words.get(2..).unwrap_or(&[]))? },
        "sleep" => Step::Sleep { ms: number(words, 1)? },
        "start" => Step::Start { slot: slot()? },
        "stop" => Step::Stop { slot: slot()? },
        "crash" => Step::Crash { slot: slot()?, ticks: number(words, 3)? },
        "pause" => Step::Pause { slot: slot()?, lost: words.contains(&"lost") },
        "deafen" => Step::Deafen { slot: slot()? },
        "wake" => Step::Wake { slot: slot()? },
        "rebalance" => Step::Rebalance,
        "lose-assignments" => Step::LoseAssignments,
        "deliver-late" => Step::DeliverLate,
        other => return Err(format!("`{other}` is not a step")),
    })
}

#[test]
fn a_printed_plan_parses_to_the_same_plan() {
    for seed in 0..200 {
        let mut plan = super::history::plan(seed);
        let used = plan.used();
        plan.txs.retain(|id, _| used.contains(id));
        let read: Plan = plan.to_string().parse().unwrap();
        assert_eq!(read, plan, "seed {seed}");
    }
}
