//! `CreateMeta`, `ReplaceMeta`, `PutSentinel`: write the meta record and the sentinels.

use crate::record::{Key, MetaRecord, Record, Rejection, Reply};

use super::Effect;

pub(super) fn create(key: &Key, record: &mut Option<Record>, meta: &MetaRecord) -> Result<Effect, Rejection> {
    match record {
        None if *key == Key::Meta => {
            *record = Some(Record::Meta(Box::new(meta.clone())));
            Ok(Effect::applied(Reply::None))
        }
        Some(Record::Meta(stored)) if **stored == *meta => Ok(Effect::already_applied(Reply::None, false)),
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
        Some(Record::Meta(stored)) if **stored == *new => Ok(Effect::already_applied(Reply::None, false)),
        Some(Record::Meta(stored)) if **stored == *expected => {
            (**stored).clone_from(new);
            Ok(Effect::applied(Reply::None))
        }
        Some(_) => Err(Rejection::Unexpected),
    }
}

pub(super) fn put_sentinel(key: &Key, record: &mut Option<Record>, store_id: &[u8; 16]) -> Result<Effect, Rejection> {
    match (key, &*record) {
        (Key::Sentinel(_), Some(Record::Sentinel(stored))) if stored == store_id => {
            Ok(Effect::already_applied(Reply::None, false))
        }
        (Key::Sentinel(_), None | Some(Record::Sentinel(_))) => {
            *record = Some(Record::Sentinel(*store_id));
            Ok(Effect::applied(Reply::None))
        }
        _ => Err(Rejection::Unexpected),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::ops::testing::*;
    use crate::record::{Operation, ReplaceMeta};

    fn meta(prune_horizon: u32) -> MetaRecord {
        MetaRecord {
            store_id: [1; 16],
            layout_version: 1,
            network: "main".to_owned(),
            utxo_batch_size: 20_000,
            retention: 288,
            prune_horizon,
            ..MetaRecord::default()
        }
    }

    #[test]
    fn the_meta_record_is_created_once() {
        let mut record = None;
        assert_eq!(on(&Key::Meta, &mut record, &Operation::CreateMeta(meta(0).into())).outcome, applied(Reply::None));
        assert_eq!(on(&Key::Meta, &mut record, &Operation::CreateMeta(meta(0).into())).outcome, already(Reply::None));
        assert_eq!(refused(on(&Key::Meta, &mut record, &Operation::CreateMeta(meta(1).into()))), Rejection::Unexpected);
        assert_eq!(refused(on_master(&mut None, &Operation::CreateMeta(meta(1).into()))), Rejection::Unexpected);
    }

    #[test]
    fn a_sentinel_names_the_store_that_wrote_it_last() {
        let (key, mut record) = (Key::Sentinel(9), None);
        let put = |id| Operation::PutSentinel([id; 16]);
        for (id, outcome) in [(1, applied(Reply::None)), (1, already(Reply::None)), (2, applied(Reply::None))] {
            assert_eq!(on(&key, &mut record, &put(id)).outcome, outcome);
            assert_eq!(record, Some(Record::Sentinel([id; 16])));
        }
        assert_eq!(refused(on(&Key::Meta, &mut None, &put(1))), Rejection::Unexpected);
        assert_eq!(refused(on(&key, &mut Some(Record::Meta(Box::new(meta(0)))), &put(1))), Rejection::Unexpected);
    }

    #[test]
    fn the_meta_record_is_replaced_only_if_it_equals_the_expected_one() {
        let replace = |from, to| Operation::ReplaceMeta(Box::new(ReplaceMeta { expected: meta(from), new: meta(to) }));
        let mut record = Some(Record::Meta(Box::new(meta(0))));
        assert_eq!(on(&Key::Meta, &mut record, &replace(0, 1)).outcome, applied(Reply::None));
        assert_eq!(on(&Key::Meta, &mut record, &replace(0, 1)).outcome, already(Reply::None));
        assert_eq!(refused(on(&Key::Meta, &mut record, &replace(0, 2))), Rejection::Unexpected);
        assert_eq!(refused(on(&Key::Meta, &mut None, &replace(0, 2))), Rejection::NotFound);
        assert_eq!(refused(on_master(&mut self::record(live(1)), &replace(0, 2))), Rejection::Unexpected);
    }
}
