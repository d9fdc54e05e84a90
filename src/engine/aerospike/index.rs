//! Secondary indexes: their names, and queries by them.

use std::collections::BinaryHeap;

use aerospike::{Bins, PartitionFilter, Record as ServerRecord, Statement, Value, query::Filter};
use futures_util::StreamExt;

use super::{
    ConnectedCluster, bins,
    errors::{RequestKind, damaged, engine_error},
    names,
};
use crate::{
    engine::{EngineError, Index},
    record::Key,
};

/// Returns the bin that an index covers.
pub fn bin_of(index: Index) -> &'static str {
    match index {
        Index::DeleteAtHeight => names::DELETE_AT_HEIGHT,
        Index::UnminedSince => names::UNMINED_SINCE,
        Index::CreatingAt => names::CREATING_AT,
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
        let bin = bin_of(index);
        let greatest = i64::MAX as u64;
        if limit == 0 || from > to || from > greatest {
            return Ok(Vec::new());
        }
        let bins = Bins::Some(vec![names::TX_ID.into(), names::PAGE_NUMBER.into(), bin.into()]);
        let mut statement = Statement::new(self.location.namespace.as_str(), self.location.transactions.as_str(), bins);
        statement.set_filter(Filter::range(bin, from as i64, to.min(greatest) as i64));
        let to_error = |error: &aerospike::Error| engine_error("query", bin, error, RequestKind::Read);
        let query = self.client.query(&self.policies.query, PartitionFilter::all(), statement).await;
        let mut stream = query.map_err(|error| to_error(&error))?.into_stream();
        let mut least = BinaryHeap::new();
        while let Some(record) = stream.next().await {
            let record = record.map_err(|error| to_error(&error))?;
            if let Some(entry) = self.decode_entry(bin, record)? {
                least.push(entry);
                if least.len() > limit {
                    least.pop();
                }
            }
        }
        Ok(least.into_sorted_vec().into_iter().map(|(_, key)| key).collect())
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
