//! Scans: partition after partition, each in the order of its digests, so that a cursor is a partition and a digest.
//!
//! Keys are spread evenly over the partitions. Where a partition holds more than a page, a scan goes through it page by
//! page; where it holds less, several whole partitions make a page.

use aerospike::{Bins, Key as ServerKey, PartitionFilter, Record as ServerRecord, Statement, policy::QueryPolicy};
use futures_util::StreamExt;

use super::{
    Inner, bins,
    errors::{Sent, damaged, engine_error},
};
use crate::{
    engine::{Cursor, EngineError, ScanPage, Set, local::bad_cursor},
    record::{Key, Record},
};

const PARTITIONS: u16 = 4_096;
/// A page is not smaller than this: each costs a request.
const LEAST_PAGE: usize = 64;

/// Where a scan goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Position {
    partition: u16,
    /// The last record that was seen of it.
    digest: Option<[u8; 20]>,
    /// How many partitions were taken at once.
    width: u16,
}

impl Position {
    fn start() -> Self {
        Position { partition: 0, digest: None, width: 1 }
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
            Position { partition: u16::from_be_bytes(*partition), digest, width: u16::from_be_bytes(*width) };
        (position.partition < PARTITIONS && position.width > 0).then_some(position)
    }
}

impl Inner {
    pub async fn scan(&self, set: Set, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
        let limit = limit.max(LEAST_PAGE);
        let mut position = match cursor {
            None => Position::start(),
            Some(cursor) => Position::decode(&cursor).ok_or_else(bad_cursor)?,
        };
        let mut records = Vec::new();
        loop {
            let found = self.take(set, position, limit).await?;
            let count = found.len();
            let last = found.last().and_then(|record| record.key.as_ref()).map(ServerKey::digest);
            for record in found {
                records.push(self.record_of(set, record)?);
            }
            let Some(next) = position.after(count, last, limit) else { return Ok(ScanPage { records, next: None }) };
            position = next;
            if records.len() >= limit {
                return Ok(ScanPage { records, next: Some(position.encode()) });
            }
        }
    }

    /// The records of some partitions or, of a single one, as many as make a page.
    async fn take(&self, set: Set, position: Position, limit: usize) -> Result<Vec<ServerRecord>, EngineError> {
        let set_name = match set {
            Set::Transactions => &self.place.transactions,
            Set::Blocks => &self.place.blocks,
        };
        let statement = Statement::new(self.place.namespace.as_str(), set_name.as_str(), Bins::All);
        let mut policy = QueryPolicy { ..self.policies.query.clone() };
        let filter = match position.digest {
            Some(digest) => {
                let after = ServerKey::with_digest(self.place.namespace.as_str(), set_name.as_str(), None, digest);
                PartitionFilter::by_key(&after)
            }
            None => PartitionFilter::by_range(position.partition.into(), position.clipped().into()),
        };
        if position.is_single() {
            policy.max_records = limit as u64;
        }
        let refused = |error: &aerospike::Error| engine_error("scan", set_name, error, Sent::Read);
        let query = self.client.query(&policy, filter, statement).await;
        let mut stream = query.map_err(|error| refused(&error))?.into_stream();
        let mut found = Vec::new();
        while let Some(record) = stream.next().await {
            found.push(record.map_err(|error| refused(&error))?);
        }
        Ok(found)
    }

    fn record_of(&self, set: Set, mut record: ServerRecord) -> Result<(Key, Record), EngineError> {
        let key = match set {
            Set::Transactions => self.key_of(&mut record)?,
            Set::Blocks => {
                Key::Block(bins::block_id_of(&record.bins).map_err(|error| damaged("scan", "a block", error))?)
            }
        };
        bins::decode(&key, record.bins).map(|record| (key, record)).map_err(|error| damaged("scan", key, error))
    }
}

impl Position {
    fn clipped(self) -> u16 {
        self.width.min(PARTITIONS - self.partition)
    }

    fn is_single(self) -> bool {
        self.digest.is_some() || self.clipped() == 1
    }

    /// Where to go on after `count` records; `None` at the end.
    fn after(self, count: usize, last: Option<[u8; 20]>, limit: usize) -> Option<Self> {
        if self.is_single() && count >= limit {
            return Some(Position { digest: last, ..self });
        }
        let taken = if self.digest.is_some() { 1 } else { self.clipped() };
        let partition = self.partition + taken;
        // As many partitions as make a page, going by those just seen; of empty ones soon many.
        let width = match count {
            0 => self.width.saturating_mul(8),
            _ => u16::try_from(limit * usize::from(taken) / count).unwrap_or(u16::MAX).max(1),
        };
        (partition < PARTITIONS).then_some(Position { partition, digest: None, width })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_round_trip_and_others_are_refused() {
        for digest in [None, Some([9; 20])] {
            let position = Position { partition: 4_095, digest, width: 7 };
            assert_eq!(Position::decode(&position.encode()), Some(position));
        }
        for bytes in [&[][..], &[0, 0, 0], &[0, 0, 0, 0], &[0x10, 0, 0, 1], &[0, 0, 0, 1, 5]] {
            assert_eq!(Position::decode(&Cursor(bytes.to_vec())), None, "{bytes:?}");
        }
    }

    #[test]
    fn a_full_partition_goes_on_behind_its_last_record() {
        let start = Position::start();
        let next = start.after(64, Some([3; 20]), 64).unwrap();
        assert_eq!(next, Position { digest: Some([3; 20]), ..start });
        assert_eq!(next.after(5, Some([4; 20]), 64).unwrap(), Position { partition: 1, digest: None, width: 12 });
    }

    #[test]
    fn sparse_partitions_are_taken_together_to_the_last() {
        let mut position = Position::start();
        let mut steps = 0;
        while let Some(next) = position.after(0, None, 64) {
            assert!(next.partition > position.partition);
            position = next;
            steps += 1;
        }
        assert!(steps < 8, "{steps}");
    }
}
