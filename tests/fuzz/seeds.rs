//! The inputs that the fuzzers start from: real blocks (`tests/data`), the golden samples of `schemas/`, the sample
//! configuration.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use utxo_store::{
    event::Validated,
    generate::Parents,
    record::{StoredOutput, build::KnownOutput},
    tx::{
        Outpoint, Output, Transaction, TransactionBuilder, Txid,
        block::{BlockFile, FileNetwork, RawBlock},
    },
    utxo_set::{SetTx, core_format, reference_format},
};

type Seeds = Vec<(String, Vec<u8>)>;

const CHAIN: &str = "tests/data/mainnet-0-4312.blk";
const BLOCKS: [&str; 3] =
    ["tests/data/mainnet-277647.block", "tests/data/mainnet-384188.block", "tests/data/mainnet-384189.block"];

/// Size limit in bytes: larger transactions only slow a fuzzer down.
const LARGEST_TRANSACTION: usize = 1_500;

const KINDS: [&str; 11] = [
    "validated",
    "seeded",
    "block-mined",
    "reorg",
    "contest",
    "command",
    "decision",
    "outcome",
    "validated-reference",
    "seeded-reference",
    "outcome-batch",
];

/// Returns the seeds of a target, in the order of their names.
pub fn of(target: &str) -> Seeds {
    let mut seeds = match target {
        "transaction" => transactions(),
        "extended" => extended(),
        "event" => events(),
        "json_event" => KINDS.iter().map(|kind| (format!("{kind}.jsonl"), golden(kind, "jsonl").into())).collect(),
        "dead_letter" => dead_letters(),
        "block_file" => block_files(),
        "api_batch" => api_batches(),
        "configuration" => configurations(),
        "utxo_set" => utxo_sets(),
        "store_url" => numbered("url", STORE_URLS),
        "commit_metadata" => numbered("metadata", COMMIT_METADATA),
        other => panic!("the target {other} has no seeds"),
    };
    seeds.sort();
    seeds
}

/// Returns the outputs of some transactions as UTXO-set files of both formats, and a cut file of each.
fn utxo_sets() -> Seeds {
    let block = data(BLOCKS[0]);
    let block = blocks(&block).next().unwrap();
    let mut txs: Vec<SetTx> = Vec::new();
    for (tx, height) in block.transactions().filter(|tx| tx.raw().len() < LARGEST_TRANSACTION).take(6).zip(0..) {
        let output = |(output, vout): (Output<'_>, u32)| {
            let script = output.script.to_vec().into();
            KnownOutput { vout, output: StoredOutput { satoshis: output.satoshis, script } }
        };
        let outputs = tx.outputs().zip(0..).map(output).collect();
        txs.push(SetTx { txid: tx.txid(), height, coinbase: tx.is_coinbase(), outputs });
    }
    let count = txs.iter().map(|tx| tx.outputs.len() as u64).sum();
    let (mut reference, mut core) = (Vec::new(), Vec::new());
    reference_format::write_header(block.hash(), 9, block.header().previous, &mut reference);
    core_format::write_header(FileNetwork::Regtest, block.hash(), count, &mut core);
    for tx in &txs {
        reference_format::write_tx(tx, &mut reference);
        core_format::write_tx(tx, &mut core);
    }
    reference_format::write_footer(txs.len() as u64, count, &mut reference);
    let seeds = [
        ("core-cut", core[..core.len() / 2].to_vec()),
        ("core", core),
        ("reference-cut", reference[..reference.len() - 20].to_vec()),
        ("reference", reference),
    ];
    seeds.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect()
}

/// Returns the keys of the inputs of a block's transactions, in both forms, and a cut key.
fn api_batches() -> Seeds {
    let block = data(BLOCKS[0]);
    let block = blocks(&block).next().unwrap();
    let outpoints: Vec<Outpoint> = block
        .transactions()
        .skip(1)
        .flat_map(|tx| tx.inputs().map(|input| input.outpoint).collect::<Vec<_>>())
        .collect();
    let keys = |outpoints: &[Outpoint]| -> Vec<u8> {
        let key = |outpoint: &Outpoint| [&outpoint.txid.0[..], &outpoint.vout.to_le_bytes()].concat();
        outpoints.iter().flat_map(key).collect()
    };
    let txids: Vec<u8> = outpoints[..8].iter().flat_map(|outpoint| outpoint.txid.0).collect();
    let cut = keys(&outpoints[..2])[..71].to_vec();
    let seeds = [("cut", cut), ("outpoints", keys(&outpoints[..8])), ("one", keys(&outpoints[..1])), ("txids", txids)];
    seeds.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect()
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn data(name: &str) -> Vec<u8> {
    fs::read(path(name)).unwrap()
}

fn golden(name: &str, extension: &str) -> String {
    fs::read_to_string(path(&format!("schemas/golden/{name}.{extension}"))).unwrap()
}

fn numbered(name: &str, texts: &[&str]) -> Seeds {
    (0..).zip(texts).map(|(index, text)| (format!("{name}-{index:02}"), text.as_bytes().to_vec())).collect()
}

fn blocks(bytes: &[u8]) -> impl Iterator<Item = RawBlock<'_>> {
    BlockFile::new(bytes).unwrap().blocks().map(|block| block.unwrap())
}

