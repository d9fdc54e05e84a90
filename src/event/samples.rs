//! Samples of every kind and variant of event, for tests and for `schemas/golden/`. The first transactions are real:
//! block 170 of the main network, and the output of block 9 that a transaction of block 170 spends.

use proptest::{collection::vec, prelude::*};
use strum::IntoEnumIterator;

use super::*;
use crate::{
    record::{Reason, SpendingData},
    tx::{Outpoint, Txid, UtxoHash},
};

const COINBASE_9: &str = "0437cd7f8525ceed2324359c2d0ba26006d92d856a9c20fa0241106ee5a597c9";
const PAYMENT: &str = "f4184fc596403b9d638783cf57adfe4c75c605f6356fbc91338530e9831e9e16";
const SCRIPT_9: &str = "\
    410411db93e1dcdb8a016b49840f8c53bc1eb68a382e97b1482ecad7b148a6909a5cb2e0eaddfb84ccf9744464f82e160bfa9b8b64f9d4c03f9\
    99b8643f656b412a3ac";
const COINBASE_170: &str = "\
    01000000010000000000000000000000000000000000000000000000000000000000000000ffffffff0704ffff001d0102ffffffff0100f2052\
    a01000000434104d46c4968bde02899d2aa0963367c7a6ce34eec332b32e42e5f3407e052d64ac625da6f0718e7b302140434bd725706957c09\
    2db53805b821a85b23a7ac61725bac00000000";
const COINBASE_171: &str = "\
    01000000010000000000000000000000000000000000000000000000000000000000000000ffffffff0704ffff001d010effffffff0100f2052\
    a01000000434104566824c312073315df60e5aa6490b6cdd80cd90f6a8f02e022ca3c2d52968c253006c9c602e03aed7be52d6ac55f5b557c72\
    529bcc3899ace7eb4227153eb44bac00000000";
const PAYMENT_EXTENDED: [&str; 3] = [
    "\
        010000000000000000ef01c997a5e56e104102fa209c6a852dd90660a20b2d9c352423edce25857fcd3704000000004847304402204e45e\
        16932b8af514961a1d3a1a25fdf3f4f7732e9d624c6c61548ab5fb8cd410220181522ec8eca07de4860a4acdd12909d831cc56cbbac4622\
        082221a8768d1d0901ffffffff00f2052a0100000043",
    SCRIPT_9,
    "\
        0200ca9a3b00000000434104ae1a62fe09c5f51b13905f07f06b99a2f7159b2225f374cd378d71302fa28414e7aab37397f554a7df5f142\
        c21c1b7303b8a0626f1baded5c72a704f7e6cd84cac00286bee0000000043410411db93e1dcdb8a016b49840f8c53bc1eb68a382e97b148\
        2ecad7b148a6909a5cb2e0eaddfb84ccf9744464f82e160bfa9b8b64f9d4c03f999b8643f656b412a3ac00000000",
];

/// Returns the bytes of hex digits. The bytes live as long as the test process: a few kilobytes.
fn bytes(digits: &str) -> &'static [u8] {
    hex::decode(digits).unwrap().leak()
}

fn txid(text: &str) -> Txid {
    text.parse().unwrap()
}

/// Returns a txid that is visibly invented.
fn other(byte: u8) -> Txid {
    Txid([byte; 32])
}

fn hash(text: &str) -> [u8; 32] {
    txid(text).0
}

fn block_170() -> Block<'static> {
    Block {
        block_id: 171,
        hash: hash("00000000d1145790a8694403d4063f323d499e655c83426834d4ce2f8dd4a2ee"),
        previous: hash("000000002a22cfee1f2c846adbd12b3e183d4f97683f85dad08a79780a84bd55"),
        height: 170,
        time: 1_231_731_025,
        longest_chain: true,
        coinbase: bytes(COINBASE_170),
        subtrees: vec![Subtree {
            count: 1,
            transactions: SubtreeTransactions::Inline(txid(PAYMENT).0.to_vec().leak()),
        }],
    }
}

fn block_171() -> Block<'static> {
    Block {
        block_id: 172,
        hash: hash("00000000c9ec538cab7f38ef9c67a95742f56ab07b0a37c5be6b02808dbfb4e0"),
        previous: block_170().hash,
        height: 171,
        time: 1_231_731_401,
        longest_chain: true,
        coinbase: bytes(COINBASE_171),
        subtrees: vec![],
    }
}

