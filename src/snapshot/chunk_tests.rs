use super::*;
use crate::record::{BlockRecord, CommandRecord, CommandResult};

const PLACE: ChunkPlace = ChunkPlace { snapshot: [7; 16], part: 3, number: 9 };

fn records() -> Vec<(Key, Record)> {
    let block = |block_id| {
        let (hash, previous) = ([2; 32], [3; 32]);
        Record::Block(BlockRecord {
            block_id,
            hash,
            previous,
            height: 5,
            time: 9,
            longest_chain: true,
            progress: 1,
            chain_pos: None,
        })
    };
    let (id, result) = ([4; 16], CommandResult::Applied);
    let command = CommandRecord { id, event_digest: [1; 32], chain_offset: 8, result, chain_pos: None };
    vec![(Key::Block(1), block(1)), (Key::Block(2), block(2)), (Key::Command(id), Record::Command(command))]
}

fn chunk() -> Bytes {
    let mut writer = ChunkWriter::new(PLACE);
    records().iter().for_each(|(key, record)| writer.add(key, record));
    writer.finish(Some(&Cursor(vec![0xAB, 1]))).0
}

fn with_checksum(mut bytes: Vec<u8>) -> Bytes {
    let end = bytes.len() - CHECKSUM;
    let checksum = *blake3::hash(&bytes[..end]).as_bytes();
    bytes[end..].copy_from_slice(&checksum);
    bytes.into()
}

#[test]
fn a_chunk_gives_back_its_records_and_its_footer() {
    let chunk = SnapshotChunk::parse(chunk(), PLACE).unwrap();
    assert_eq!(chunk.footer.next_cursor().unwrap(), Some(Cursor(vec![0xAB, 1])));
    let totals = Totals { records: 3, blocks: 2, commands: 1, ..Totals::default() };
    assert_eq!((chunk.footer.records, chunk.footer.totals), (3, totals));
    assert_eq!(chunk.collect::<Result<Vec<_>, _>>().unwrap(), records());
    let (empty, footer) = ChunkWriter::new(PLACE).finish(None);
    assert_eq!((footer.records, footer.next_cursor().unwrap()), (0, None));
    assert_eq!(SnapshotChunk::parse(empty, PLACE).unwrap().count(), 0);
}

#[test]
fn every_changed_byte_and_every_cut_is_refused() {
    let whole = chunk();
    for at in 0..whole.len() {
        let mut changed = whole.to_vec();
        changed[at] ^= 1;
        assert!(SnapshotChunk::parse(changed.into(), PLACE).is_err(), "byte {at}");
        assert!(SnapshotChunk::parse(whole.slice(..at), PLACE).is_err(), "cut at {at}");
    }
}

#[test]
fn a_chunk_of_another_place_or_layout_says_so() {
    let error = |place: ChunkPlace| SnapshotChunk::parse(chunk(), place).unwrap_err();
    assert_eq!(error(ChunkPlace { snapshot: [8; 16], ..PLACE }), ChunkError::OtherSnapshot("07".repeat(16)));
    assert_eq!(error(ChunkPlace { number: 8, ..PLACE }), ChunkError::OtherPlace(3, 9));
    assert_eq!(error(ChunkPlace { part: 2, ..PLACE }), ChunkError::OtherPlace(3, 9));
    let mut other = chunk().to_vec();
    other[8] = 2;
    assert_eq!(SnapshotChunk::parse(with_checksum(other), PLACE).unwrap_err(), ChunkError::Version(2));
}

/// Bytes with a right checksum can still be anything: a hostile writer can compute it.
#[test]
fn foreign_records_with_a_right_checksum_are_errors_and_no_panic() {
    let whole = chunk();
    for at in HEADER..whole.len() - CHECKSUM {
        for bit in [0, 7] {
            let mut changed = whole.to_vec();
            changed[at] ^= 1 << bit;
            if let Ok(chunk) = SnapshotChunk::parse(with_checksum(changed), PLACE) {
                assert!(chunk.count() <= 4);
            }
        }
    }
}
