//! `AcquireLockRecord`, `ReleaseLockRecord`.

use crate::record::{Key, LockRecord, Record, Rejection, Reply};

use super::Effect;

pub(super) fn acquire(
    key: &Key,
    record: &mut Option<Record>,
    lock_record: &LockRecord,
    now_ms: u64,
) -> Result<Effect, Rejection> {
    match record {
        None if matches!(key, Key::LockRecord(_)) => {}
        Some(Record::LockRecord(there)) if there == lock_record => return Ok(Effect::already(Reply::None, false)),
        Some(Record::LockRecord(there)) if there.owner == lock_record.owner || there.expires_at <= now_ms => {}
        Some(Record::LockRecord(there)) => return Err(Rejection::Held(there.clone())),
        _ => return Err(Rejection::Unexpected),
    }
    *record = Some(Record::LockRecord(lock_record.clone()));
    Ok(Effect::applied(Reply::None))
}

pub(super) fn release(record: &mut Option<Record>, owner: u64) -> Result<Effect, Rejection> {
    match record {
        Some(Record::LockRecord(there)) if there.owner == owner => {
            *record = None;
            Ok(Effect::applied(Reply::None))
        }
        None | Some(Record::LockRecord(_)) => Ok(Effect::already(Reply::None, false)),
        Some(_) => Err(Rejection::Unexpected),
    }
}
