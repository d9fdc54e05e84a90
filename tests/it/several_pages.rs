//! Transactions over several pages on the real engines: one history gives the same records on each engine. A process
//! that SIGKILL ends during creates leaves no output that is spendable early and no state that cannot be completed.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use utxo_store::{
    blob::{self, BlobAccess, BlobOptions, BlobUrl, Intent},
    clock::Clock,
    engine::{self, OpenOptions, RecordEngine, Row, conformance::RULES, memory::MemoryEngine},
    record::{
        Blob, Body, HeldSlot, Key, Marks, MinedIn, Operation, Outcome, Page, Phase, Reason, Rejection, Reply,
        Sequenced, Spend, SpendSlot, SpendingData, Stamp, TxState, Verdict,
        build::{NewTxState, PageParams, build_pages},
    },
    rng::SplitMix64,
    store::{
        StateStore, StoreSettings,
        create::{Creator, CreatorIdentity, InitialState, PagedTx, ProcessVisibility},
        digest::survey,
        queries::StoreQueries,
        recovery::Sweep,
        verify::verify,
    },
    tx::{Network, Outpoint, Output, Transaction, TransactionBuilder, Txid},
};

use crate::aerospike_server::AerospikeServer;

const PAGE: u32 = 4;

fn store_on(engine: Arc<dyn RecordEngine>) -> StateStore {
    let settings = StoreSettings {
        network: Network::Regtest,
        rules: RULES,
        utxo_batch_size: PAGE,
        batch_size: 256,
        concurrency: 4,
        retry_pause: (Duration::from_millis(5), Duration::from_millis(500)),
        inline_limit: u64::MAX,
    };
    StateStore::new(engine, settings)
}

/// Builds transaction `number` with this many outputs of 10 satoshis.
fn wide(number: u64, outputs: u32, initial_state: InitialState) -> PagedTx {
    let mut parent = [0xA5; 32];
    parent[..8].copy_from_slice(&number.to_le_bytes());
    let previous = Some(Output { satoshis: 1 << 40, script: &[0x51] });
    let outpoint = Outpoint { txid: Txid(parent), vout: 0 };
    let builder = TransactionBuilder::default().input(outpoint, &[1], u32::MAX, previous);
    let bytes = Bytes::from((0..outputs).fold(builder, |builder, _| builder.output(10, &[0x51])).extended());
    let parsed = Transaction::parse(&bytes).unwrap();
    let setting = PageParams { network: Network::Regtest, height: 100, batch_size: PAGE, created_at: 5, event: None };
    let pages = build_pages(&parsed, bytes.clone(), parsed.txid(), &setting, &NewTxState::default()).unwrap();
    PagedTx { master: pages.master.into(), others: pages.others.unwrap().into(), initial_state }
}

fn creator(store: &StateStore, owner: u64, clock: Clock) -> Creator {
    Creator::new(store.clone(), clock, identity(owner))
}

fn identity(owner: u64) -> CreatorIdentity {
    CreatorIdentity {
        owner,
        process_id: std::process::id(),
        hostname: "here".into(),
        process_visibility: ProcessVisibility::None,
    }
}

fn at(offset: u64, operation: Sequenced) -> Operation {
    Operation::Sequenced(Stamp { offset, phase: Phase::Apply }, operation)
}

fn take_all(work: &PagedTx, number: u32, outputs: u32) -> Operation {
    let txid = work.others.txid();
    let output = Output { satoshis: 10, script: &[0x51] };
    let slot = |vout: u32| {
        SpendSlot::claiming(&Outpoint { txid, vout }, vout % PAGE, vout, &output, Bytes::from_static(&[0x51]))
    };
    let slots: Vec<_> = (number * PAGE..outputs.min((number + 1) * PAGE)).map(slot).collect();
    Operation::Spend(Spend {
        spender: Txid([9; 32]),
        height: 200,
        slots: slots.into(),
        marks: Marks::Respect,
        signals: true,
    })
}

