//! The vault over HTTP: routes, tokens, the Rust client, and the store behind an API.

use std::{fs, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use reqwest::{Client, Method, StatusCode};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use utxo_store::{
    Store,
    api::{
        Server, ServerSettings,
        v1::{LogAccess, VaultContext},
    },
    broker::Broker,
    clock::Clock,
    engine::fjall::{FjallEngine, FjallOptions},
    event::CommandAction,
    status::Health,
    store::spend_status::SpendStatus,
    telemetry::{Metrics, VaultMetrics},
    tx::{Outpoint, Txid},
    vault::{
        AskerSettings, ClientError, HttpStore, LockCondition, LockId, OutputSource, OwnStore, VaultClient, VaultParts,
        VaultService, VaultSettings,
        model::{BalanceView, RescanSource, ScriptName, SelectRequest},
    },
};

use super::{fake_store, on_each_database, owner};
use crate::{
    aerospike::world_over,
    aerospike_server::AerospikeServer,
    api::{self, Api, Scene, scene},
    api_routes::described_routes,
    harness::{Made, Running, World, WorldSettings, coinbase, spend_claiming, spend_to},
    made_blocks::MadeBlock,
    postgres_server,
};

/// Key of the example.
const EXAMPLE_KEY: &str = "cMahea7zqjxrtgAbB7LSGbcQUr1uX1ojuat9jZodMN87JcbXMTcA";
const COMMAND: &str = "23456789abcdef0123456789abcdef01";
const READ: &str = "0123456789abcdef0123456789abcdef";
const ALICE: &str = "3456789abcdef0123456789abcdef012";
const BOB: &str = "456789abcdef0123456789abcdef0123";
const ALICE_SCRIPT: &[u8] = &[0x51, 1, 1];
const BOB_SCRIPT: &[u8] = &[0x51, 2, 2];

/// A vault with its server beside an instance. Alice and Bob have tokens.
struct VaultServer {
    world: World,
    instance: Running,
    api: Api,
    folder: tempfile::TempDir,
    shutdown: CancellationToken,
    service: JoinHandle<()>,
}

impl VaultServer {
    async fn start(url: &str) -> Self {
        VaultServer::start_beside(World::new().await, url).await
    }

    async fn start_beside(world: World, url: &str) -> Self {
        let instance = world.start();
        // The vault asks for the tip only once the store has its meta record.
        while world.store.meta().await.unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let folder = tempfile::tempdir().unwrap();
        let tokens = format!("read {READ}\ncommand {COMMAND}\nwallet:alice {ALICE}\nwallet:bob,carol {BOB}\n");
        for (name, text) in [("tokens", tokens.as_str()), ("command", COMMAND), ("alice", ALICE), ("bob", BOB)] {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let config = api::config(&[("HTTP__TOKENS_FILE", folder.path().join("tokens").to_str().unwrap())]);
        let store = Store::of_state_store(world.store.clone());
        let network = world.store.settings.network;
        let settings = VaultSettings { network, ..VaultSettings::default() };
        let vault = super::open_with(url, Arc::new(OwnStore::of(&store)), settings).await;
        let broker: Arc<dyn Broker> = Arc::new(world.broker.clone());
        let parts = VaultParts {
            vault,
            broker: broker.clone(),
            topics: fake_store::topics(),
            group: "vault".into(),
            bodies: None,
            store: Some(store),
            snapshots: None,
            asker: AskerSettings::default(),
        };
        let service = VaultService::begin(parts).await.unwrap();
        let metrics = Arc::new(Metrics::new());
        let health = Arc::new(Health::new(Clock::System, Duration::from_secs(60)));
        let settings = ServerSettings::load(&config.http).unwrap();
        let (limits, access) = (settings.limits.clone(), settings.access.clone());
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::bind(free, settings, metrics.clone(), health.clone()).await.unwrap();
        let log = LogAccess::new(broker, &config);
        let vault_metrics = VaultMetrics::register(&metrics).unwrap();
        let context = VaultContext::new(limits, access, service.rescan(), log, vault_metrics);
        let address = server.address();
        tokio::spawn(server.with_vault(context).serve(std::future::pending()));
        drop(rustls::crypto::ring::default_provider().install_default());
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        let service = tokio::spawn(async move { service.run(&stop).await.unwrap() });
        let api = Api { address, client: Client::new(), health, metrics };
        VaultServer { world, instance, api, folder, shutdown, service }
    }

    fn token_file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn client(&self, name: &str) -> VaultClient {
        self.client_with(name, name)
    }

    fn client_with(&self, name: &str, token: &str) -> VaultClient {
        let url = format!("http://{}", self.api.address);
        VaultClient::open(&url, owner(name), Some(self.token_file(token))).unwrap()
    }

    /// Waits until a balance is as expected.
    async fn until(&self, name: &str, what: &str, is_reached: impl Fn(&BalanceView) -> bool) {
        let client = self.client(name);
        let until = std::time::Instant::now() + Duration::from_secs(60);
        loop {
            let balance = client.balance().await.unwrap();
            if is_reached(&balance) {
                return;
            }
            assert!(std::time::Instant::now() < until, "{what}: {balance:#?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.service.await.unwrap();
        self.instance.stop().await;
    }
}

fn hex_script(script: &[u8]) -> ScriptName {
    ScriptName::Script(hex::encode(script))
}

fn refused(error: &ClientError) -> (&str, u16) {
    let refused = error.refused().unwrap_or_else(|| panic!("{error}"));
    (refused.kind(), refused.status)
}

/// Builds a payment from the outputs of a selection, which the world's coins are.
fn pay(made: &[&Made], outpoints: &[Outpoint], outputs: &[(u64, &[u8])], tag: u8) -> Made {
    let coins: Vec<_> = outpoints
        .iter()
        .map(|outpoint| {
            let made = made.iter().find(|made| made.txid == outpoint.txid).unwrap();
            made.coin(outpoint.vout)
        })
        .collect();
    spend_to(&coins, outputs.iter().map(|(satoshis, script)| (*satoshis, script.to_vec())).collect(), tag)
}

fn outpoints(outputs: &[utxo_store::vault::model::OwnerOutput]) -> Vec<Outpoint> {
    outputs.iter().map(|output| output.outpoint.parse().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn wallets_pay_over_http() {
    on_each_database(async |url: &str| {
        let server = VaultServer::start(url).await;
        let alice = server.client("alice");
        assert_eq!(refused(&alice.balance().await.unwrap_err()), ("not-found", 404), "no script yet");
        let seed = server.world.seed(9, 2).await;
        let funds = pay(&[&seed], &[seed.coin(0).outpoint], &[(600_000, ALICE_SCRIPT), (400_000, ALICE_SCRIPT)], 1);
        server.world.validate(&funds).await;
        server.world.bring(1, &MadeBlock::new(1, 101, &coinbase(1), &[&funds])).await;
        server.world.until_consumed().await;

        // The outputs are older than the script: a rescan of the log finds them, also where the request is repeated.
        let own = alice.watch(vec![hex_script(ALICE_SCRIPT)], None).await.unwrap_err();
        assert_eq!(refused(&own), ("forbidden", 403), "a wallet could watch the scripts of others");
        let (for_alice, for_bob) = (server.client_with("alice", "command"), server.client_with("bob", "command"));
        for added in [1, 0] {
            let watched = for_alice.watch(vec![hex_script(ALICE_SCRIPT)], Some(RescanSource::Log)).await.unwrap();
            assert_eq!(watched.added, added);
        }
        assert_eq!(for_bob.watch(vec![hex_script(BOB_SCRIPT)], None).await.unwrap().added, 1);
        let stolen = for_bob.watch(vec![hex_script(ALICE_SCRIPT)], None).await.unwrap_err();
        assert_eq!(refused(&stolen), ("conflict", 409));
        server.until("alice", "the rescan", |balance| balance.available.satoshis == 1_000_000).await;
        assert_eq!(alice.scripts(0, 10).await.unwrap().scripts[0].script, hex::encode(ALICE_SCRIPT));
        while !alice.rescans().await.unwrap().rescans.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }

        // Select, spend and wait.
        let session = alice.open_session(Some(Duration::from_secs(60)), None).await.unwrap();
        let request = SelectRequest {
            request_id: Some("one".parse().unwrap()),
            lock_id: Some(session.lock_id),
            ..select(500_000)
        };
        let selected = alice.select(&request, Duration::ZERO).await.unwrap();
        assert_eq!(alice.select(&request, Duration::ZERO).await.unwrap(), selected, "a repeat has the same answer");
        assert_eq!((selected.sum, selected.sum - selected.fee - selected.change.unwrap_or(0)), (600_000, 500_000));
        let too_much = alice.select(&select(500_000), Duration::ZERO).await.unwrap_err();
        assert_eq!(refused(&too_much), ("insufficient-balance", 409));
        let members = &too_much.refused().unwrap().members;
        assert_eq!((&members["available"], &members["locked"]), (&json!(400_000), &json!(600_000)));
        let used = outpoints(&selected.outputs);
        let held = alice.reserve(LockId::random(), &used, None).await.unwrap_err();
        assert_eq!(refused(&held), ("states-not-available", 409));
        assert_eq!(held.refused().unwrap().members["outputs"][0]["reason"], "locked");
        let change = selected.change.unwrap();
        let payment = pay(&[&funds], &used, &[(500_000, BOB_SCRIPT), (change, ALICE_SCRIPT)], 2);

        // The token of a wallet spends what its lock has, and nothing else.
        let other =
            [funds.coin(0).outpoint, funds.coin(1).outpoint].into_iter().find(|one| !used.contains(one)).unwrap();
        let not_reserved = pay(&[&funds], &[other], &[(1, BOB_SCRIPT)], 3);
        let error = alice.spend(session.lock_id, &not_reserved.extended, Duration::ZERO).await.unwrap_err();
        assert_eq!(refused(&error), ("states-not-available", 409));
        assert_eq!(error.refused().unwrap().members["outputs"][0]["reason"], "not-reserved");
        let foreign = pay(&[&seed], &[seed.coin(1).outpoint], &[(1, BOB_SCRIPT)], 4);
        let error = alice.spend(session.lock_id, &foreign.extended, Duration::ZERO).await.unwrap_err();
        assert_eq!(error.refused().unwrap().members["outputs"][0]["reason"], "unknown");

        // An input that claims another previous output would falsify the rows of others.
        let mut claimed = funds.coin(used[0].vout);
        claimed.script = BOB_SCRIPT.to_vec();
        let falsified = spend_claiming(&[funds.coin(used[0].vout)], &[claimed], 1, 5);
        let error = alice.spend(session.lock_id, &falsified.extended, Duration::ZERO).await.unwrap_err();
        assert!(refused(&error) == ("bad-request", 400) && error.to_string().contains("another previous output"));

        let spent = alice.spend(session.lock_id, &payment.extended, Duration::from_secs(60)).await.unwrap();
        assert_eq!((spent.txid.as_str(), spent.locked_outputs), (payment.txid.to_string().as_str(), 1));
        assert_eq!(serde_json::to_value(&spent.outcome).unwrap(), json!({"status": "live"}));
        let again = alice.spend(session.lock_id, &payment.extended, Duration::from_secs(60)).await.unwrap();
        assert_eq!(serde_json::to_value(&again.outcome).unwrap(), json!({"status": "live"}), "a repeat");
        server.until("bob", "paid", |balance| balance.foreign_unconfirmed.satoshis == 500_000).await;
        server.until("alice", "her change has the lock", |balance| balance.soft_locked.satoshis == change).await;
        let locked = alice.outputs(&LockCondition::LockedOnly, None, 10).await.unwrap();
        assert_eq!(locked.outputs.iter().map(|output| output.lock_id).collect::<Vec<_>>(), [Some(session.lock_id)]);
        assert_eq!(alice.heartbeat(session.lock_id, None).await.unwrap().lock_id, session.lock_id);
        assert_eq!(alice.locks().await.unwrap().locks.len(), 1);
        assert_eq!(alice.release(session.lock_id, None).await.unwrap().released, 1);
        let ended = alice.heartbeat(session.lock_id, None).await.unwrap_err();
        assert_eq!(refused(&ended), ("lock-ended", 409));
        let again = alice.spend(session.lock_id, &payment.extended, Duration::from_secs(60)).await.unwrap();
        assert_eq!(serde_json::to_value(&again.outcome).unwrap(), json!({"status": "live"}), "after the lock's end");
        let late = pay(&[&funds], &[other], &[(1, BOB_SCRIPT)], 6);
        let error = alice.spend(session.lock_id, &late.extended, Duration::ZERO).await.unwrap_err();
        assert_eq!(refused(&error), ("lock-ended", 409));
        server.until("alice", "free again", |balance| balance.own_unconfirmed.satoshis == change).await;

        // The page for people has the same outputs, for the token of the owner as the password of any name.
        let page = async |path: &str, token: Option<&str>| {
            let request = server.api.client.get(format!("http://{}{path}", server.api.address));
            let request = if let Some(token) = token { request.basic_auth("me", Some(token)) } else { request };
            let answer = request.send().await.unwrap();
            let asks = answer.headers().contains_key("www-authenticate");
            let policy = answer.headers().contains_key("content-security-policy");
            (answer.status().as_u16(), asks, policy, answer.text().await.unwrap())
        };
        let (status, _, has_policy, shown) = page("/vault/alice", Some(ALICE)).await;
        assert!(status == 200 && has_policy && shown.contains(&payment.txid.to_string()), "{shown}");
        assert!(shown.contains("unconfirmed, of own transactions"), "{shown}");
        let refused_pages =
            [(None, "/vault/alice", 401), (Some(BOB), "/vault/alice", 403), (Some(READ), "/vault/x", 403)];
        for (token, path, status) in refused_pages {
            let (found, asks, has_policy, shown) = page(path, token).await;
            assert!(found == status && asks == (status == 401) && has_policy, "{path} {token:?}: {found} {shown}");
        }
        assert_eq!(page("/vault?owner=alice", Some(ALICE)).await.0, 200);
        for (path, status) in [("/vault?owner=<b>", 400), ("/vault/alice?after=x", 400), ("/vault/alice?x=1", 400)] {
            let (found, _, _, shown) = page(path, Some(ALICE)).await;
            assert!(found == status && !shown.contains("<b>"), "{path}: {found} {shown}");
        }
        assert!(page("/", None).await.3.contains("name of an owner"));

        // A page of outputs begins after the last of the page before.
        let first = alice.outputs(&LockCondition::Any, None, 1).await.unwrap();
        let rest =
            alice.outputs(&LockCondition::Any, first.next.as_deref().map(|next| next.parse().unwrap()), 10).await;
        let rest = rest.unwrap();
        assert_eq!((first.outputs.len(), rest.outputs.len(), rest.next), (1, 1, None));

        // A waiting selection gets outputs that are released meanwhile.
        let holder = alice.select(&select(300_000), Duration::ZERO).await.unwrap();
        let waiting = tokio::spawn({
            let alice = server.client("alice");
            async move { alice.select(&select(300_000), Duration::from_secs(30)).await }
        });
        tokio::time::sleep(Duration::from_millis(300)).await;
        alice.release(holder.lock_id, None).await.unwrap();
        assert_eq!(waiting.await.unwrap().unwrap().sum, 400_000);
        let removed = for_alice.unwatch(vec![hex_script(ALICE_SCRIPT)]).await.unwrap_err();
        assert_eq!(refused(&removed), ("conflict", 409), "an output has a lock");
        assert_eq!(for_bob.unwatch(vec![hex_script(BOB_SCRIPT)]).await.unwrap().removed, 1);
        let text = server.api.client.get(format!("http://{}/metrics", server.api.address)).send().await.unwrap();
        let text = text.text().await.unwrap();
        for line in [
            r#"utxo_vault_requests_total{operation="select",result="insufficient-balance"} 1"#,
            r#"utxo_vault_requests_total{operation="spend",result="ok"} 3"#,
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        server.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_example_pays_from_a_vault_on_fjall_and_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new().await;
    let path = folder.path().join("store");
    let engine = FjallEngine::open(&path, world.store.settings.rules, FjallOptions::default()).unwrap();
    let url = format!("sqlite://{}", folder.path().join("vault.sqlite").display());
    the_example_pays(world.over(Arc::new(engine)), &url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_example_pays_from_a_vault_on_aerospike_and_postgres() {
    let Some(server) = AerospikeServer::start() else { return };
    let Some(database) = postgres_server::shared_database() else { return };
    let world = world_over(&server.settings(), WorldSettings::calm()).await;
    the_example_pays(world, &database.url()).await;
}

/// The example as a process: watches, selects, signs, publishes, and waits until the payment is live.
async fn the_example_pays(world: World, url: &str) {
    let server = VaultServer::start_beside(world, url).await;
    let key = bitcoin::PrivateKey::from_wif(EXAMPLE_KEY).unwrap();
    let address = bitcoin::Address::p2pkh(key.public_key(&bitcoin::secp256k1::Secp256k1::new()), key.network);
    let script = address.script_pubkey().into_bytes();
    let seed = server.world.seed(9, 1).await;
    let funds = pay(&[&seed], &[seed.coin(0).outpoint], &[(600_000, &script), (300_000, &script)], 1);
    server.world.validate(&funds).await;
    server.world.until_consumed().await;
    let operator = server.client_with("alice", "command");
    operator.watch(vec![ScriptName::Address(address.to_string())], Some(RescanSource::Log)).await.unwrap();
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_utxo-store"));
    let example = program.parent().unwrap().join("examples/pay_from_vault");
    let (url, token) = (format!("http://{}", server.api.address), server.token_file("alice"));
    let run = async |satoshis: &str| {
        let mut command = tokio::process::Command::new(&example);
        command.args([&url, "alice", EXAMPLE_KEY, "mipcBbFg9gMiCh81Kj8tqqdgoZub1ZJRfn", satoshis]).arg(&token);
        let output = command.output().await;
        let output = output.unwrap_or_else(|error| panic!("{error}; `cargo build --examples` builds the examples"));
        (output.status.success(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (is_paid, lines, error) = run("500000").await;
    assert!(is_paid && lines.contains("selected: 1 outputs, 600000 satoshis, fee 2"), "{lines}{error}");
    assert!(lines.trim_end().ends_with(": live"), "{lines}{error}");
    // The change comes back, and all that is left does not suffice.
    server.until("alice", "her change", |balance| balance.own_unconfirmed.outputs == 1).await;
    let (is_paid, lines, error) = run("500000").await;
    assert!(!is_paid && error.contains("the balance is insufficient"), "{lines}{error}");
    assert!(server.client("alice").locks().await.unwrap().locks.is_empty(), "the sessions have ended");
    server.stop().await;
}

fn select(amount: u64) -> SelectRequest {
    SelectRequest::at_rate(amount, 1_000)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_vault_route_needs_a_token_of_its_owner() {
    let server = VaultServer::start("sqlitememory:///vault").await;
    let routes = described_routes(|path| path.starts_with("/v1/vault"));
    assert_eq!(routes.len(), 14);
    for route in &routes {
        let what = format!("{} {}", route.method, route.path);
        let ask = async |token| route.ask(&server.api, &route.path, token, route.body.as_ref()).await.0.as_u16();
        assert_eq!((ask(None).await, ask(Some("unknown")).await), (401, 401), "{what}");
        assert_eq!((ask(Some(BOB)).await, ask(Some(READ)).await), (403, 403), "{what}");
        // A wallet does not choose its scripts.
        assert_eq!(ask(Some(ALICE)).await == 403, route.role == "command", "{what}");
        assert!(![401, 403].contains(&ask(Some(COMMAND)).await), "{what}");
        let token = Some(COMMAND);
        // A parameter, or a field, that no route has is refused by its name.
        let path = route.with_parameter("zz=1");
        let (status, problem) = route.ask(&server.api, &path, token, route.body.as_ref()).await;
        assert!(status == StatusCode::BAD_REQUEST && problem["detail"].as_str().unwrap().contains("zz"), "{what}");
        if route.body.is_some() {
            let body = json!({"yy": 1});
            let (status, problem) = route.ask(&server.api, &route.path, token, Some(&body)).await;
            let detail = problem["detail"].as_str().unwrap();
            assert!(status == StatusCode::BAD_REQUEST && detail.contains("yy"), "{what}: {problem}");
        }
        let of_store = route.path.replace("/v1/vault/alice", "/v1/vault/a%20b");
        assert_eq!(route.ask(&server.api, &of_store, Some(ALICE), route.body.as_ref()).await.0, 403, "{what}");
        let (status, _) = route.ask(&server.api, &of_store, Some(COMMAND), route.body.as_ref()).await;
        assert_eq!(status, 400, "{what}: no name of an owner");
    }
    // The server of a vault answers no question about the store.
    let chain = server.api.client.get(format!("http://{}/v1/chain", server.api.address)).bearer_auth(COMMAND);
    assert_eq!(chain.send().await.unwrap().status(), StatusCode::NOT_FOUND);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn bad_input_of_wallets_is_refused_by_its_cause() {
    let server = VaultServer::start("sqlitememory:///vault").await;
    let alice = server.client("alice");
    server.client_with("alice", "command").watch(vec![hex_script(ALICE_SCRIPT)], None).await.unwrap();
    let lock = LockId::random().to_string();
    let year = 366_u64 * 24 * 3_600 * 1_000;
    let outpoint = format!("{}:0", "12".repeat(32));
    let main_address = "1BgGZ9tcN4rm9KBzDn7KprQz87SZ26SAMH";
    for (path, body, status, cause) in [
        ("outputs:select", json!({"amount": 0, "fee": 1}), 400, "the amount is 0"),
        ("outputs:select", json!({"amount": 2_100_000_000_000_001_u64, "fee": 1}), 400, "all that will exist"),
        ("outputs:select", json!({"amount": 1, "fee": 2_100_000_000_000_001_u64}), 400, "the fee is above"),
        ("outputs:select", json!({"amount": 1}), 400, "either `feeRate` or `fee`"),
        ("outputs:select", json!({"amount": 1, "fee": 1, "feeRate": 1}), 400, "either `feeRate` or `fee`"),
        ("outputs:select", json!({"amount": -1, "fee": 1}), 400, "amount"),
        ("outputs:select", json!({"amount": 1, "fee": 1, "requestId": "a b"}), 400, "the id of a request"),
        ("outputs:select", json!({"amount": 1, "fee": 1, "ttlMs": year}), 400, "a lease or TTL is"),
        ("outputs:select", json!({"amount": 1, "fee": 1, "lockId": "me"}), 400, "lockId"),
        ("outputs:select", json!({"amount": 1, "feeRate": 100_000_000}), 409, "the balance is insufficient"),
        ("outputs:select?wait=60001", json!({"amount": 1, "fee": 1}), 400, "wait: at most 60000"),
        ("scripts", json!({"scripts": [{"script": ""}]}), 400, "a script is empty"),
        ("scripts", json!({"scripts": [{"script": "0"}]}), 400, "no hexadecimal text"),
        ("scripts", json!({"scripts": []}), 400, "names no script"),
        ("scripts", json!({"scripts": [{"address": main_address}]}), 400, "another network"),
        ("scripts", json!({"scripts": [{"address": "x"}]}), 400, "is no address"),
        ("outputs:reserve", json!({"lockId": lock, "outpoints": [outpoint]}), 409, "cannot be reserved"),
        ("outputs:reserve", json!({"lockId": lock, "outpoints": ["x:0"]}), 400, "x:0"),
        ("outputs:reserve", json!({"lockId": lock, "outpoints": []}), 400, "names no output"),
        ("outputs:reserve", json!({"lockId": lock, "outpoints": [outpoint], "ttlMs": 0}), 400, "a lease or TTL is"),
        ("outputs:release", json!({"lockId": lock}), 404, "there is no lock"),
        ("sessions", json!({"leaseMs": year}), 400, "a lease or TTL is"),
        ("sessions:heartbeat", json!({}), 400, "names its session"),
        ("sessions:heartbeat", json!({"lockId": lock}), 404, "there is no lock"),
        ("transactions", json!({"lockId": lock, "transaction": "00"}), 400, "transaction 0 is refused"),
        ("transactions?timeout_ms=5", json!({"lockId": lock, "transaction": "00"}), 400, "wait=live"),
        ("rescans", json!({"source": "sky"}), 400, "sky"),
        ("rescans", json!({"source": "snapshot"}), 400, "snapshot.url is not set"),
    ] {
        let request = server.api.client.post(format!("http://{}/v1/vault/alice/{path}", server.api.address));
        let request = request.bearer_auth(COMMAND).header("Content-Type", "application/json").body(body.to_string());
        let answer = request.send().await.unwrap();
        let (found, problem) = (answer.status().as_u16(), answer.text().await.unwrap());
        assert!(found == status && problem.contains(cause), "{path} {body}: {found} {problem}");
        crate::openapi::assert_described(
            &Method::POST,
            &format!("/v1/vault/alice/{path}"),
            StatusCode::from_u16(found).unwrap(),
        );
    }
    // Locks of other owners are not told from unknown ones.
    let bob = server.client("bob");
    server.client_with("bob", "command").watch(vec![hex_script(BOB_SCRIPT)], None).await.unwrap();
    let session = bob.open_session(None, None).await.unwrap();
    assert_eq!(refused(&alice.release(session.lock_id, None).await.unwrap_err()), ("not-found", 404));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_client_tells_a_server_that_is_away_from_one_that_refuses() {
    let server = VaultServer::start("sqlitememory:///vault").await;
    // A token that was replaced in its file is read again.
    let token = server.token_file("new");
    fs::write(&token, BOB).unwrap();
    let alice = server.client_with("alice", "new");
    assert_eq!(refused(&alice.balance().await.unwrap_err()), ("forbidden", 403));
    fs::write(&token, "f".repeat(32)).unwrap();
    let unknown = server.client_with("alice", "new");
    fs::write(&token, ALICE).unwrap();
    assert_eq!(refused(&unknown.balance().await.unwrap_err()), ("not-found", 404), "the new token is known");
    for (url, problem) in [("ftp://x", "is no URL"), ("x", "is no URL"), ("http://127.0.0.1:1", "does not answer")] {
        let opened = VaultClient::open(url, owner("alice"), None);
        let error = match opened {
            Ok(client) => client.balance().await.unwrap_err(),
            Err(error) => error,
        };
        assert!(error.to_string().contains(problem), "{url}: {error}");
        assert_eq!(error.may_be_retried(), problem == "does not answer", "{error}");
    }
    let opened = VaultClient::open("http://x", owner("alice"), Some(server.token_file("absent")));
    assert!(opened.err().unwrap().to_string().contains("cannot read the token file"));
    server.stop().await;
}

/// Protects: the vault of an instance on fjall asks the API, and must come to the same facts as with the store open.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_behind_the_api_answers_as_the_open_one() {
    let Scene { world, running, parent, mined, child, loser } = scene().await;
    let frozen = parent.coin(3).outpoint;
    world.command(1, CommandAction::Freeze { outpoint: frozen }).await;
    world.until_consumed().await;
    // Scripts whose sum is above the limit of one answer make the client ask for parts.
    let api = Api::start(&world, &[("HTTP__MAX_BODY_BYTES", "8192")]).await;
    let behind = HttpStore::open(&format!("http://{}", api.address), None).unwrap();
    let open = OwnStore::of(&Store::of_state_store(world.store.clone()));
    let mut asked: Vec<Outpoint> = Vec::new();
    for made in [&parent, &mined, &child, &loser] {
        asked.extend((0..9).map(|vout| Outpoint { txid: made.txid, vout }));
    }
    asked.push(Outpoint { txid: Txid([0x12; 32]), vout: 0 });
    let coinbase = crate::harness::coinbase(1);
    asked.push(Outpoint { txid: coinbase.txid, vout: 0 });
    let mut codes = std::collections::BTreeSet::new();
    for height in [1, 5_000] {
        let (here, there) = (open.ask(&asked, height).await, behind.ask(&asked, height).await);
        for ((here, there), outpoint) in here.into_iter().zip(there).zip(&asked) {
            let (mut here, there) = (here.unwrap(), there.unwrap());
            if let SpendStatus::Conflicting(_) = here.status {
                // The reason of a conflict stays behind.
                here.status = there.status;
            }
            codes.insert(there.status.code());
            assert_eq!(here, there, "{outpoint}");
        }
    }
    for code in ["UNSPENT", "SPENT", "FROZEN", "CONFLICTING", "TX_NOT_FOUND", "UTXO_NOT_FOUND"] {
        assert!(codes.contains(code), "{code}: {codes:?}");
    }
    let tip = open.tip().await.unwrap();
    assert_eq!(behind.tip().await.unwrap(), tip);
    for height in [tip.height, tip.height + 9] {
        assert_eq!(behind.block_at(height).await.unwrap(), open.block_at(height).await.unwrap(), "height {height}");
    }
    running.kill().await;
    let away = HttpStore::open("http://127.0.0.1:1", None).unwrap();
    assert!(away.tip().await.unwrap_err().to_string().contains("does not answer"));
    assert!(away.ask(&asked, 1).await.iter().all(Result::is_err));
}
