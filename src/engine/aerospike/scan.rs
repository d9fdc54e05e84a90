//! Scans: partition after partition, each in the order of its digests. A cursor is a partition and a digest.
//!
//! Keys are spread evenly over the partitions. A partition with more records than a page is read page by page;
//! partitions with fewer records are read several at once.

use aerospike::{Bins, Key as ServerKey, PartitionFilter, Record as ServerRecord, Statement, policy::QueryPolicy};
use futures_util::StreamExt;

use super::{
    ConnectedCluster, bins,
    errors::{RequestKind, damaged, engine_error},
};
use crate::{
    engine::{Cursor, EngineError, ScanPage, ScanPart, Set, local::bad_cursor_error},
    record::{Key, Record},
};

pub const PARTITIONS: u16 = 4_096;
/// Records of a page, at least: each page costs a request.
const MIN_PAGE: usize = 64;

/// The position at which a scan continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ScanPosition {
    partition: u16,
    /// Digest of the last record returned of this partition.
    digest: Option<[u8; 20]>,
    /// Number of partitions that are read at once.
    width: u16,
}

impl ScanPosition {
    fn start() -> Self {
        ScanPosition { partition: 0, digest: None, width: 1 }
    }

    fn encode(self) -> Cursor {
        let mut bytes = self.partition.to_be_bytes().to_vec();
        bytes.extend(self.width.to_be_bytes());
        bytes.extend(self.digest.iter().flatten());
        Cursor(bytes)
    }

    fn decode(cursor: &Cursor) -> Option<Self> {
        let (partition, rest) = cursor.0.split_first_chunk()?;
        let (width, digest) = rest.split_first_chunk()?;
        let digest = if digest.is_empty() { None } else { Some(digest.try_into().ok()?) };
        let position =
            ScanPosition { partition: u16::from_be_bytes(*partition), digest, width: u16::from_be_bytes(*width) };
        (position.partition < PARTITIONS && position.width > 0).then_some(position)
    }
}

impl ConnectedCluster {
    pub async fn scan(&self, set: Set, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
        self.scan_part(set, ScanPart::WHOLE, cursor, limit).await
    }

    pub async fn scan_part(
        &self,
        set: Set,
        part: ScanPart,
        cursor: Option<Cursor>,
        limit: usize,
    ) -> Result<ScanPage, EngineError> {
        let limit = limit.max(MIN_PAGE);
        let count = part.count.clamp(1, 256);
        let first_partition = |number: u16| (u32::from(PARTITIONS) * u32::from(number) / u32::from(count)) as u16;
        let (begin, end) = (first_partition(part.number.min(count)), first_partition((part.number + 1).min(count)));
        let mut position = match cursor {
            None => ScanPosition { partition: begin, ..ScanPosition::start() },
            Some(cursor) => ScanPosition::decode(&cursor).ok_or_else(bad_cursor_error)?,
        };
        if position.partition >= end {
            return Ok(ScanPage::default());
        }
        let mut records = Vec::new();
        loop {
            let found = self.read_records(set, position, end, limit).await?;
            let count = found.len();
            let last = found.last().and_then(|record| record.key.as_ref()).map(ServerKey::digest);
            for record in found {
                records.extend(self.decode_record(set, record)?);
            }
            let Some(next) = position.next(count, last, limit, end) else {
                return Ok(ScanPage { records, next: None });
            };
            position = next;
            if records.len() >= limit {
                return Ok(ScanPage { records, next: Some(position.encode()) });
            }
        }
    }

    /// Returns whether the set has no record, of this store or of another program.
    pub async fn is_empty(&self, set: Set) -> Result<bool, EngineError> {
        let mut position = ScanPosition::start();
        loop {
            let found = self.read_records(set, position, PARTITIONS, MIN_PAGE).await?;
            if !found.is_empty() {
                return Ok(false);
            }
            let Some(next) = position.next(0, None, MIN_PAGE, PARTITIONS) else { return Ok(true) };
            position = next;
        }
    }

