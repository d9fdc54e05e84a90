//! Kills for real: SIGKILL to instances on fjall and on Aerospike, and to the Aerospike server, which keeps its records in a file or in
//! memory and is started again; under load, at random moments, in rounds. After each round everything is handled, all stop in order, and
//! the store is judged by `verify` and by the model.
//!
//! `make kill-test KILLS=200 RATE=100 SEED=7 KIND=fjall|aerospike|file|memory`; a few of each are in `make test`.

use std::{
    panic::{self, AssertUnwindSafe},
    time::{Duration, Instant},
};

use utxo_store::seeded::Seeded;

use super::{
    Ground, asked, asked_seed,
    crew::{Crew, Host, INSTANCES, Processes},
    give_up, judge,
    load::Author,
    under_load,
};
use crate::{
    aerospike_server::{AerospikeServer, FIT, Setup},
    kafka_server::KafkaServer,
};

/// Kills between two judgements; of a server that is emptied it is one.
const KILLS_A_ROUND: u64 = 10;

/// How many, how much, and which.
#[derive(Debug, Clone, Copy)]
struct Plan {
    kills: u64,
    /// Moments of the load a second.
    rate: u64,
    seed: u64,
}

/// What came of one kind.
#[derive(Debug, Default)]
struct Tally {
    kind: &'static str,
    kills: u64,
    rounds: u64,
    transactions: usize,
    messages: u64,
    /// The longest time from the end of the load until all was handled, s.
    handled_after: f64,
    took: f64,
}

impl Tally {
    const HEAD: &'static str = "kind                                          kills  judged  transactions  messages  all handled (s)  took (s)";

    fn line(&self) -> String {
        let Tally { kind, kills, rounds, transactions, messages, handled_after, took } = self;
        format!("{kind:<45}{kills:>6}{rounds:>8}{transactions:>14}{messages:>10}{handled_after:>17.1}{took:>10.0}")
    }
}

/// A kind that is under way.
struct Course {
    plan: Plan,
    author: Author,
    dice: Seeded,
    tally: Tally,
    started: Instant,
}

impl Course {
    fn new(kind: &'static str, plan: Plan) -> Self {
        eprintln!("{kind}: {plan:?}");
        Course {
            plan,
            author: Author::new(plan.seed),
            dice: Seeded::new(plan.seed ^ u64::from_be_bytes(*b"killings")),
            tally: Tally { kind, ..Tally::default() },
            started: Instant::now(),
        }
    }

    fn left(&self) -> u64 {
        self.plan.kills.saturating_sub(self.tally.kills)
    }

    /// `kills` times something is killed while there is load; everything that is to run does before each.
    fn kill_under_load(
        &mut self,
        ground: &Ground,
        crew: &mut dyn Crew,
        kills: u64,
        mut kill: impl FnMut(&mut dyn Crew, &mut Seeded) -> bool,
    ) {
        let Course { author, dice, tally, plan, .. } = self;
        let (messages, done) = under_load(&ground.bench, author, plan.rate, || {
            let mut done = 0;
            while done < kills {
                for slot in 0..INSTANCES {
                    crew.start(slot);
                }
                pause(dice, 300, 6_000);
                crew.look();
                done += u64::from(kill(crew, dice));
            }
        });
        tally.messages += messages;
        done.unwrap_or_else(|why| panic::resume_unwind(why));
        tally.kills += kills;
    }

    /// Waits until everything is handled, has all stop in order, and judges.
    fn judge(&mut self, ground: &Ground, crew: &mut dyn Crew) {
        let ended = Instant::now();
        judge::wait_until_all_is_handled(ground, crew);
        self.tally.handled_after = self.tally.handled_after.max(ended.elapsed().as_secs_f64());
        crew.stop_all();
        judge::judge_store(ground);
        self.tally.rounds += 1;
        self.tally.transactions = self.author.transactions();
        self.tally.took = self.started.elapsed().as_secs_f64();
        eprintln!("{}", self.tally.line());
    }

    /// Rounds, until so many were killed; at the end a rebuild has the same digest.
    fn rounds(
        mut self,
        ground: &Ground,
        crew: &mut dyn Crew,
        mut kill: impl FnMut(&mut dyn Crew, &mut Seeded) -> bool,
    ) -> Tally {
        while self.left() > 0 {
            let kills = self.left().min(KILLS_A_ROUND);
            self.kill_under_load(ground, crew, kills, &mut kill);
            self.judge(ground, crew);
        }
        judge::judge(ground);
        self.tally.took = self.started.elapsed().as_secs_f64();
        self.tally
    }
}

fn pause(dice: &mut Seeded, least_ms: u64, most_ms: u64) {
    std::thread::sleep(Duration::from_millis(least_ms + dice.below(most_ms - least_ms)));
}

/// All instances at once, as they are in one process with the store.
fn instances_on_fjall(kafka: &KafkaServer, plan: Plan) -> Tally {
    let ground = Ground::fjall(kafka);
    reporting(&ground, plan, || {
        Course::new("instances on fjall", plan).rounds(&ground, &mut Host::new(&ground), |crew, _| {
            crew.kill_all();
            true
        })
    })
}

/// One, or now and then all.
fn instances_on_aerospike(kafka: &KafkaServer, plan: Plan) -> Option<Tally> {
    let server = AerospikeServer::start_own(Setup { durable: false, namespace: FIT })?;
    let ground = Ground::aerospike(kafka, &server);
    let kill = |crew: &mut dyn Crew, dice: &mut Seeded| match dice.below(8) {
        0 => {
            crew.kill_all();
            true
        }
        _ => crew.kill(dice.below(INSTANCES as u64) as usize),
    };
    Some(reporting(&ground, plan, || {
        Course::new("instances on Aerospike", plan).rounds(&ground, &mut Processes::new(&ground, true), kill)
    }))
}

