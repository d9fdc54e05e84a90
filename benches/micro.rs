//! Cost of single steps, one function per group. Run one group with `cargo bench --bench micro -- <group>`.

use std::{fs, hint::black_box, path::Path, sync::Arc};

use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use utxo_store::record::{
    build::{InlineBodies, NewTxState, PageParams, build_pages},
    *,
};
use utxo_store::tx::{Network, Outpoint, Output, Transaction, TransactionBuilder, Txid, block::BlockFile, utxo_hash};
use utxo_store::{
    broker::Message,
    event::{Event, OutcomeBatch, OutcomeChange, TxidList},
    group::offsets::OffsetTracker,
    ingest::plan::{Action, EventRef, NamedTransaction, PlanSettings, Planner, Token},
    prepare::{PrepareSettings, PreparedEvent, PreparedTx, prepare},
    replay::Mode,
};

#[allow(dead_code, reason = "what only the macro benches need")]
#[path = "macro/generator.rs"]
mod generator;

use generator::{Generator, Shape};

// The same allocator as in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

criterion_group!(micro, transactions, utxo_hashes, blocks, record_operations, events, planning, outcomes, offsets);
criterion_main!(micro);

/// Returns a payment with one input and two outputs: about 250 bytes in extended format.
fn payment(number: u32) -> Vec<u8> {
    let lock = [0x76; 25];
    let previous = Output { satoshis: 5_000, script: &lock };
    TransactionBuilder::default()
        .input(Outpoint { txid: Txid([7; 32]), vout: number }, &[0x30; 107], u32::MAX, Some(previous))
        .output(3_000, &lock)
        .output(1_900, &lock)
        .extended()
}

/// Returns many transactions in a row, more than the first-level cache holds.
fn payments() -> Vec<u8> {
    (0..4_000).flat_map(payment).collect()
}

fn each_transaction<'a>(bytes: &'a [u8], mut act: impl FnMut(Transaction<'a>)) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let (transaction, len) = Transaction::parse_prefix(rest).expect("made by the builder");
        act(transaction);
        rest = &rest[len..];
    }
}

fn transactions(criterion: &mut Criterion) {
    let payments = payments();
    let large = data("tx-65cbf318.extended.bin");
    for (name, bytes) in [("small", &payments), ("large", &large)] {
        let mut group = criterion.benchmark_group(format!("tx/{name}"));
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_function("parse", |bencher| {
            bencher.iter(|| each_transaction(black_box(bytes), keep));
        });
        let mut parsed = Vec::new();
        each_transaction(bytes, |transaction| parsed.push(transaction));
        group.bench_function("txid", |bencher| {
            bencher.iter(|| parsed.iter().for_each(|transaction| keep(transaction.txid())));
        });
        group.bench_function("parse+txid", |bencher| {
            bencher.iter(|| each_transaction(black_box(bytes), |transaction| keep(transaction.txid())));
        });
        group.bench_function("check", |bencher| {
            bencher.iter(|| parsed.iter().for_each(|transaction| keep(transaction.check())));
        });
        group.finish();
    }
}

fn utxo_hashes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("utxo_hash");
    group.throughput(Throughput::Elements(1));
    let (txid, lock) = (Txid([7; 32]), [0x76; 25]);
    group.bench_function("p2pkh", |bencher| {
        bencher.iter(|| utxo_hash(black_box(&txid), black_box(1), black_box(&lock), black_box(5_000)));
    });
    group.finish();
}

fn blocks(criterion: &mut Criterion) {
    let bytes = data("mainnet-384188.block");
    let file = BlockFile::new(&bytes).expect("a real block");
    let mut group = criterion.benchmark_group("block");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("parse+merkle_root", |bencher| {
        bencher.iter(|| {
            let block = file.blocks().next().expect("one block").expect("a real block");
            block.check_merkle_root().expect("a real block")
        });
    });
    group.finish();
}

/// Measures each operation on a record that it changes. The record has no other owner, as in an engine without readers.
fn record_operations(criterion: &mut Criterion) {
    let rules = Rules::main(288);
    let mut group = criterion.benchmark_group("record");
    group.throughput(Throughput::Elements(1));
    for (name, page, operation) in operations() {
        let key = Key::Page(TXID, 0);
        let own = || page.as_ref().map(|page| Record::Page(Arc::new(page.clone())));
        assert!(matches!(apply(&rules, &key, &mut own(), &operation).outcome, Outcome::Applied(_)), "{name}");
        group.bench_function(name, |bencher| {
            let act = |record: &mut Option<Record>| apply(&rules, black_box(&key), record, black_box(&operation));
            bencher.iter_batched_ref(own, act, BatchSize::SmallInput);
        });
    }
    group.finish();
}

const PREPARE: PrepareSettings =
    PrepareSettings { network: Network::Main, utxo_batch_size: 20_000, inline: InlineBodies::All };

