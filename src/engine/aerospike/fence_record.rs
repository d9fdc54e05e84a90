//! The record of the fences of a namespace, in a set of its own. All stores of a namespace share the record.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use aerospike::{
    Bin, Bins, Client, Expiration, GenerationPolicy, Key, ReadPolicy, Record, RecordExistsAction, ResultCode, Value,
    WritePolicy,
};

use super::{errors::describe_error, settings::Policies, view::FenceRecord};

const SET: &str = "utxo-store";
const KEY: &str = "fences";
const PLANNED: &str = "planned";
const MET: &str = "met";
const MEMBERS: &str = "members";
const COMPLETE: &str = "complete";
const JOINED: &str = "joined";
const UNPROVEN: &str = "unproven";

/// Reads and writes the record.
pub struct FenceRecords {
    namespace: String,
    read: ReadPolicy,
    write: WritePolicy,
    /// The record as this process read or wrote it last.
    cached: Mutex<Option<StoredFences>>,
}

/// The record as it was read, with the generation that a write expects; 0 for an absent record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredFences {
    pub record: FenceRecord,
    generation: u32,
}

impl FenceRecords {
    pub fn new(namespace: &str, policies: &Policies) -> Self {
        let base_policy = policies.batch.base_policy.clone();
        FenceRecords {
            namespace: namespace.to_owned(),
            read: ReadPolicy { base_policy: base_policy.clone() },
            write: WritePolicy {
                base_policy,
                generation_policy: GenerationPolicy::ExpectGenEqual,
                expiration: Expiration::Never,
                ..WritePolicy::default()
            },
            cached: Mutex::default(),
        }
    }

    /// Reads the record. An absent record is the one of a namespace without fences.
    ///
    /// # Errors
    /// The record cannot be read, or is damaged.
    pub async fn read(&self, client: &Client) -> Result<StoredFences, String> {
        let stored = match client.get(&self.read, &self.key()?, Bins::All).await {
            Ok(record) => decode(&record)?,
            Err(error) if error.server_result_code() == Some(ResultCode::KeyNotFoundError) => StoredFences::default(),
            Err(error) => return Err(format!("cannot read the record of fences: {}", describe_error(&error))),
        };
        *self.cached() = Some(stored.clone());
        Ok(stored)
    }

    /// Returns the record as this process knows it. A write that follows fails if the record has changed since.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_cached(&self, client: &Client) -> Result<StoredFences, String> {
        let cached = self.cached().clone();
        match cached {
            Some(stored) => Ok(stored),
            None => self.read(client).await,
        }
    }

    /// Writes `record` in the place of `stored`.
    ///
    /// # Errors
    /// The record is another one by now, or the outcome is unknown: look again.
    pub async fn write(&self, client: &Client, stored: &StoredFences, record: &FenceRecord) -> Result<(), String> {
        *self.cached() = None;
        let record_exists_action = match stored.generation {
            0 => RecordExistsAction::CreateOnly,
            _ => RecordExistsAction::UpdateOnly,
        };
        let generation_policy = match stored.generation {
            0 => GenerationPolicy::None,
            _ => GenerationPolicy::ExpectGenEqual,
        };
        let policy = WritePolicy {
            record_exists_action,
            generation_policy,
            generation: stored.generation,
            ..self.write.clone()
        };
        let written = client.put(&policy, &self.key()?, &encode(record)).await;
        written.map_err(|error| format!("cannot write the record of fences: {}", describe_error(&error)))
    }

    /// Writes the record as it is: the copy that was read can be the only one.
    ///
    /// # Errors
    /// The outcome is unknown, or the record is absent: look again.
    pub async fn copy_again(&self, client: &Client) -> Result<(), String> {
        *self.cached() = None;
        let policy = WritePolicy {
            record_exists_action: RecordExistsAction::UpdateOnly,
            generation_policy: GenerationPolicy::None,
            ..self.write.clone()
        };
        let written = client.touch(&policy, &self.key()?).await;
        written.map_err(|error| format!("cannot copy the record of fences: {}", describe_error(&error)))
    }

    fn key(&self) -> Result<Key, String> {
        Key::new(self.namespace.as_str(), SET, Value::from(KEY)).map_err(|error| describe_error(&error))
    }

    fn cached(&self) -> MutexGuard<'_, Option<StoredFences>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn encode(record: &FenceRecord) -> Vec<Bin> {
    let nodes = |nodes: &BTreeSet<String>| Value::List(nodes.iter().map(|node| Value::from(node.as_str())).collect());
    vec![
        Bin::new(PLANNED, Value::Int(record.planned as i64)),
        Bin::new(MET, Value::Int(record.met as i64)),
        Bin::new(MEMBERS, nodes(&record.members)),
        Bin::new(COMPLETE, nodes(&record.complete)),
        Bin::new(JOINED, nodes(&record.joined)),
        Bin::new(UNPROVEN, nodes(&record.unproven)),
    ]
}

fn decode(record: &Record) -> Result<StoredFences, String> {
    let damaged = |bin: &str| format!("the record of fences is damaged: bin `{bin}`");
    let number = |bin: &str| match record.bins.get(bin) {
        Some(Value::Int(number)) => u64::try_from(*number).map_err(|_| damaged(bin)),
        _ => Err(damaged(bin)),
    };
    let nodes = |bin: &str| match record.bins.get(bin) {
        Some(Value::List(nodes)) => nodes
            .iter()
            .map(|node| match node {
                Value::String(node) => Ok(node.clone()),
                _ => Err(damaged(bin)),
            })
            .collect(),
        _ => Err(damaged(bin)),
    };
    let fences = FenceRecord {
        planned: number(PLANNED)?,
        met: number(MET)?,
        members: nodes(MEMBERS)?,
        complete: nodes(COMPLETE)?,
        joined: nodes(JOINED)?,
        unproven: nodes(UNPROVEN)?,
    };
    Ok(StoredFences { record: fences, generation: record.generation })
}
