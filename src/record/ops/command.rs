//! `PutCommand`: writes the result of a command, once.

use crate::record::{CommandRecord, Key, Record, Rejection, Reply};

use super::Effect;

pub(super) fn put(key: &Key, record: &mut Option<Record>, command: &CommandRecord) -> Result<Effect, Rejection> {
    if *key != Key::Command(command.id) {
        return Err(Rejection::Unexpected);
    }
    match record {
        None => {
            // The caller writes the operation's stamp; the stamp in `command` is ignored.
            *record = Some(Record::Command(CommandRecord { chain_pos: None, ..command.clone() }));
            Ok(Effect::applied(Reply::None))
        }
        Some(Record::Command(_)) => Ok(Effect::already_applied(Reply::None, false)),
        Some(_) => Err(Rejection::Unexpected),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::ops::testing::*;
    use crate::record::{CommandResult, Sequenced};

    #[test]
    fn the_first_result_of_a_command_stays() {
        let command = |chain_offset| CommandRecord {
            id: [7; 16],
            event_digest: [8; 32],
            chain_offset,
            result: CommandResult::Applied,
            chain_pos: Some(stamp(99)),
        };
        let put = |at| sequenced(at, Sequenced::PutCommand(command(at)));
        let (key, mut record) = (Key::Command([7; 16]), None);
        assert_eq!(on(&key, &mut record, &put(3)).outcome, applied(Reply::None));
        assert_eq!(on(&key, &mut record, &put(5)).outcome, already(Reply::None));
        let stored = CommandRecord { chain_pos: Some(stamp(5)), ..command(3) };
        assert_eq!(record, Some(Record::Command(stored)));
        assert_eq!(refused(on(&Key::Command([8; 16]), &mut None, &put(3))), Rejection::Unexpected);
        assert_eq!(refused(on(&key, &mut super::super::testing::record(live(1)), &put(3))), Rejection::Unexpected);
    }
}