/// Measures the path from a message to a prepared transaction.
fn events(criterion: &mut Criterion) {
    let messages = Generator::new(Shape::Apart, 1_000).chunk(1_000, 0);
    let mut group = criterion.benchmark_group("event");
    group.throughput(Throughput::Elements(messages.len() as u64));
    group.bench_function("decode", |bencher| {
        bencher.iter(|| messages.iter().for_each(|message| keep(Event::decode(black_box(&message.payload)).is_ok())));
    });
    group.bench_function("prepare", |bencher| {
        bencher.iter(|| messages.iter().for_each(|message| keep(prepare(&PREPARE, black_box(message)))));
    });
    group.finish();
}

/// Measures the planner alone, with an engine that applies every row at once.
fn planning(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan");
    // Each iteration starts with an empty planner, whose creation would dominate a single transaction.
    for (name, shape, count) in [
        ("1,000 apart", Shape::Apart, 1_000),
        ("chain of 25", Shape::Chains, 25),
        ("fan-out of 1,000", Shape::FanOut, 1_001),
    ] {
        let messages = Generator::new(shape, count).chunk(count as usize, 0);
        let work: Vec<_> = messages.iter().map(prepared).collect();
        group.throughput(Throughput::Elements(count));
        group.bench_function(name, |bencher| bencher.iter(|| assert_eq!(plan_all(&work), count)));
    }
    group.finish();
}

fn prepared(message: &Message) -> Arc<PreparedTx> {
    match prepare(&PREPARE, message) {
        Ok(PreparedEvent::Validated(tx)) => tx,
        other => panic!("the generator makes valid transactions only: {other:?}"),
    }
}

/// Submits everything and answers every row; returns how many events are complete.
fn plan_all(work: &[Arc<PreparedTx>]) -> u64 {
    let rules = Rules::main(288);
    let mut planner = Planner::new(PlanSettings { retry_min_ms: 1, retry_max_ms: 1, flag_grace_ms: 1, rules });
    for (offset, tx) in (0..).zip(work) {
        let event = EventRef { timestamp_ms: 0, partition: 0, offset, epoch: 1 };
        planner.submit(event, tx.clone(), Mode::Normal, 0);
    }
    let mut complete = 0;
    let mut rows: Vec<Token> = Vec::new();
    loop {
        while let Some(action) = planner.next_action() {
            match action {
                Action::Apply(token, row) => {
                    keep(row);
                    rows.push(token);
                }
                Action::Complete(..) => complete += 1,
                other => panic!("nothing is contested: {other:?}"),
            }
        }
        if rows.is_empty() {
            return complete;
        }
        rows.drain(..).for_each(|token| planner.outcome(token, Outcome::Applied(Reply::None), 0));
    }
}

/// Measures a message of live outcomes, from its payload to the planner, in which no transaction waits.
fn outcomes(criterion: &mut Criterion) {
    const TXIDS: u64 = 8_000;
    let txids: Vec<u8> = (0..TXIDS).flat_map(|number| *blake3::hash(&number.to_le_bytes()).as_bytes()).collect();
    let txids = TxidList::new(&txids).expect("txids are whole");
    let payload = Event::OutcomeBatch(OutcomeBatch { change: OutcomeChange::Live, txids }).encode();
    let rules = Rules::main(288);
    let mut planner = Planner::new(PlanSettings { retry_min_ms: 1, retry_max_ms: 1, flag_grace_ms: 1, rules });
    let mut group = criterion.benchmark_group("outcomes");
    group.throughput(Throughput::Elements(TXIDS));
    group.bench_function("live", |bencher| {
        bencher.iter(|| match Event::decode(black_box(&payload)) {
            Ok(Event::OutcomeBatch(batch)) => {
                let named = batch.txids.iter().map(|txid| NamedTransaction { txid, can_unlock: false });
                planner.on_named(named.collect::<Vec<_>>(), 0)
            }
            other => panic!("{other:?}"),
        })
    });
    group.finish();
}

/// Measures a window of offsets that completes from its far end, so that the watermark moves over all of it at once.
fn offsets(criterion: &mut Criterion) {
    const WINDOW: u64 = 10_000;
    let mut group = criterion.benchmark_group("offsets");
    group.throughput(Throughput::Elements(WINDOW));
    let window = |order: &dyn Fn(u64) -> u64| {
        let mut tracker = OffsetTracker::new(0);
        (0..WINDOW).for_each(|offset| keep(tracker.deliver(offset, 0, 250)));
        (0..WINDOW).for_each(|step| tracker.complete(order(step), 0));
        tracker.watermark()
    };
    group.bench_function("in order", |bencher| bencher.iter(|| window(black_box(&|step| step))));
    group.bench_function("backwards", |bencher| bencher.iter(|| window(black_box(&|step| WINDOW - 1 - step))));
    group.finish();
}

const TXID: Txid = Txid([7; 32]);
const LOCK: [u8; 25] = [0x76; 25];
const HOLDER: SpendingData = SpendingData { txid: Txid([8; 32]), input: 0 };

