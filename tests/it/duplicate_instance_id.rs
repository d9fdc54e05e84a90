//! Two processes with one instance id: the second goes on, the first ends with the reason.

use std::fs;

use crate::{
    aerospike_server::AerospikeServer,
    kafka_server::KafkaServer,
    real_kafka::{json, plain},
    run::{Bench, Instance, until},
};

#[test]
fn the_first_of_two_instances_with_one_id_ends() {
    let Some(kafka) = KafkaServer::shared() else { return };
    let Some(aerospike) = AerospikeServer::start() else { return };
    let bench = Bench::on(kafka.bootstrap_servers());
    bench.create_topics();
    let (url, rebuilt) = (aerospike.url(), aerospike.url());
    let blobs = |name: &str| format!("file://{}", bench.path(name).display());
    let variables = [
        ("UTXO_STORE__STORE__URL", url.as_str()),
        ("UTXO_STORE__STORE__BLOBS__URL", &blobs("blobs")),
        ("UTXO_STORE__KAFKA__INSTANCE_ID", "the-one"),
    ];
    let mut first: Instance = bench.start_with(&variables);
    bench.seed(100);
    until("the first works", || first.get("/metrics").contains("utxo_transactions_completed_total{result=\"live\"} 1"));
    fs::rename(bench.path("run.log"), bench.path("first.log")).unwrap();
    let mut second = bench.start_with(&variables);
    bench.seed(200);
    let code = first.wait().code();
    let log = fs::read_to_string(bench.path("first.log")).unwrap();
    let lines: Vec<_> = log.lines().filter(|line| !line.starts_with('{')).collect();
    assert_eq!(code, Some(5), "{lines:?}");
    assert!(lines.len() == 1 && lines[0].starts_with("error: "), "one line: {lines:?}");
    assert!(lines[0].contains("another process has joined the group as `the-one` (kafka.instance_id)"), "{lines:?}");
    until("the second has all of it", || bench.committed() == 300);
    second.signal("TERM");
    assert_eq!(second.wait().code(), Some(0));

    let verified = json(plain(&["verify", "--store", &url, "--blobs", &blobs("blobs"), "--json"]));
    assert_eq!((&verified["transactions"], &verified["violations"]), (&200.into(), &0.into()), "{verified}");
    let again = ["replay", "--rebuild", "--json", "--store", &rebuilt, "--blobs", &blobs("rebuilt")];
    // A static member does not leave when it stops: its session has to expire first.
    let mut tries = 0;
    let again = loop {
        let output = bench.command(&again, &variables).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.code() {
            Some(0) => break serde_json::from_str::<serde_json::Value>(text.lines().last().unwrap()).unwrap(),
            _ if tries < 60 => tries += 1,
            code => panic!("{code:?}: {}", String::from_utf8_lossy(&output.stderr)),
        }
        std::thread::sleep(std::time::Duration::from_secs(1));
    };
    assert_eq!(again["digest"], verified["digest"]);
}