/// Returns the shape of a transaction; one transaction of each shape is enough.
fn look(transaction: &Transaction<'_>) -> (usize, usize, bool, usize, usize) {
    let longest = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or(0).next_multiple_of(64);
    (
        transaction.input_count().min(4),
        transaction.output_count().min(4),
        transaction.is_coinbase(),
        longest(&mut transaction.inputs().map(|input| input.script.len())),
        longest(&mut transaction.outputs().map(|output| output.script.len())),
    )
}

fn transactions() -> Seeds {
    let mut seeds = BTreeMap::new();
    for file in [CHAIN].iter().chain(&BLOCKS) {
        for block in blocks(&data(file)) {
            for transaction in block.transactions().filter(|it| it.raw().len() <= LARGEST_TRANSACTION) {
                let name = || transaction.txid().to_string()[..16].to_owned();
                seeds.entry(look(&transaction)).or_insert_with(|| (name(), transaction.raw().to_vec()));
            }
        }
    }
    seeds.into_values().chain(edges(TransactionBuilder::standard)).collect()
}

/// Returns transactions with scripts of the last length of one VarInt form and the first of the next, and the last
/// length in the longer form.
fn edges(format: fn(&TransactionBuilder) -> Vec<u8>) -> Seeds {
    let outpoint = Outpoint { txid: Txid([9; 32]), vout: 1 };
    let with_script = |len: usize| {
        let script = vec![0x51; len];
        let previous = Some(Output { satoshis: 60, script: &script });
        format(&TransactionBuilder::default().input(outpoint, &script, 7, previous).output(50, &script))
    };
    let last = with_script(0xfc);
    let at = last.iter().position(|byte| *byte == 0xfc).unwrap();
    let longer = [&last[..at], &[0xfd, 0xfc, 0x00], &last[at + 1..]].concat();
    let named = [("edge-252", last), ("edge-252-longer", longer), ("edge-253", with_script(0xfd))];
    named.map(|(name, bytes)| (name.to_owned(), bytes)).into()
}

fn extended() -> Seeds {
    let parents = Parents::from_csv("prevouts", &data("tests/data/mainnet-277647.prevouts.csv")).unwrap();
    let mut seeds = BTreeMap::new();
    for block in blocks(&data(BLOCKS[0])) {
        for transaction in block.transactions().filter(|it| it.raw().len() <= LARGEST_TRANSACTION) {
            seeds.entry(look(&transaction)).or_insert_with(|| {
                let mut bytes = Vec::new();
                transaction.write_extended(&mut bytes, |_, outpoint| parents.output(&outpoint)).unwrap();
                (transaction.txid().to_string()[..16].to_owned(), bytes)
            });
        }
    }
    seeds.into_values().chain(edges(TransactionBuilder::extended)).collect()
}

/// The golden samples, and events of real transactions.
fn events() -> Seeds {
    let mut seeds = Seeds::new();
    for kind in KINDS {
        let lines = golden(kind, "hex");
        let messages = lines.lines().map(|line| hex::decode(line).unwrap());
        seeds.extend((0..).zip(messages).map(|(index, message)| (format!("{kind}-{index:02}"), message)));
    }
    seeds.extend(extended().into_iter().step_by(4).map(|(txid, tx)| {
        let event = Validated { tx: &tx, height: 277_647, locked: false };
        (format!("validated-{txid}"), event.encode())
    }));
    seeds
}

fn dead_letters() -> Seeds {
    let mut seeds = vec![("letters.jsonl".to_owned(), golden("dead-letter", "jsonl").into_bytes())];
    let letters = golden("dead-letter", "hex");
    for (index, letter) in (0..).zip(letters.split("\n\n")) {
        let mut lines = Vec::new();
        for (name, value) in letter.lines().map(|line| line.split_once(' ').unwrap()) {
            lines.extend_from_slice(format!("{name}: ").as_bytes());
            lines.extend(hex::decode(value).unwrap());
            lines.push(b'\n');
        }
        seeds.push((format!("headers-{index}"), lines));
    }
    seeds
}

