//! `PutBlock`.

use crate::record::{BlockRecord, Key, Record, Rejection, Reply};

use super::Effect;

pub(super) fn put(key: &Key, record: &mut Option<Record>, block: &BlockRecord) -> Result<Effect, Rejection> {
    if *key != Key::Block(block.block_id) {
        return Err(Rejection::Unexpected);
    }
    let chain_pos = match record {
        None => None,
        Some(Record::Block(there)) => there.chain_pos,
        Some(_) => return Err(Rejection::Unexpected),
    };
    // The stamp is written by who calls this, and not from the record that was sent.
    let new = Some(Record::Block(BlockRecord { chain_pos, ..block.clone() }));
    if *record == new {
        return Ok(Effect::already(Reply::None, false));
    }
    *record = new;
    Ok(Effect::applied(Reply::None))
}
