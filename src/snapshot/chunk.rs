//! Chunks: records of one part of the scan, with their own counts and checksum (`schemas/snapshot.md`). Pure.
//!
//! ```text
//! chunk  = `UTXOSNAP` (8) ‖ version (u16) ‖ snapshot id (16) ‖ part (u16) ‖ number (u32) ‖ records ‖ footer
//!          ‖ length of the footer (u32) ‖ BLAKE3 of everything before (32)
//! record = length of the key (1) ‖ key ‖ length of the value (u64) ‖ value
//! footer = JSON: `records`, `next` (position after the chunk, hex; absent at the end of the part), `totals`
//! ```
//!
//! Numbers are little-endian. Key and value are as the embedded engine stores them.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::Totals;
use crate::{
    engine::{
        Cursor,
        key::{self, KeyBytes},
    },
    record::{Key, Record, codec},
};

const MAGIC: &[u8; 8] = b"UTXOSNAP";
/// Version of the layout of chunks.
pub const VERSION: u16 = 1;
const HEADER: usize = 8 + 2 + 16 + 2 + 4;
const CHECKSUM: usize = 32;

/// Place of a chunk: the snapshot, the part of the scan, and the number in the part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkPlace {
    /// Id of the snapshot.
    pub snapshot: [u8; 16],
    /// Number of the part.
    pub part: u16,
    /// Number of the chunk in its part, from 0.
    pub number: u32,
}

/// Footer of a chunk: the counts of its records, and the position behind the chunk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChunkFooter {
    /// Number of the records in the chunk.
    pub records: u64,
    /// Position at which the scan of the part continues, hex; `None`: the part ends here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Counts of the records.
    pub totals: Totals,
}

impl ChunkFooter {
    /// Returns the position at which the scan of the part continues.
    ///
    /// # Errors
    /// The position is no hexadecimal text.
    pub fn next_cursor(&self) -> Result<Option<Cursor>, ChunkError> {
        let decode = |text: &String| hex::decode(text).map(Cursor).map_err(|_| ChunkError::Footer);
        self.next.as_ref().map(decode).transpose()
    }
}

/// Reasons why bytes are no chunk of this place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// The object is shorter than a chunk can be.
    #[error("it is cut short")]
    Truncated,
    /// The bytes are not those that were written.
    #[error("its checksum is wrong")]
    Checksum,
    /// The object is no chunk.
    #[error("it is no chunk of a snapshot")]
    Magic,
    /// The chunk has another layout; holds its version.
    #[error("it has layout {0}, this program reads layout {VERSION}")]
    Version(u16),
    /// The chunk belongs to another snapshot; holds the id in hex.
    #[error("it belongs to snapshot {0}")]
    OtherSnapshot(String),
    /// The chunk belongs to another place of the snapshot.
    #[error("it is chunk {1} of part {0}")]
    OtherPlace(u16, u32),
    /// The footer is unreadable, or counts other records.
    #[error("its footer is unreadable or counts other records")]
    Footer,
    /// A record is unreadable; holds its number in the chunk.
    #[error("its record {0} is unreadable")]
    Record(u64),
}

/// Collects the records of a chunk.
#[derive(Debug)]
pub struct ChunkWriter {
    bytes: Vec<u8>,
    totals: Totals,
}

impl ChunkWriter {
    /// Begins the chunk of a place.
    pub fn new(place: ChunkPlace) -> Self {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(place.snapshot);
        bytes.extend(place.part.to_le_bytes());
        bytes.extend(place.number.to_le_bytes());
        ChunkWriter { bytes, totals: Totals::default() }
    }

    /// Adds a record, and counts it.
    pub fn add(&mut self, key: &Key, record: &Record) {
        let key = KeyBytes::of(key);
        self.bytes.push(key.as_ref().len() as u8);
        self.bytes.extend(key.as_ref());
        let at = self.bytes.len();
        self.bytes.extend([0; 8]);
        codec::encode(record, &mut self.bytes);
        let length = (self.bytes.len() - at - 8) as u64;
        self.bytes[at..at + 8].copy_from_slice(&length.to_le_bytes());
        self.totals += Totals::of(record);
    }

