//! Holds `schemas/snapshot.md` to the code: a golden chunk and a golden manifest. `UPDATE_SCHEMAS=1` writes both after
//! an intended change.

use std::{fs, path::PathBuf};

use bytes::Bytes;
use serde_json::Value;

use super::{
    ChunkEntry, Manifest, Offsets, SnapshotPlan, Totals,
    chunk::{ChunkPlace, ChunkWriter, SnapshotChunk},
    manifest::{BLOCKS, COMMANDS, FORMAT, decode_document, encode_document},
};
use crate::{
    engine::Cursor,
    record::{BlockRecord, CommandRecord, CommandResult, Key, Record},
};

const ID: [u8; 16] = [0xAB; 16];

fn compare_or_write(file: &str, wanted: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("schemas/golden").join(file);
    if std::env::var_os("UPDATE_SCHEMAS").is_some() {
        fs::write(&path, wanted).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(found == wanted, "{} differs from the code: {wanted}", path.display());
}

fn chunk() -> Bytes {
    let mut writer = ChunkWriter::new(ChunkPlace { snapshot: ID, part: BLOCKS, number: 1 });
    let block = BlockRecord {
        block_id: 7,
        hash: [2; 32],
        previous: [3; 32],
        height: 5,
        time: 9,
        longest_chain: true,
        progress: 1,
        chain_pos: None,
    };
    writer.add(&Key::Block(7), &Record::Block(block));
    let result = CommandResult::Applied;
    let command = CommandRecord { id: [4; 16], event_digest: [1; 32], chain_offset: 8, result, chain_pos: None };
    writer.add(&Key::Command([4; 16]), &Record::Command(command));
    writer.finish(Some(&Cursor(vec![0x0C, 1]))).0
}

fn manifest() -> Manifest {
    let plan = SnapshotPlan {
        format: FORMAT,
        id: ID,
        created_ms: 1_795_737_600_123,
        store_id: [5; 16],
        engine: "fjall".to_owned(),
        network: "regtest".to_owned(),
        utxo_batch_size: 20_000,
        offsets: Offsets { chain: 3, validated: [(0, 10), (1, 11)].into() },
        chain_state: "state of the chain".to_owned(),
        nodes: "nodes".to_owned(),
        parts: 1,
        meta: "00".to_owned(),
    };
    let chunk =
        |part, records| ChunkEntry { part, number: 0, records, bytes: 100, blake3: *blake3::hash(&[1]).as_bytes() };
    Manifest {
        format: FORMAT,
        plan,
        ended_ms: 1_795_737_601_456,
        until: Offsets { chain: 4, validated: [(0, 12), (1, 13)].into() },
        chunks: vec![chunk(0, 2), chunk(BLOCKS, 1), chunk(COMMANDS, 0)],
        totals: Totals { records: 3, transactions: 2, blocks: 1, unspent_outputs: 4, ..Totals::default() },
    }
}

/// Protects: another program that follows the document finds each field where the document says.
#[test]
fn the_golden_chunk_is_as_the_document_says() {
    let whole = chunk();
    compare_or_write("snapshot-chunk.hex", &format!("{}\n", hex::encode(&whole)));
    let mut rest: &[u8] = &whole;
    let mut take = |length: usize| {
        let (taken, behind) = rest.split_at(length);
        rest = behind;
        taken.to_vec()
    };
    assert_eq!(take(8), b"UTXOSNAP");
    assert_eq!(take(2), 1_u16.to_le_bytes());
    assert_eq!(take(16), ID);
    assert_eq!(take(2), 900_u16.to_le_bytes());
    assert_eq!(take(4), 1_u32.to_le_bytes());
    for key in [7_u32.to_be_bytes().to_vec(), vec![4; 16]] {
        assert_eq!(take(1), [key.len() as u8]);
        assert_eq!(take(key.len()), key);
        let length = u64::from_le_bytes(take(8).try_into().unwrap());
        assert!(take(length as usize).len() > 30);
    }
    let (covered, checksum) = whole.split_at(whole.len() - 32);
    assert_eq!(blake3::hash(covered).as_bytes(), checksum);
    let (before, length) = covered.split_at(covered.len() - 4);
    let footer = &before[before.len() - u32::from_le_bytes(length.try_into().unwrap()) as usize..];
    assert_eq!(take(footer.len()), footer, "the footer follows the records");
    let footer: Value = serde_json::from_slice(footer).unwrap();
    assert_eq!((&footer["records"], &footer["next"]), (&2.into(), &"0c01".into()));
    let place = ChunkPlace { snapshot: ID, part: BLOCKS, number: 1 };
    assert_eq!(SnapshotChunk::parse(whole.clone(), place).unwrap().count(), 2);
}

#[test]
fn the_golden_manifest_is_as_the_document_says() {
    let manifest = manifest();
    manifest.check().unwrap();
    let document = encode_document(&manifest);
    let text = std::str::from_utf8(&document).unwrap();
    compare_or_write("snapshot-manifest.json", text);
    let (json, checksum) = text.strip_suffix('\n').unwrap().split_once('\n').unwrap();
    assert_eq!(blake3::hash(json.as_bytes()).to_hex().as_str(), checksum);
    assert_eq!(decode_document::<Manifest>("S", "manifest.json", &document).unwrap(), manifest);
    // Every field has its place in the document.
    let described = include_str!("../../schemas/snapshot.md");
    let value: Value = serde_json::from_str(json).unwrap();
    for part in [&value, &value["plan"], &value["plan"]["offsets"], &value["chunks"][0], &value["totals"]] {
        for (name, _) in part.as_object().unwrap() {
            assert!(described.contains(&format!("`{name}`")), "schemas/snapshot.md does not describe `{name}`");
        }
    }
}
