use std::{collections::BTreeMap, sync::Arc};

use proptest::{
    collection::{btree_map, btree_set, vec},
    option,
    prelude::*,
};

use super::*;
use crate::{
    record::{
        Blob, Body, BoundTopic, ChainTip, CommandRecord, CommandResult, ConsumedOffsets, CreatingEvent, LogEnds,
        Master, MetaRecord, MigrationPart, MinedIn, Page, Phase, Reason, Reassignment, Rebuilding, Restored, Slot,
        SnapshotHold, SpendingData, Stamp, StoredOutput, Verdict,
    },
    tx::{Txid, UtxoHash},
};

fn txid() -> impl Strategy<Value = Txid> {
    any::<[u8; 32]>().prop_map(Txid)
}

fn hash() -> impl Strategy<Value = UtxoHash> {
    any::<[u8; 32]>().prop_map(UtxoHash)
}

fn slot() -> impl Strategy<Value = Slot> {
    prop_oneof![
        Just(Slot::Nil),
        hash().prop_map(Slot::Unspent),
        (hash(), txid(), any::<u32>()).prop_map(|(hash, txid, input)| Slot::Spent(hash, SpendingData { txid, input })),
        hash().prop_map(Slot::Frozen),
    ]
}

fn stamp() -> impl Strategy<Value = Stamp> {
    let phase = prop_oneof![Just(Phase::Evaluate), Just(Phase::Apply), Just(Phase::Prune)];
    (any::<u64>(), phase).prop_map(|(offset, phase)| Stamp { offset, phase })
}

fn reason() -> impl Strategy<Value = Reason> {
    (0..15, any::<u32>(), txid()).prop_map(|(which, input, parent)| match which {
        0 => Reason::DoubleSpend { input, winner: parent },
        1 => Reason::ConflictingParent { parent },
        2 => Reason::MissingParent { parent },
        3 => Reason::PrunedParent { parent },
        4 => Reason::Immature { input },
        5 => Reason::Mismatch { input },
        6 => Reason::NoSuchOutput { input },
        7 => Reason::NotYetSpendable { input },
        8 => Reason::Frozen { input },
        9 => Reason::Locked { parent },
        10 => Reason::History { input },
        11 => Reason::Found,
        12 => Reason::Command,
        13 => Reason::Disconnected,
        _ => Reason::Seeded,
    })
}

fn output() -> impl Strategy<Value = StoredOutput> {
    (any::<u64>(), vec(any::<u8>(), 0..40))
        .prop_map(|(satoshis, script)| StoredOutput { satoshis, script: script.into() })
}

fn body() -> impl Strategy<Value = Body> {
    prop_oneof![
        vec(any::<u8>(), 0..300).prop_map(|bytes| Body::Transaction(bytes.into())),
        vec(option::of(output()), 0..4).prop_map(|outputs| Body::Outputs(outputs.into_iter().collect())),
        option::of(any::<[u8; 32]>()).prop_map(|hash| Body::External(Blob::First(hash))),
        any::<[u8; 32]>().prop_map(|hash| Body::External(Blob::Other(hash))),
    ]
}

fn master() -> impl Strategy<Value = Master> {
    let mined = vec(any::<(u32, u32, u32)>(), 0..3).prop_map(|triples| {
        triples.into_iter().map(|(block_id, height, subtree)| MinedIn { block_id, height, subtree }).collect()
    });
    let verdict = prop_oneof![Just(Verdict::Pending), Just(Verdict::Accepted), reason().prop_map(Verdict::Conflicting)];
    let first = (any::<(u32, u32, u64)>(), mined, option::of(any::<u32>()), option::of(body()));
    let sets = (btree_set(txid(), 0..3), btree_set(any::<u32>(), 0..3));
    let second = (sets, option::of(verdict), any::<Option<u32>>(), option::of(0..1_u64 << 63));
    (first, second).prop_map(|(first, second)| {
        let ((total_utxos, total_extra_recs, created_at), mined, unmined_since, body) = first;
        let ((conflicting_children, spent_pages), verdict, preserve_until, created_by) = second;
        Master {
            total_utxos,
            total_extra_recs,
            mined,
            created_at,
            unmined_since,
            body,
            conflicting_children,
            spent_pages,
            verdict,
            preserve_until,
            created_by: created_by.map(CreatingEvent::from_number),
        }
    })
}