    /// Reads the records of several partitions, or at most `limit` records of a single partition.
    async fn read_records(
        &self,
        set: Set,
        position: ScanPosition,
        end: u16,
        limit: usize,
    ) -> Result<Vec<ServerRecord>, EngineError> {
        let set_name = match set {
            Set::Transactions => &self.location.transactions,
            Set::Blocks => &self.location.blocks,
            Set::Commands => &self.location.commands,
        };
        let statement = Statement::new(self.location.namespace.as_str(), set_name.as_str(), Bins::All);
        let mut policy = QueryPolicy { ..self.policies.query.clone() };
        let filter = match position.digest {
            Some(digest) => {
                let after = ServerKey::with_digest(self.location.namespace.as_str(), set_name.as_str(), None, digest);
                PartitionFilter::by_key(&after)
            }
            None => PartitionFilter::by_range(position.partition.into(), position.clipped_width(end).into()),
        };
        if position.is_single(end) {
            policy.max_records = limit as u64;
        }
        let to_error = |error: &aerospike::Error| engine_error("scan", set_name, error, RequestKind::Read);
        let query = self.nodes.client().query(&policy, filter, statement).await;
        let mut stream = query.map_err(|error| to_error(&error))?.into_stream();
        let mut found = Vec::new();
        while let Some(record) = stream.next().await {
            found.push(record.map_err(|error| to_error(&error))?);
        }
        Ok(found)
    }

    /// Decodes a record; `None`: a record that is no part of the state: a command record without an id, as an earlier
    /// version wrote it, or the record of a health check of the reference system.
    fn decode_record(&self, set: Set, mut record: ServerRecord) -> Result<Option<(Key, Record)>, EngineError> {
        let key = match set {
            Set::Transactions if bins::is_reference_health_check(&record.bins) => return Ok(None),
            Set::Transactions => self.key_of(&mut record)?,
            Set::Blocks => {
                Key::Block(bins::block_id_of(&record.bins).map_err(|error| damaged("scan", "a block", error))?)
            }
            Set::Commands => match bins::command_id_of(&record.bins) {
                Some(id) => Key::Command(id),
                None => {
                    tracing::warn!("aerospike: command record of an earlier version has no id; left out of the scan");
                    return Ok(None);
                }
            },
        };
        let decoded = bins::decode(self.layout, &key, record.bins).map_err(|error| damaged("scan", key, error))?;
        Ok(Some((key, decoded)))
    }
}

impl ScanPosition {
    /// Returns the number of partitions that are read at once, none from the partition `end` on.
    fn clipped_width(self, end: u16) -> u16 {
        self.width.min(end - self.partition)
    }

    fn is_single(self, end: u16) -> bool {
        self.digest.is_some() || self.clipped_width(end) == 1
    }

    /// Returns the next position after `count` records; `None` at the partition `end`.
    fn next(self, count: usize, last: Option<[u8; 20]>, limit: usize, end: u16) -> Option<Self> {
        if self.is_single(end) && count >= limit {
            return Some(ScanPosition { digest: last, ..self });
        }
        let taken = if self.digest.is_some() { 1 } else { self.clipped_width(end) };
        let partition = self.partition + taken;
        // The next width is estimated from the density of these partitions; after empty partitions the width grows
        // eightfold.
        let width = match count {
            0 => self.width.saturating_mul(8),
            _ => u16::try_from(limit * usize::from(taken) / count).unwrap_or(u16::MAX).max(1),
        };
        (partition < end).then_some(ScanPosition { partition, digest: None, width })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_round_trip_and_foreign_bytes_are_refused() {
        for digest in [None, Some([9; 20])] {
            let position = ScanPosition { partition: 4_095, digest, width: 7 };
            assert_eq!(ScanPosition::decode(&position.encode()), Some(position));
        }
        for bytes in [&[][..], &[0, 0, 0], &[0, 0, 0, 0], &[0x10, 0, 0, 1], &[0, 0, 0, 1, 5]] {
            assert_eq!(ScanPosition::decode(&Cursor(bytes.to_vec())), None, "{bytes:?}");
        }
    }

    #[test]
    fn a_full_partition_continues_after_its_last_record() {
        let start = ScanPosition::start();
        let next = start.next(64, Some([3; 20]), 64, PARTITIONS).unwrap();
        assert_eq!(next, ScanPosition { digest: Some([3; 20]), ..start });
        assert_eq!(
            next.next(5, Some([4; 20]), 64, PARTITIONS).unwrap(),
            ScanPosition { partition: 1, digest: None, width: 12 }
        );
    }

    #[test]
    fn sparse_partitions_are_read_together_up_to_the_last() {
        let mut position = ScanPosition::start();
        let mut steps = 0;
        while let Some(next) = position.next(0, None, 64, PARTITIONS) {
            assert!(next.partition > position.partition);
            position = next;
            steps += 1;
        }
        assert!(steps < 8, "{steps}");
    }
}
