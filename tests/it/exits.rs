//! Exits of operators, each played from the fault over the steps of its page in `docs/operating/exits` to the end.

use std::fs;

use crate::{
    real_kafka::json,
    replay_from_offsets::digest_of,
    run::{Bench, Instance, assert_refused, until},
    small_disk::SmallDisk,
};

/// Ends an instance in order.
fn stop(mut instance: Instance) {
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
}

/// Plays `docs/operating/exits/lost-namespace.md`: the directory of the store is lost.
/// Protects: the rebuilt store has the state of the lost one, and the group goes on at its committed offsets.
#[test]
fn a_lost_namespace_is_rebuilt_and_the_group_goes_on() {
    let bench = Bench::new();
    bench.seed(20);
    let instance = bench.start();
    until("everything is committed", || bench.committed() == 20);
    stop(instance);
    let lost = digest_of(&bench.store_url());
    fs::remove_dir_all(bench.path("store")).unwrap();
    assert_refused(bench.command(&["run"], &[]), &["namespace was lost", "replay --rebuild"]);

    let url = format!("fjall://{}", bench.path("rebuilt").display());
    let rebuilt = json(bench.command(&["replay", "--rebuild", "--json", "--store", &url], &[]));
    assert_eq!((&rebuilt["digest"], &digest_of(&url)), (&lost, &lost));
    bench.produce_all(bench.partials(0..30));
    let instance = bench.start_with(&[("UTXO_STORE__STORE__URL", &url)]);
    until("the group goes on", || bench.committed() == 50);
    assert!(instance.get("/metrics").contains("utxo_transactions_completed_total{result=\"live\"} 30"));
    stop(instance);
    assert_ne!(digest_of(&url), lost);
}

/// Plays `docs/operating/exits/full-device.md` for a store in a directory.
/// Protects: a full disk ends the instance with its cause in the log, no offset of a failed write is committed, and the
/// instance goes on once there is space.
#[test]
fn an_instance_on_a_full_disk_ends_and_goes_on_once_there_is_space() {
    let Some(disk) = SmallDisk::mount(100) else { return };
    let bench = Bench::new();
    let url = format!("fjall://{}", disk.path().join("store").display());
    let variables = [("UTXO_STORE__STORE__URL", url.as_str())];
    bench.produce_all(bench.partials(0..20));
    let mut instance = bench.start_with(&variables);
    until("everything is committed", || bench.committed() == 20);
    disk.fill();
    bench.produce_all(bench.partials(20..2_000));
    assert_eq!(instance.wait().code(), Some(1));
    let log = fs::read_to_string(bench.path("run.log")).unwrap();
    assert!(log.contains("No space left on device") && log.contains("an earlier write failed"), "{log}");
    assert_refused(bench.command(&["run"], &variables), &["an earlier write failed"]);
    assert!(bench.committed() < 2_000);

    disk.free();
    let instance = bench.start_with(&variables);
    until("everything is committed", || bench.committed() == 2_000);
    stop(instance);
    let again = format!("fjall://{}", bench.path("rebuilt").display());
    let rebuilt = json(bench.command(&["replay", "--rebuild", "--json", "--store", &again], &[]));
    assert_eq!(rebuilt["digest"], digest_of(&url));
}
