//! Members join, leave and are killed under a steady load. Nothing may be lost, and the longest standstill of a
//! partition is printed for each change.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::time::{MissedTickBehavior, interval};
use utxo_store::broker::Broker;

use crate::{
    measure::{env_number, runtime},
    member::{Member, MemberSetup, Sink, is_even},
    topic::{self, BenchTopic},
    witness::Witness,
};

const TICK: Duration = Duration::from_millis(10);
/// Time between the end of a change and the next one.
const REST: Duration = Duration::from_secs(5);

/// Longest time until the partitions are shared evenly after a change.
const CHANGE_BOUND: Duration = Duration::from_secs(120);

/// A load on its way.
struct Load {
    sent: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Load {
    fn start(topic: &BenchTopic, rate: u64) -> Self {
        let (sent, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, stop, topic) = (sent.clone(), is_over.clone(), topic.clone());
        let thread = thread::spawn(move || runtime(1).block_on(send(&topic, rate, &counted, &stop)));
        Load { sent, is_over, thread }
    }

    /// Stops the load, and returns the number of acknowledged transactions.
    fn stop(self) -> u64 {
        self.is_over.store(true, Relaxed);
        self.thread.join().expect("the load does not panic");
        self.sent.load(Relaxed)
    }
}

async fn send(bench_topic: &BenchTopic, rate: u64, sent: &AtomicU64, is_over: &AtomicBool) {
    let producer = bench_topic.broker().producer().await.expect("the broker is ours");
    let mut generator = topic::generator(bench_topic);
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let started = Instant::now();
    while !is_over.load(Relaxed) {
        ticks.tick().await;
        let due = (started.elapsed().as_secs_f64() * rate as f64) as u64;
        let count = due.saturating_sub(sent.load(Relaxed));
        let messages = generator.chunk(count as usize, 0);
        assert_eq!(messages.len() as u64, count, "the generator has enough transactions");
        let messages: Vec<_> =
            messages.into_iter().map(|message| topic::produce(&bench_topic.topic, message)).collect();
        producer.produce_all(messages).await.expect("the broker is ours");
        sent.fetch_add(count, Relaxed);
    }
}

/// Changes the group under load, and prints a line for each change. Returns whether nothing was lost.
pub fn measure(brokers: &str, partitions: i32) -> bool {
    let rate = env_number("SCALE_RATE", 10_000);
    let bench_topic = BenchTopic {
        brokers: brokers.to_owned(),
        topic: "scale.changes".to_owned(),
        partitions,
        // Far more than a run sends.
        transactions: rate * 3_600,
    };
    runtime(1).block_on(topic::create(&bench_topic, partitions));
    let setup = MemberSetup { topic: bench_topic.clone(), group: "scale-changes".to_owned(), sink: Sink::Null };
    println!("\nMembers come and go under {rate} transactions a second, {partitions} partitions, null engine");
    println!(
        "{:<44} {:>7} {:>15} {:>14} {:>9} {:>10}",
        "change", "even s", "standstill s", "median s", "lag most", "repeats"
    );
    let witness = Witness::start(&bench_topic);
    let load = Load::start(&bench_topic, rate);
    let mut members = Vec::new();
    let change = |what: &str, members: &mut Vec<Member>, make: &mut dyn FnMut(&mut Vec<Member>)| {
        let (before, repeats) = (Instant::now(), witness.counts().1);
        witness.reset();
        make(members);
        let (mut even, mut most) = (None, 0);
        while even.is_none_or(|even| before.elapsed() < even + REST) {
            assert!(before.elapsed() < CHANGE_BOUND, "the partitions are not shared evenly");
            // Lag of all: produced, and not seen as live.
            most = most.max(load.sent.load(Relaxed).saturating_sub(witness.counts().0));
            even = even.or_else(|| is_even(members, partitions).then(|| before.elapsed()));
            thread::sleep(Duration::from_millis(20));
        }
        let standstills = witness.standstills();
        let [median, longest] = [standstills.len() / 2, standstills.len() - 1].map(|at| standstills[at].as_secs_f64());
        println!(
            "{what:<44} {:>7.1} {longest:>15.2} {median:>14.2} {most:>9} {:>10}",
            even.map_or(0.0, |even| even.as_secs_f64()),
            witness.counts().1 - repeats
        );
    };
    let join = |count: usize| {
        let setup = setup.clone();
        move |members: &mut Vec<Member>| members.extend((0..count).map(|_| Member::start(&setup)))
    };
    change("the first instance", &mut members, &mut join(1));
    change("none", &mut members, &mut |_| {});
    change("1 joins 1", &mut members, &mut join(1));
    change("2 join 2", &mut members, &mut join(2));
    change("4 join 4", &mut members, &mut join(4));
    change("1 of 8 leaves", &mut members, &mut |members| members.pop().expect("there are 8").leave());
    change("1 joins 7", &mut members, &mut join(1));
    let session = bench_topic.settings().session_timeout;
    change(&format!("1 of 8 is killed (session of {session:?})"), &mut members, &mut |members| drop(members.pop()));
    change("4 of 7 leave", &mut members, &mut |members| members.drain(3..).for_each(Member::leave));
    change("2 of 3 leave", &mut members, &mut |members| members.drain(1..).for_each(Member::leave));
    let sent = load.stop();
    let ended = Instant::now();
    while witness.counts().0 < sent && ended.elapsed() < Duration::from_secs(60) {
        thread::sleep(Duration::from_millis(20));
    }
    members.into_iter().for_each(Member::leave);
    let (live, repeats) = witness.counts();
    println!("{sent} transactions were produced; {live} of them are live; {repeats} outcomes came twice");
    live == sent
}