/// The server comes back with what it had flushed, and with what had been deleted. The instances go on by themselves: that none of them ends is
/// looked at before each kill, and at the end.
fn server_with_a_file(kafka: &KafkaServer, plan: Plan) -> Option<Tally> {
    let mut server = AerospikeServer::start_own(Setup { durable: true, namespace: FIT })?;
    let mut ground = Ground::aerospike(kafka, &server);
    ground.has_forgotten = true;
    let kill = |_: &mut dyn Crew, dice: &mut Seeded| {
        server.kill();
        pause(dice, 0, 3_000);
        server.restart();
        // Now and then it dies while what was lost is being done again.
        pause(dice, 0, 6_000);
        true
    };
    Some(reporting(&ground, plan, || {
        Course::new("Aerospike, its records in a file", plan).rounds(&ground, &mut Processes::new(&ground, false), kill)
    }))
}

/// The server comes back with nothing. Whoever runs ends, whoever starts is refused; a rebuild makes the group's store anew, in another set.
fn server_in_memory(kafka: &KafkaServer, plan: Plan) -> Option<Tally> {
    let mut server = AerospikeServer::start_own(Setup { durable: false, namespace: FIT })?;
    let mut ground = Ground::aerospike(kafka, &server);
    ground.has_forgotten = true;
    let mut course = Course::new("Aerospike, its records in memory", plan);
    for life in 1..=plan.kills {
        let result = panic::catch_unwind(AssertUnwindSafe(|| {
            let mut crew = Processes::new(&ground, false);
            if life == 1 {
                // Of a group that has committed nothing an empty store is a new one.
                course.kill_under_load(&ground, &mut crew, 0, |_, _| false);
                course.judge(&ground, &mut crew);
            }
            let mut emptied = |crew: &mut dyn Crew, dice: &mut Seeded| {
                pause(dice, 0, 5_000);
                crew.look();
                server.kill();
                pause(dice, 0, 2_000);
                server.restart();
                true
            };
            course.kill_under_load(&ground, &mut crew, 1, &mut emptied);
            crew.wait_until_all_have_failed();
            judge::is_refused(&ground, "the namespace was lost");
            ground.will_be_rebuilt_in(server.url(), &format!("blobs-{life}"));
            let rebuilt = judge::rebuild(&ground);
            eprintln!("life {life}: {rebuilt}");
        }));
        result.unwrap_or_else(|why| give_up(&ground, plan.seed, why));
        ground.goes_to_the_rebuilt();
        let judged =
            panic::catch_unwind(AssertUnwindSafe(|| course.judge(&ground, &mut Processes::new(&ground, false))));
        judged.unwrap_or_else(|why| give_up(&ground, plan.seed, why));
    }
    Some(course.tally)
}

fn reporting(ground: &Ground, plan: Plan, work: impl FnOnce() -> Tally) -> Tally {
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|why| give_up(ground, plan.seed, why))
}

/// Of ten kills three go to each kind, and one to a server in memory, which costs a rebuild. KIND has all of them go to one.
fn all_kinds(plan: Plan) {
    let Some(kafka) = KafkaServer::shared() else { return };
    let of = |kills: u64| Plan { kills, ..plan };
    let (third, emptied) = (plan.kills * 3 / 10, plan.kills / 10);
    let told = match std::env::var("KIND").as_deref() {
        Ok("fjall") => vec![Some(instances_on_fjall(kafka, plan))],
        Ok("aerospike") => vec![instances_on_aerospike(kafka, plan)],
        Ok("file") => vec![server_with_a_file(kafka, plan)],
        Ok("memory") => vec![server_in_memory(kafka, plan)],
        Ok(other) => panic!("KIND={other} is none of fjall, aerospike, file, memory"),
        Err(_) => vec![
            Some(instances_on_fjall(kafka, of(third))),
            instances_on_aerospike(kafka, of(third)),
            server_with_a_file(kafka, of(plan.kills - 2 * third - emptied)),
            server_in_memory(kafka, of(emptied)),
        ],
    };
    let told: Vec<Tally> = told.into_iter().flatten().collect();
    eprintln!("\n{}", Tally::HEAD);
    told.iter().for_each(|tally| eprintln!("{}", tally.line()));
    let (kills, judged) =
        told.iter().fold((0, 0), |(kills, judged), tally| (kills + tally.kills, judged + tally.rounds));
    eprintln!("{kills} kills, {judged} judgements");
}

/// `make kill-test`.
#[test]
#[ignore = "takes half an hour"]
fn for_long() {
    all_kinds(Plan { kills: asked("KILLS", 200), rate: asked("RATE", 100), seed: asked_seed() });
}

const FEW: Plan = Plan { kills: 2, rate: 100, seed: 3 };

#[test]
fn a_few_instances_on_fjall() {
    KafkaServer::shared().map(|kafka| instances_on_fjall(kafka, FEW));
}

#[test]
fn a_few_instances_on_aerospike() {
    KafkaServer::shared().and_then(|kafka| instances_on_aerospike(kafka, FEW));
}

#[test]
fn a_few_times_a_server_with_a_file() {
    KafkaServer::shared().and_then(|kafka| server_with_a_file(kafka, FEW));
}

#[test]
fn once_a_server_in_memory() {
    KafkaServer::shared().and_then(|kafka| server_in_memory(kafka, Plan { kills: 1, ..FEW }));
}