async fn apply(store: &StateStore, key: Key, operation: Operation) -> Outcome {
    store.apply_one(Row { key, operation }).await.unwrap()
}

async fn pages(store: &StateStore, txid: Txid, count: u32) -> Vec<Option<Page>> {
    let keys = (0..count).map(|number| Key::Page(txid, number)).collect();
    let records = store.read(keys).await.unwrap();
    records.into_iter().map(|record| record.and_then(|record| record.page().cloned())).collect()
}

/// Runs a history: created, spent to the last slot, mined, settled; contested and accepted; half created and swept.
/// Returns every outcome, and every final record.
async fn play_history(engine: Arc<dyn RecordEngine>) -> (Vec<Outcome>, Vec<Option<Page>>) {
    const OUTPUTS: u32 = 18;
    let store = store_on(engine);
    let clock = Clock::simulated(1_000_000);
    let creator = creator(&store, 1, clock);
    let mut outcomes = Vec::new();
    let live = wide(1, OUTPUTS, InitialState::Live);
    let txid = live.others.txid();
    for _ in 0..2 {
        outcomes.push(creator.create(&live, |_| {}).await.unwrap());
    }
    for number in [3, 1, 4, 0, 2] {
        for _ in 0..2 {
            outcomes.push(apply(&store, Key::Page(txid, number), take_all(&live, number, OUTPUTS)).await);
            if number > 0 {
                let page_spent = Operation::SetPageSpent { page: number, spent: true };
                outcomes.push(apply(&store, Key::master(txid), page_spent).await);
            }
        }
    }
    let mined_in = MinedIn { block_id: 3, height: 150, subtree: 0 };
    for number in 0..5 {
        let set_mined = Sequenced::SetMined { mined_in, longest_chain: true };
        outcomes.push(apply(&store, Key::Page(txid, number), at(3, set_mined)).await);
    }
    let due = pages(&store, txid, 1).await[0].as_ref().unwrap().delete_at_height;
    assert_eq!(due, Some(150 + RULES.retention), "the transaction is mined and all its pages are spent");
    let held = HeldSlot { offset: 1, holder: SpendingData { txid: Txid([9; 32]), input: 2 * PAGE + 1 } };
    outcomes.push(apply(&store, Key::Page(txid, 2), at(4, Sequenced::Settle(vec![held]))).await);
    outcomes.push(apply(&store, Key::master(txid), at(4, Sequenced::SetPageSpent { page: 2, spent: false })).await);
    outcomes.push(apply(&store, Key::Page(txid, 9), take_all(&live, 9, 38)).await);

    let contested = wide(2, OUTPUTS, InitialState::Contested);
    let lost = contested.others.txid();
    outcomes.push(creator.create(&contested, |_| {}).await.unwrap());
    outcomes.push(apply(&store, Key::Page(lost, 1), take_all(&contested, 1, OUTPUTS)).await);
    for verdict in [Sequenced::MarkConflicting { reason: Reason::Command, height: 150 }, Sequenced::Accept] {
        for number in [1, 2, 3, 4, 0] {
            outcomes.push(apply(&store, Key::Page(lost, number), at(6, verdict.clone())).await);
        }
    }
    outcomes.push(apply(&store, Key::Page(lost, 1), take_all(&contested, 1, OUTPUTS)).await);

    let half = wide(3, OUTPUTS, InitialState::Live);
    let half_txid = half.others.txid();
    outcomes.push(apply(&store, Key::Page(half_txid, 2), at(7, Sequenced::MarkContested)).await);
    let marks = vec![HeldSlot { offset: 0, ..held }];
    outcomes.push(apply(&store, Key::Page(half_txid, 2), at(7, Sequenced::Settle(marks))).await);
    for number in half.others.numbers() {
        let page = Arc::new(half.others.page(number, 77));
        outcomes.push(apply(&store, Key::Page(half_txid, number), Operation::Create(page)).await);
    }
    outcomes.push(apply(&store, Key::master(half_txid), Operation::Create(half.master.clone())).await);
    outcomes.push(apply(&store, Key::Page(half_txid, 2), take_all(&half, 2, OUTPUTS)).await);
    let swept = Sweep { now_ms: 1_000_000, older_than_ms: 1_000, dry_run: false }.run(&store).await.unwrap();
    assert_eq!((swept.completed, swept.orphaned.len()), (vec![half_txid], 0));
    outcomes.push(apply(&store, Key::Page(half_txid, 2), take_all(&half, 2, OUTPUTS)).await);

    let mut records = Vec::new();
    for txid in [txid, lost, half_txid] {
        records.extend(pages(&store, txid, 6).await);
    }
    let mut lock_records = 0;
    StoreQueries::of(&store).lock_records(|_, _| lock_records += 1).await.unwrap();
    assert_eq!(lock_records, 0);
    (outcomes, records)
}