fn reassignment() -> impl Strategy<Value = Reassignment> {
    (any::<(u32, u32)>(), hash(), hash(), output()).prop_map(|((offset, block_height), utxo_hash, new, output)| {
        Reassignment { offset, utxo_hash, new_utxo_hash: new, block_height, output }
    })
}

fn page() -> impl Strategy<Value = Page> {
    let numbers = (any::<[u32; 5]>(), any::<[u64; 3]>(), any::<[bool; 4]>());
    let options = (option::of(any::<u64>()), option::of(stamp()), any::<[Option<u32>; 4]>());
    let marks = (
        btree_set(any::<u32>(), 0..4),
        btree_set(any::<u32>(), 0..4),
        btree_map(any::<u32>(), any::<u32>(), 0..4),
        vec(reassignment(), 0..3),
    );
    let slots = (option::of(vec(slot(), 0..6)), vec(any::<u8>(), 0..3));
    (txid(), numbers, options, marks, slots, option::of(master())).prop_map(
        |(txid, numbers, options, marks, (utxos, amount_sizes), master)| {
            let ([number, version, lock_time, spent_utxos, record_utxos], sizes, flags) = numbers;
            let (creating_at, chain_pos, [spending_height, delete_at_height, pruned, slot_height]) = options;
            let (contested, pruned_spenders, utxo_spendable_in, reassignments) = marks;
            let [fee, size_in_bytes, extended_size] = sizes;
            let [is_coinbase, locked, conflicting, frozen] = flags;
            Page {
                txid,
                number,
                version,
                lock_time,
                fee,
                size_in_bytes,
                extended_size,
                utxos,
                amount_sizes: amount_sizes.into(),
                spent_utxos,
                record_utxos,
                is_coinbase,
                locked,
                conflicting,
                frozen,
                creating_at,
                spending_height,
                contested,
                pruned_spenders,
                utxo_spendable_in,
                reassignments,
                chain_pos,
                delete_at_height,
                pruned,
                slot_height,
                master: master.map(Box::new),
            }
        },
    )
}

fn consumed() -> impl Strategy<Value = ConsumedOffsets> {
    any::<(u64, BTreeMap<u32, u64>)>().prop_map(|(chain, validated)| ConsumedOffsets { chain, validated, height: 0 })
}

fn rebuilding() -> impl Strategy<Value = Rebuilding> {
    ([consumed(), consumed(), consumed()], any::<[u64; 2]>(), any::<[String; 2]>()).prop_map(
        |([committed, ends, reached], [frontier, decisions], [nodes, chain_state])| {
            let log = LogEnds { committed, ends, decisions };
            Rebuilding { frontier, log, nodes, reached, chain_state }
        },
    )
}

fn hold() -> impl Strategy<Value = SnapshotHold> {
    any::<([u8; 16], u64)>().prop_map(|(snapshot, until_ms)| SnapshotHold { snapshot, until_ms })
}

fn restored() -> impl Strategy<Value = Restored> {
    (any::<([u8; 16], bool, String, [u64; 4])>(), [consumed(), consumed()]).prop_map(|(fields, [until, handled])| {
        let (snapshot, is_loading, nodes, [chunks, chain_end, chain_from, decisions_from]) = fields;
        Restored { snapshot, is_loading, nodes, chunks, until, handled, chain_end, chain_from, decisions_from }
    })
}

fn migration() -> impl Strategy<Value = MigrationPart> {
    any::<([u8; 16], bool)>()
        .prop_map(|(id, copy)| if copy { MigrationPart::Copy(id) } else { MigrationPart::Source(id) })
}

fn chain_tip() -> impl Strategy<Value = ChainTip> {
    any::<(u64, u32, [u8; 32], u32)>().prop_map(|(chain_offset, height, hash, median_time)| ChainTip {
        chain_offset,
        height,
        hash,
        median_time,
    })
}

