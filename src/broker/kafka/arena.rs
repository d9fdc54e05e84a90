//! Memory of a batch: keys, payloads and headers of the messages are copied one after another into one allocation.
//!
//! The copy frees librdkafka's own buffers at once and is cheaper than detaching every message.

use std::ops::Range;

use bytes::Bytes;
use rdkafka::message::{BorrowedMessage, Headers, Message as _};

use crate::broker::Message;

/// Collects messages of one partition.
#[derive(Default)]
pub(super) struct Arena {
    bytes: Vec<u8>,
    entries: Vec<MessageRanges>,
}

struct MessageRanges {
    offset: u64,
    timestamp_ms: i64,
    key: Range<usize>,
    payload: Range<usize>,
    headers: Vec<(String, Range<usize>)>,
}

impl Arena {
    pub(super) fn push(&mut self, message: &BorrowedMessage<'_>) {
        let key = self.copy(message.key());
        let payload = self.copy(message.payload());
        let headers = message.headers().map_or_else(Vec::new, |headers| {
            headers.iter().map(|header| (header.key.to_owned(), self.copy(header.value))).collect()
        });
        self.entries.push(MessageRanges {
            // librdkafka never delivers a message without an offset. A negative offset would end as out of range.
            offset: message.offset() as u64,
            timestamp_ms: message.timestamp().to_millis().unwrap_or(-1),
            key,
            payload,
            headers,
        });
    }

    fn copy(&mut self, bytes: Option<&[u8]>) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes.unwrap_or_default());
        start..self.bytes.len()
    }

    pub(super) fn messages(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the messages as slices of one allocation.
    pub(super) fn finish(self) -> Vec<Message> {
        let bytes = Bytes::from(self.bytes);
        let slice = |range: Range<usize>| bytes.slice(range);
        self.entries
            .into_iter()
            .map(|entry| Message {
                offset: entry.offset,
                timestamp_ms: entry.timestamp_ms,
                key: slice(entry.key),
                payload: slice(entry.payload),
                headers: entry.headers.into_iter().map(|(key, value)| (key, slice(value))).collect(),
            })
            .collect()
    }
}
