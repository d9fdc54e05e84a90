//! `AcquireLockRecord`, `ReleaseLockRecord`: take and release the lock record of a paged create.

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
        Some(Record::LockRecord(stored)) if stored == lock_record => {
            return Ok(Effect::already_applied(Reply::None, false));
        }
        Some(Record::LockRecord(stored)) if stored.owner == lock_record.owner || stored.expires_at <= now_ms => {}
        Some(Record::LockRecord(stored)) => return Err(Rejection::Held(stored.clone())),
        _ => return Err(Rejection::Unexpected),
    }
    *record = Some(Record::LockRecord(lock_record.clone()));
    Ok(Effect::applied(Reply::None))
}

pub(super) fn release(record: &mut Option<Record>, owner: u64) -> Result<Effect, Rejection> {
    match record {
        Some(Record::LockRecord(stored)) if stored.owner == owner => {
            *record = None;
            Ok(Effect::applied(Reply::None))
        }
        None | Some(Record::LockRecord(_)) => Ok(Effect::already_applied(Reply::None, false)),
        Some(_) => Err(Rejection::Unexpected),
    }
}

#[cfg(test)]
mod tests {
    use crate::record::ops::testing::*;
    use crate::record::*;

    const KEY: Key = Key::LockRecord(TXID);

    fn lock_record(owner: u64, expires_at: u64) -> LockRecord {
        let hostname = "here".to_owned();
        LockRecord { created_at: 1, expires_at, process_id: 2, hostname, expected_recs: 3, owner }
    }

    fn acquire(owner: u64, expires_at: u64, now_ms: u64) -> Operation {
        Operation::AcquireLockRecord { lock_record: lock_record(owner, expires_at), now_ms }
    }

    #[test]
    fn a_lock_record_is_refused_to_others_until_it_expires() {
        let mut record = None;
        assert_eq!(on(&KEY, &mut record, &acquire(1, 50, 10)).outcome, applied(Reply::None));
        assert_eq!(on(&KEY, &mut record, &acquire(1, 50, 10)).outcome, already(Reply::None));
        assert_eq!(refused(on(&KEY, &mut record, &acquire(2, 90, 49))), Rejection::Held(lock_record(1, 50)));
        assert_eq!(on(&KEY, &mut record, &acquire(2, 90, 50)).outcome, applied(Reply::None));
    }

    #[test]
    fn the_owner_can_prolong_the_lock_record() {
        let mut record = None;
        on(&KEY, &mut record, &acquire(1, 50, 10));
        assert_eq!(on(&KEY, &mut record, &acquire(1, 70, 20)).outcome, applied(Reply::None));
        assert_eq!(refused(on(&KEY, &mut record, &acquire(2, 90, 60))), Rejection::Held(lock_record(1, 70)));
    }

    #[test]
    fn only_the_owner_releases_the_lock_record() {
        let mut record = None;
        on(&KEY, &mut record, &acquire(1, 50, 10));
        let release = |owner| Operation::ReleaseLockRecord { owner };
        assert_eq!(on(&KEY, &mut record, &release(2)).outcome, already(Reply::None));
        assert_eq!(on(&KEY, &mut record, &release(1)).outcome, applied(Reply::None));
        assert_eq!(record, None);
        assert_eq!(on(&KEY, &mut record, &release(1)).outcome, already(Reply::None));
    }

    #[test]
    fn a_page_is_refused() {
        assert_eq!(refused(on_master(&mut None, &acquire(1, 50, 10))), Rejection::Unexpected);
        let mut record = record(live(1));
        assert_eq!(refused(on_master(&mut record, &acquire(1, 50, 10))), Rejection::Unexpected);
        let release = Operation::ReleaseLockRecord { owner: 1 };
        assert_eq!(refused(on_master(&mut record, &release)), Rejection::Unexpected);
    }
}