fn framed(network: FileNetwork, blocks: &[RawBlock<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for block in blocks {
        bytes.extend(network.block_file_magic());
        bytes.extend((block.raw().len() as u32).to_le_bytes());
        bytes.extend_from_slice(block.raw());
    }
    bytes
}

fn block_files() -> Seeds {
    let file = data(CHAIN);
    let chain: Vec<RawBlock<'_>> = blocks(&file).collect();
    let mut seeds = vec![
        ("framed-main".to_owned(), framed(FileNetwork::Main, &chain[..3])),
        ("framed-test".to_owned(), framed(FileNetwork::Test, &chain[..2])),
        ("framed-regtest-zeros".to_owned(), [framed(FileNetwork::Regtest, &chain[..1]), vec![0; 40]].concat()),
        ("framed-170".to_owned(), framed(FileNetwork::Main, &chain[169..171])),
    ];
    // One block for each number of transactions that occurs.
    let by_count: BTreeMap<usize, &RawBlock<'_>> =
        chain.iter().filter(|block| block.raw().len() < 8_000).map(|it| (it.transaction_count(), it)).collect();
    seeds.extend(by_count.iter().map(|(count, block)| (format!("bare-{count}"), block.raw().to_vec())));
    seeds
}

fn configurations() -> Seeds {
    let sample = data("deploy/utxo-store.toml");
    let mut seeds = numbered("settings", CONFIGURATIONS);
    seeds.push(("sample.toml".to_owned(), sample));
    seeds
}

const CONFIGURATIONS: &[&str] = &[
    "[kafka]\nbrokers = \"a:1, [::1]:9092\"\n[log]\nformat = \"json\"\nlevel = \"info,utxo_store::ingest=debug\"\n",
    "[kafka.properties]\n\"sasl.username\" = \"me\"\nsasl.password = \"hunter2-and-more\"\nsocket.timeout.ms = 1000\n",
    "[store]\nurl = \"fjall:///a%20b?cache_mib=2\"\nnetwork = \"regtest\"\nutxo_batch_size = 128\n",
    "colour = 1\nlog = 3\n[kafka]\nbatch_size = 5\n[kafka.topics]\nchian = \"x\"\n[ingest]\nbatch_age_ms = -1\n",
    "[kafka]\nsession_timeout_ms = 6000\nmax_poll_interval_ms = 5000\nheartbeat_interval_ms = 2001\n",
    "[kafka.topics]\nchain = \"utxo.reorgs\"\n[ingest]\nretry_pause_ms = 6000\nflag_grace_ms = 600_000\n",
    "[kafka.properties]\nenable.auto.commit = true\n\"group.id\" = \"x\"\nssl = [1]\n",
    "[ingest]\ndead_letter_ratio = 1\n[http]\nlisten = \"[::]:0\"\n[sequencer]\nenabled = false\n",
    "[kafka.security]\nprotocol = \"sasl_plaintext\"\nmechanism = \"PLAIN\"\nusername = \"me\"\n\
     password = \"hunter2-and-more\"\n",
    "kafka.topics.chain = 'mine'\nkafka = { group = \"g\" }\n",
    "\n---\nUTXO_STORE__KAFKA__BROKERS=a:1\nUTXO_STORE__INGEST__BATCH_SIZE=17\nUTXO_STORE__SEQUENCER__ENABLED=false\n",
    "\n---\nUTXO_STORE__KAFKA__PROPERTIES__SASL_PASSWORD=0123\nUTXO_STORE__INGEST__DEAD_LETTER_RATIO=1e-3\n",
    "\n---\nUTXO_STORE__HTTP=off\nUTXO_STORE__HTTP__LISTEN=127.0.0.1:0\nUTXO_STORE__STORE__PLANET=mars\n",
];

const STORE_URLS: &[&str] = &[
    "memory://",
    "null:///",
    "fjall:///var/lib/utxo",
    "fjall:///a%20b/%E2%82%BF%3f?",
    "fjall:///a?cache_mib=2&&",
    "fjall:///a?cash_mib=2",
    "fjall://relative/path",
    "memory:///?size=3",
    "aerospike://host:3000/ns?set=txmeta&externalStore=file:///x",
    "postgres://user:secret@host/db",
    "sqlite:///a",
    "mysql://root:secret@host/db",
    "/var/lib/utxo",
];

const COMMIT_METADATA: &[&str] = &[
    "",
    r#"{"read":-9223372036854775808}"#,
    r#"{"oldest":[1231731025000,42],"read":1231731026000,"end":false,"bound":true,"pos":57}"#,
    r#"{"read":1231731026000,"end":true,"bound":false,"pos":18446744073709551615}"#,
    concat!(
        r#"{"oldest":[1231731025000,42],"wait":{"named":[[1231731025000,42,18446744073709551615],"#,
        r#"[1231731025001,43,7]],"rest":[1231731025002,44]},"read":1231731026000,"end":true,"pos":57}"#
    ),
    r#"{"seq":0,"mined":0,"reorgs":0,"decisions":0}"#,
    concat!(
        r#"{"seq":7,"tip":{"hash":"00000000d1145790a8694403d4063f323d499e655c83426834d4ce2f8dd4a2ee","#,
        r#""height":170,"id":171},"mined":8,"reorgs":0,"decisions":12}"#
    ),
];