fn check_history((outcomes, records): &(Vec<Outcome>, Vec<Option<Page>>)) {
    assert_eq!(outcomes[..2], [Outcome::Applied(Reply::None), Outcome::AlreadyApplied(Reply::State(TxState::Live))]);
    let refusals = outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Rejected(rejection) => Some(rejection.clone()),
        _ => None,
    });
    let expected = [Rejection::NotFound, Rejection::Creating, Rejection::Creating, Rejection::Contested(0)];
    assert_eq!(refusals.collect::<Vec<_>>(), expected);
    let there: Vec<Option<TxState>> = records.iter().map(|page| page.as_ref().map(Page::state)).collect();
    let live = [Some(TxState::Live); 5];
    for (number, transaction) in there.chunks(6).enumerate() {
        assert_eq!((&transaction[..5], transaction[5]), (&live[..], None), "{number}");
    }
    let master = records[0].as_ref().unwrap().master.as_ref().unwrap();
    assert_eq!(master.spent_pages, [1, 3, 4].into());
    assert_eq!(records[6].as_ref().unwrap().verdict(), Some(Verdict::Accepted));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paged_history_is_the_same_on_memory_and_fjall() {
    let memory = play_history(Arc::new(MemoryEngine::new(RULES))).await;
    check_history(&memory);
    let directory = tempfile::tempdir().unwrap();
    let url = format!("fjall://{}", directory.path().display());
    assert_eq!(play_history(engine::open(&url, &OpenOptions::new(RULES)).await.unwrap()).await, memory);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paged_history_is_the_same_on_aerospike() {
    let Some(server) = AerospikeServer::start() else { return };
    let aerospike = play_history(engine::open(&server.url(), &OpenOptions::new(RULES)).await.unwrap()).await;
    assert_eq!(aerospike, play_history(Arc::new(MemoryEngine::new(RULES))).await);
}

const KILLED_ON: &str = "UTXO_STORE_TEST_PAGES_ON";
const KILLED_BLOBS: &str = "UTXO_STORE_TEST_PAGES_BLOBS";
const KILLED_FROM: &str = "UTXO_STORE_TEST_PAGES_FROM";
/// Outputs of a transaction with 20 pages.
const KILLED_OUTPUTS: u32 = 20 * PAGE - 1;

/// The child process of the kill tests, which does nothing when run as a test.
#[test]
fn create_until_killed() {
    let Ok(url) = std::env::var(KILLED_ON) else { return };
    let from: u64 = std::env::var(KILLED_FROM).unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let blobs = std::env::var(KILLED_BLOBS).ok().map(PathBuf::from);
        let store = opened(&url, blobs.as_deref()).await;
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..3 {
            let creator = creator(&store, u64::from(std::process::id()), Clock::System);
            tasks.spawn(async move {
                for number in (from + task..).step_by(3) {
                    println!("begun {number}");
                    let tx = wide(number, KILLED_OUTPUTS, InitialState::Live);
                    let outcome = creator.create(&tx, |_| {}).await.unwrap();
                    assert!(outcome.is_done(), "{outcome:?}");
                    println!("done {number}");
                }
            });
        }
        tasks.join_all().await;
    });
}

