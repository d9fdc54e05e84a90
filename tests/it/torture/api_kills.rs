//! Kills under load of the API, with processes: `run`, `serve` and the Aerospike server end by SIGKILL while
//! transactions and commands are submitted to `serve` and outcomes are followed. No answer is lost
//! ([`ApiLoad::check`]), and the store equals the model and, in the long test, a rebuild.

use std::{
    fs::{self, File},
    panic::{self, AssertUnwindSafe},
    path::PathBuf,
    process::{Child, Stdio},
    thread,
    time::Duration,
};

use utxo_store::{
    broker::{Broker, OutgoingMessage},
    event::{PartialOutput, PartialTxEvent},
    rng::SplitMix64,
};

use super::{
    TestBed, env_number, env_seed,
    instances::{INSTANCES, InstanceProcesses, InstanceSet},
    judge, report_failure,
};
use crate::{
    aerospike_server::{AerospikeServer, FIT, Setup, configuration},
    api_load::ApiLoad,
    harness::{Made, World},
    kafka_server::KafkaServer,
    run::{block_on, until},
};

/// A process with an HTTP server, which the drop kills.
pub struct ServerProcess {
    child: Child,
    pub address: String,
}

impl ServerProcess {
    /// Starts a process, and returns once the process listens. `settings`: further settings.
    pub fn start(testbed: &TestBed, (name, arguments): (&str, &[&str]), settings: &[(&str, &str)]) -> Self {
        let file: PathBuf = testbed.bench.path(&format!("{name}-address"));
        fs::remove_file(&file).ok();
        let log = testbed.bench.path(&format!("{name}.log"));
        let mut command = testbed.command(&[arguments, &["--http-address-file", file.to_str().unwrap()]].concat());
        command.envs(settings.iter().map(|(key, value)| (format!("UTXO_STORE__{key}"), value)));
        let appended = File::options().create(true).append(true).open(&log).unwrap();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(appended).spawn().unwrap();
        let mut process = ServerProcess { child, address: String::new() };
        until("the server listens", || {
            let has_ended = process.child.try_wait().unwrap().is_some();
            assert!(!has_ended, "`{name}` ended by itself: {}", fs::read_to_string(&log).unwrap());
            file.exists()
        });
        process.address = fs::read_to_string(&file).unwrap().trim().to_owned();
        process
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn start_serve(testbed: &TestBed) -> ServerProcess {
    ServerProcess::start(testbed, ("serve", &["serve"]), &[])
}

/// Publishes the partial transaction whose outputs the load spends.
fn seed(testbed: &TestBed, count: usize) -> Made {
    let made = World::partial(1, count);
    let outputs = made.outputs.iter().zip(0..);
    let outputs = outputs.map(|((satoshis, script), vout)| PartialOutput { vout, satoshis: *satoshis, script });
    let event = PartialTxEvent { txid: made.txid, coinbase: false, height: 1, outputs: outputs.collect() };
    let message = OutgoingMessage {
        topic: testbed.bench.topic("validated-txs"),
        key: made.txid.0.to_vec().into(),
        payload: event.encode().into(),
        ..OutgoingMessage::default()
    };
    block_on(async { testbed.bench.broker().producer().await.unwrap().produce(message).await.unwrap() });
    made
}

/// Kills `kills` processes in turn: an instance, the server of the API, and the Aerospike server, which loses the
/// writes that are not in its file. Every second load is answered before the kill. The load goes to the instance that
/// is killed, else to the server.
fn kill_under_load(testbed: &TestBed, asd: &mut AerospikeServer, kills: u64, seed_of_run: u64) {
    let mut rng = SplitMix64::new(seed_of_run ^ u64::from_be_bytes(*b"apikills"));
    let mut instances = InstanceProcesses::new(testbed, true);
    let coins = seed(testbed, kills as usize * ApiLoad::COINS as usize);
    judge::wait_until_all_is_handled(testbed, &mut instances);
    let mut serve = start_serve(testbed);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let _entered = runtime.enter();
    let (mut load, mut by_instances) = (ApiLoad::start(coins, &serve.address), 0);
    for kill in 0..kills {
        let slot = rng.below(INSTANCES as u64) as usize;
        let of_instance = if kill % 3 == 0 { instances.address(slot) } else { None };
        by_instances += u64::from(of_instance.is_some());
        load.submit(of_instance.as_ref().unwrap_or(&serve.address));
        if kill % 2 == 1 {
            runtime.block_on(load.finish());
        } else {
            thread::sleep(Duration::from_millis(rng.below(500)));
        }
        instances.check_alive();
        match kill % 3 {
            0 => drop(instances.kill(slot)),
            1 => {
                drop(serve);
                serve = start_serve(testbed);
            }
            _ => {
                asd.kill();
                thread::sleep(Duration::from_millis(rng.below(1_000)));
                asd.restart();
            }
        }
        for slot in 0..INSTANCES {
            instances.start(slot);
        }
    }
    assert!(by_instances > 0, "no instance was killed under load of its API");
    eprintln!("{by_instances} loads went to the instance that was killed");
    runtime.block_on(load.check(&serve.address, testbed.has_lost_writes));
    judge::wait_until_all_is_handled(testbed, &mut instances);
    instances.stop_all();
    drop(serve);
}

/// A rebuild takes three durability lags of its own, which only the long test waits for.
fn run_api_kills(kills: u64, seed_of_run: u64, is_rebuilt: bool) {
    let Some(kafka) = KafkaServer::shared() else { return };
    let setup = Setup { durable: true, namespace: FIT };
    // The durability lag is 5.5 s instead of 10 s.
    let configuration = configuration(setup).replace("filesize 1G", "filesize 1G\n    flush-max-ms 100");
    let Some(mut asd) = AerospikeServer::start_configured(&configuration) else { return };
    let mut testbed = TestBed::aerospike(kafka.bootstrap_servers(), &asd);
    testbed.has_lost_writes = true;
    testbed.set("HTTP__API", "true");
    eprintln!("kills under load of the API: SEED={seed_of_run} KILLS={kills}");
    let killed = panic::catch_unwind(AssertUnwindSafe(|| {
        kill_under_load(&testbed, &mut asd, kills, seed_of_run);
        if is_rebuilt {
            judge::judge(&testbed);
        } else {
            judge::judge_store(&testbed);
        }
    }));
    killed.unwrap_or_else(|why| report_failure(&testbed, seed_of_run, why));
}

#[test]
fn an_answer_survives_kills_of_processes() {
    run_api_kills(3, 3, false);
}

/// Entry of `make kill-test-api`.
#[test]
#[ignore = "takes some minutes"]
fn a_long_kill_test_of_the_api() {
    run_api_kills(env_number("KILLS", 100), env_seed(), true);
}