    /// Bytes of the chunk so far.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Ends the chunk; `next` is the position at which the scan of the part continues.
    pub fn finish(mut self, next: Option<&Cursor>) -> (Bytes, ChunkFooter) {
        let next = next.map(|Cursor(bytes)| hex::encode(bytes));
        let footer = ChunkFooter { records: self.totals.records, next, totals: self.totals };
        let text = serde_json::to_vec(&footer).unwrap_or_else(|_| unreachable!("numbers and text always serialise"));
        self.bytes.extend(&text);
        self.bytes.extend((text.len() as u32).to_le_bytes());
        let checksum = *blake3::hash(&self.bytes).as_bytes();
        self.bytes.extend(checksum);
        (self.bytes.into(), footer)
    }
}

/// A chunk that was read: its footer, and its records.
#[derive(Debug)]
pub struct SnapshotChunk {
    /// Footer of this chunk.
    pub footer: ChunkFooter,
    records: Bytes,
    read: u64,
    has_failed: bool,
}

impl SnapshotChunk {
    /// Reads the chunk of a place, and verifies its checksum and its place.
    ///
    /// # Errors
    /// [`ChunkError`]
    pub fn parse(bytes: Bytes, place: ChunkPlace) -> Result<Self, ChunkError> {
        if bytes.len() < HEADER + 4 + CHECKSUM {
            return Err(ChunkError::Truncated);
        }
        if &bytes[..8] != MAGIC {
            return Err(ChunkError::Magic);
        }
        let (content, checksum) = bytes.split_at(bytes.len() - CHECKSUM);
        if blake3::hash(content).as_bytes() != checksum {
            return Err(ChunkError::Checksum);
        }
        let number = |at: usize| u16::from_le_bytes([content[at], content[at + 1]]);
        if number(8) != VERSION {
            return Err(ChunkError::Version(number(8)));
        }
        if content[10..26] != place.snapshot {
            return Err(ChunkError::OtherSnapshot(hex::encode(&content[10..26])));
        }
        let in_part = u32::from_le_bytes([content[28], content[29], content[30], content[31]]);
        if (number(26), in_part) != (place.part, place.number) {
            return Err(ChunkError::OtherPlace(number(26), in_part));
        }
        let (rest, length) = content[HEADER..].split_last_chunk::<4>().ok_or(ChunkError::Truncated)?;
        let length = u32::from_le_bytes(*length) as usize;
        let records_end = rest.len().checked_sub(length).ok_or(ChunkError::Footer)?;
        let footer: ChunkFooter = serde_json::from_slice(&rest[records_end..]).map_err(|_| ChunkError::Footer)?;
        if footer.records != footer.totals.records {
            return Err(ChunkError::Footer);
        }
        let records = bytes.slice(HEADER..HEADER + records_end);
        Ok(SnapshotChunk { footer, records, read: 0, has_failed: false })
    }

    fn take(&mut self, length: usize) -> Option<Bytes> {
        (length <= self.records.len()).then(|| self.records.split_to(length))
    }

    fn read_record(&mut self) -> Option<(Key, Record)> {
        let length = usize::from(*self.take(1)?.first()?);
        let key = key::decode(&self.take(length)?)?;
        let length = u64::from_le_bytes(self.take(8)?.as_ref().try_into().ok()?);
        let value = self.take(usize::try_from(length).ok()?)?;
        Some((key, codec::decode(&key, value).ok()?))
    }
}

impl Iterator for SnapshotChunk {
    type Item = Result<(Key, Record), ChunkError>;

    /// Returns the next record. The last item is an error where the records are not those of the footer.
    fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed || (self.records.is_empty() && self.read == self.footer.records) {
            return None;
        }
        let found = if self.read < self.footer.records { self.read_record() } else { None };
        self.has_failed = found.is_none();
        let number = self.read;
        self.read += 1;
        Some(found.ok_or(ChunkError::Record(number)))
    }
}

#[cfg(test)]
#[path = "chunk_tests.rs"]
mod tests;
