//! The engine on SQLite and PostgreSQL: conformance, refusals at a start, servers that restart, full and read-only
//! disks.

use std::{path::Path, sync::Arc, time::Duration};

use utxo_store::{
    engine::{
        self, ErrorKind, OpenOptions, RecordEngine, Row, Set,
        conformance::{self, RULES},
        sql::SqlAccess,
    },
    record::{
        BlockRecord, Body, Key, Marks, MinedIn, Operation, Outcome, Page, Record, Slot, Spend, SpendSlot, StoredOutput,
        Verdict,
    },
    tx::{Network, Outpoint, Output, Txid, UtxoHash, utxo_hash},
};

use crate::{
    postgres_server::{self, PostgresServer},
    small_disk::SmallDisk,
};

pub async fn open(url: &str) -> Arc<dyn RecordEngine> {
    engine::open(url, &OpenOptions::new(RULES)).await.unwrap()
}

async fn open_error(url: &str, options: &OpenOptions) -> String {
    let error = engine::open(url, options).await.err().expect("opened").to_string();
    assert!(!error.contains('\n') && !error.contains("secret"), "{error}");
    error
}

fn file_url(folder: &Path, name: &str) -> String {
    format!("sqlite://{}/{name}", folder.display())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sqlite_conforms_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    for (number, check) in conformance::CHECKS.iter().enumerate() {
        check.run(open(&file_url(folder.path(), &number.to_string())).await).await;
    }
    conformance::run(open(&file_url(folder.path(), "all")).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sqlite_conforms_in_memory() {
    for check in conformance::CHECKS {
        check.run(open("sqlitememory:///one").await).await;
    }
    conformance::run(open("sqlitememory:///all").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn postgres_conforms() {
    for check in conformance::CHECKS {
        let Some(database) = postgres_server::shared_database() else { return };
        check.run(open(&database.url()).await).await;
    }
    let Some(database) = postgres_server::shared_database() else { return };
    conformance::run(open(&database.url()).await).await;
}

pub fn txid(number: u32) -> Txid {
    let mut txid = [0x17; 32];
    txid[..4].copy_from_slice(&number.to_be_bytes());
    Txid(txid)
}

fn output(slot: u32) -> StoredOutput {
    StoredOutput { satoshis: u64::from(slot) + 1, script: vec![0x51, slot as u8].into() }
}

fn hash(number: u32, slot: u32) -> UtxoHash {
    let StoredOutput { satoshis, script } = output(slot);
    utxo_hash(&txid(number), slot, &script, satoshis)
}

/// Builds a live master with its outputs inline.
pub fn page(number: u32, slots: u32) -> Page {
    let mut page = Page::stub(txid(number), Verdict::Pending);
    page.conflicting = false;
    page.utxos = Some((0..slots).map(|slot| Slot::Unspent(hash(number, slot))).collect());
    page.record_utxos = slots;
    let master = page.master.as_mut().unwrap();
    master.verdict = None;
    master.total_utxos = slots;
    master.unmined_since = Some(100);
    master.body = Some(Body::Outputs((0..slots).map(|slot| Some(output(slot))).collect()));
    page
}

pub fn create(number: u32, slots: u32) -> Row {
    Row { key: Key::master(txid(number)), operation: Operation::Create(Arc::new(page(number, slots))) }
}

pub fn spend(number: u32, slot: u32, spender: u32) -> Row {
    let StoredOutput { satoshis, script } = output(slot);
    let outpoint = Outpoint { txid: txid(number), vout: slot };
    let slot = SpendSlot::claiming(&outpoint, slot, 0, &Output { satoshis, script: &script }, script.clone());
    let (spender, slots) = (txid(spender), vec![slot].into());
    let spend = Spend { spender, height: 200, slots, marks: Marks::Respect, signals: true };
    Row { key: Key::master(txid(number)), operation: Operation::Spend(spend) }
}

async fn must_apply(engine: &dyn RecordEngine, rows: &[Row]) {
    for answer in engine.apply(rows).await {
        assert!(matches!(answer, Ok(Outcome::Applied(_))), "{answer:?}");
    }
}

/// Applies rows until each is answered, as every caller does.
async fn apply_until_done(engine: &dyn RecordEngine, rows: &[Row]) -> usize {
    for failures in 0..600 {
        let answers = engine.apply(rows).await;
        match answers.iter().find_map(|answer| answer.as_ref().err()) {
            None => {
                assert!(answers.iter().all(|answer| answer.as_ref().unwrap().is_done()), "{answers:?}");
                return failures;
            }
            Some(error) => assert!(error.may_be_retried(), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the database did not come back");
}

#[tokio::test]
async fn a_store_stays_in_its_file_and_a_reader_creates_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let url = file_url(folder.path(), "a/store.sqlite");
    let missing = engine::open_existing(&url, &OpenOptions::new(RULES)).await.err().unwrap().to_string();
    assert!(missing.contains("there is no store in this database") && missing.contains("store.sqlite"), "{missing}");
    assert!(!folder.path().join("a").exists());
    let first = open(&url).await;
    must_apply(first.as_ref(), &[create(1, 3), spend(1, 2, 9)]).await;
    first.close().await.unwrap();
    let reader = engine::open_existing(&url, &OpenOptions::new(RULES)).await.unwrap();
    let Some(Record::Page(found)) = reader.read(&[Key::master(txid(1))]).await.remove(0).unwrap() else { panic!() };
    assert_eq!((found.spent_utxos, found.body().is_some()), (1, true));
    reader.close().await.unwrap();
}

/// Two processes can have one file open, as two instances of a group.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_engines_on_one_database_take_no_output_twice() {
    let folder = tempfile::tempdir().unwrap();
    let mut urls = vec![file_url(folder.path(), "store")];
    urls.extend(postgres_server::shared_database().map(|database| database.url()));
    for url in urls {
        let engines = [open(&url).await, open(&url).await];
        must_apply(engines[0].as_ref(), &(0..20).map(|number| create(number, 10)).collect::<Vec<_>>()).await;
        let mut tasks = tokio::task::JoinSet::new();
        for (place, engine) in engines.iter().enumerate() {
            for slot in 0..10 {
                let engine = engine.clone();
                tasks.spawn(async move {
                    let rows: Vec<Row> =
                        (0..20).map(|number| spend(number, slot, 1_000 + place as u32 * 100 + slot)).collect();
                    let mut applied = 0;
                    for row in rows {
                        loop {
                            match engine.apply(std::slice::from_ref(&row)).await.remove(0) {
                                Ok(Outcome::Applied(_)) => applied += 1,
                                Ok(Outcome::Rejected(_)) => {}
                                Ok(other) => panic!("{other:?}"),
                                Err(error) if error.kind == ErrorKind::Retryable => continue,
                                Err(error) => panic!("{error}"),
                            }
                            break;
                        }
                    }
                    applied
                });
            }
        }
        assert_eq!(tasks.join_all().await.into_iter().sum::<usize>(), 200, "{}", engines[0].name());
        for engine in engines {
            engine.close().await.unwrap();
        }
    }
}

/// One batch on many records from several tasks, in different orders: deadlocks and lost races are no errors.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_of_postgres_on_the_same_records_do_not_fail() {
    let Some(database) = postgres_server::shared_database() else { return };
    let engine = open(&database.url()).await;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8_u32 {
        let engine = engine.clone();
        tasks.spawn(async move {
            for round in 0..10 {
                let mut rows: Vec<Row> = (0..50).map(|number| create(round * 50 + number, 8)).collect();
                rows.extend((0..50).map(|number| spend(round * 50 + number, task, 5_000 + task)));
                if task % 2 == 0 {
                    rows.rotate_left(25);
                    rows.sort_by_key(|row| !matches!(row.operation, Operation::Create(_)));
                }
                apply_until_done(engine.as_ref(), &rows).await;
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(database.sql("SELECT count(*), count(DISTINCT txid), count(spender) FROM outputs"), "4000|500|4000");
}

#[tokio::test]
async fn a_database_of_another_version_network_or_batch_size_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let with_batch = |slots| {
        let sql = SqlAccess { utxo_batch_size: Some(slots), ..SqlAccess::default() };
        OpenOptions { sql, ..OpenOptions::new(RULES) }
    };
    let mut urls = vec![file_url(folder.path(), "store")];
    let database = postgres_server::shared_database();
    urls.extend(database.as_ref().map(|database| database.url()));
    for url in urls {
        engine::open(&url, &with_batch(100)).await.unwrap().close().await.unwrap();
        let error = open_error(&url, &with_batch(200)).await;
        assert!(error.contains("has 100 slots a page, and store.utxo_batch_size is 200"), "{error}");
        let mut options = with_batch(100);
        options.rules.network = Network::Regtest;
        let error = open_error(&url, &options).await;
        assert!(error.contains("a store of network main, and store.network is regtest"), "{error}");
        // A reader takes what the database has.
        engine::open_existing(&url, &OpenOptions::new(RULES)).await.unwrap().close().await.unwrap();
        match (&database, url.starts_with("postgres")) {
            (Some(database), true) => drop(database.sql("UPDATE store SET schema_version = 7")),
            _ => sqlite(&folder.path().join("store"), "UPDATE store SET schema_version = 7"),
        }
        let error = open_error(&url, &with_batch(100)).await;
        assert!(error.contains("its schema has version 7, this program reads version 2"), "{error}");
    }
}

/// A table that was emptied, or restored without the others.
/// Protects: outputs that the database has lost do not read as outputs that never were.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_page_whose_outputs_are_lost_answers_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut urls = vec![file_url(folder.path(), "store")];
    let database = postgres_server::shared_database();
    urls.extend(database.as_ref().map(|database| database.url()));
    for url in urls {
        let options = OpenOptions::new(RULES);
        let engine = engine::open(&url, &options).await.unwrap();
        must_apply(&*engine, &[create(1, 4), create(2, 4)]).await;
        engine.close().await.unwrap();
        let lose = format!("DELETE FROM outputs WHERE vout = 2 AND txid = {}", literal(&url, txid(1)));
        match (&database, url.starts_with("postgres")) {
            (Some(database), true) => drop(database.sql(&lose)),
            _ => sqlite(&folder.path().join("store"), &lose),
        }
        let engine = engine::open(&url, &options).await.unwrap();
        must_apply(&*engine, &[spend(2, 2, 9)]).await;
        let damaged = engine.apply(&[spend(1, 1, 9)]).await.remove(0).unwrap_err();
        assert!(damaged.message.contains("3 rows of outputs instead of 4"), "{damaged}");
        assert!(!damaged.may_be_retried() && engine.read(&[Key::master(txid(1))]).await[0].is_err());
        assert!(engine.scan(Set::Transactions, None, 10).await.is_err());
        engine.close().await.unwrap();
    }
}

fn literal(url: &str, txid: Txid) -> String {
    let digits: String = txid.0.iter().map(|byte| format!("{byte:02x}")).collect();
    if url.starts_with("postgres") { format!("'\\x{digits}'") } else { format!("x'{digits}'") }
}

/// Protects: tables of version 1 become those of version 2, with the same records.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tables_of_the_version_before_are_migrated() {
    let folder = tempfile::tempdir().unwrap();
    let mut urls = vec![file_url(folder.path(), "store")];
    let database = postgres_server::shared_database();
    urls.extend(database.as_ref().map(|database| database.url()));
    for url in urls {
        let sql = SqlAccess { utxo_batch_size: Some(4), ..SqlAccess::default() };
        let options = OpenOptions { sql, ..OpenOptions::new(RULES) };
        let engine = engine::open(&url, &options).await.unwrap();
        let second = Page { number: 1, master: None, ..page(1, 3) };
        let mut gaps = page(2, 4);
        gaps.utxos.as_mut().unwrap()[1] = Slot::Nil;
        gaps.master.as_mut().unwrap().body = None;
        gaps.record_utxos = 3;
        let rows = [
            create(1, 4),
            Row { key: Key::Page(txid(1), 1), operation: Operation::Restore(Box::new(Record::Page(second.into()))) },
            Row { key: Key::master(txid(2)), operation: Operation::Restore(Box::new(Record::Page(gaps.into()))) },
            Row {
                key: Key::master(txid(3)),
                operation: Operation::Restore(Box::new(Record::Page(Page::stub(txid(3), Verdict::Pending).into()))),
            },
        ];
        must_apply(&*engine, &rows).await;
        must_apply(&*engine, &[spend(1, 2, 9)]).await;
        let keys = [Key::master(txid(1)), Key::Page(txid(1), 1), Key::master(txid(2)), Key::master(txid(3))];
        let before = engine.read(&keys).await;
        engine.close().await.unwrap();
        let older = "ALTER TABLE transactions DROP COLUMN output_rows; UPDATE store SET schema_version = 1";
        match (&database, url.starts_with("postgres")) {
            (Some(database), true) => drop(database.sql(older)),
            _ => {
                let older = format!("DROP TRIGGER transactions_have_output_rows; {older}");
                sqlite(&folder.path().join("store"), &older);
            }
        }
        let reader = engine::open_existing(&url, &options).await.err().unwrap().to_string();
        assert!(reader.contains("has version 1") && reader.contains("start `utxo-store run`"), "{reader}");
        let engine = engine::open(&url, &options).await.unwrap();
        let after = engine.read(&keys).await;
        let records = |read: Vec<Result<Option<Record>, _>>| read.into_iter().map(Result::unwrap).collect::<Vec<_>>();
        assert_eq!(records(after), records(before));
        must_apply(&*engine, &[spend(1, 1, 9), create(4, 2)]).await;
        engine.close().await.unwrap();
        if !url.starts_with("postgres") {
            let of_version_1 = "CREATE TEMP TABLE t AS SELECT * FROM transactions WHERE slots > 0; \
                                UPDATE t SET output_rows = NULL; INSERT INTO transactions SELECT * FROM t WHERE true \
                                ON CONFLICT DO UPDATE SET slots = excluded.slots";
            let error = run_sqlite(&folder.path().join("store"), of_version_1).unwrap_err();
            assert!(error.contains("output_rows is missing"), "{error}");
        }
        engine::open(&url, &options).await.unwrap().close().await.unwrap();
    }
    if let Some(database) = &database {
        assert_eq!(database.sql("SELECT sum(output_rows), max(schema_version) FROM transactions, store"), "12|2");
    }
}

/// Asks a closed file of SQLite, by Python's own SQLite: rows as `psql` writes them.
fn ask_sqlite(file: &Path, question: &str) -> String {
    let script = "import sqlite3, sys\nfor row in sqlite3.connect(sys.argv[1]).execute(sys.argv[2]):\n    \
                  print('|'.join('' if column is None else str(column) for column in row))";
    let output = std::process::Command::new("python3").args(["-c", script]).arg(file).arg(question).output().unwrap();
    assert!(output.status.success(), "{question}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// The statements are those of `docs/operating/sql.md`.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_questions_of_the_document_have_answers_on_both_databases() {
    let document = include_str!("../../docs/operating/sql.md");
    let questions: Vec<&str> =
        document.split("```sql\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(questions.len(), 3);
    let folder = tempfile::tempdir().unwrap();
    let mut urls = vec![file_url(folder.path(), "store")];
    let database = postgres_server::shared_database();
    urls.extend(database.as_ref().map(|database| database.url()));
    for url in urls {
        let engine = open(&url).await;
        let mut mined = page(1, 2);
        let master = mined.master.as_mut().unwrap();
        master.unmined_since = None;
        master.mined = vec![MinedIn { block_id: 7, height: 170, subtree: 0 }];
        let block = |block_id, height| BlockRecord {
            block_id,
            hash: [block_id as u8; 32],
            previous: [0; 32],
            height,
            time: 1,
            longest_chain: true,
            progress: 1,
            chain_pos: None,
        };
        let restore = |key, record| Row { key, operation: Operation::Restore(Box::new(record)) };
        let rows = [
            restore(Key::master(txid(1)), Record::Page(mined.into())),
            restore(Key::Block(7), Record::Block(block(7, 170))),
            restore(Key::Block(8), Record::Block(block(8, 175))),
            create(2, 3),
        ];
        must_apply(&*engine, &rows).await;
        must_apply(&*engine, &[spend(1, 1, 2)]).await;
        engine.close().await.unwrap();
        let ask = |question: &str| match (&database, url.starts_with("postgres")) {
            (Some(database), true) => {
                // The document names the difference.
                let pieces: Vec<&str> = question.split("hex(").collect();
                let encoded = pieces[1..].iter().map(|piece| piece.replacen(')', ", 'hex')", 1));
                database.sql(&std::iter::once(pieces[0].to_owned()).chain(encoded).collect::<Vec<_>>().join("encode("))
            }
            _ => ask_sqlite(&folder.path().join("store"), question),
        };
        let digits = |txid: Txid| txid.0.iter().map(|byte| format!("{byte:02X}")).collect::<String>();
        let answers: Vec<String> = questions.iter().map(|question| ask(question).to_uppercase()).collect();
        assert_eq!(answers[0], "5102|1|3\n5100|2|2\n5101|1|2", "{url}");
        let of_block = format!("{0}|0|1|\n{0}|1|2|{1}", digits(txid(1)), digits(txid(2)));
        assert_eq!(answers[1], of_block, "{url}");
        assert_eq!(answers[2], "100|75|1", "{url}");
    }
}

/// Runs statements on a closed file, by Python's own SQLite.
fn sqlite(file: &Path, statements: &str) {
    run_sqlite(file, statements).unwrap();
}

/// As [`sqlite`]; returns the errors.
fn run_sqlite(file: &Path, statements: &str) -> Result<(), String> {
    let script = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.executescript(sys.argv[2]); c.commit()";
    let output = std::process::Command::new("python3").args(["-c", script]).arg(file).arg(statements).output().unwrap();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[tokio::test]
async fn a_file_or_database_of_another_program_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("diary");
    std::fs::write(&file, "dear diary, ".repeat(200)).unwrap();
    let error = open_error(&file_url(folder.path(), "diary"), &OpenOptions::new(RULES)).await;
    assert!(error.contains("diary") && error.contains("another program"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap().len(), 2_400);
    let shop = folder.path().join("shop");
    sqlite(&shop, "CREATE TABLE store (price INTEGER)");
    let before = std::fs::read(&shop).unwrap();
    let error = open_error(&file_url(folder.path(), "shop"), &OpenOptions::new(RULES)).await;
    assert!(error.contains("tables of another program"), "{error}");
    assert_eq!(std::fs::read(&shop).unwrap(), before, "the file has no write-ahead log");
    // A write-ahead log that a killed program has left.
    let (bank, copy) = (folder.path().join("bank"), folder.path().join("copy"));
    let script = "import shutil, sqlite3, sys; bank, copy = sys.argv[1:]; c = sqlite3.connect(bank); \
                  c.execute('PRAGMA journal_mode = WAL'); c.execute('CREATE TABLE store (money INTEGER)'); c.commit(); \
                  [shutil.copy(bank + end, copy + end) for end in ['', '-wal']]";
    let status = std::process::Command::new("python3").args(["-c", script]).arg(bank).arg(&copy).status().unwrap();
    assert!(status.success());
    let files = || ["copy", "copy-wal"].map(|name| std::fs::read(folder.path().join(name)).unwrap());
    let before = files();
    assert!(!before[1].is_empty());
    let error = open_error(&file_url(folder.path(), "copy"), &OpenOptions::new(RULES)).await;
    assert!(error.contains("tables of another program"), "{error}");
    assert!(files() == before, "the write-ahead log of another program is left as it is");
    if let Some(database) = postgres_server::shared_database() {
        database.sql("CREATE TABLE outputs (number int)");
        let error = open_error(&database.url(), &OpenOptions::new(RULES)).await;
        assert!(error.contains("tables of another program") && error.contains("utxo:***@"), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_an_error_without_the_password() {
    let sql = SqlAccess { timeout: Duration::from_millis(500), ..SqlAccess::default() };
    let options = OpenOptions { sql, ..OpenOptions::new(RULES) };
    for url in ["postgres://me:secret@127.0.0.1:1/db", "postgres://me:secret@/db?host=/nowhere"] {
        let error = open_error(url, &options).await;
        assert!(error.contains("cannot open `postgres://me:***@"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_or_restarted_postgres_loses_no_acknowledged_row() {
    let Some(mut server) = PostgresServer::start() else { return };
    let database = server.database();
    let engine = open(&database.url()).await;
    for (round, order) in ["kill", "restart"].into_iter().enumerate() {
        let first = round as u32 * 10_000;
        let writer = tokio::spawn({
            let engine = engine.clone();
            async move {
                let mut failures = 0;
                for number in 0..200 {
                    let number = first + number * 10;
                    let rows: Vec<Row> =
                        (number..number + 10).flat_map(|n| [create(n, 2), spend(n, 0, n + 5)]).collect();
                    failures += apply_until_done(engine.as_ref(), &rows).await;
                }
                failures
            }
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        let order = order.to_owned();
        server = tokio::task::spawn_blocking(move || {
            server.restart(&order);
            server
        })
        .await
        .unwrap();
        writer.await.unwrap();
        let counts = database.sql("SELECT count(*), count(spender), count(DISTINCT txid) FROM outputs");
        let transactions = 2_000 * (round + 1);
        assert_eq!(counts, format!("{}|{transactions}|{transactions}", 2 * transactions));
    }
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_session_that_the_server_ends_is_an_error_that_a_repeat_mends() {
    let Some(database) = postgres_server::shared_database() else { return };
    let engine = open(&database.url()).await;
    must_apply(engine.as_ref(), &[create(1, 2)]).await;
    for slot in 0..2 {
        let killed = database.clone();
        tokio::task::spawn_blocking(move || killed.end_sessions()).await.unwrap();
        apply_until_done(engine.as_ref(), &[spend(1, slot, 7)]).await;
    }
    let found = engine.read(&[Key::master(txid(1))]).await.remove(0).unwrap().unwrap();
    assert_eq!(found.page().unwrap().spent_utxos, 2);
}

/// A restored dump has the id of the database, and its tables are new ones.
#[tokio::test]
async fn a_database_that_was_restored_answers_nothing_until_the_next_start() {
    let Some(database) = postgres_server::shared_database() else { return };
    let engine = open(&database.url()).await;
    must_apply(engine.as_ref(), &[create(1, 2)]).await;
    database.sql("CREATE TABLE restored AS SELECT * FROM store");
    database.sql("DROP TABLE store");
    database.sql("ALTER TABLE restored RENAME TO store");
    let read = engine.read(&[Key::master(txid(1))]).await.remove(0).unwrap_err();
    let applied = engine.apply(&[spend(1, 0, 3)]).await.remove(0).unwrap_err();
    for error in [read, applied] {
        assert!(error.kind == ErrorKind::Fatal && error.message.contains("start again"), "{error}");
    }
    must_apply(open(&database.url()).await.as_ref(), &[spend(1, 0, 3)]).await;
}

/// A failover to an empty server, tables that an operator has emptied.
#[tokio::test]
async fn a_database_that_was_replaced_answers_nothing() {
    let Some(database) = postgres_server::shared_database() else { return };
    let engine = open(&database.url()).await;
    must_apply(engine.as_ref(), &[create(1, 2)]).await;
    for replace in ["UPDATE store SET database_id = 'another'", "DELETE FROM store", "DROP TABLE store CASCADE"] {
        database.sql(replace);
        let read = engine.read(&[Key::master(txid(1))]).await.remove(0).unwrap_err();
        let applied = engine.apply(&[spend(1, 0, 3)]).await.remove(0).unwrap_err();
        for error in [read, applied] {
            assert!(error.kind == ErrorKind::Fatal && error.message.contains("store"), "{replace}: {error}");
        }
    }
    assert_eq!(database.sql("SELECT count(spender) FROM outputs"), "0");
}

/// Protects: an instance neither reads nor writes a file that an operator has put in the place of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_file_that_was_replaced_answers_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(&file_url(folder.path(), "store")).await;
    must_apply(engine.as_ref(), &[create(1, 2)]).await;
    let copied = open(&file_url(folder.path(), "copy")).await;
    must_apply(copied.as_ref(), &[create(1, 2)]).await;
    copied.close().await.unwrap();
    let path = folder.path().join("store");
    let refused = async |problem: &str| {
        let read = engine.read(&[Key::master(txid(1))]).await.remove(0).unwrap_err();
        let applied = engine.apply(&[spend(1, 0, 3)]).await.remove(0).unwrap_err();
        for error in [read, applied] {
            assert!(error.kind == ErrorKind::Fatal && error.message.contains(problem), "{error}");
        }
    };
    std::fs::rename(&path, folder.path().join("moved")).unwrap();
    refused("cannot be found any more").await;
    std::fs::rename(folder.path().join("copy"), &path).unwrap();
    refused("is another file than at the start").await;
    std::fs::rename(folder.path().join("moved"), &path).unwrap();
    must_apply(engine.as_ref(), &[spend(1, 0, 3)]).await;
    engine.close().await.unwrap();
}

/// Protects: a transaction that exceeds its time limit leaves no lock of the file behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_transaction_that_was_given_up_releases_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let sql = SqlAccess { timeout: Duration::from_millis(300), utxo_batch_size: Some(20_000), ..SqlAccess::default() };
    let url = file_url(folder.path(), "store");
    let engine = engine::open(&url, &OpenOptions { sql, ..OpenOptions::new(RULES) }).await.unwrap();
    let large: Vec<Row> = (0..10).map(|number| create(number, 20_000)).collect();
    let error = engine.apply(&large).await.remove(0).unwrap_err();
    assert!(error.message.contains("did not answer within"), "{error}");
    let script = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')";
    let path = folder.path().join("store");
    let is_free = || {
        let output = std::process::Command::new("python3").args(["-c", script]).arg(&path).output().unwrap();
        output.status.success()
    };
    for attempt in 0.. {
        if is_free() {
            break;
        }
        assert!(attempt < 100, "the file is locked");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(engine.read(&[Key::master(txid(1))]).await[0].clone().unwrap(), None);
    must_apply(engine.as_ref(), &[create(1, 2)]).await;
    engine.close().await.unwrap();
}

#[tokio::test]
async fn a_full_disk_takes_no_row_and_goes_on_once_there_is_space() {
    let Some(disk) = SmallDisk::mount(8) else { return };
    let engine = open(&file_url(disk.path(), "store")).await;
    must_apply(engine.as_ref(), &[create(1, 2)]).await;
    disk.fill();
    let rows: Vec<Row> = (10..1_000).map(|number| create(number, 5)).collect();
    for answer in engine.apply(&rows).await {
        let error = answer.unwrap_err();
        assert!(error.kind == ErrorKind::Retryable && error.message.contains("full"), "{error}");
    }
    assert_eq!(engine.read(&[Key::master(txid(10))]).await.remove(0).unwrap(), None);
    disk.free();
    must_apply(engine.as_ref(), &rows).await;
    engine.close().await.unwrap();
}

#[tokio::test]
async fn a_read_only_disk_is_refused_at_the_start() {
    let Some(disk) = SmallDisk::mount(8) else { return };
    let url = file_url(disk.path(), "store");
    open(&url).await.close().await.unwrap();
    let remount = |mode: &str| {
        let options = format!("remount,{mode}");
        std::process::Command::new("mount").args(["-o", &options]).arg(disk.path()).status().unwrap()
    };
    assert!(remount("ro").success());
    let error = open_error(&url, &OpenOptions::new(RULES)).await;
    assert!(error.contains("read-only") || error.contains("readonly") || error.contains("unable to open"), "{error}");
    assert!(remount("rw").success());
}
