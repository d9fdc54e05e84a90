//! Loads the bodies to which events refer. The only step of the preparation that is not pure.

use bytes::Bytes;

use super::{Poison, check_key};
use crate::{
    blob::{EventBodies, objects::ObjectError},
    broker::Message,
    event::{DeadLetterClass, Event},
};

/// Reasons why the body of an event is not at hand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyLoadError {
    /// The object does not exist yet, or the object store does not answer: the same call can succeed later.
    Unavailable(String),
    /// An operator has to change a setting or the object store; the reason of the halt.
    Halt(String),
    /// The event becomes a dead letter.
    Poison(Poison),
}

/// Loads the body to which the event of a message refers, and verifies length and BLAKE3; `None`: the event does not
/// refer to an object. A message that is no event refers to none.
///
/// # Errors
/// See [`BodyLoadError`].
pub async fn load_body(bodies: Option<&EventBodies>, message: &Message) -> Result<Option<Bytes>, BodyLoadError> {
    let (txid, reference) = match Event::decode(&message.payload) {
        Ok(Event::ValidatedReference(event)) => (event.txid, event.tx),
        Ok(Event::SeededReference(event)) => (event.txid, event.outputs),
        _ => return Ok(None),
    };
    check_key(message, &txid).map_err(|poison| BodyLoadError::Poison(poison.about(txid)))?;
    let key = &reference.key;
    let Some(bodies) = bodies else {
        let why = format!("transaction {txid} refers to object `{key}`, and no object store is configured");
        return Err(BodyLoadError::Halt(format!("{why}; set objects.url")));
    };
    let (length, most) = (reference.length, bodies.limits().max_body_bytes);
    if length > most {
        let why = format!("transaction {txid} refers to object `{key}` of {length} bytes, more than {most}");
        return Err(BodyLoadError::Halt(format!("{why}; raise objects.max_body_bytes")));
    }
    match bodies.read(&reference).await {
        Ok(body) => Ok(Some(body)),
        Err(error @ ObjectError::Wrong { .. }) => Err(BodyLoadError::Poison(Poison {
            stage: "load",
            class: DeadLetterClass::Invalid,
            message: format!("transaction {txid}: {error}"),
            txid: Some(txid),
        })),
        Err(ObjectError::Failed(_, error)) if !error.may_be_retried() => {
            Err(BodyLoadError::Halt(format!("transaction {txid}: {error}")))
        }
        Err(error) => Err(BodyLoadError::Unavailable(format!("transaction {txid}: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;

    use super::*;
    use crate::{
        blob::{
            BlobOptions, EventBodyLimits,
            fault::{BlobFault, FaultStore},
        },
        event::{BodyReference, ContentHash, ValidatedReference},
        tx::Txid,
    };

    fn message(txid: Txid, tx: BodyReference) -> Message {
        let payload = ValidatedReference { txid, tx, height: 7, locked: false }.encode();
        let key = Bytes::copy_from_slice(&[1; 32]);
        Message { offset: 0, timestamp_ms: 0, key, payload: payload.into(), headers: Vec::new() }
    }

    #[tokio::test]
    async fn a_body_is_loaded_awaited_refused_or_halts() {
        let faults = FaultStore::new(Arc::new(InMemory::new()), 1);
        let limits = EventBodyLimits { max_body_bytes: 10, ..EventBodyLimits::default() };
        let bodies = EventBodies::new(Arc::new(faults.clone()), &BlobOptions::default(), limits);
        let reference = bodies.put(Bytes::from_static(b"0123456789")).await.unwrap();
        let txid = Txid([1; 32]);
        let load = async |txid, reference| load_body(Some(&bodies), &message(txid, reference)).await;
        assert_eq!(load(txid, reference.clone()).await, Ok(Some(Bytes::from_static(b"0123456789"))));

        let halted = |why: &str, loaded| match loaded {
            Err(BodyLoadError::Halt(halt)) => assert!(halt.ends_with(why), "{halt}"),
            other => panic!("{other:?}"),
        };
        halted("set objects.url", load_body(None, &message(txid, reference.clone())).await);
        let longer = BodyReference { length: 11, ..reference.clone() };
        halted("raise objects.max_body_bytes", load(txid, longer).await);

        let poison = |class: DeadLetterClass, loaded| match loaded {
            Err(BodyLoadError::Poison(poison)) => assert_eq!(poison.class, class, "{}", poison.message),
            other => panic!("{other:?}"),
        };
        let shorter = BodyReference { length: 9, ..reference.clone() };
        poison(DeadLetterClass::Invalid, load(txid, shorter).await);
        let other = BodyReference { blake3: ContentHash([0; 32]), ..reference.clone() };
        poison(DeadLetterClass::Invalid, load(txid, other).await);
        poison(DeadLetterClass::Decode, load(Txid([2; 32]), reference.clone()).await);

        let absent = BodyReference { key: "x".into(), ..reference.clone() };
        let awaited = |loaded| assert!(matches!(loaded, Err(BodyLoadError::Unavailable(_))), "{loaded:?}");
        awaited(load(txid, absent).await);
        for fault in [BlobFault::LostRequest, BlobFault::Denied, BlobFault::CutShort] {
            faults.fail_at(1, fault);
            awaited(load(txid, reference.clone()).await);
        }
        let inline = Message { payload: Bytes::from_static(b"no event"), ..message(txid, reference) };
        assert_eq!(load_body(None, &inline).await, Ok(None));
    }
}
