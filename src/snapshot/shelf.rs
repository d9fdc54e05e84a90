//! The snapshots of one place: their names, documents and chunks.

use std::collections::BTreeMap;

use bytes::Bytes;
use chrono::DateTime;
use serde::Serialize;

use super::{
    ChunkEntry, Manifest, SnapshotError, SnapshotPlan,
    chunk::SnapshotChunk,
    manifest::{decode_document, encode_document},
};
use crate::blob::SnapshotPlace;

const PLAN: &str = "plan.json";
const MANIFEST: &str = "manifest.json";
const CHUNKS: &str = "chunks";

/// A snapshot that was found at a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FoundSnapshot {
    /// Name of the snapshot: the time of its beginning and the beginning of its id.
    pub name: String,
    /// The manifest exists, so that the snapshot is whole.
    pub is_complete: bool,
}

/// The snapshots of one place. Cheap to clone.
#[derive(Clone)]
pub struct Shelf {
    place: SnapshotPlace,
}

impl Shelf {
    /// Returns the snapshots of a place.
    pub fn new(place: SnapshotPlace) -> Self {
        Shelf { place }
    }

    /// Returns the name of a snapshot. Names ascend with the time.
    pub fn name_of(plan: &SnapshotPlan) -> String {
        let time = i64::try_from(plan.created_ms).ok().and_then(DateTime::from_timestamp_millis);
        let time =
            time.map_or_else(|| plan.created_ms.to_string(), |time| time.format("%Y%m%dT%H%M%S%3fZ").to_string());
        format!("{time}-{}", hex::encode(&plan.id[..4]))
    }

    /// Lists the snapshots, oldest first.
    ///
    /// # Errors
    /// The place does not answer.
    pub async fn list(&self) -> Result<Vec<FoundSnapshot>, SnapshotError> {
        let mut found: BTreeMap<String, bool> = BTreeMap::new();
        for object in self.place.list("").await? {
            if let Some((name, rest)) = object.split_once('/') {
                *found.entry(name.to_owned()).or_default() |= rest == MANIFEST;
            }
        }
        Ok(found.into_iter().map(|(name, is_complete)| FoundSnapshot { name, is_complete }).collect())
    }

    /// Returns the name of the complete snapshot with this id; `None`: the place has none.
    ///
    /// # Errors
    /// A manifest is damaged, or the place does not answer.
    pub(super) async fn find_complete(&self, id: [u8; 16]) -> Result<Option<String>, SnapshotError> {
        let ending = format!("-{}", hex::encode(&id[..4]));
        for found in self.list().await?.into_iter().rev().filter(|found| found.is_complete) {
            if found.name.ends_with(&ending) && self.read_manifest(&found.name).await?.plan.id == id {
                return Ok(Some(found.name));
            }
        }
        Ok(None)
    }

    /// Returns the name of the newest complete snapshot.
    ///
    /// # Errors
    /// [`SnapshotError::NoSnapshot`]
    pub async fn newest(&self) -> Result<String, SnapshotError> {
        let newest = self.list().await?.into_iter().rfind(|found| found.is_complete);
        newest.map(|found| found.name).ok_or(SnapshotError::NoSnapshot)
    }

    /// Writes the plan, the first object.
    ///
    /// # Errors
    /// The place refuses the object.
    pub async fn write_plan(&self, plan: &SnapshotPlan) -> Result<(), SnapshotError> {
        Ok(self.place.put(&format!("{}/{PLAN}", Self::name_of(plan)), encode_document(plan)).await?)
    }

    /// Reads the plan; `None`: the snapshot has none.
    ///
    /// # Errors
    /// The plan is damaged, or the place does not answer.
    pub async fn read_plan(&self, name: &str) -> Result<Option<SnapshotPlan>, SnapshotError> {
        let object = format!("{name}/{PLAN}");
        let found = self.place.get(&object).await?;
        found.map(|bytes| decode_document(name, &object, &bytes)).transpose()
    }

    /// Writes the manifest, the last object.
    ///
    /// # Errors
    /// The place refuses the object.
    pub async fn write_manifest(&self, manifest: &Manifest) -> Result<(), SnapshotError> {
        let object = format!("{}/{MANIFEST}", Self::name_of(&manifest.plan));
        Ok(self.place.put(&object, encode_document(manifest)).await?)
    }

