//! `PutBlock`: writes the record of a block.

use crate::record::{BlockRecord, Key, Record, Rejection, Reply};

use super::Effect;

pub(super) fn put(key: &Key, record: &mut Option<Record>, block: &BlockRecord) -> Result<Effect, Rejection> {
    if *key != Key::Block(block.block_id) {
        return Err(Rejection::Unexpected);
    }
    let chain_pos = match record {
        None => None,
        Some(Record::Block(stored)) if stored.hash != block.hash => return Err(Rejection::OtherContent),
        Some(Record::Block(stored)) => stored.chain_pos,
        Some(_) => return Err(Rejection::Unexpected),
    };
    // The caller writes the operation's stamp; the stamp in `block` is ignored.
    let new = Some(Record::Block(BlockRecord { chain_pos, ..block.clone() }));
    if *record == new {
        return Ok(Effect::already_applied(Reply::None, false));
    }
    *record = new;
    Ok(Effect::applied(Reply::None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::ops::testing::*;
    use crate::record::{Operation, Sequenced};

    fn block(progress: u64) -> BlockRecord {
        BlockRecord {
            block_id: 7,
            hash: [1; 32],
            previous: [2; 32],
            height: 9,
            time: 5,
            longest_chain: true,
            progress,
            chain_pos: Some(stamp(1_000)),
        }
    }

    fn put_at(at: u64, progress: u64) -> Operation {
        sequenced(at, Sequenced::PutBlock(block(progress)))
    }

    #[test]
    fn a_block_record_gets_the_stamp_of_the_operation() {
        let key = Key::Block(7);
        let mut record = None;
        assert_eq!(on(&key, &mut record, &put_at(3, 0)).outcome, applied(Reply::None));
        assert_eq!(record, Some(Record::Block(BlockRecord { chain_pos: Some(stamp(3)), ..block(0) })));
        assert_eq!(on(&key, &mut record, &put_at(3, 5)).outcome, applied(Reply::None));
        let effect = on(&key, &mut record, &put_at(4, 5));
        assert_eq!((effect.outcome, effect.changed), (already(Reply::None), true));
        assert_eq!(refused(on(&key, &mut record, &put_at(3, 9))), Rejection::StaleStamp(stamp(4)));
    }

    #[test]
    fn an_id_with_another_block_is_refused() {
        let key = Key::Block(7);
        let mut record = None;
        on(&key, &mut record, &put_at(3, 5));
        let other = BlockRecord { hash: [9; 32], ..block(0) };
        let rejection = refused(on(&key, &mut record, &sequenced(4, Sequenced::PutBlock(other))));
        assert_eq!(rejection, Rejection::OtherContent);
    }

    #[test]
    fn a_block_under_another_key_is_refused() {
        assert_eq!(refused(on(&Key::Block(8), &mut None, &put_at(3, 0))), Rejection::Unexpected);
        assert_eq!(refused(on(&Key::Meta, &mut None, &put_at(3, 0))), Rejection::Unexpected);
    }
}
