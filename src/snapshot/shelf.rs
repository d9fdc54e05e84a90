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

    /// Lists the snapshots, oldest first. A folder of another name is passed over.
    ///
    /// # Errors
    /// The place does not answer.
    pub async fn list(&self) -> Result<Vec<FoundSnapshot>, SnapshotError> {
        let mut found: BTreeMap<String, bool> = BTreeMap::new();
        for object in self.place.list("").await? {
            if let Some((name, rest)) = object.split_once('/').filter(|(name, _)| is_name(name)) {
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

    /// Reads the plan. A plan that is damaged or of another format is logged, and counts as none.
    pub(super) async fn read_sound_plan(&self, name: &str) -> Result<Option<SnapshotPlan>, SnapshotError> {
        match self.read_plan(name).await {
            Err(error @ (SnapshotError::Damaged { .. } | SnapshotError::Format { .. })) => {
                tracing::warn!(%error, "snapshot: passing over a snapshot whose plan cannot be read");
                Ok(None)
            }
            read => read,
        }
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
    pub(crate) async fn read_chunk(
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

    /// Deletes, of each store, complete snapshots but the newest `keep`, and unfinished ones that are older than the
    /// newest complete one. A snapshot whose plan or manifest cannot be read is neither kept nor deleted. Returns the
    /// names.
    ///
    /// # Errors
    /// The place refuses, or does not answer.
    pub async fn delete_old(&self, keep: usize) -> Result<Vec<String>, SnapshotError> {
        let mut by_store: BTreeMap<[u8; 16], Vec<FoundSnapshot>> = BTreeMap::new();
        for found in self.list().await? {
            let Some(plan) = self.read_sound_plan(&found.name).await? else { continue };
            if found.is_complete
                && let Err(error) = self.read_manifest(&found.name).await
            {
                tracing::warn!(%error, "snapshot: passing over a snapshot whose manifest cannot be read");
                continue;
            }
            by_store.entry(plan.store_id).or_default().push(found);
        }
        let old: Vec<String> = by_store.values().flat_map(|found| choose_old(found, keep)).collect();
        for name in &old {
            self.delete(name).await?;
        }
        Ok(old)
    }
}

/// Chooses the snapshots of one store that are deleted.
fn choose_old(found: &[FoundSnapshot], keep: usize) -> Vec<String> {
    let complete: Vec<&str> = found.iter().filter(|found| found.is_complete).map(|found| found.name.as_str()).collect();
    let kept = &complete[complete.len().saturating_sub(keep)..];
    let newest = complete.last().copied();
    let is_old = |found: &&FoundSnapshot| match found.is_complete {
        true => !kept.contains(&found.name.as_str()),
        false => newest.is_some_and(|newest| found.name.as_str() < newest),
    };
    found.iter().filter(is_old).map(|found| found.name.clone()).collect()
}

/// Returns whether a folder has a name as [`Shelf::name_of`] makes them.
fn is_name(name: &str) -> bool {
    let is_hex = |text: &str| text.len() == 8 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_time = |text: &str| match text.strip_suffix('Z').and_then(|text| text.split_once('T')) {
        Some((date, time)) => date.len() == 8 && time.len() == 9 && is_digits(date) && is_digits(time),
        None => is_digits(text),
    };
    name.rsplit_once('-').is_some_and(|(time, id)| is_time(time) && is_hex(id))
}

fn chunk_object(name: &str, part: u16, number: u32) -> String {
    format!("{name}/{CHUNKS}/{part:03}-{number:06}")
}