fn topics() -> impl Strategy<Value = BTreeMap<String, BoundTopic>> {
    let first = btree_map(any::<u32>(), any::<[u8; 8]>(), 0..3);
    let bound = (any::<Option<[u8; 16]>>(), first).prop_map(|(id, first)| BoundTopic { id, first });
    btree_map("[a-z.]{0,9}", bound, 0..4)
}

/// Draws a record of any kind with its key; the fields of a page are independent of each other.
pub(crate) fn stored() -> impl Strategy<Value = (Key, Record)> {
    let lock_record = (txid(), any::<(u64, u64, u32, String, u32, u64)>()).prop_map(|(txid, fields)| {
        let (created_at, expires_at, process_id, hostname, expected_recs, owner) = fields;
        let record = LockRecord { created_at, expires_at, process_id, hostname, expected_recs, owner };
        (Key::LockRecord(txid), Record::LockRecord(record))
    });
    let block = (any::<[u32; 3]>(), any::<[[u8; 32]; 2]>(), any::<(bool, u64)>(), option::of(stamp())).prop_map(
        |([block_id, height, time], [hash, previous], (longest_chain, progress), chain_pos)| {
            let block = BlockRecord { block_id, hash, previous, height, time, longest_chain, progress, chain_pos };
            (Key::Block(block_id), Record::Block(block))
        },
    );
    let meta = (
        any::<[u8; 16]>(),
        any::<[u32; 6]>(),
        any::<(String, Option<[u8; 32]>, Option<u64>, Option<u32>, bool, bool)>(),
        option::of(rebuilding()),
        (consumed(), consumed()),
        (
            topics(),
            option::of(chain_tip()),
            0..3_u64,
            option::of(hold()),
            option::of(restored()),
            option::of(migration()),
            0..3_u32,
        ),
    )
        .prop_map(
            |(
                store_id,
                numbers,
                (network, chain_id, rebuilder, partitions, has_blobs, has_sentinels),
                rebuilding,
                (consumed, durable),
                (topics, tip, health_checks, snapshot_hold, restored, migration, chain_era),
            )| {
                let [layout_version, utxo_batch_size, retention, prune_horizon, reorg_floor, height] = numbers;
                let meta = MetaRecord {
                    store_id,
                    layout_version,
                    network,
                    utxo_batch_size,
                    retention,
                    prune_horizon,
                    chain_id,
                    rebuilding: rebuilding.map(Box::new),
                    rebuilder,
                    partitions,
                    has_blobs,
                    has_sentinels,
                    consumed: ConsumedOffsets { height: if has_sentinels { height } else { 0 }, ..consumed },
                    durable,
                    replay_floor: Default::default(),
                    reorg_floor,
                    topics: if has_blobs { topics } else { Default::default() },
                    tip,
                    health_checks,
                    snapshot_hold,
                    restored: restored.map(Box::new),
                    chain_era,
                    migration,
                };
                (Key::Meta, Record::Meta(Box::new(meta)))
            },
        );
    let results = prop_oneof![
        Just(CommandResult::Applied),
        Just(CommandResult::AlreadyApplied),
        any::<(String, String)>().prop_map(|(code, message)| CommandResult::Refused { code, message }),
    ];
    let command = (any::<([u8; 16], [u8; 32], u64)>(), results, option::of(stamp())).prop_map(
        |((id, event_digest, chain_offset), result, chain_pos)| {
            (Key::Command(id), Record::Command(CommandRecord { id, event_digest, chain_offset, result, chain_pos }))
        },
    );
    prop_oneof![
        5 => page().prop_map(|page| (Key::Page(page.txid, page.number), Record::Page(Arc::new(page)))),
        1 => lock_record,
        1 => block,
        1 => meta,
        1 => command,
        1 => any::<(u8, [u8; 16])>().prop_map(|(number, id)| (Key::Sentinel(number), Record::Sentinel(id))),
    ]
}

fn key_of_each_kind() -> [Key; 6] {
    [
        Key::master(Txid::default()),
        Key::LockRecord(Txid::default()),
        Key::Block(1),
        Key::Meta,
        Key::Command([1; 16]),
        Key::Sentinel(1),
    ]
}

