//! `replay --from-…` on a real Apache Kafka: the plan, the replay, and the refusals.

use std::{
    fs,
    process::{Command, Output},
    time::{Duration, SystemTime},
};

use serde_json::Value;
use utxo_store::broker::{Broker, TopicPartition};

use crate::{
    kafka_server::KafkaServer,
    real_kafka::{forget_before, plain},
    run::{Bench, PARTITIONS, block_on, last_line, until},
};

fn output(mut command: Command) -> Output {
    command.stdin(std::process::Stdio::null()).output().unwrap()
}

/// Returns the exit code and the object that a command prints.
pub fn run_json(command: Command) -> (i32, Value) {
    let output = output(command);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.code().unwrap(), serde_json::from_str(out.lines().last().unwrap_or("null")).expect(&err))
}

#[track_caller]
pub fn assert_refused_with(command: Command, code: i32, words: &[&str]) {
    let output = output(command);
    let line = last_line(&output);
    assert_eq!(output.status.code(), Some(code), "{line}");
    assert!(words.iter().all(|word| line.contains(word)), "{words:?}: {line}");
}

fn ends(bench: &Bench) -> Vec<u64> {
    let at = |partition| TopicPartition { topic: bench.topic("validated-txs").into(), partition };
    block_on(async {
        let mut ends = Vec::new();
        for partition in 0..PARTITIONS {
            ends.push(bench.broker().watermarks(&at(partition)).await.unwrap().1);
        }
        ends
    })
}

pub fn run_until_committed(bench: &Bench) {
    let all = ends(bench).iter().sum::<u64>();
    let mut instance = bench.start();
    until("everything is committed", || bench.committed() == all);
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
}

fn digest(bench: &Bench) -> Value {
    digest_of(&bench.store_url())
}

/// Returns the digest of a store that breaks no rule.
pub fn digest_of(store: &str) -> Value {
    let (code, verified) = run_json(plain(&["verify", "--json", "--store", store]));
    assert_eq!((code, &verified["violations"]), (0, &0.into()));
    verified["digest"].clone()
}