/// Returns another block 170, whose transactions are in the object store.
fn rival_block() -> Block<'static> {
    Block {
        block_id: 173,
        hash: [0x17; 32],
        longest_chain: false,
        subtrees: vec![Subtree {
            count: 100_000_000,
            transactions: SubtreeTransactions::Object { key: "subtrees/173-0.txids", sha256: [0xAB; 32] },
        }],
        ..block_170()
    }
}

pub fn reasons() -> Vec<Reason> {
    let parent = txid(COINBASE_9);
    vec![
        Reason::DoubleSpend { input: 0, winner: txid(PAYMENT) },
        Reason::ConflictingParent { parent },
        Reason::MissingParent { parent },
        Reason::PrunedParent { parent },
        Reason::Immature { input: 1 },
        Reason::Mismatch { input: 2 },
        Reason::NoSuchOutput { input: 3 },
        Reason::NotYetSpendable { input: 4 },
        Reason::Frozen { input: 5 },
        Reason::Locked { parent },
        Reason::History { input: 6 },
        Reason::Found,
        Reason::Command,
        Reason::Disconnected,
        Reason::Seeded,
    ]
}

fn actions() -> Vec<CommandAction<'static>> {
    let (txid, spender) = (txid(COINBASE_9), txid(PAYMENT));
    let outpoint = Outpoint { txid, vout: 0 };
    vec![
        CommandAction::Unlock { txid },
        CommandAction::Lock { txid },
        CommandAction::Freeze { outpoint },
        CommandAction::Unfreeze { outpoint },
        CommandAction::FreezeUntil { outpoint, height: 1_000 },
        CommandAction::Reassign {
            outpoint,
            utxo_hash: UtxoHash([0x5A; 32]),
            new_script: bytes("76a914000102030405060708090a0b0c0d0e0f1011121388ac"),
            satoshis: 5_000_000_000,
            height: 900,
            spendable_after: 1_000,
        },
        CommandAction::Unspend { outpoint, spender, input: 0 },
        CommandAction::SetConflicting { txid },
        CommandAction::Reconsider { txid },
        CommandAction::Preserve { txid, until: 2_000 },
        CommandAction::Delete { txid },
        CommandAction::FreezeTransaction { txid },
        CommandAction::UnfreezeTransaction { txid },
    ]
}

fn results() -> Vec<CommandResult> {
    vec![
        CommandResult::Applied,
        CommandResult::AlreadyApplied,
        CommandResult::Refused { code: "FROZEN".into(), message: "slot 0 is \"frozen\"".into() },
    ]
}

fn bodies() -> Vec<DecisionBody> {
    let (loser, winner) = (other(0x22), txid(PAYMENT));
    let free = DecidedInput { input: 1, outpoint: Outpoint { txid: other(0x33), vout: 7 }, holder: None };
    let taken = DecidedInput {
        input: 0,
        outpoint: Outpoint { txid: txid(COINBASE_9), vout: 0 },
        holder: Some(SpendingData { txid: loser, input: 2 }),
    };
    let mut bodies = vec![
        DecisionBody::PassedOver { txid: loser },
        DecisionBody::Accepted {
            txid: winner,
            height: 170,
            inputs: vec![taken.clone(), free],
            losers: vec![loser],
            by_block: true,
        },
        DecisionBody::Conflicting {
            txid: loser,
            reason: Reason::DoubleSpend { input: 2, winner },
            height: 170,
            live: false,
        },
        DecisionBody::Cone { members: vec![Descendant { txid: other(0x44), parent: loser, live: true }], height: 170 },
        DecisionBody::Cone { members: vec![], height: 170 },
    ];
    let done = |result| DecisionBody::CommandDone { id: [0x1D; 16], executed_at: 7, result };
    bodies.extend(results().into_iter().map(done));
    bodies.push(DecisionBody::Closed);
    bodies.push(DecisionBody::AcceptedPart {
        whole: [0x77; 16],
        part: 0,
        parts: 2,
        txid: winner,
        height: 170,
        inputs: vec![taken],
        losers: vec![loser],
        by_block: true,
    });
    let lifted = |vout, owner| LiftedOutput { outpoint: Outpoint { txid: loser, vout }, owner };
    let outputs = vec![lifted(0, None), lifted(1, Some(UtxoHash([0x99; 32])))];
    bodies.push(DecisionBody::Lifted { txid: winner, outputs });
    bodies
}

