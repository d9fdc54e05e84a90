//! Events: bytes are refused or the one canonical binary form, and JSON gives the same bytes again.

use bytes::Bytes;
use utxo_store::{
    broker::Message,
    cli::events,
    event::{Event, from_json, to_json},
    prepare::{Poison, PrepareSettings, PreparedEvent, prepare_loaded},
    record::build::InlineBodies,
    tx::{Network, Transaction},
};

use super::assert_one_line;

/// Runs the target `event` on the binary form.
pub fn binary(data: &[u8]) {
    match Event::decode(data) {
        Ok(event) => {
            assert_eq!(event.encode(), data);
            assert_survives_json(&event, data);
            // One cut per run, at a place chosen by the bytes: the fuzzer tries the others.
            let cut = usize::from(data[data.len() - 1]) * data.len() / 256;
            assert!(Event::decode(&data[..cut]).is_err(), "no event begins with a whole other one");
            assert!(Event::decode(&[data, &[0]].concat()).is_err());
            assert_prepared(&event, data);
        }
        Err(error) => {
            assert_one_line(&error);
            assert!(error.to_string().len() < 300, "{error}");
        }
    }
}

fn assert_survives_json(event: &Event<'_>, message: &[u8]) {
    let line = to_json(event);
    assert!(!line.contains('\n'));
    let value: serde_json::Value = serde_json::from_str(&line).expect("our JSON is JSON");
    assert_eq!(value["event"], event.kind().name());
    assert_eq!(from_json(&line).as_deref(), Ok(message));
}

/// Checks the event as the pipeline prepares it, with the correct key and with a wrong one.
fn assert_prepared(event: &Event<'_>, payload: &[u8]) {
    let settings = PrepareSettings { network: Network::Main, utxo_batch_size: 20, inline: InlineBodies::UpTo(1_000) };
    let txid = match event {
        Event::Validated(validated) => Transaction::parse(validated.tx).ok().map(|transaction| transaction.txid()),
        Event::Seeded(seeded) => Some(seeded.txid),
        Event::ValidatedReference(reference) => Some(reference.txid),
        Event::SeededReference(reference) => Some(reference.txid),
        _ => None,
    };
    let with_key = |key: &[u8]| {
        let (key, payload) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(payload));
        // The message itself stands for a hostile object.
        let body = event.body_reference().map(|_| payload.clone());
        let message = Message { offset: 7, timestamp_ms: -1, key, payload, headers: vec![] };
        prepare_loaded(&settings, &message, body.as_ref())
    };
    assert_poison(&with_key(payload).expect_err("an event is no transaction id"));
    let Some(txid) = txid else { return };
    match with_key(&txid.0) {
        Ok(PreparedEvent::Validated(prepared)) => {
            let Event::Validated(validated) = event else { panic!("{event:?} was prepared as validated") };
            let transaction = Transaction::parse(validated.tx).expect("prepared, so parsed");
            let spent: usize = prepared.groups.iter().map(|group| group.slots.len()).sum();
            assert_eq!((prepared.txid, spent), (txid, transaction.input_count()));
            assert!(transaction.is_extended() && transaction.check().is_ok());
            assert_eq!(prepared.page.utxos.as_ref().map(Vec::len), Some(transaction.output_count()));
        }
        Ok(PreparedEvent::Seeded(prepared)) => {
            let Event::Seeded(seeded) = event else { panic!("{event:?} was prepared as seeded") };
            assert_eq!(prepared.txid, txid);
            let slots = seeded.outputs.last().map(|output| output.vout as usize + 1);
            assert_eq!(prepared.page.utxos.as_ref().map(Vec::len), slots);
        }
        Err(poison) => assert_poison(&poison),
    }
}

/// Checks the message of poison, which goes into the header of a dead letter.
fn assert_poison(poison: &Poison) {
    assert_one_line(&poison.message);
    assert!(poison.message.len() < 500, "{} bytes: {}", poison.message.len(), poison.message);
}

/// Runs the target `json_event`: JSON lines one by one as the library reads them, and together as `utxo-store events`
/// does.
pub fn json(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut messages = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match from_json(line) {
            Ok(message) => {
                let event = Event::decode(&message).expect("the JSON decoder returns a valid event");
                assert_eq!(event.encode(), message);
                assert_survives_json(&event, &message);
                messages.push(message);
            }
            Err(error) => {
                assert_one_line(&error);
                messages.clear();
                break;
            }
        }
    }
    let mut hexadecimal = Vec::new();
    if events::encode(data, &mut hexadecimal).is_ok() {
        let (mut json, mut again) = (Vec::new(), Vec::new());
        events::decode(&hexadecimal[..], &mut json).expect("encode wrote it");
        events::encode(&json[..], &mut again).expect("decode wrote it");
        assert_eq!(again, hexadecimal);
        assert_eq!(json.iter().filter(|byte| **byte == b'\n').count(), messages.len());
    } else {
        assert!(messages.is_empty());
    }
}
