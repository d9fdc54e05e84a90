//! `replay` can be watched as `run` can: by the watchdog, and over HTTP while it works, unless its address is occupied.

use std::{
    fs::{self, File},
    net::TcpListener,
    process::{Command, Stdio},
};

use crate::{
    replay_from_offsets::run_until_committed,
    run::{Bench, Instance, assert_refused, until},
    watchdog::threads,
};

/// Starts a replay, and requests its pages while it works; returns its log.
fn watched(bench: &Bench, mut command: Command) -> String {
    let (file, log) = (bench.path("replay-address"), bench.path("replay.log"));
    fs::remove_file(&file).ok();
    command.args(["--http-address-file", file.to_str().unwrap()]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log).unwrap()).spawn().unwrap();
    let mut instance = Instance { child, address: String::new() };
    until("the address is known", || file.exists());
    // The stopped process continues only after the requests were sent.
    instance.signal("STOP");
    assert_eq!(threads(instance.child.id(), "watchdog").len(), 1);
    instance.address = fs::read_to_string(&file).unwrap().trim().to_owned();
    let asking = ["/metrics", "/health/live", "/state"].map(|path| {
        let address = instance.address.clone();
        std::thread::spawn(move || crate::run::get(&address, path))
    });
    instance.signal("CONT");
    let [metrics, live, state] = asking.map(|asked| asked.join().unwrap());
    assert!(metrics.contains("process_start_time_seconds"), "{metrics}");
    assert!(live.starts_with("HTTP/1.1 200"), "{live}");
    assert!(state.contains(&format!("\"group\":\"{}\"", bench.group())), "{state}");
    assert_eq!(instance.wait().code(), Some(0), "{}", fs::read_to_string(&log).unwrap());
    fs::read_to_string(log).unwrap()
}

#[test]
fn replay_serves_http_and_names_an_occupied_address() {
    let Some(server) = crate::kafka_server::KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    bench.seed(200);
    run_until_committed(&bench);
    let rebuild = |name: &str, also: &[&str], variables: &[(&str, &str)]| {
        let url = format!("fjall://{}", bench.path(name).display());
        bench.command(&[&["replay", "--rebuild", "--store", &url], also].concat(), variables)
    };
    let log = watched(&bench, rebuild("one", &[], &[]));
    assert!(log.contains("http: serving metrics and health"), "{log}");

    let offsets = bench.path("offsets");
    fs::write(&offsets, "0 0\n1 0\n").unwrap();
    let again = ["replay", "--from-offsets", offsets.to_str().unwrap()];
    watched(&bench, bench.command(&again, &[]));

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let occupied = [("UTXO_STORE__HTTP__LISTEN", address.as_str())];
    let words = [address.as_str(), "http.listen", "in use", "--listen ADDRESS", "--no-http"];
    assert_refused(rebuild("two", &[], &occupied), &words);
    assert_refused(bench.command(&again, &occupied), &words);
    watched(&bench, rebuild("two", &["--listen", "127.0.0.1:0"], &occupied));
    let unwatched = rebuild("three", &["--no-http"], &occupied).stdin(Stdio::null()).output().unwrap();
    assert_eq!(unwatched.status.code(), Some(0), "{}", String::from_utf8_lossy(&unwatched.stderr));
    assert!(!String::from_utf8_lossy(&unwatched.stderr).contains("http: serving metrics and health"));
}
