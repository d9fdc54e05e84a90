//! `CreateMeta`, `ReplaceMeta`.

use crate::record::{Key, MetaRecord, Record, Rejection, Reply};

use super::Effect;

pub(super) fn create(key: &Key, record: &mut Option<Record>, meta: &MetaRecord) -> Result<Effect, Rejection> {
    match record {
        None if *key == Key::Meta => {
            *record = Some(Record::Meta(meta.clone()));
            Ok(Effect::applied(Reply::None))
        }
        Some(Record::Meta(there)) if there == meta => Ok(Effect::already(Reply::None, false)),
        _ => Err(Rejection::Unexpected),
    }
}

pub(super) fn replace(
    record: &mut Option<Record>,
    expected: &MetaRecord,
    new: &MetaRecord,
) -> Result<Effect, Rejection> {
    match record {
        None => Err(Rejection::NotFound),
        Some(Record::Meta(there)) if there == new => Ok(Effect::already(Reply::None, false)),
        Some(Record::Meta(there)) if there == expected => {
            there.clone_from(new);
            Ok(Effect::applied(Reply::None))
        }
        Some(_) => Err(Rejection::Unexpected),
    }
}
