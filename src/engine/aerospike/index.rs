//! Secondary indexes: their names, and queries by them.

use std::collections::BinaryHeap;

use aerospike::{Bins, PartitionFilter, Record as ServerRecord, Statement, Value, query::Filter};
use futures_util::StreamExt;

use super::{
    ConnectedCluster, bins,
    errors::{RequestKind, damaged, engine_error},
    names,
    scan::PARTITIONS,
    template::absent,
};
use crate::{
    engine::{Cursor, EngineError, Index, KeyPage, local::bad_cursor_error},
    record::Key,
};

/// Partitions of the server that one part of a query covers: a sixty-fourth of all records.
const QUERY_WIDTH: u16 = 64;

/// Returns the bin that an index covers.
pub fn bin_of(index: Index) -> &'static str {
    match index {
        Index::DeleteAtHeight => names::DELETE_AT_HEIGHT,
        Index::UnminedSince => names::UNMINED_SINCE,
        Index::CreatingAt => names::CREATING_AT,
        Index::Verdict => names::VERDICT,
    }
}

/// Returns the name of an index on the server.
pub fn index_name(set: &str, index: Index) -> String {
    format!("{set}_{}", bin_of(index))
}

impl ConnectedCluster {
    /// Returns keys of pages whose value lies in `from..=to`, ascending by that value, at most `limit`. The server
    /// answers in no order, so a heap keeps the least values as the answers arrive.
    pub async fn query(&self, index: Index, from: u64, to: u64, limit: usize) -> Result<Vec<Key>, EngineError> {
        let mut least = BinaryHeap::new();
        if limit == 0 {
            return Ok(Vec::new());
        }
        self.query_partitions(index, (from, to), PartitionFilter::all(), |entry| {
            least.push(entry);
            if least.len() > limit {
                least.pop();
            }
        })
        .await?;
        Ok(least.into_sorted_vec().into_iter().map(|(_, key)| key).collect())
    }

    /// Returns the keys of one part of the server's partitions whose value lies in `from..=to`. The cursor is the first
    /// partition of the next part.
    pub async fn query_part(
        &self,
        index: Index,
        range: (u64, u64),
        cursor: Option<Cursor>,
    ) -> Result<KeyPage, EngineError> {
        let first = match cursor {
            None => 0,
            Some(Cursor(bytes)) => u16::from_be_bytes(bytes.try_into().map_err(|_| bad_cursor_error())?),
        };
        if first >= PARTITIONS {
            return Err(bad_cursor_error());
        }
        let width = QUERY_WIDTH.min(PARTITIONS - first);
        let filter = PartitionFilter::by_range(first.into(), width.into());
        let mut keys = Vec::new();
        self.query_partitions(index, range, filter, |(_, key)| keys.push(key)).await?;
        let next = Some(first + width).filter(|next| *next < PARTITIONS);
        Ok(KeyPage { keys, after: Vec::new(), next: next.map(|next| Cursor(next.to_be_bytes().to_vec())) })
    }

    /// Passes the value and the key of each page to `take` whose value lies in the range.
    async fn query_partitions(
        &self,
        index: Index,
        (from, to): (u64, u64),
        partitions: PartitionFilter,
        mut take: impl FnMut((u64, Key)),
    ) -> Result<(), EngineError> {
        let (bin, greatest) = (bin_of(index), i64::MAX as u64);
        if from > to || from > greatest {
            return Ok(());
        }
        // `compact` has the key in `tx`, `teranode` in the other two.
        let bins = [names::TX, names::TX_ID, names::PAGE_NUMBER, bin].map(str::to_owned);
        let bins = Bins::Some(bins.to_vec());
        let mut statement = Statement::new(self.location.namespace.as_str(), self.location.transactions.as_str(), bins);
        statement.set_filter(Filter::range(bin, from as i64, to.min(greatest) as i64));
        let to_error = |error: &aerospike::Error| engine_error("query", bin, error, RequestKind::Read);
        let mut policy = self.policies.query.clone();
        if index == Index::Verdict {
            // The bin stays in the tombstone of a pruned transaction.
            policy.base_policy.filter_expression = Some(absent(names::PRUNED));
        }
        let query = self.nodes.client().query(&policy, partitions, statement).await;
        let mut stream = query.map_err(|error| to_error(&error))?.into_stream();
        while let Some(record) = stream.next().await {
            let record = record.map_err(|error| to_error(&error))?;
            if let Some(entry) = self.decode_entry(bin, record)? {
                take(entry);
            }
        }
        Ok(())
    }

    /// Returns the value and the key of a record; `None` where the record lost the bin while the query ran.
    fn decode_entry(&self, bin: &'static str, mut record: ServerRecord) -> Result<Option<(u64, Key)>, EngineError> {
        let Some(Value::Int(value)) = record.bins.get(bin) else { return Ok(None) };
        let value = *value as u64;
        self.key_of(&mut record).map(|key| Some((value, key)))
    }

    /// Returns the key of a record of the transaction set that a query or a scan returned.
    pub fn key_of(&self, record: &mut ServerRecord) -> Result<Key, EngineError> {
        let digest = record.key.as_ref().map(aerospike::Key::digest);
        let txid = bins::txid_of(&mut record.bins).map_err(|error| {
            let digest = digest.map_or_else(|| "none".to_owned(), hex::encode);
            let bins: Vec<&str> = record.bins.keys().map(String::as_str).collect();
            damaged("query", format!("the record of digest {digest}, with bins [{}]", bins.join(", ")), error)
        })?;
        let number = bins::page_number_of(&record.bins);
        let key = digest.and_then(|digest| self.location.key_of(txid, number, digest));
        key.ok_or_else(|| {
            damaged("query", txid, "the record names this transaction, but its digest belongs to none of its keys")
        })
    }
}
