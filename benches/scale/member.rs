//! A member of the consumer group in a process of its own. It prints its counters from time to time, and leaves the
//! group when its standard input ends.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, ChildStdin, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use utxo_store::{
    broker::Broker,
    engine::{
        RecordEngine,
        aerospike::{AerospikeEngine, AerospikeSettings},
        null::NullEngine,
    },
    ingest::pipeline::PipelineSettings,
};

use crate::{
    child,
    measure::{Cpu, runtime},
    pipeline::{self, Log, RULES, Running},
    topic::BenchTopic,
};

/// Argument that selects a member in a child.
pub const MEMBER: &str = "member";
/// Time between two lines of counters.
const EVERY: Duration = Duration::from_millis(50);

/// Store of a member.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Sink {
    /// The null engine: every create is done at once, and nothing is kept.
    Null,
    /// A set of the namespace `test` of a server.
    Aerospike { hosts: String, set: String },
}

/// Description of a member, for its process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MemberSetup {
    pub topic: BenchTopic,
    pub group: String,
    pub sink: Sink,
}

/// Counters of a member.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Transactions that were completed.
    pub completed: u64,
    /// Partitions that the member has.
    pub partitions: usize,
    /// CPU time of the process, seconds.
    pub cpu_seconds: f64,
}

/// Runs a member in this process until standard input ends.
pub fn run(setup: &str) {
    let setup: MemberSetup = serde_json::from_str(setup).expect("the parent writes what the child reads");
    runtime(2).block_on(async {
        let engine = open_engine(&setup.sink).await;
        let settings = PipelineSettings {
            topic: setup.topic.topic.as_str().into(),
            group: setup.group.clone(),
            partitions: Some(setup.topic.partitions),
            ..pipeline::settings()
        };
        let broker = setup.topic.broker();
        let consumer = broker.subscribe(&setup.group, std::slice::from_ref(&setup.topic.topic)).await;
        let log = Log { broker: Arc::new(broker), consumer: consumer.expect("the broker is ours") };
        let started = Cpu::now();
        let running = Running::start(settings, log, engine.clone()).await;
        let mut end_of_input = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
        loop {
            let (user, system) = Cpu::since(started);
            let counters = Counters {
                completed: running.completed(),
                partitions: running.partitions(),
                cpu_seconds: user + system,
            };
            println!("{}", serde_json::to_string(&counters).expect("numbers"));
            if tokio::time::timeout(EVERY, &mut end_of_input).await.is_ok() {
                break;
            }
        }
        running.stop().await;
        engine.close().await.expect("closed");
    });
}

/// Opens the engine of a sink.
pub async fn open_engine(sink: &Sink) -> Arc<dyn RecordEngine> {
    match sink {
        Sink::Null => Arc::new(NullEngine::new(RULES)),
        Sink::Aerospike { hosts, set } => {
            let settings = AerospikeSettings::new(hosts.as_str(), "test", set.as_str());
            Arc::new(AerospikeEngine::open(&settings, RULES).await.expect("the server is ours"))
        }
    }
}

/// A member that runs in a child process.
pub struct Member {
    process: Child,
    input: Option<ChildStdin>,
    latest: Arc<Mutex<Counters>>,
}

impl Member {
    pub fn start(setup: &MemberSetup) -> Self {
        let arguments = [MEMBER.to_owned(), serde_json::to_string(setup).expect("texts and numbers")];
        let mut command = child::command(&arguments).expect("the program has a path");
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process is started");
        let (input, output) = (process.stdin.take(), process.stdout.take().expect("it is piped"));
        let latest = Arc::new(Mutex::new(Counters::default()));
        let written = latest.clone();
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            for counters in lines.filter_map(|line| serde_json::from_str(&line).ok()) {
                *written.lock().unwrap_or_else(PoisonError::into_inner) = counters;
            }
        });
        Member { process, input, latest }
    }

    /// Returns the counters that the member has printed last.
    pub fn counters(&self) -> Counters {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the member leave the group, and waits until its process has ended.
    pub fn leave(mut self) {
        drop(self.input.take());
        let status = self.process.wait().expect("it is our child");
        assert!(status.success(), "a member ended with {status}");
    }
}

/// A member that is dropped is killed.
impl Drop for Member {
    fn drop(&mut self) {
        // A member that has left is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns whether every partition has an owner, and no member has two partitions more than another one.
pub fn is_even(members: &[Member], partitions: i32) -> bool {
    let held: Vec<usize> = members.iter().map(|member| member.counters().partitions).collect();
    let range = held.iter().min().zip(held.iter().max());
    held.iter().sum::<usize>() == partitions as usize && range.is_some_and(|(least, most)| most - least <= 1)
}