fn outcomes() -> Vec<(OutcomeSource, OutcomeKind)> {
    let (chain, validated) =
        (OutcomeSource::Chain { offset: 7 }, OutcomeSource::Validated { partition: 3, offset: 42 });
    let refused = |class| OutcomeKind::refused(class, "outputs exceed inputs by 1 satoshi");
    let mut outcomes = vec![(chain, OutcomeKind::Accepted)];
    outcomes.extend(DeadLetterClass::iter().filter_map(|class| Some((validated, refused(class)?))));
    outcomes.extend(reasons().into_iter().map(|reason| (chain, OutcomeKind::Conflicting { reason })));
    outcomes.extend(results().into_iter().map(|result| (chain, OutcomeKind::Command { id: [0x1D; 16], result })));
    outcomes
}

fn batches() -> Vec<OutcomeBatch<'static>> {
    let (chain_offset, Block { block_id, height, hash, .. }) = (7, block_170());
    let both: &[u8] = [txid(PAYMENT).0, txid(COINBASE_9).0].concat().leak();
    let one = &both[..32];
    [
        (OutcomeChange::Live, both),
        (OutcomeChange::Mined { chain_offset, block_id, height, hash }, one),
        (OutcomeChange::Unmined { chain_offset, block_id, height, hash }, one),
    ]
    .map(|(change, txids)| OutcomeBatch { change, txids: TxidList::new(txids).unwrap() })
    .into()
}

/// Returns every kind of event with every variant, in the order of [`Kind::ALL`].
pub fn events() -> Vec<Event<'static>> {
    let output = |vout, satoshis, script| PartialOutput { vout, satoshis, script };
    let position =
        EventPosition { topic: "utxo.validated-txs".into(), partition: 3, offset: 42, timestamp_ms: 1_231_731_025_000 };
    let mut events = vec![
        Event::Validated(Validated { tx: bytes(&PAYMENT_EXTENDED.concat()), height: 170, locked: false }),
        Event::Seeded(PartialTxEvent {
            txid: txid(COINBASE_9),
            coinbase: true,
            height: 9,
            outputs: vec![output(0, 5_000_000_000, bytes(SCRIPT_9)), output(3, u64::MAX, &[])],
        }),
        Event::BlockMined(BlockMined { sequence: 171, block: block_170() }),
        Event::BlockMined(BlockMined { sequence: 173, block: rival_block() }),
        Event::Reorg(Reorg {
            sequence: 174,
            disconnected: vec![block_170(), block_171()],
            connected: vec![rival_block()],
        }),
    ];
    let reference =
        |key: &str, length, byte| BodyReference { key: key.into(), length, blake3: ContentHash([byte; 32]) };
    let references = [
        Event::ValidatedReference(ValidatedReference {
            txid: txid(PAYMENT),
            tx: reference("bodies/9c/9c00ff", 34_000_000, 0x9C),
            height: 170,
            locked: true,
        }),
        Event::SeededReference(PartialTxReference {
            txid: txid(COINBASE_9),
            coinbase: true,
            height: 9,
            outputs: reference("s\u{20bf}", u64::MAX, 0x1B),
        }),
    ];
    events.extend(reasons().into_iter().map(|reason| {
        Event::Contest(Contest { txid: txid(PAYMENT), position: position.clone(), body: [0xB0; 32], reason })
    }));
    events.extend(actions().into_iter().map(|action| Event::Command(Command { id: *b"0123456789abcdef", action })));
    events.extend((0..).zip(bodies()).map(|(step, body)| Event::Decision(Decision { chain_offset: 7, step, body })));
    let decided = |chain_offset, bodies| DecidedEvent { chain_offset, bodies };
    let conflicting = |reason| DecisionBody::Conflicting { txid: txid(PAYMENT), reason, height: 170, live: false };
    let empty_cone = DecisionBody::Cone { members: vec![], height: 170 };
    let loser = decided(8, vec![conflicting(reasons()[0]), empty_cone, DecisionBody::Closed]);
    let passed_over = decided(9, vec![DecisionBody::PassedOver { txid: txid(COINBASE_9) }, DecisionBody::Closed]);
    let accepted = bodies().into_iter().filter(|body| matches!(body, DecisionBody::Accepted { .. })).collect();
    events.extend([
        Event::DecisionGroup(DecisionGroup { position: 41, events: vec![loser, passed_over] }),
        Event::DecisionGroup(DecisionGroup { position: u64::MAX, events: vec![] }),
        Event::DecisionRun(DecisionRun { position: 42, chain_offset: 7, step: 1, bodies: accepted }),
    ]);
    events.extend(
        outcomes().into_iter().map(|(source, kind)| Event::Outcome(OutcomeEvent { txid: txid(PAYMENT), source, kind })),
    );
    events.extend(references);
    events.extend(batches().into_iter().map(Event::OutcomeBatch));
    events
}