#[test]
fn a_group_is_set_back_and_reads_again() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    bench.seed(40);
    let first = ends(&bench);
    std::thread::sleep(Duration::from_millis(50));
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis().to_string();
    bench.seed(60);
    run_until_committed(&bench);
    let (before, all) = (digest(&bench), ends(&bench));
    let replay = |args: &[&str]| bench.command(&[&["replay", "--json"], args].concat(), &[]);

    // Dry runs, with a given rate and a measured one.
    let (code, plan) = run_json(replay(&["--from-timestamp", &since, "--dry-run", "--rate", "30"]));
    assert_eq!((code, &plan["messages"], &plan["seconds"]), (0, &60.into(), &2.0.into()), "{plan}");
    let froms: Vec<_> = plan["parts"].as_array().unwrap().iter().map(|part| part["from"].as_u64().unwrap()).collect();
    assert_eq!(froms, first);
    // Each message has a key of 32 bytes and an event of this size.
    let event = bench.messages("validated-txs", 0)[0].payload.len() as u64;
    assert_eq!((&plan["bytes"], &plan["bytes_are_exact"]), (&(60 * (32 + event)).into(), &true.into()));
    assert_eq!((&plan["refused"], &plan["unknown"]), (&serde_json::json!([]), &serde_json::json!([])));
    let (code, plan) = run_json(replay(&["--rebuild", "--dry-run"]));
    assert_eq!((code, &plan["messages"], &plan["rate_is_of_reading"]), (0, &100.into(), &true.into()), "{plan}");
    assert_eq!(bench.committed(), 100, "a dry run changes nothing");

    // A replay is refused while an instance runs; a dry run says so.
    let mut instance = bench.start();
    assert_refused_with(replay(&["--from-timestamp", &since]), 1, &[&bench.group(), "members", "stop"]);
    assert_refused_with(replay(&["--from-timestamp", &since, "--dry-run"]), 1, &["would be refused", "members"]);
    let (_, plan) = run_json(replay(&["--from-timestamp", &since, "--dry-run"]));
    assert_eq!(plan["messages"], 60);
    assert!(plan["unknown"][0].as_str().unwrap().starts_with("replay floor of the store: "), "{plan}");
    instance.signal("TERM");
    assert_eq!((instance.wait().code(), bench.committed()), (Some(0), 100));
    until("both groups are empty", || {
        let (_, plan) = run_json(replay(&["--from-timestamp", &since, "--dry-run"]));
        plan["refused"] == serde_json::json!([])
    });

    // A replay that is carried out.
    let (code, done) = run_json(replay(&["--from-timestamp", &since]));
    assert_eq!(
        (code, &done["messages"], &done["contests"], &done["dead_letters"]),
        (0, &60.into(), &0.into(), &0.into())
    );
    assert_eq!((bench.committed(), digest(&bench)), (100, before.clone()));
    let (code, nothing) = run_json(replay(&["--from-timestamp", "2100-01-01T00:00:00Z"]));
    assert_eq!((code, &nothing["messages"]), (0, &0.into()));

    // A replay is killed before its first commit; the next instance continues where the group was set back.
    let file = bench.path("offsets");
    fs::write(&file, "0 0 # from its beginning\n").unwrap();
    let file = file.to_str().unwrap();
    let never = [("UTXO_STORE__INGEST__COMMIT_INTERVAL_MS", "600000")];
    let mut killed =
        bench.command(&["replay", "--from-offsets", file], &never).stderr(std::process::Stdio::null()).spawn().unwrap();
    until("the group is set back", || bench.committed() == all[1]);
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(bench.committed(), all[1]);
    run_until_committed(&bench);
    assert_eq!(digest(&bench), before);

    // The replay reads a part, and `run` the rest.
    let half = bench.path("half");
    fs::write(&half, format!("0 {}\n", first[0])).unwrap();
    until("the members that were killed are gone", || run_json(replay(&["--from-offsets", file, "--dry-run"])).0 == 0);
    let (code, done) = run_json(replay(&["--from-offsets", file, "--until", half.to_str().unwrap()]));
    assert_eq!((code, &done["messages"]), (0, &first[0].into()), "{done}");
    assert!((first[0] + all[1]..=100).contains(&bench.committed()));
    run_until_committed(&bench);
    assert_eq!(digest(&bench), before);

    // Bad files, and offsets that the topic does not hold.
    fs::write(file, "0 0\nnought 3\n0 1\n").unwrap();
    let words = [file, "line 2: `nought`", "line 3: partition 0 was named before"];
    assert_refused_with(replay(&["--from-offsets", file]), 2, &words);
    fs::write(file, format!("1 {}\n7 0\n", all[1] + 1)).unwrap();
    assert_refused_with(
        replay(&["--from-offsets", file]),
        1,
        &["no partition 7", "partition 1", &all[1].to_string(), "offsets are only lowered"],
    );
    forget_before(
        server.bootstrap_servers(),
        &TopicPartition { topic: bench.topic("validated-txs").into(), partition: 0 },
        3,
    );
    fs::write(file, "0 2\n").unwrap();
    assert_refused_with(replay(&["--from-offsets", file]), 1, &["partition 0", "offset 2", "holds 3 to"]);
    assert_refused_with(replay(&["--from-timestamp", "1970-01-02T00:00:00Z"]), 1, &["partition 0", "offset 3", "gone"]);
    let words = ["would be refused", "no longer holds offsets 0 to 3"];
    assert_refused_with(replay(&["--rebuild", "--dry-run"]), 1, &words);
    assert_eq!(bench.committed(), 100);
    fs::write(file, "0 3\n").unwrap();
    let (code, done) = run_json(replay(&["--from-offsets", file, "--until", "end"]));
    assert_eq!((code, &done["messages"]), (0, &(all[0] - 3).into()), "{done}");
    assert_eq!(digest(&bench), before);
}
