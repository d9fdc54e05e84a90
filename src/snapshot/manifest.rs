//! The plan and the manifest of a snapshot, as JSON with a checksum (`schemas/snapshot.md`). Pure.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{SnapshotError, Totals, chunk::ChunkPlace};
use crate::record::{ConsumedOffsets, Key, MetaRecord, Record, codec};

/// Format of snapshots that this program writes and reads.
pub const FORMAT: u32 = 1;
/// Part with the block records; parts of the transactions come before.
pub(super) const BLOCKS: u16 = 900;
/// Part with the results of commands.
pub(super) const COMMANDS: u16 = 901;

/// Offsets of the log, next to read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offsets {
    /// Offset in the chain log.
    pub chain: u64,
    /// Offsets in the topic of validated transactions, by partition.
    pub validated: BTreeMap<u32, u64>,
}

impl Offsets {
    /// Returns the offsets of a record, without its height.
    pub fn of(offsets: &ConsumedOffsets) -> Self {
        Offsets { chain: offsets.chain, validated: offsets.validated.clone() }
    }

    /// Returns the offsets in the form of the meta record.
    pub fn to_consumed(&self) -> ConsumedOffsets {
        ConsumedOffsets { chain: self.chain, validated: self.validated.clone(), height: 0 }
    }
}

/// State of group and store before the scan. The first object of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotPlan {
    /// Format of the snapshot ([`FORMAT`]).
    pub format: u32,
    /// Random id of the snapshot.
    #[serde(with = "hex::serde")]
    pub id: [u8; 16],
    /// Time of the beginning, milliseconds since the epoch.
    pub created_ms: u64,
    /// Id of the store.
    #[serde(with = "hex::serde")]
    pub store_id: [u8; 16],
    /// Engine of the store.
    pub engine: String,
    /// Network of the store.
    pub network: String,
    /// Slots of a page of the store.
    pub utxo_batch_size: u32,
    /// Committed offsets of the group: from here a restored store reads the log.
    pub offsets: Offsets,
    /// State of the chain at that chain offset, in the form of commit metadata.
    pub chain_state: String,
    /// Incarnation of the nodes of the store.
    pub nodes: String,
    /// Number of parts in which the transactions are scanned.
    pub parts: u16,
    /// Meta record of the store after the offsets were read: the binary form of records, hex.
    pub meta: String,
}

/// A chunk of a complete snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChunkEntry {
    /// Part of the scan.
    pub part: u16,
    /// Number in the part.
    pub number: u32,
    /// Records of the chunk.
    pub records: u64,
    /// Bytes of the object.
    pub bytes: u64,
    /// BLAKE3 of the object.
    #[serde(with = "hex::serde")]
    pub blake3: [u8; 32],
}

/// A complete snapshot. The last object of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Format of the snapshot ([`FORMAT`]).
    pub format: u32,
    /// Plan of the snapshot.
    pub plan: SnapshotPlan,
    /// Time of the end, milliseconds since the epoch.
    pub ended_ms: u64,
    /// End offsets of the topics after the scan: every change in the snapshot comes from an event below.
    pub until: Offsets,
    /// All chunks, by part and number.
    pub chunks: Vec<ChunkEntry>,
    /// Counts of all records.
    pub totals: Totals,
}

impl SnapshotPlan {
    /// Returns the meta record of the store.
    ///
    /// # Errors
    /// The field is no meta record.
    pub fn meta_record(&self) -> Result<MetaRecord, String> {
        let bytes = hex::decode(&self.meta).map_err(|error| format!("`meta` is no hexadecimal text: {error}"))?;
        match codec::decode(&Key::Meta, Bytes::from(bytes)) {
            Ok(Record::Meta(meta)) => Ok(*meta),
            Ok(_) => Err("`meta` is no meta record".to_owned()),
            Err(error) => Err(format!("`meta`: {error}")),
        }
    }

    /// Returns the binary form of a meta record for the field `meta`.
    pub fn encode_meta(meta: &MetaRecord) -> String {
        let mut bytes = Vec::new();
        codec::encode(&Record::Meta(Box::new(meta.clone())), &mut bytes);
        hex::encode(bytes)
    }

    /// Returns the numbers of all parts.
    pub fn all_parts(&self) -> impl Iterator<Item = u16> {
        (0..self.parts).chain([BLOCKS, COMMANDS])
    }

    /// Returns the place of a chunk.
    pub fn place(&self, part: u16, number: u32) -> ChunkPlace {
        ChunkPlace { snapshot: self.id, part, number }
    }
}

impl Manifest {
    /// Returns the bytes of all chunks.
    pub fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.bytes).sum()
    }

    /// Verifies that the chunks of each part are numbered from 0 without a gap, that each part has a chunk, and that
    /// the records add up.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self) -> Result<(), String> {
        let mut next: BTreeMap<u16, u32> = self.plan.all_parts().map(|part| (part, 0)).collect();
        for ChunkEntry { part, number, .. } in &self.chunks {
            let expected = next.get_mut(part).ok_or_else(|| format!("there is no part {part}"))?;
            if number != expected {
                return Err(format!("part {part} has chunk {number} in place of {expected}"));
            }
            *expected += 1;
        }
        if let Some((part, _)) = next.into_iter().find(|(_, count)| *count == 0) {
            return Err(format!("part {part} has no chunk"));
        }
        let records: u64 = self.chunks.iter().map(|chunk| chunk.records).sum();
        if records != self.totals.records {
            return Err(format!("the chunks have {records} records, the totals say {}", self.totals.records));
        }
        Ok(())
    }
}

/// Encodes a document: one line of JSON, and one line with the BLAKE3 of the first line.
pub fn encode_document(document: &impl Serialize) -> Bytes {
    let json = serde_json::to_string(document).unwrap_or_else(|_| unreachable!("numbers and text always serialise"));
    let checksum = blake3::hash(json.as_bytes()).to_hex();
    format!("{json}\n{checksum}\n").into()
}

/// Decodes a document of a snapshot. The format is looked at before anything else.
///
/// # Errors
/// [`SnapshotError::Format`] and [`SnapshotError::Damaged`]
pub fn decode_document<T: DeserializeOwned>(name: &str, object: &str, bytes: &[u8]) -> Result<T, SnapshotError> {
    let damaged = |problem: String| {
        let (name, object) = (name.to_owned(), object.to_owned());
        SnapshotError::Damaged { name, object, problem }
    };
    let text = std::str::from_utf8(bytes).map_err(|error| damaged(error.to_string()))?;
    let (json, checksum) = text.split_once('\n').ok_or_else(|| damaged("it is cut short".to_owned()))?;
    if checksum.trim_end() != blake3::hash(json.as_bytes()).to_hex().as_str() {
        return Err(damaged("its checksum is wrong".to_owned()));
    }
    #[derive(Deserialize)]
    struct DocumentFormat {
        format: u64,
    }
    let DocumentFormat { format } = serde_json::from_str(json).map_err(|error| damaged(error.to_string()))?;
    if format != u64::from(FORMAT) {
        return Err(SnapshotError::Format { name: name.to_owned(), found: format });
    }
    serde_json::from_str(json).map_err(|error| damaged(error.to_string()))
}
