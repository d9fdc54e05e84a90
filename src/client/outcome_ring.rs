//! [`OutcomeRing`]: the newest outcomes of a process, decoded once, for any number of readers.
//!
//! The ring is bounded by bytes. A reader that is so slow that its next outcome has left the ring loses its place.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use bytes::Bytes;
use tokio::sync::watch;

use crate::{
    broker::Message,
    event::{Event, OutcomeBatch, OutcomeChange, OutcomeEvent, OutcomeKind, TxidList, to_json},
    tx::Txid,
};

/// Memory of an outcome besides its payload: the decoded form and the place in the ring.
const OUTCOME_OVERHEAD: usize = 256;
/// Memory of an outcome for each byte of its payload: the JSON form has two digits for each.
const BYTES_PER_PAYLOAD_BYTE: usize = 3;

/// A message of the topic of outcomes.
#[derive(Debug)]
pub(crate) struct OutcomeMessage {
    /// Number of the partition.
    pub partition: i32,
    /// Offset of the message in its partition.
    pub offset: u64,
    /// Content of the message.
    pub content: OutcomeContent,
    /// JSON of the message, made by the first reader that sends the whole message.
    json: OnceLock<String>,
    /// Memory that the message counts for.
    charge: usize,
}

/// Content of a message of the topic of outcomes.
#[derive(Debug, PartialEq)]
pub(crate) enum OutcomeContent {
    /// The outcome of one transaction or command.
    One(OutcomeEvent),
    /// Transactions with the same change.
    Many {
        /// Change that all transactions have in common.
        change: OutcomeChange,
        /// Txids that follow one another.
        txids: Bytes,
    },
    /// The message is no outcome that this program knows.
    Unknown,
}

impl OutcomeMessage {
    /// Decodes a message of the topic of outcomes.
    pub(crate) fn decode(partition: i32, message: &Message) -> Self {
        let content = match Event::decode(&message.payload) {
            Ok(Event::Outcome(outcome)) => OutcomeContent::One(outcome),
            Ok(Event::OutcomeBatch(OutcomeBatch { change, txids })) => {
                OutcomeContent::Many { change, txids: message.payload.slice_ref(txids.as_bytes()) }
            }
            _ => OutcomeContent::Unknown,
        };
        let charge = OUTCOME_OVERHEAD + BYTES_PER_PAYLOAD_BYTE * message.bytes();
        OutcomeMessage { partition, offset: message.offset, content, json: OnceLock::new(), charge }
    }

    /// Returns the JSON of the whole message; `None`: the message is no outcome.
    pub(crate) fn json(&self) -> Option<&str> {
        let event = match &self.content {
            OutcomeContent::One(outcome) => Event::Outcome(outcome.clone()),
            OutcomeContent::Many { change, txids } => {
                Event::OutcomeBatch(OutcomeBatch { change: *change, txids: TxidList::new(txids)? })
            }
            OutcomeContent::Unknown => return None,
        };
        Some(self.json.get_or_init(|| to_json(&event)))
    }
}

impl OutcomeContent {
    /// Returns the name of the kind; `None`: the message is no outcome.
    pub(crate) fn kind(&self) -> Option<&'static str> {
        match self {
            OutcomeContent::One(outcome) => Some(match outcome.kind {
                OutcomeKind::Accepted => "accepted",
                OutcomeKind::Conflicting { .. } => "conflicting",
                OutcomeKind::Refused { .. } => "refused",
                OutcomeKind::Command { .. } => "command",
            }),
            OutcomeContent::Many { change, .. } => Some(match change {
                OutcomeChange::Live => "live",
                OutcomeChange::Mined { .. } => "mined",
                OutcomeChange::Unmined { .. } => "unmined",
            }),
            OutcomeContent::Unknown => None,
        }
    }

    /// Returns the transactions of the message.
    pub(crate) fn txids(&self) -> impl Iterator<Item = Txid> {
        let (one, many) = match self {
            OutcomeContent::One(outcome) => (Some(outcome.txid), None),
            OutcomeContent::Many { txids, .. } => (None, TxidList::new(txids)),
            OutcomeContent::Unknown => (None, None),
        };
        one.into_iter().chain(many.into_iter().flat_map(TxidList::iter))
    }
}

/// The newest outcomes, for all readers of a process.
pub(crate) struct OutcomeRing {
    messages: Mutex<RingMessages>,
    /// Number of the next message; wakes the readers.
    next: watch::Sender<u64>,
    max_bytes: usize,
}

struct RingMessages {
    messages: VecDeque<Arc<OutcomeMessage>>,
    /// Number of the first message of the ring.
    first: u64,
    bytes: usize,
    /// No further message comes.
    is_closed: bool,
}

/// Place of a reader in the ring.
pub(crate) struct RingReader {
    ring: Arc<OutcomeRing>,
    next: u64,
    changes: watch::Receiver<u64>,
}

/// Reasons why a reader of the ring ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RingEnd {
    /// The next message of the reader has left the ring.
    PlaceLost,
    /// The ring is closed, and the reader has read every message.
    Closed,
}

impl OutcomeRing {
    /// Makes a ring that keeps messages of at most `max_bytes`, and at least one.
    pub(crate) fn new(max_bytes: usize) -> Arc<Self> {
        let messages = Mutex::new(RingMessages { messages: VecDeque::new(), first: 0, bytes: 0, is_closed: false });
        Arc::new(OutcomeRing { messages, next: watch::Sender::new(0), max_bytes })
    }