    /// Reads the manifest, and verifies that it does not contradict itself.
    ///
    /// # Errors
    /// The snapshot is unknown, unfinished, of another format or damaged, or the place does not answer.
    pub async fn read_manifest(&self, name: &str) -> Result<Manifest, SnapshotError> {
        let object = format!("{name}/{MANIFEST}");
        let Some(bytes) = self.place.get(&object).await? else {
            let is_known = self.list().await?.iter().any(|found| found.name == name);
            let name = name.to_owned();
            return Err(if is_known { SnapshotError::Unfinished(name) } else { SnapshotError::Unknown(name) });
        };
        let manifest: Manifest = decode_document(name, &object, &bytes)?;
        let damaged = |problem| SnapshotError::Damaged { name: name.to_owned(), object: object.clone(), problem };
        manifest.check().map_err(damaged)?;
        if Self::name_of(&manifest.plan) != name {
            return Err(damaged(format!("it is the manifest of {}", Self::name_of(&manifest.plan))));
        }
        Ok(manifest)
    }

    /// Writes one chunk of a snapshot.
    ///
    /// # Errors
    /// The place refuses the object.
    pub async fn write_chunk(&self, name: &str, part: u16, number: u32, bytes: Bytes) -> Result<(), SnapshotError> {
        Ok(self.place.put(&chunk_object(name, part, number), bytes).await?)
    }

    /// Reads a chunk of a plan; `None`: the object does not exist. Returns the bytes, too.
    ///
    /// # Errors
    /// The chunk is damaged, or the place does not answer.
    pub(super) async fn find_chunk(
        &self,
        plan: &SnapshotPlan,
        part: u16,
        number: u32,
    ) -> Result<Option<(SnapshotChunk, Bytes)>, SnapshotError> {
        let name = Self::name_of(plan);
        let object = chunk_object(&name, part, number);
        let Some(bytes) = self.place.get(&object).await? else { return Ok(None) };
        let chunk = SnapshotChunk::parse(bytes.clone(), plan.place(part, number));
        let damaged =
            |error: super::chunk::ChunkError| SnapshotError::Damaged { name, object, problem: error.to_string() };
        Ok(Some((chunk.map_err(damaged)?, bytes)))
    }

    /// Reads a chunk of a complete snapshot, and compares it with the manifest.
    ///
    /// # Errors
    /// The chunk is missing, damaged or another one, or the place does not answer.
    pub(super) async fn read_chunk(
        &self,
        plan: &SnapshotPlan,
        entry: &ChunkEntry,
    ) -> Result<SnapshotChunk, SnapshotError> {
        let name = Self::name_of(plan);
        let object = chunk_object(&name, entry.part, entry.number);
        let Some((chunk, bytes)) = self.find_chunk(plan, entry.part, entry.number).await? else {
            return Err(SnapshotError::Missing { name, object });
        };
        if *blake3::hash(&bytes).as_bytes() != entry.blake3 || chunk.footer.records != entry.records {
            let problem = "it is not the chunk that the manifest names".to_owned();
            return Err(SnapshotError::Damaged { name, object, problem });
        }
        Ok(chunk)
    }

    /// Deletes a snapshot: the manifest first, so that no part of a snapshot passes for a whole one.
    ///
    /// # Errors
    /// The place refuses, or does not answer.
    pub async fn delete(&self, name: &str) -> Result<(), SnapshotError> {
        self.place.delete(&format!("{name}/{MANIFEST}")).await?;
        let mut objects = self.place.list(name).await?;
        // The plan comes last: what has no plan is nothing that could be continued.
        objects.sort_by_key(|object| object.ends_with(PLAN));
        for object in objects {
            self.place.delete(&object).await?;
        }
        Ok(())
    }

    /// Deletes complete snapshots but the newest `keep`, and unfinished ones that are older than the newest complete
    /// one. Returns their names.
    ///
    /// # Errors
    /// The place refuses, or does not answer.
    pub async fn delete_old(&self, keep: usize) -> Result<Vec<String>, SnapshotError> {
        let found = self.list().await?;
        let complete: Vec<&str> =
            found.iter().filter(|found| found.is_complete).map(|found| found.name.as_str()).collect();
        let kept = &complete[complete.len().saturating_sub(keep)..];
        let newest = complete.last().copied();
        let is_old = |found: &&FoundSnapshot| match found.is_complete {
            true => !kept.contains(&found.name.as_str()),
            false => newest.is_some_and(|newest| found.name.as_str() < newest),
        };
        let old: Vec<String> = found.iter().filter(is_old).map(|found| found.name.clone()).collect();
        for name in &old {
            self.delete(name).await?;
        }
        Ok(old)
    }
}

fn chunk_object(name: &str, part: u16, number: u32) -> String {
    format!("{name}/{CHUNKS}/{part:03}-{number:06}")
}