/// Opens the store at this URL, with its bodies in this directory.
async fn opened(url: &str, blobs: Option<&Path>) -> StateStore {
    let store = store_on(engine::open(url, &OpenOptions::new(RULES)).await.unwrap());
    let Some(directory) = blobs else { return store };
    let url = BlobUrl::Directory(directory.to_owned());
    let blobs = blob::open(&url, Intent::Write, &BlobAccess::default(), BlobOptions::default()).await.unwrap();
    blobs.claim([1; 16], true).await.unwrap();
    store.with_blobs(Some(blobs))
}

/// Runs the child and kills it this many milliseconds after its first line; returns the begun and the acknowledged
/// numbers.
fn run_and_kill(url: &str, blobs: Option<&Path>, from: u64, after_ms: u64) -> (BTreeSet<u64>, BTreeSet<u64>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let command = command.args(["several_pages::create_until_killed", "--exact", "--nocapture"]);
    let command = command.env(KILLED_ON, url).env(KILLED_FROM, from.to_string());
    let command = command.envs(blobs.map(|directory| (KILLED_BLOBS, directory)));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (mut begun, mut done) = (BTreeSet::new(), BTreeSet::new());
    let mut killed = false;
    while let Some(Ok(line)) = lines.next() {
        if let Some((what, Ok(number))) = line.split_once(' ').map(|(what, number)| (what, number.parse())) {
            match what {
                "begun" => drop(begun.insert(number)),
                "done" => drop(done.insert(number)),
                _ => continue,
            }
            if !std::mem::replace(&mut killed, true) {
                std::thread::sleep(Duration::from_millis(after_ms));
                child.kill().unwrap();
            }
        }
    }
    child.wait().unwrap();
    assert!(killed, "the child has not begun");
    (begun, done)
}

/// Numbers of transactions by the state of their records.
#[derive(Debug, Default)]
struct Found {
    nothing: usize,
    without_master: usize,
    half: usize,
    live: usize,
}

async fn look(store: &StateStore, begun: &BTreeSet<u64>, done: &BTreeSet<u64>) -> Found {
    let mut found = Found::default();
    for number in begun {
        let txid = wide(*number, KILLED_OUTPUTS, InitialState::Live).others.txid();
        let states: Vec<_> = pages(store, txid, 20).await.iter().map(|page| page.as_ref().map(Page::state)).collect();
        let open = states.contains(&Some(TxState::Live));
        let whole = states.iter().all(Option::is_some);
        assert!(!open || whole, "{number}: an output can be spent, and pages are missing: {states:?}");
        let live = states.iter().all(|state| *state == Some(TxState::Live));
        assert!(states[0] != Some(TxState::Live) || live, "{number}: {states:?}");
        assert!(!done.contains(number) || live, "{number} was acknowledged: {states:?}");
        match (live, states[0], states.iter().any(Option::is_some)) {
            (true, ..) => found.live += 1,
            (_, Some(_), _) => found.half += 1,
            (_, None, true) => found.without_master += 1,
            (_, None, false) => found.nothing += 1,
        }
    }
    found
}