    /// Adds a message; the oldest messages leave the ring.
    pub(crate) fn push(&self, message: OutcomeMessage) {
        let next = {
            let mut ring = self.lock();
            ring.bytes += message.charge;
            ring.messages.push_back(Arc::new(message));
            while ring.bytes > self.max_bytes
                && ring.messages.len() > 1
                && let Some(oldest) = ring.messages.pop_front()
            {
                ring.bytes -= oldest.charge;
                ring.first += 1;
            }
            ring.first + ring.messages.len() as u64
        };
        // Tasks of several partitions push: the number of a later message stays.
        self.next.send_if_modified(|known| {
            let is_newer = next > *known;
            *known = next.max(*known);
            is_newer
        });
    }

    /// Ends the readers, after the messages that the ring holds.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.next.send_modify(|_| ());
    }

    /// Returns whether the ring is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Makes a reader of the messages that are pushed after the call.
    pub(crate) fn follow(self: &Arc<Self>) -> RingReader {
        let changes = self.next.subscribe();
        let ring = self.lock();
        RingReader { next: ring.first + ring.messages.len() as u64, ring: self.clone(), changes }
    }

    fn lock(&self) -> MutexGuard<'_, RingMessages> {
        // No statement between two changes of the ring can panic.
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RingReader {
    /// Waits for the next message. Cancel safe.
    ///
    /// # Errors
    /// The message has left the ring, or the ring is closed.
    pub(crate) async fn next(&mut self) -> Result<Arc<OutcomeMessage>, RingEnd> {
        loop {
            self.changes.borrow_and_update();
            if let Some(found) = self.take()? {
                return Ok(found);
            }
            // The ring, and with it the sender, lives as long as its readers.
            self.changes.changed().await.map_err(|_| RingEnd::Closed)?;
        }
    }

    fn take(&mut self) -> Result<Option<Arc<OutcomeMessage>>, RingEnd> {
        let ring = self.ring.lock();
        let index = self.next.checked_sub(ring.first).ok_or(RingEnd::PlaceLost)?;
        let found = usize::try_from(index).ok().and_then(|index| ring.messages.get(index)).cloned();
        if found.is_none() && ring.is_closed {
            return Err(RingEnd::Closed);
        }
        self.next += u64::from(found.is_some());
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::OutcomeSource;

    fn message(offset: u64, event: &Event<'_>) -> OutcomeMessage {
        let payload = event.encode().into();
        OutcomeMessage::decode(3, &Message { offset, timestamp_ms: 0, key: Bytes::new(), payload, headers: vec![] })
    }

    fn batch(offset: u64, count: usize) -> OutcomeMessage {
        let txids = vec![offset as u8; 32 * count];
        let batch = OutcomeBatch { change: OutcomeChange::Live, txids: TxidList::new(&txids).unwrap() };
        message(offset, &Event::OutcomeBatch(batch))
    }

    #[tokio::test]
    async fn a_ring_keeps_bytes_and_not_messages() {
        let ring = OutcomeRing::new(100_000);
        let (mut quick, mut slow) = (ring.follow(), ring.follow());
        for offset in 0..200 {
            ring.push(batch(offset, 100));
            assert_eq!(quick.next().await.unwrap().offset, offset);
        }
        assert!(ring.lock().bytes <= 100_000 && ring.lock().messages.len() < 20);
        assert_eq!(slow.next().await.err(), Some(RingEnd::PlaceLost));
        let mut late = ring.follow();
        // One message larger than the ring is kept all the same.
        ring.push(batch(200, 10_000));
        assert_eq!((late.next().await.unwrap().offset, ring.lock().messages.len()), (200, 1));
        assert!(tokio::time::timeout(std::time::Duration::from_millis(10), late.next()).await.is_err());
        ring.push(batch(201, 1));
        ring.close();
        assert_eq!((late.next().await.unwrap().offset, late.next().await.err()), (201, Some(RingEnd::Closed)));
    }

    #[test]
    fn a_message_is_decoded_and_encoded_once() {
        let event = OutcomeEvent {
            txid: Txid([7; 32]),
            source: OutcomeSource::Chain { offset: 3 },
            kind: OutcomeKind::Accepted,
        };
        let one = message(1, &Event::Outcome(event.clone()));
        assert_eq!((one.content.kind(), one.json().unwrap()), (Some("accepted"), &to_json(&Event::Outcome(event))[..]));
        assert!(std::ptr::eq(one.json().unwrap(), one.json().unwrap()));
        let many = batch(5, 2);
        assert_eq!(many.content.kind(), Some("live"));
        assert_eq!(many.content.txids().collect::<Vec<_>>(), [Txid([5; 32]); 2]);
        let unknown = Message {
            payload: Bytes::from_static(b"x"),
            ..Message { offset: 0, timestamp_ms: 0, key: Bytes::new(), payload: Bytes::new(), headers: vec![] }
        };
        let unknown = OutcomeMessage::decode(0, &unknown);
        assert_eq!((unknown.content.kind(), unknown.json(), unknown.content.txids().next()), (None, None, None));
    }
}
