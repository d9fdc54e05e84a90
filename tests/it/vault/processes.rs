//! `utxo-store vault run` beside processes that have its files.

use crate::{
    kafka_server::KafkaServer,
    run::{Bench, assert_refused},
};

/// Protects: two processes on one file of SQLite would each get a part of the log, and wait for each other's locks.
#[test]
fn a_second_process_on_one_file_is_refused() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    let file = format!("sqlite://{}", bench.path("vault.sqlite").display());
    let mut instance = bench.start_with(&[("UTXO_STORE__HTTP__API", "true")]);
    let answers = format!("http://{}", instance.address);
    let group = format!("{}-vault", bench.group());
    let variables = [
        ("UTXO_STORE__VAULT__URL", file.as_str()),
        ("UTXO_STORE__VAULT__ANSWERS_URL", answers.as_str()),
        ("UTXO_STORE__VAULT__GROUP", group.as_str()),
    ];
    let mut vault = bench.start_process(&["vault", "run"], &variables);
    assert_refused(
        bench.command(&["vault", "run"], &variables),
        &["another `vault run` has this database", "PostgreSQL"],
    );
    vault.signal("TERM");
    assert_eq!(vault.wait().code(), Some(0));
    // The lock ends with its process.
    let mut vault = bench.start_process(&["vault", "run"], &variables);
    vault.signal("TERM");
    assert_eq!(vault.wait().code(), Some(0));

    // Without the address of the instance the vault would open the store of the instance.
    let own = [variables[0], variables[2]];
    assert_refused(bench.command(&["vault", "run"], &own), &["vault.answers_url", "in use by another process"]);
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
}
