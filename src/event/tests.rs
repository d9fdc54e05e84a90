//! Tests of every kind of event: round trips, truncation, damage, refusals.

use proptest::prelude::*;

use super::{codec::oracle, samples, *};
use crate::{
    record::{Reason, build::PARTIAL_OUTPUT_LIMIT},
    tx::Txid,
};

fn refusal(message: &[u8]) -> String {
    let error = Event::decode(message).unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

fn refused_json(text: &str) -> String {
    let error = from_json(text).unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

/// Returns a message with one list or byte string that claims `length`.
fn message_with_length(kind: Kind, before: usize, length: u64) -> Vec<u8> {
    let mut message = vec![MAGIC, SCHEMA_VERSION, kind as u8];
    message.resize(3 + before, 0);
    message.extend(length.to_le_bytes());
    message.extend([0; 64]);
    message
}

#[test]
fn samples_round_trip_in_binary_and_json() {
    for event in samples::events() {
        let message = event.encode();
        assert_eq!(Event::decode(&message).as_ref(), Ok(&event));
        let line = to_json(&event);
        assert!(!line.contains('\n'));
        assert_eq!(from_json(&line), Ok(message), "{line}");
    }
}

#[test]
fn every_truncation_and_every_suffix_is_refused() {
    for event in samples::events() {
        let message = event.encode();
        for length in 0..message.len() {
            refusal(&message[..length]);
        }
        for byte in 0..=u8::MAX {
            let longer = [&message[..], &[byte]].concat();
            assert_eq!(refusal(&longer), format!("{}: 1 bytes follow the last field", event.kind().name()));
        }
    }
}

#[test]
fn an_unknown_envelope_is_refused_by_name() {
    assert_eq!(refusal(b""), "0 bytes are no event: an envelope alone has 3");
    assert_eq!(refusal(b"{}\n"), "not an event: the first byte is 0x7b instead of 0xd7");
    assert_eq!(refusal(&[MAGIC, 2, 1]), "schema version 2 is unknown: this release reads version 1");
    assert_eq!(refusal(&[MAGIC, SCHEMA_VERSION, 0]), "event kind 0 is unknown");
    assert_eq!(refusal(&[MAGIC, SCHEMA_VERSION, 14]), "event kind 14 is unknown");
}

#[test]
fn a_length_beyond_the_message_is_refused_before_anything_is_allocated() {
    // Lengths whose allocation would abort the process, and the least ones that are wrong.
    for length in [u64::MAX, u64::MAX / 2, 1 << 40, 65] {
        let error = refusal(&message_with_length(Kind::Validated, 0, length));
        assert!(error.starts_with("validated.tx: the message ends "), "{error}");
        let error = refusal(&message_with_length(Kind::Contest, 32, length));
        assert!(error.starts_with("contest.position.topic: the message ends "), "{error}");
    }
    for length in [u64::MAX, u64::MAX / 2, 1 << 40, 4] {
        let error = refusal(&message_with_length(Kind::Seeded, 37, length));
        assert_eq!(error, format!("seeded.outputs: {length} elements cannot be in the 64 bytes that are left"));
    }
}

#[test]
fn tags_and_booleans_out_of_range_are_refused() {
    let mut message = samples::events()[0].encode();
    *message.last_mut().unwrap() = 2;
    assert_eq!(refusal(&message), "validated.locked: 2 is no boolean: only 0 and 1 are");
    let mut message = Command { id: [0; 16], action: CommandAction::Lock { txid: Txid([0; 32]) } }.encode();
    message[19] = 13;
    assert_eq!(refusal(&message), "command.action: 13 is no known tag");
}

/// A message that decodes is encoded to the same bytes: no event has two encodings.
#[test]
fn a_damaged_byte_is_refused_or_decodes_canonically() {
    for event in samples::events() {
        let sample = event.encode();
        for at in 0..sample.len() {
            for byte in [0, 1, 2, 0x7F, 0xFF, sample[at] ^ 1] {
                let mut message = sample.clone();
                message[at] = byte;
                if let Ok(event) = Event::decode(&message) {
                    assert_eq!(event.encode(), message, "byte {at} of a {}", event.kind().name());
                }
            }
        }
    }
}

#[test]
fn partial_outputs_ascend_and_are_bounded() {
    let output = |vout| PartialOutput { vout, satoshis: 1, script: &[] };
    let decode = |vouts: &[u32]| {
        let outputs = vouts.iter().map(|vout| output(*vout)).collect();
        let seeded = PartialTxEvent { txid: Txid([1; 32]), coinbase: false, height: 1, outputs };
        Event::decode(&seeded.encode()).map(|_| ()).map_err(|error| error.to_string())
    };
    let last = PARTIAL_OUTPUT_LIMIT - 1;
    assert_eq!(decode(&[0, 1, last]), Ok(()));
    assert_eq!(decode(&[]), Err("seeded.outputs: there is none".into()));
    assert_eq!(decode(&[1, 1]), Err("seeded.outputs[1].vout: 1 is not above the one before it".into()));
    assert_eq!(decode(&[0, 2, 1]), Err("seeded.outputs[2].vout: 1 is not above the one before it".into()));
    assert_eq!(decode(&[last + 1]), Err("seeded.outputs[0].vout: 1048576 is not below 1048576".into()));
    assert_eq!(decode(&[u32::MAX]), Err("seeded.outputs[0].vout: 4294967295 is not below 1048576".into()));
}

#[test]
fn a_reference_becomes_its_event_with_the_content_of_the_object() {
    let references = samples::events().into_iter().filter(|event| event.body_reference().is_some());
    let [Event::ValidatedReference(whole), Event::SeededReference(partial)] = &references.collect::<Vec<_>>()[..]
    else {
        panic!("there is a sample of each")
    };
    assert_eq!(whole.with_body(b"tx"), Validated { tx: b"tx", height: whole.height, locked: whole.locked });
    let seeded = samples::events().into_iter().find(|event| event.kind() == Kind::Seeded);
    let Some(Event::Seeded(seeded)) = seeded else { panic!("there is a sample") };
    let content = seeded.encode_outputs();
    assert_eq!(content, seeded.encode()[3 + 37..], "the object holds the bytes of the field");
    let PartialTxEvent { txid, coinbase, height, .. } = seeded;
    let partial = PartialTxReference { txid, coinbase, height, ..partial.clone() };
    assert_eq!(partial.with_body(&content), Ok(seeded.clone()));
    let refused = |content: &[u8]| partial.with_body(content).unwrap_err().to_string();
    assert_eq!(refused(&[content.as_slice(), &[0]].concat()), "1 bytes follow the last field");
    assert_eq!(refused(&[0; 8]), "outputs: there is none");
    assert_eq!(refused(&content[..content.len() - 1]), "[1].script: the message ends 1 bytes too early");
}

#[test]
fn the_length_of_a_referenced_object_is_read_from_the_message() {
    for event in samples::events() {
        let expected = event.body_reference().map(|reference| reference.length);
        assert_eq!(Event::referenced_length(&event.encode()), expected, "{}", event.kind().name());
    }
    for message in [&[][..], &[MAGIC, SCHEMA_VERSION], &[MAGIC, SCHEMA_VERSION, 9], &[0, 0, 10, 1]] {
        assert_eq!(Event::referenced_length(message), None);
    }
}

#[test]
fn a_key_of_an_object_is_bounded_and_one_line() {
    let decode = |key: String| {
        let tx = BodyReference { key, length: 1, blake3: ContentHash([0; 32]) };
        let event = ValidatedReference { txid: Txid([1; 32]), tx, height: 1, locked: false };
        Event::decode(&event.encode()).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!((decode("k".into()), decode("k".repeat(1_024))), (Ok(()), Ok(())));
    for length in [0, 1_025] {
        let problem = format!("validated-reference.tx.key: has {length} bytes instead of 1 to 1024");
        assert_eq!(decode("k".repeat(length)), Err(problem));
    }
    assert_eq!(decode("a\nb".into()), Err("validated-reference.tx.key: has a control character".into()));
}

fn sample_block() -> Block<'static> {
    match samples::events().into_iter().find(|event| event.kind() == Kind::BlockMined) {
        Some(Event::BlockMined(mined)) => mined.block,
        _ => unreachable!("there is a sample of every kind"),
    }
}

#[test]
fn blocks_are_numbered_from_one_and_ascend() {
    let at = |height| Block { height, ..sample_block() };
    assert_eq!(
        refusal(&BlockMined { sequence: 0, block: at(1) }.encode()),
        "block-mined.sequence: 0 is not used: the first is 1"
    );
    let reorg = |sequence, disconnected, connected| Reorg { sequence, disconnected, connected }.encode();
    assert_eq!(refusal(&reorg(0, vec![], vec![])), "reorg.sequence: 0 is not used: the first is 1");
    assert!(Event::decode(&reorg(1, vec![at(1), at(2)], vec![at(1)])).is_ok());
    assert_eq!(
        refusal(&reorg(1, vec![at(2), at(2)], vec![])),
        "reorg.disconnected[1].height: 2 is not above the height of the block before it"
    );
    assert_eq!(
        refusal(&reorg(1, vec![], vec![at(1), at(3), at(2)])),
        "reorg.connected[2].height: 2 is not above the height of the block before it"
    );
}

#[test]
fn inline_ids_match_the_count() {
    let with = |count, txids| {
        let subtrees = vec![Subtree { count, transactions: SubtreeTransactions::Inline(txids) }];
        BlockMined { sequence: 1, block: Block { subtrees, ..sample_block() } }.encode()
    };
    assert!(Event::decode(&with(2, &[7; 64])).is_ok());
    for (count, length) in [(1, 64), (2, 63), (0, 32), (1 << 59, 0), (u64::MAX, 32)] {
        assert_eq!(
            refusal(&with(count, &[7; 64][..length])),
            format!("block-mined.block.subtrees[0].count: {count} transactions do not have {length} bytes of ids")
        );
    }
}

#[test]
fn inline_ids_are_borrowed_and_read_in_their_order() {
    let txids: Vec<u8> = (0..96).collect();
    let subtrees = vec![Subtree { count: 3, transactions: SubtreeTransactions::Inline(&txids) }];
    let message = BlockMined { sequence: 1, block: Block { subtrees, ..sample_block() } }.encode();
    let Ok(Event::BlockMined(mined)) = Event::decode(&message) else { panic!("it was just written") };
    let SubtreeTransactions::Inline(inline) = mined.block.subtrees[0].transactions else { panic!("not inline") };
    assert!(message.as_ptr_range().contains(&inline.as_ptr()));
    let read: Vec<u8> = mined.block.subtrees[0].transactions.inline().unwrap().map(|txid| txid.0[0]).collect();
    assert_eq!(read, [0, 32, 64]);
    assert!(SubtreeTransactions::Object { key: "k", sha256: [0; 32] }.inline().is_none());
}

#[test]
fn topics_admit_only_their_kinds() {
    for event in samples::events() {
        let admitting: Vec<_> = Topic::all().filter(|topic| topic.kinds().contains(&event.kind())).collect();
        let expected: &[Topic] = match event.kind() {
            Kind::Validated | Kind::Seeded | Kind::ValidatedReference | Kind::SeededReference => &[Topic::ValidatedTxs],
            Kind::BlockMined => &[Topic::BlockMined, Topic::Chain],
            Kind::Reorg => &[Topic::Reorgs, Topic::Chain],
            Kind::Contest | Kind::Command => &[Topic::Chain],
            Kind::Decision | Kind::DecisionGroup | Kind::DecisionRun => &[Topic::Decisions],
            Kind::Outcome | Kind::OutcomeBatch => &[Topic::Outcomes],
        };
        assert_eq!(admitting.split_last(), Some((&Topic::DeadLetters, expected)));
    }
}

/// The oracle is bincode's own derive, which another program may use.
#[test]
fn bodies_equal_those_of_bincode() {
    type MirrorInput = (u32, [u8; 32], u32, Option<([u8; 32], u32)>);
    #[derive(oracle::Encode)]
    struct Mirror {
        chain_offset: u64,
        step: u32,
        body: MirrorBody,
    }
    #[derive(oracle::Encode)]
    #[allow(dead_code)]
    enum MirrorBody {
        PassedOver,
        Accepted([u8; 32], u32, Vec<MirrorInput>, Vec<[u8; 32]>, bool),
        Conflicting,
        Cone(Vec<([u8; 32], [u8; 32], bool)>, u32),
        CommandDone([u8; 16], u64, MirrorResult),
    }
    #[derive(oracle::Encode)]
    #[allow(dead_code)]
    enum MirrorResult {
        Applied,
        AlreadyApplied,
        Refused(String, String),
    }
    let configuration = oracle::config::standard().with_fixed_int_encoding();
    let mut compared = 0;
    for event in samples::events() {
        let Event::Decision(Decision { chain_offset, step, body }) = &event else { continue };
        let body = match body.clone() {
            DecisionBody::Accepted { txid, height, inputs, losers, by_block } => {
                let inputs = inputs.into_iter().map(|DecidedInput { input, outpoint, holder }| {
                    (input, outpoint.txid.0, outpoint.vout, holder.map(|holder| (holder.txid.0, holder.input)))
                });
                let losers = losers.into_iter().map(|txid| txid.0).collect();
                MirrorBody::Accepted(txid.0, height, inputs.collect(), losers, by_block)
            }
            DecisionBody::Cone { members, height } => {
                let members = members.into_iter().map(|member| (member.txid.0, member.parent.0, member.live)).collect();
                MirrorBody::Cone(members, height)
            }
            DecisionBody::CommandDone { id, executed_at, result } => MirrorBody::CommandDone(
                id,
                executed_at,
                match result {
                    CommandResult::Applied => MirrorResult::Applied,
                    CommandResult::AlreadyApplied => MirrorResult::AlreadyApplied,
                    CommandResult::Refused { code, message } => MirrorResult::Refused(code, message),
                },
            ),
            _ => continue,
        };
        let mirror = Mirror { chain_offset: *chain_offset, step: *step, body };
        assert_eq!(event.encode()[3..], oracle::encode_to_vec(mirror, configuration).unwrap());
        compared += 1;
    }
    assert_eq!(compared, 6);
}

/// The oracle is bincode's own derive, which numbers the variants in the order of the enum.
#[test]
fn reasons_equal_those_of_bincode_in_events_and_in_records() {
    #[derive(oracle::Encode)]
    enum MirrorReason {
        DoubleSpend(u32, [u8; 32]),
        ConflictingParent([u8; 32]),
        MissingParent([u8; 32]),
        PrunedParent([u8; 32]),
        Immature(u32),
        Mismatch(u32),
        NoSuchOutput(u32),
        NotYetSpendable(u32),
        Frozen(u32),
        Locked([u8; 32]),
        History(u32),
        Found,
        Command,
        Disconnected,
        Seeded,
    }
    for reason in samples::reasons() {
        let mirror = match reason {
            Reason::DoubleSpend { input, winner } => MirrorReason::DoubleSpend(input, winner.0),
            Reason::ConflictingParent { parent } => MirrorReason::ConflictingParent(parent.0),
            Reason::MissingParent { parent } => MirrorReason::MissingParent(parent.0),
            Reason::PrunedParent { parent } => MirrorReason::PrunedParent(parent.0),
            Reason::Immature { input } => MirrorReason::Immature(input),
            Reason::Mismatch { input } => MirrorReason::Mismatch(input),
            Reason::NoSuchOutput { input } => MirrorReason::NoSuchOutput(input),
            Reason::NotYetSpendable { input } => MirrorReason::NotYetSpendable(input),
            Reason::Frozen { input } => MirrorReason::Frozen(input),
            Reason::Locked { parent } => MirrorReason::Locked(parent.0),
            Reason::History { input } => MirrorReason::History(input),
            Reason::Found => MirrorReason::Found,
            Reason::Command => MirrorReason::Command,
            Reason::Disconnected => MirrorReason::Disconnected,
            Reason::Seeded => MirrorReason::Seeded,
        };
        let bytes = encode_reason(&reason);
        let configuration = oracle::config::standard().with_fixed_int_encoding();
        assert_eq!(bytes, oracle::encode_to_vec(mirror, configuration).unwrap());
        assert_eq!(decode_reason(&bytes), Ok(reason));
    }
}

#[test]
fn json_that_is_no_event_is_refused_naming_the_field() {
    assert_eq!(refused_json("[]"), "a list is not an object");
    assert_eq!(refused_json("{\"event\":"), "not JSON: EOF while parsing a value at line 1 column 9");
    assert_eq!(refused_json("{}"), "event: is missing");
    assert_eq!(
        refused_json("{\"event\":\"mined\"}"),
        "event: `mined` is none of: validated, seeded, block-mined, reorg, contest, command, decision, outcome, \
         validated-reference, seeded-reference, outcome-batch, decision-group, decision-run"
    );
    let validated = |fields: &str| refused_json(&format!("{{\"event\":\"validated\",{fields}}}"));
    assert_eq!(validated("\"tx\":\"00\",\"height\":1"), "validated.locked: is missing");
    assert_eq!(validated("\"tx\":\"0g\""), "validated.tx: is not hexadecimal: Invalid character 'g' at position 1");
    assert_eq!(validated("\"tx\":1"), "validated.tx: a number is not bytes as hexadecimal digits");
    let number = "is not a whole number from 0 to 4294967295";
    for height in ["-1", "1.5", "4294967296"] {
        assert_eq!(
            validated(&format!("\"tx\":\"\",\"height\":{height}")),
            format!("validated.height: {height} {number}")
        );
    }
    assert_eq!(
        validated("\"tx\":\"\",\"height\":1,\"locked\":false,\"a\\nb\":0"),
        "validated.a\\nb: is not a field of this object"
    );
    for between in ["", "\"a\":0,\"z\":0,"] {
        let twice = validated(&format!("\"tx\":\"\",{between}\"tx\":\"\""));
        assert!(twice.starts_with("not JSON: field `tx` is there twice"), "{twice}");
    }
}

#[test]
fn nested_json_is_refused_naming_the_field() {
    let id = "\"event\":\"command\",\"id\":\"00000000000000000000000000000000\"";
    let action = |action: &str| refused_json(&format!("{{{id},\"action\":{action}}}"));
    assert_eq!(action("{\"unlock\":{}}"), "command.action.unlock.txid: is missing");
    assert_eq!(action("\"unlock\""), "command.action.unlock.txid: is missing");
    assert_eq!(
        action("{\"unlock\":{\"txid\":\"00\"}}"),
        "command.action.unlock.txid: is not a transaction id of 64 hexadecimal digits"
    );
    assert!(action("{\"melt\":{}}").starts_with("command.action: `melt` is none of: unlock, lock, "));
    assert!(action("{\"lock\":{},\"unlock\":{}}").starts_with("command.action: an object is none of: "));
    assert_eq!(refused_json("{\"event\":\"command\",\"id\":\"00\"}"), "command.id: is not 32 hexadecimal digits");
    let txid = "0".repeat(64);
    let seeded = format!(
        "{{\"event\":\"seeded\",\"txid\":\"{txid}\",\"coinbase\":true,\"height\":1,\
         \"outputs\":[{{\"vout\":2097152,\"satoshis\":1,\"script\":\"\"}}]}}"
    );
    assert_eq!(refused_json(&seeded), "seeded.outputs[0].vout: 2097152 is not below 1048576");
}

#[test]
fn values_of_another_form_are_refused_naming_the_field() {
    let line = |kind: Kind, from: &str, to: &str| {
        let lines = samples::events().into_iter().filter(|event| event.kind() == kind).map(|event| to_json(&event));
        let line = lines.into_iter().find(|line| line.contains(from)).unwrap();
        refused_json(&line.replacen(from, to, 1))
    };
    let digits = "bytes as hexadecimal digits";
    assert_eq!(line(Kind::Validated, "\"tx\":", "\"tx\":[],\"b\":"), format!("validated.tx: a list is not {digits}"));
    assert_eq!(line(Kind::Validated, "false", "0"), "validated.locked: a number is not a boolean");
    assert_eq!(
        line(Kind::Validated, "170", "null"),
        "validated.height: null is not a whole number from 0 to 4294967295"
    );
    assert_eq!(line(Kind::Decision, ",\"holder\":null", ""), "decision.body.accepted.inputs[1].holder: is missing");
    let inputs = line(Kind::Decision, "\"inputs\":[", "\"inputs\":{},\"b\":[");
    assert_eq!(inputs, "decision.body.accepted.inputs: an object is not a list");
    assert_eq!(
        line(Kind::Decision, "\"closed\"", "{\"closed\":{\"a\":0}}"),
        "decision.body.closed.a: is not a field of this object"
    );
    assert_eq!(
        line(Kind::BlockMined, "\"inline\":[", "\"inline\":[\"00\","),
        "block-mined.block.subtrees[0].transactions.inline[0]: is not a transaction id of 64 hexadecimal digits"
    );
}

#[test]
fn json_nested_too_deeply_is_refused() {
    let deep = "[".repeat(100_000);
    assert!(refused_json(&deep).starts_with("not JSON: recursion limit exceeded"));
}

#[test]
fn fields_of_json_may_come_in_any_order() {
    let line = "{\"locked\":true,\"tx\":\"ab\",\"event\":\"validated\",\"height\":7}";
    let expected = Validated { tx: &[0xAB], height: 7, locked: true };
    assert_eq!(from_json(line), Ok(expected.encode()));
}

proptest! {
    #[test]
    fn any_event_round_trips_in_binary_and_json(event in samples::any_event()) {
        let message = event.encode();
        let decoded = Event::decode(&message);
        prop_assert_eq!(decoded.as_ref(), Ok(&event));
        prop_assert_eq!(from_json(&to_json(&event)), Ok(message));
    }

    #[test]
    fn any_truncation_is_refused(event in samples::any_event(), cut in any::<prop::sample::Index>()) {
        let message = event.encode();
        prop_assert!(Event::decode(&message[..cut.index(message.len())]).is_err());
    }

    /// Neither decoding nor encoding panics.
    #[test]
    fn any_bytes_are_refused_or_canonical(kind in 0..12_u8, body in prop::collection::vec(any::<u8>(), 0..300)) {
        let message = [&[MAGIC, SCHEMA_VERSION, kind], &body[..]].concat();
        if let Ok(event) = Event::decode(&message) {
            prop_assert_eq!(event.encode(), message);
        }
        let _ = Event::decode(&body);
    }

    /// Damaged events pass more checks than random bytes do.
    #[test]
    fn any_damage_is_refused_or_canonical(
        event in samples::any_event(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut message = event.encode();
        for (at, byte) in damage {
            let at = at.index(message.len());
            message[at] = byte;
        }
        if let Ok(event) = Event::decode(&message) {
            prop_assert_eq!(event.encode(), message.clone());
            prop_assert_eq!(from_json(&to_json(&event)), Ok(message));
        }
    }

    #[test]
    fn any_text_is_refused_in_one_line(text in "\\PC{0,60}", key in "\\PC{0,9}") {
        refused_json(&text);
        let object = serde_json::json!({ "event": "validated", "tx": "", "height": 1, "locked": true, key: text });
        if let Err(error) = from_json(&object.to_string()) {
            prop_assert!(!error.to_string().contains('\n'));
        }
    }
}