fn encoded(record: &Record) -> Bytes {
    let mut bytes = Vec::new();
    encode(record, &mut bytes);
    bytes.into()
}

proptest! {
    #[test]
    fn every_record_round_trips((key, record) in stored()) {
        prop_assert_eq!(decode(&key, encoded(&record)), Ok(record));
    }

    /// The constants are those of a page that has nothing else.
    #[test]
    fn constants_are_what_never_changes(page in page()) {
        let mut bytes = Vec::new();
        encode_constants(&page, &mut bytes);
        let master = page.master.as_deref().map(|master| Box::new(Master {
            total_utxos: master.total_utxos,
            total_extra_recs: master.total_extra_recs,
            created_at: master.created_at,
            created_by: master.created_by,
            body: master.body.clone().filter(|body| matches!(body, Body::External(_))),
            ..Master::default()
        }));
        let constants = Page {
            number: page.number,
            version: page.version,
            lock_time: page.lock_time,
            fee: page.fee,
            size_in_bytes: page.size_in_bytes,
            extended_size: page.extended_size,
            amount_sizes: page.amount_sizes.clone(),
            record_utxos: page.record_utxos,
            is_coinbase: page.is_coinbase,
            spending_height: page.spending_height,
            slot_height: page.slot_height,
            master,
            ..Page::empty(page.txid)
        };
        let mut whole = vec![page::version_of(&constants)];
        page::write(&constants, PageParts::All, &mut RecordWriter(&mut whole));
        prop_assert_eq!(&bytes, &whole);
        prop_assert_eq!(decode_page(page.txid, page.number, bytes.into()), Ok(constants));
    }

    #[test]
    fn truncated_and_extended_values_are_refused((key, record) in stored()) {
        let bytes = encoded(&record);
        for length in 0..bytes.len() {
            prop_assert!(decode(&key, bytes.slice(..length)).is_err(), "{} of {}", length, bytes.len());
        }
        let mut longer = bytes.to_vec();
        longer.push(0);
        prop_assert_eq!(decode(&key, longer.into()), Err(CodecError::Trailing));
    }

    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in vec(any::<u8>(), 0..200), kind in 0..7_u8) {
        for key in key_of_each_kind() {
            let _ = decode(&key, bytes.clone().into());
        }
        if let [version, record_kind, ..] = &mut bytes[..] {
            (*version, *record_kind) = (VERSION, kind);
            key_of_each_kind().iter().for_each(|key| drop(decode(key, bytes.clone().into())));
        }
    }

    #[test]
    fn a_flipped_bit_never_panics((key, record) in stored(), at in any::<prop::sample::Index>(), bit in 0..8_u8) {
        let mut bytes = encoded(&record).to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        let _ = decode(&key, bytes.into());
    }
}

#[test]
fn another_layout_is_refused_by_its_number() {
    assert_eq!(decode(&Key::Meta, Bytes::from_static(&[9, 3])), Err(CodecError::Version(9)));
}

#[test]
fn a_value_under_a_key_of_another_kind_is_refused() {
    let record = Record::Page(Arc::new(Page::stub(Txid::default(), Verdict::Pending)));
    assert_eq!(decode(&Key::Meta, encoded(&record)), Err(CodecError::Kind));
}

#[test]
fn a_huge_count_is_refused_before_anything_is_allocated_for_it() {
    let key = Key::LockRecord(Txid::default());
    let huge = [1, 1, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01];
    assert_eq!(decode(&key, Bytes::copy_from_slice(&huge)), Err(CodecError::Truncated));
}

#[test]
fn the_body_of_a_decoded_page_shares_the_values_memory() {
    let mut page = Page::stub(Txid::default(), Verdict::Pending);
    page.master.as_mut().unwrap().body = Some(Body::Transaction(Bytes::from(vec![7; 100])));
    let value = encoded(&Record::Page(Arc::new(page)));
    let Ok(Record::Page(decoded)) = decode(&Key::master(Txid::default()), value.clone()) else { panic!("no page") };
    let Some(Body::Transaction(body)) = &decoded.master.as_ref().unwrap().body else { panic!("no body") };
    assert!(value.as_ptr_range().contains(&body.as_ptr()), "copied");
}