/// Returns a live transaction with this many outputs of 1,000 satoshis.
fn page(outputs: usize, start: NewTxState) -> Page {
    let previous = Output { satoshis: 1_000_000_000, script: &LOCK };
    let spent = Outpoint { txid: Txid([9; 32]), vout: 0 };
    let builder = TransactionBuilder::default().input(spent, &[0x30; 107], u32::MAX, Some(previous));
    let bytes = (0..outputs).fold(builder, |builder, _| builder.output(1_000, &LOCK)).extended();
    let transaction = Transaction::parse(&bytes).expect("made by the builder");
    let setting =
        PageParams { network: Network::Main, height: 700_000, batch_size: 20_000, created_at: 0, event: None };
    build_pages(&transaction, Bytes::copy_from_slice(&bytes), TXID, &setting, &start).expect("it pays").master
}

fn spend_slots(offsets: impl Iterator<Item = u32>) -> Vec<SpendSlot> {
    let output = Output { satoshis: 1_000, script: &LOCK };
    let slot = |offset| {
        let outpoint = Outpoint { txid: TXID, vout: offset };
        SpendSlot::claiming(&outpoint, offset, offset, &output, Bytes::from_static(&LOCK))
    };
    offsets.map(slot).collect()
}

fn operations() -> Vec<(&'static str, Option<Page>, Operation)> {
    let sequenced = |operation| Operation::Sequenced(Stamp { offset: 9, phase: Phase::Apply }, operation);
    let live = page(2, NewTxState::default());
    let contested = page(2, NewTxState { verdict: Some(Verdict::Pending), ..NewTxState::default() });
    let stub = Page::stub(TXID, Verdict::Pending);
    let creating = Page { creating_at: Some(1), ..live.clone() };
    let mut held = live.clone();
    take(&mut held, 0);
    let mut mined = live.clone();
    let in_block = MinedIn { block_id: 5, height: 700_001, subtree: 3 };
    mined.master.as_mut().expect("a master").mined.push(in_block);
    let spend = |slots: Vec<SpendSlot>| {
        Operation::Spend(Spend {
            spender: HOLDER.txid,
            height: 700_000,
            slots: slots.into(),
            marks: Marks::Respect,
            signals: false,
        })
    };
    let respend = |checks| {
        let slot = spend_slots(0..1).remove(0);
        let slots = vec![RespendSlot { slot, from: Some(HOLDER) }];
        sequenced(Sequenced::Respend(Respend { to: Txid([6; 32]), slots, checks }))
    };
    let settled = vec![HeldSlot { offset: 0, holder: HOLDER }];
    let conflicting = Sequenced::MarkConflicting { reason: Reason::Command, height: 700_000 };
    vec![
        ("create", None, Operation::Create(Arc::new(live.clone()))),
        ("create_contested/absent", None, Operation::CreateContested(Arc::new(contested.clone()))),
        ("create_contested/stub", Some(stub), Operation::CreateContested(Arc::new(contested.clone()))),
        ("spend/1 of 2", Some(live.clone()), spend(spend_slots(0..1))),
        ("spend/1 of 1,000", Some(page(1_000, NewTxState::default())), spend(spend_slots(999..1_000))),
        ("spend/1,000 of 1,000", Some(page(1_000, NewTxState::default())), spend(spend_slots(0..1_000))),
        ("clear_creating", Some(creating), Operation::ClearCreating),
        ("mark_contested/absent", None, sequenced(Sequenced::MarkContested)),
        ("settle", Some(held.clone()), sequenced(Sequenced::Settle(settled.clone()))),
        ("respend/evaluate", Some(held.clone()), respend(RespendChecks::Spend { height: 700_000 })),
        ("respend/decided", Some(held.clone()), respend(RespendChecks::Decided)),
        ("accept", Some(contested.clone()), sequenced(Sequenced::Accept)),
        ("mark_conflicting", Some(live.clone()), sequenced(conflicting)),
        ("add_conflicting_child", Some(live.clone()), sequenced(Sequenced::AddConflictingChild(HOLDER.txid))),
        ("set_mined", Some(live.clone()), sequenced(Sequenced::SetMined { mined_in: in_block, longest_chain: true })),
        ("unset_mined", Some(mined), sequenced(Sequenced::UnsetMined { block_id: 5, height: 700_001 })),
        ("set_locked", Some(live.clone()), sequenced(Sequenced::SetLocked(true))),
        ("freeze", Some(live.clone()), sequenced(Sequenced::Freeze { offset: 1 })),
        ("preserve", Some(live), sequenced(Sequenced::Preserve { until: 800_000 })),
        ("mark_spender_pruned", Some(held), sequenced(Sequenced::MarkSpenderPruned(settled))),
        ("prune", Some(lost(contested)), sequenced(Sequenced::Prune { height: 800_000, keep_until: Some(800_144) })),
    ]
}

fn take(page: &mut Page, offset: usize) {
    let slot = &mut page.utxos.as_mut().expect("slots")[offset];
    *slot = Slot::Spent(slot.hash().expect("not nil"), HOLDER);
    page.spent_utxos += 1;
}

fn lost(mut contested: Page) -> Page {
    contested.master.as_mut().expect("a master").verdict = Some(Verdict::Conflicting(Reason::Command));
    contested
}

/// Keeps the compiler from removing an unused value.
fn keep<T>(value: T) {
    black_box(value);
}

fn data(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
