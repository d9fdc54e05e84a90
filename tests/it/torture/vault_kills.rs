//! Kills of the vault under load, with processes: wallets select, release and pay while the vault ends by SIGKILL.
//! No output is handed out twice, no acknowledged payment is lost, and the balance is what the payments leave.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use utxo_store::{
    broker::{Broker, OutgoingMessage},
    event::{Event, PartialOutput, PartialTxEvent},
    rng::SplitMix64,
    tx::{Outpoint, Output, TransactionBuilder, Txid},
    vault::{
        ClientError, LockId, VaultClient,
        model::{BalanceView, OwnerOutput, ScriptName, SelectAnswer, SelectRequest},
    },
};

use super::{TestBed, api_kills::ServerProcess, env_number};
use crate::{
    aerospike_server::AerospikeServer,
    kafka_server::KafkaServer,
    ports::free_port,
    postgres_server,
    run::{block_on, until},
};

/// Wallets that share the outputs of one owner.
const WALLETS: u64 = 6;
/// Outputs at the begin, and the amount of each.
const OUTPUTS: u32 = 200;
const AMOUNT: u64 = 100_000;
const SCRIPT: [u8; 3] = [0x51, 9, 9];
/// Longest time for a request with its repeats.
const PATIENCE: Duration = Duration::from_secs(120);

/// Model of the vault: the outputs that wallets hold, and the fees that they have paid.
#[derive(Default)]
struct Ledger {
    /// Outputs that a wallet holds, with its lock.
    held: Mutex<HashMap<Outpoint, LockId>>,
    /// Satoshis of all fees that acknowledged payments have paid.
    fees: AtomicU64,
    payments: AtomicU64,
    selections: AtomicU64,
    repeats: AtomicU64,
    is_over: AtomicBool,
}

impl Ledger {
    fn take(&self, selected: &SelectAnswer) -> Vec<Outpoint> {
        let mut held = self.held.lock().unwrap();
        let outpoints: Vec<Outpoint> = selected.outputs.iter().map(|output| output.outpoint.parse().unwrap()).collect();
        for outpoint in &outpoints {
            let before = held.insert(*outpoint, selected.lock_id);
            assert!(before.is_none_or(|lock| lock == selected.lock_id), "{outpoint} was handed out twice");
        }
        self.selections.fetch_add(1, Relaxed);
        outpoints
    }

    fn drop_all(&self, outpoints: &[Outpoint]) {
        let mut held = self.held.lock().unwrap();
        held.retain(|outpoint, _| !outpoints.contains(outpoint));
    }

    /// Repeats a request until the vault answers.
    async fn ask<T, F: Future<Output = Result<T, ClientError>>>(
        &self,
        mut request: impl FnMut() -> F,
    ) -> Result<T, ClientError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match request().await {
                Err(error) if error.may_be_retried() => {
                    assert!(Instant::now() < deadline, "the vault does not answer: {error}");
                    self.repeats.fetch_add(1, Relaxed);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                answer => return answer,
            }
        }
    }
}

/// Builds a payment to the own script: the owner's outputs lose nothing but the fee.
fn pay(selected: &[OwnerOutput], amount: u64, change: Option<u64>, tag: u64) -> (Txid, Vec<u8>) {
    let mut builder = TransactionBuilder::default();
    for output in selected {
        let previous = Output { satoshis: output.satoshis, script: &SCRIPT };
        builder = builder.input(output.outpoint.parse().unwrap(), &tag.to_le_bytes(), u32::MAX, Some(previous));
    }
    builder = builder.output(amount, &SCRIPT);
    if let Some(change) = change {
        builder = builder.output(change, &SCRIPT);
    }
    let extended = builder.extended();
    (utxo_store::tx::Transaction::parse(&extended).unwrap().txid(), extended)
}

