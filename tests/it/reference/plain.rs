//! Aerospike client without the engine: records as typed bins.

use std::collections::BTreeMap;

use aerospike::{
    Bin, Bins as Wanted, Client, ClientPolicy, IndexMap, Key, PartitionFilter, ReadPolicy, RecordExistsAction,
    ResultCode, Statement, Value, WritePolicy, policy::QueryPolicy,
};
use futures_util::StreamExt;
use serde_json::{Value as Json, json};
use utxo_store::engine::aerospike::AerospikeSettings;

use super::Bins;

pub struct Plain {
    client: Client,
    namespace: String,
    set: String,
}

impl Plain {
    pub async fn connect(settings: &AerospikeSettings) -> Self {
        let client = Client::new(&ClientPolicy::default(), &settings.hosts).await.unwrap();
        Plain { client, namespace: settings.namespace.clone(), set: settings.set.clone() }
    }

    fn key(&self, user_key: &[u8]) -> Key {
        Key::new(self.namespace.as_str(), self.set.as_str(), Value::Blob(user_key.to_vec())).unwrap()
    }

    /// Writes the record with exactly these bins.
    pub async fn replace(&self, user_key: &[u8], bins: &Bins) {
        let policy = WritePolicy { record_exists_action: RecordExistsAction::Replace, ..WritePolicy::default() };
        let bins: Vec<Bin> = bins.iter().map(|(name, value)| Bin::new(name.clone(), value_of(value))).collect();
        self.client.put(&policy, &self.key(user_key), &bins).await.unwrap();
    }

    /// Returns the records of the set, by digest in hex.
    pub async fn dump(&self) -> BTreeMap<String, Bins> {
        let statement = Statement::new(self.namespace.as_str(), self.set.as_str(), Wanted::All);
        let found = self.client.query(&QueryPolicy::default(), PartitionFilter::all(), statement).await.unwrap();
        let mut records = found.into_stream();
        let mut dumped = BTreeMap::new();
        while let Some(record) = records.next().await {
            let record = record.unwrap();
            let digest = hex::encode(record.key.unwrap().digest());
            dumped.insert(digest, record.bins.into_iter().map(|(name, value)| (name, typed(value))).collect());
        }
        dumped
    }

    /// Writes the records that [`dump`](Self::dump) has returned.
    pub async fn load(&self, records: &BTreeMap<String, Bins>) {
        for (digest, bins) in records {
            let digest = hex::decode(digest).unwrap().try_into().unwrap();
            let key = Key::with_digest(self.namespace.as_str(), self.set.as_str(), None, digest);
            let bins: Vec<Bin> = bins.iter().map(|(name, value)| Bin::new(name.clone(), value_of(value))).collect();
            self.client.put(&WritePolicy::default(), &key, &bins).await.unwrap();
        }
    }

    pub async fn read(&self, user_key: &[u8]) -> Option<Bins> {
        match self.client.get(&ReadPolicy::default(), &self.key(user_key), Wanted::All).await {
            Ok(record) => Some(record.bins.into_iter().map(|(name, value)| (name, typed(value))).collect()),
            Err(error) => {
                assert_eq!(error.server_result_code(), Some(ResultCode::KeyNotFoundError), "{error}");
                None
            }
        }
    }
}

/// Returns a value in the form of the file.
fn typed(value: Value) -> Json {
    let entry = |(key, value)| json!({ "key": typed(key), "value": typed(value) });
    match value {
        Value::Nil => Json::Null,
        Value::Bool(value) => json!({ "bool": value }),
        Value::Int(value) => json!({ "int": value }),
        Value::String(value) => json!({ "string": value }),
        Value::Blob(bytes) => json!({ "blob": hex::encode(bytes) }),
        Value::List(values) => json!({ "list": values.into_iter().map(typed).collect::<Vec<_>>() }),
        Value::SortedMap(pairs) => json!({ "map": pairs.into_iter().map(entry).collect::<Vec<_>>() }),
        Value::OrderedMap(pairs) => json!({ "map": pairs.into_iter().map(entry).collect::<Vec<_>>() }),
        other => panic!("{other:?} occurs in none of these records"),
    }
}

fn value_of(typed: &Json) -> Value {
    let Some(object) = typed.as_object() else { return Value::Nil };
    let (kind, value) = object.iter().next().unwrap();
    match kind.as_str() {
        "bool" => Value::Bool(value.as_bool().unwrap()),
        // The file gives only the unit of `createdAt`.
        "int" => Value::Int(value.as_i64().unwrap_or(1_700_000_000_000)),
        "string" => Value::String(value.as_str().unwrap().to_owned()),
        "blob" => Value::Blob(hex::decode(value.as_str().unwrap()).unwrap()),
        "list" => Value::List(value.as_array().unwrap().iter().map(value_of).collect()),
        "map" => {
            let pairs = value.as_array().unwrap().iter();
            Value::OrderedMap(
                pairs.map(|pair| (value_of(&pair["key"]), value_of(&pair["value"]))).collect::<IndexMap<_, _>>(),
            )
        }
        other => panic!("{other} is not a type of these records"),
    }
}