async fn assert_creates_survive_kills(url: &str, blobs: Option<&Path>, kills: u64) {
    let mut dice = SplitMix64::new(kills);
    let (mut begun, mut done) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..kills {
        let from = begun.last().map_or(0, |last| last + 1);
        let (some, of_them) = run_and_kill(url, blobs, from, dice.below(25));
        begun.extend(some);
        done.extend(of_them);
    }
    let store = opened(url, blobs).await;
    let before = look(&store, &begun, &done).await;
    let now_ms = Clock::System.now_ms();
    let mut held = BTreeMap::new();
    StoreQueries::of(&store).lock_records(|txid, lock_record| drop(held.insert(txid, lock_record))).await.unwrap();
    assert!(held.values().all(|held| held.expected_recs == 20 && held.expires_at <= now_ms + 70_000), "{held:?}");
    // The sweep runs as if all lock records had expired.
    let later_ms = now_ms + 400_000;
    let swept = Sweep { now_ms: later_ms, older_than_ms: 120_000, dry_run: false }.run(&store).await.unwrap();
    assert_eq!((swept.completed.len(), swept.orphaned.len()), (before.half, before.without_master), "{before:?}");
    assert!(swept.damaged.is_empty() && swept.running.is_empty(), "{swept:?}");
    let after = look(&store, &begun, &done).await;
    assert_eq!((after.half, after.live), (0, before.live + before.half));
    let creator = creator(&store, 1, Clock::simulated(later_ms));
    for number in &begun {
        let outcome = creator.create(&wide(*number, KILLED_OUTPUTS, InitialState::Live), |_| {}).await.unwrap();
        assert!(outcome.is_done(), "{number}: {outcome:?}");
    }
    let end = look(&store, &begun, &begun).await;
    assert_eq!(end.live, begun.len());
    let mut violations = Vec::new();
    verify(&store, |_| {}, |violation| violations.push(violation.to_string())).await.unwrap();
    assert!(violations.is_empty(), "{violations:#?}");
    let stored = |page: &Page| matches!(page.body(), Some(Body::External(Blob::First(_))));
    for number in &begun {
        let master = store.master(wide(*number, KILLED_OUTPUTS, InitialState::Live).others.txid()).await.unwrap();
        assert_eq!(stored(&master.unwrap()), blobs.is_some());
    }
    // A process that was never killed, and keeps bodies in the masters, has the same digest.
    let other = store_on(Arc::new(MemoryEngine::new(RULES)));
    let creator = Creator::new(other.clone(), Clock::simulated(1_000_000), identity(1));
    for number in &begun {
        creator.create(&wide(*number, KILLED_OUTPUTS, InitialState::Live), |_| {}).await.unwrap();
    }
    assert_eq!(survey(&store, |_| {}).await.unwrap().digest, survey(&other, |_| {}).await.unwrap().digest);
    eprintln!(
        "{kills} kills: {} transactions of 20 pages begun, {} acknowledged; found {before:?}, \
         {} lock records left; all are live",
        begun.len(),
        done.len(),
        held.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creates_survive_fifty_kills_on_aerospike() {
    let Some(server) = AerospikeServer::start() else { return };
    assert_creates_survive_kills(&server.url(), None, 50).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creates_survive_fifty_kills_on_aerospike_with_blobs() {
    let Some(server) = AerospikeServer::start() else { return };
    let blobs = tempfile::tempdir().unwrap();
    assert_creates_survive_kills(&server.url(), Some(&blobs.path().join("blobs")), 50).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creates_survive_ten_kills_on_fjall() {
    let directory = tempfile::tempdir().unwrap();
    assert_creates_survive_kills(&format!("fjall://{}", directory.path().join("records").display()), None, 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creates_survive_ten_kills_on_fjall_with_blobs() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("fjall://{}", directory.path().join("records").display());
    assert_creates_survive_kills(&url, Some(&directory.path().join("blobs")), 10).await;
}

#[cfg(feature = "sql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paged_history_is_the_same_on_memory_and_the_databases() {
    let memory = play_history(Arc::new(MemoryEngine::new(RULES))).await;
    let directory = tempfile::tempdir().unwrap();
    let mut urls = vec![format!("sqlite://{}/records", directory.path().display())];
    urls.extend(crate::postgres_server::shared_database().map(|database| database.url()));
    for url in urls {
        assert_eq!(play_history(engine::open(&url, &OpenOptions::new(RULES)).await.unwrap()).await, memory, "{url}");
    }
}

#[cfg(feature = "sql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creates_survive_ten_kills_on_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    assert_creates_survive_kills(&format!("sqlite://{}/records", directory.path().display()), None, 10).await;
}

#[cfg(feature = "sql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creates_survive_ten_kills_on_postgres() {
    let Some(database) = crate::postgres_server::shared_database() else { return };
    assert_creates_survive_kills(&database.url(), None, 10).await;
}