/// Returns a dead letter of every class.
pub fn dead_letters() -> Vec<DeadLetter> {
    DeadLetterClass::iter()
        .map(|class| DeadLetter {
            topic: "utxo.validated-txs".into(),
            partition: 3,
            offset: 42,
            stage: "decode".into(),
            class,
            message: "validated.tx: the message ends 8 bytes too early".into(),
            timestamp_ms: 1_231_731_025_000,
        })
        .collect()
}

/// Strategy: any sample, or an event with any content in the fields that have no rules.
pub fn any_event() -> impl Strategy<Value = Event<'static>> {
    let samples = events();
    let blob = || vec(any::<u8>(), 0..200).prop_map(|bytes| &*bytes.leak());
    prop_oneof![
        2 => (0..samples.len()).prop_map(move |index| samples[index].clone()),
        1 => (blob(), any::<u32>(), any::<bool>())
            .prop_map(|(tx, height, locked)| Event::Validated(Validated { tx, height, locked })),
        1 => (any::<[u8; 32]>(), any::<bool>(), any::<u32>(), vec((1..9_u32, any::<u64>(), blob()), 1..20)).prop_map(
            |(txid, coinbase, height, steps)| {
                let mut vout = 0;
                let outputs = steps.into_iter().map(|(step, satoshis, script)| {
                    vout += step;
                    PartialOutput { vout, satoshis, script }
                });
                Event::Seeded(PartialTxEvent { txid: Txid(txid), coinbase, height, outputs: outputs.collect() })
            }
        ),
        1 => (1..u64::MAX, vec(any_block(), 0..4), vec(any_block(), 0..4)).prop_map(
            |(sequence, mut disconnected, mut connected)| {
                for blocks in [&mut disconnected, &mut connected] {
                    blocks.sort_by_key(|block| block.height);
                    blocks.dedup_by_key(|block| block.height);
                }
                Event::Reorg(Reorg { sequence, disconnected, connected })
            }
        ),
        1 => (1..u64::MAX, any_block())
            .prop_map(|(sequence, block)| Event::BlockMined(BlockMined { sequence, block })),
        1 => (any::<[u8; 16]>(), any::<String>(), any::<String>(), any::<(u64, u64)>(), any::<u32>()).prop_map(
            |(id, code, message, (chain_offset, executed_at), step)| {
                let result = CommandResult::Refused { code, message };
                let body = DecisionBody::CommandDone { id, executed_at, result };
                Event::Decision(Decision { chain_offset, step, body })
            }
        ),
        1 => ("[a-z/]{1,40}", any::<u64>(), any::<[u8; 32]>(), any::<bool>()).prop_map(|(key, length, hash, whole)| {
            let body = BodyReference { key, length, blake3: ContentHash(hash) };
            match whole {
                true => Event::ValidatedReference(ValidatedReference {
                    txid: other(2),
                    tx: body,
                    height: 7,
                    locked: false,
                }),
                false => Event::SeededReference(PartialTxReference {
                    txid: other(2),
                    coinbase: false,
                    height: 7,
                    outputs: body,
                }),
            }
        }),
        1 => (any::<String>(), any::<i32>(), any::<u64>(), any::<i64>()).prop_map(
            |(topic, partition, offset, timestamp_ms)| {
                let position = EventPosition { topic, partition, offset, timestamp_ms };
                Event::Contest(Contest { txid: other(1), position, body: [3; 32], reason: Reason::Found })
            }
        ),
        1 => vec(any::<[u8; 32]>(), 0..5).prop_map(|txids| {
            let txids = TxidList::new(txids.concat().leak()).unwrap();
            Event::OutcomeBatch(OutcomeBatch { change: OutcomeChange::Live, txids })
        }),
    ]
}

fn any_block() -> impl Strategy<Value = Block<'static>> {
    (any::<[u8; 32]>(), any::<u32>(), any::<bool>(), vec(vec(any::<[u8; 32]>(), 0..5), 0..4)).prop_map(
        |(hash, height, longest_chain, subtrees)| Block {
            hash,
            height,
            longest_chain,
            subtrees: subtrees
                .into_iter()
                .map(|txids| Subtree {
                    count: txids.len() as u64,
                    transactions: SubtreeTransactions::Inline(txids.concat().leak()),
                })
                .collect(),
            ..block_170()
        },
    )
}
