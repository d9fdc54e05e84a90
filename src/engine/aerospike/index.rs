//! Secondary indexes: which there are, and queries by them.

use std::collections::BinaryHeap;

use aerospike::{Bins, PartitionFilter, Record as ServerRecord, Statement, Value, query::Filter};
use futures_util::StreamExt;

use super::{
    Inner, bins,
    errors::{Sent, damaged, engine_error},
    names,
};
use crate::{
    engine::{EngineError, Index},
    record::Key,
};

/// The bins that records are found by.
pub const INDEXES: [Index; 3] = [Index::DeleteAtHeight, Index::UnminedSince, Index::CreatingAt];

/// The bin of an index.
pub fn bin_of(index: Index) -> &'static str {
    match index {
        Index::DeleteAtHeight => names::DELETE_AT_HEIGHT,
        Index::UnminedSince => names::UNMINED_SINCE,
        Index::CreatingAt => names::CREATING_AT,
    }
}

/// What an index is called on the server.
pub fn name_of(set: &str, index: Index) -> String {
    format!("{set}_{}", bin_of(index))
}

impl Inner {
    /// Keys of pages whose value lies in `from..=to`, ascending by it, at most `limit`. The server answers in no order,
    /// so the least are picked here, as they come.
    pub async fn query(&self, index: Index, from: u64, to: u64, limit: usize) -> Result<Vec<Key>, EngineError> {
        let bin = bin_of(index);
        let greatest = i64::MAX as u64;
        if limit == 0 || from > to || from > greatest {
            return Ok(Vec::new());
        }
        let bins = Bins::Some(vec![names::TX_ID.into(), names::PAGE_NUMBER.into(), bin.into()]);
        let mut statement = Statement::new(self.place.namespace.as_str(), self.place.transactions.as_str(), bins);
        statement.set_filter(Filter::range(bin, from as i64, to.min(greatest) as i64));
        let refused = |error: &aerospike::Error| engine_error("query", bin, error, Sent::Read);
        let query = self.client.query(&self.policies.query, PartitionFilter::all(), statement).await;
        let mut stream = query.map_err(|error| refused(&error))?.into_stream();
        let mut least = BinaryHeap::new();
        while let Some(record) = stream.next().await {
            let record = record.map_err(|error| refused(&error))?;
            if let Some(entry) = self.entry(bin, record)? {
                least.push(entry);
                if least.len() > limit {
                    least.pop();
                }
            }
        }
        Ok(least.into_sorted_vec().into_iter().map(|(_, key)| key).collect())
    }

    /// The value and the key of a record; `None`: it lost the bin while the query ran.
    fn entry(&self, bin: &'static str, mut record: ServerRecord) -> Result<Option<(u64, Key)>, EngineError> {
        let Some(Value::Int(value)) = record.bins.get(bin) else { return Ok(None) };
        let value = *value as u64;
        self.key_of(&mut record).map(|key| Some((value, key)))
    }

    /// The key of a record of the transaction set that a query or a scan returned.
    pub fn key_of(&self, record: &mut ServerRecord) -> Result<Key, EngineError> {
        let digest = record.key.as_ref().map(aerospike::Key::digest);
        let txid = bins::txid_of(&mut record.bins).map_err(|error| {
            let digest = digest.map_or_else(|| "none".to_owned(), hex::encode);
            let bins: Vec<&str> = record.bins.keys().map(String::as_str).collect();
            damaged("query", format!("the record of digest {digest}, with bins [{}]", bins.join(", ")), error)
        })?;
        let number = bins::page_number_of(&record.bins);
        let key = digest.and_then(|digest| self.place.key_of(txid, number, digest));
        key.ok_or_else(|| {
            damaged("query", txid, "a record says that it is of this transaction, its key that it is not")
        })
    }
}
