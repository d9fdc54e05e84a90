//! A rolling upgrade under load: three instances of an earlier program are replaced one by one with the present one.
//!
//! `make rolling-upgrade FROM=/path/to/utxo-store`; without `FROM` both programs are the present one, as it is in `make
//! test`. Halfway, while both programs are in the group, an instance of each is killed.

use std::{
    panic::{self, AssertUnwindSafe},
    path::PathBuf,
    time::Duration,
};

use super::{
    INSTANCES, InstanceProcesses, InstanceSet, TestBed, TortureSettings, env_number, env_seed, judge,
    load::LoadGenerator, produce_during, report_failure, start_brokers,
};
use crate::{
    aerospike_server::AerospikeServer,
    kafka_server::addresses,
    run::{get, until},
};

/// Waits until the instance of a slot is ready.
fn wait_until_ready(instances: &mut InstanceProcesses<'_>, slot: usize) {
    until("the instance is ready", || {
        instances.check_alive();
        let address = instances.address(slot).filter(|address| !address.is_empty());
        address.is_some_and(|address| get(&address, "/health/ready").starts_with("HTTP/1.1 200"))
    });
}

/// Replaces each instance with one of the present program, `pause` after the one before.
fn replace_each(instances: &mut InstanceProcesses<'_>, pause: Duration) {
    for slot in 0..INSTANCES {
        instances.stop(slot);
        instances.wait_until_stopped(slot);
        instances.use_program(slot, None);
        assert!(instances.start(slot));
        wait_until_ready(instances, slot);
        eprintln!("instance {slot} runs the present program");
        if slot == 0 {
            // A new program and an old one die while the group has both.
            for killed in [0, INSTANCES - 1] {
                assert!(instances.kill(killed) && instances.start(killed));
            }
            (0..INSTANCES).for_each(|slot| wait_until_ready(instances, slot));
        }
        std::thread::sleep(pause);
    }
}

fn upgrade(settings: TortureSettings, earlier: Option<PathBuf>) {
    let Some(kafka) = start_brokers(1) else { return };
    let Some(server) = AerospikeServer::start() else { return };
    let testbed = TestBed::aerospike(&addresses(&kafka), &server);
    let mut instances = InstanceProcesses::new(&testbed, settings.seed.is_multiple_of(2));
    eprintln!("rolling upgrade from {earlier:?}: {settings:?}");
    let mut generator = LoadGenerator::new(settings.seed);
    let pause = settings.time / (INSTANCES as u32 + 1);
    let (messages, done) = produce_during(&testbed.bench, &mut generator, settings.rate, || {
        for slot in 0..INSTANCES {
            instances.use_program(slot, earlier.clone());
            assert!(instances.start(slot));
        }
        (0..INSTANCES).for_each(|slot| wait_until_ready(&mut instances, slot));
        std::thread::sleep(pause);
        replace_each(&mut instances, pause);
    });
    eprintln!("{} transactions in {messages} messages: {:?}", generator.transactions(), generator.counts);
    let judged = done.and_then(|()| {
        panic::catch_unwind(AssertUnwindSafe(|| {
            judge::wait_until_all_is_handled(&testbed, &mut instances);
            instances.stop_all();
            judge::judge(&testbed);
        }))
    });
    judged.unwrap_or_else(|why| report_failure(&testbed, settings.seed, why));
}

/// Entry of `make rolling-upgrade`.
#[test]
#[ignore = "takes as long as TORTURE_SECONDS says"]
fn a_long_rolling_upgrade() {
    let time = Duration::from_secs(env_number("TORTURE_SECONDS", 120));
    let settings = TortureSettings { time, rate: env_number("RATE", 200), ..TortureSettings::short(env_seed()) };
    upgrade(settings, std::env::var_os("FROM").map(PathBuf::from));
}

#[test]
fn a_short_rolling_upgrade() {
    upgrade(TortureSettings { time: Duration::from_secs(4), rate: 60, ..TortureSettings::short(5) }, None);
}