/// Selects, and releases or pays, until the ledger is over.
async fn use_wallet(ledger: &Ledger, client: &VaultClient, wallet: u64, seed: u64) {
    let mut rng = SplitMix64::new(seed ^ wallet);
    let mut number = 0;
    while !ledger.is_over.load(Relaxed) {
        number += 1;
        let lock_id = LockId::random();
        let amount = AMOUNT / 4 + rng.below(AMOUNT * 2);
        let request = SelectRequest {
            request_id: Some(format!("{seed}-{wallet}-{number}").parse().unwrap()),
            lock_id: Some(lock_id),
            min_confirmations: Some(0),
            foreign_unconfirmed: Some(true),
            ..SelectRequest::at_rate(amount, 1_000)
        };
        let selected = match ledger.ask(|| client.select(&request, Duration::ZERO)).await {
            Ok(selected) => selected,
            Err(error) => {
                // Others hold too much, or payments are on their way.
                let kind = error.refused().map(utxo_store::vault::RefusedRequest::kind);
                assert_eq!(kind, Some("insufficient-balance"), "{error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        assert_eq!(selected.sum, amount + selected.fee + selected.change.unwrap_or(0));
        let outpoints = ledger.take(&selected);
        if rng.below(3) == 0 {
            // Another wallet may have the outputs before the answer comes.
            ledger.drop_all(&outpoints);
        } else {
            let (txid, extended) = pay(&selected.outputs, amount, selected.change, rng.next_u64());
            let spent = ledger.ask(|| client.spend(lock_id, &extended, Duration::from_secs(30))).await;
            let spent = spent.unwrap_or_else(|error| panic!("{txid}: {error}"));
            assert_eq!(spent.txid, txid.to_string());
            ledger.fees.fetch_add(selected.fee, Relaxed);
            ledger.payments.fetch_add(1, Relaxed);
            ledger.drop_all(&outpoints);
        }
        match ledger.ask(|| client.release(lock_id, None)).await {
            Ok(_) => {}
            // The lock of a payment is released twice where the first answer was lost.
            Err(error) => assert!(error.refused().is_some_and(|refused| refused.status == 404), "{error}"),
        }
    }
}

fn sum(balance: &BalanceView) -> u64 {
    let parts = [balance.available, balance.own_unconfirmed, balance.foreign_unconfirmed];
    parts.iter().map(|part| part.satoshis).sum()
}

fn publish_outputs(testbed: &TestBed) {
    let txid = Txid([9; 32]);
    let outputs = (0..OUTPUTS).map(|vout| PartialOutput { vout, satoshis: AMOUNT, script: &SCRIPT }).collect();
    let event = Event::Seeded(PartialTxEvent { txid, coinbase: false, height: 1, outputs });
    let message = OutgoingMessage {
        topic: testbed.bench.topic("validated-txs"),
        key: txid.0.to_vec().into(),
        payload: event.encode().into(),
        ..OutgoingMessage::default()
    };
    block_on(async { testbed.bench.broker().producer().await.unwrap().produce(message).await.unwrap() });
}

/// Kills the vault under the load of the wallets. `asks_instance`: the vault asks the instance over HTTP; otherwise the
/// vault has the store open.
fn kill_under_load(testbed: &mut TestBed, kills: u64, seed: u64, asks_instance: bool) {
    let mut rng = SplitMix64::new(seed ^ u64::from_be_bytes(*b"vault ki"));
    let instance = ServerProcess::start(testbed, ("instance", &["run"]), &[("HTTP__API", "true")]);
    drop(rustls::crypto::ring::default_provider().install_default());
    // A vault opens a store that exists.
    let ready = format!("http://{}/health/ready", instance.address);
    until("the instance is ready", || {
        block_on(async { reqwest::get(&ready).await.is_ok_and(|answer| answer.status().is_success()) })
    });
    if asks_instance {
        testbed.set("VAULT__ANSWERS_URL", &format!("http://{}", instance.address));
    }
    // The wallets find the vault after each kill.
    let address = format!("127.0.0.1:{}", free_port());
    let vault = [("HTTP__LISTEN", address.as_str())];
    let start = |testbed: &TestBed| ServerProcess::start(testbed, ("vault", &["vault", "run"]), &vault);
    let mut process = start(testbed);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let client = || Arc::new(VaultClient::open(&format!("http://{address}"), "shop".parse().unwrap(), None).unwrap());
    let shop = client();
    let ledger = Arc::<Ledger>::default();
    let script = vec![ScriptName::Script(hex::encode(SCRIPT))];
    runtime.block_on(async { shop.watch(script, None).await.unwrap() });
    publish_outputs(testbed);
    let all = AMOUNT * u64::from(OUTPUTS);
    let until_balance = |what: &str, expected: u64| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let balance = runtime.block_on(ledger.ask(|| shop.balance())).unwrap();
            let is_settled = balance.soft_locked.outputs + balance.pending.outputs == 0;
            if is_settled && sum(&balance) == expected {
                return balance;
            }
            assert!(Instant::now() < deadline, "{what}: {expected} satoshis are expected: {balance:#?}");
            thread::sleep(Duration::from_millis(50));
        }
    };
    until_balance("the begin", all);
    let wallets: Vec<_> = (0..WALLETS)
        .map(|wallet| {
            let (ledger, client) = (ledger.clone(), client());
            runtime.spawn(async move { use_wallet(&ledger, &client, wallet, seed).await })
        })
        .collect();
    for _ in 0..kills {
        thread::sleep(Duration::from_millis(50 + rng.below(700)));
        drop(process);
        process = start(testbed);
    }
    ledger.is_over.store(true, Relaxed);
    for wallet in wallets {
        runtime.block_on(wallet).unwrap();
    }
    let Ledger { fees, payments, selections, repeats, .. } = &*ledger;
    let (payments, selections) = (payments.load(Relaxed), selections.load(Relaxed));
    let repeats = repeats.load(Relaxed);
    let balance = until_balance("the end", all - fees.load(Relaxed));
    // A lock whose selection was refused at a repeat may be in force; no lock has an output (O-179).
    let locks = runtime.block_on(async { shop.locks().await.unwrap() }).locks;
    for lock in locks {
        let released = runtime.block_on(async { shop.release(lock.lock_id, None).await.unwrap() }).released;
        assert_eq!(released, 0, "a lock has outputs that no wallet holds");
    }
    assert!(payments > kills / 2 && repeats > 0, "{payments} payments, {repeats} repeats: no kill met a request");
    eprintln!("{kills} kills: {selections} selections, {payments} payments, {repeats} repeats; {} left", sum(&balance));
}

fn on_fjall_and_sqlite(kills: u64, seed: u64) {
    let Some(kafka) = KafkaServer::shared() else { return };
    let mut testbed = TestBed::fjall(kafka.bootstrap_servers());
    let database = format!("sqlite://{}", testbed.bench.path("vault.sqlite").display());
    testbed.set("VAULT__URL", &database);
    eprintln!("kills of a vault on SQLite beside fjall: SEED={seed} KILLS={kills}");
    kill_under_load(&mut testbed, kills, seed, true);
}

fn on_aerospike_and_postgres(kills: u64, seed: u64) {
    let Some(kafka) = KafkaServer::shared() else { return };
    let Some(asd) = AerospikeServer::start() else { return };
    let Some(database) = postgres_server::shared_database() else { return };
    let mut testbed = TestBed::aerospike(kafka.bootstrap_servers(), &asd);
    testbed.set("VAULT__URL", &database.url());
    eprintln!("kills of a vault on PostgreSQL over Aerospike: SEED={seed} KILLS={kills}");
    kill_under_load(&mut testbed, kills, seed, false);
}

#[test]
fn a_killed_vault_on_sqlite_hands_out_no_output_twice() {
    on_fjall_and_sqlite(8, env_number("SEED", 1));
}

#[test]
fn a_killed_vault_on_postgres_hands_out_no_output_twice() {
    on_aerospike_and_postgres(8, env_number("SEED", 2));
}

/// Entry of `make kill-test-vault`.
#[test]
#[ignore = "takes as long as KILLS says"]
fn a_long_kill_test_of_the_vault() {
    let (kills, seed) = (env_number("KILLS", 200), env_number("SEED", 1));
    on_fjall_and_sqlite(kills / 2, seed);
    on_aerospike_and_postgres(kills - kills / 2, seed + 1);
}
