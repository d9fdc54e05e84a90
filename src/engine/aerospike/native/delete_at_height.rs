//! Expressions by which the server computes `deleteAtHeight` of a master, and the reply to a change of slots. Both are
//! used only where the filter has found `deleteAtHeight` absent.

use aerospike::{
    ListReturnType, Value,
    expressions::{
        ExpType, Expression, and, bin_exists, bitwise::get_int, cond, eq, gt, int_bin, int_val, list_bin, lists, not,
        or, unknown,
    },
    operations::{
        Operation as ServerOperation,
        exp::{ExpReadFlags, ExpWriteFlags, read_exp, write_exp},
    },
};

use super::{
    super::{
        layout::Layout,
        names,
        template::{absent, prepack},
    },
    add_height, as_integer,
};
use crate::record::Reply;

/// Sets `deleteAtHeight` where every output is spent and the transaction is mined on the longest chain. `None` without
/// a retention: then no record is ever due.
pub fn write_when_due(layout: Layout, retention: u32) -> Option<ServerOperation> {
    if retention == 0 {
        return None;
    }
    let pages = int_bin(names::TOTAL_EXTRA_RECS);
    let has_one_page = match layout {
        Layout::Teranode => eq(pages.clone(), int_val(0)),
        Layout::Compact => absent(names::TOTAL_EXTRA_RECS),
    };
    let is_mined = match layout {
        Layout::Teranode => gt(lists::size(list_bin(names::BLOCK_HEIGHTS), &[]), int_val(0)),
        Layout::Compact => bin_exists(names::BLOCKS),
    };
    let all_pages = or(vec![
        has_one_page,
        and(vec![bin_exists(names::SPENT_PAGES), eq(lists::size(list_bin(names::SPENT_PAGES), &[]), pages)]),
    ]);
    let due = and(vec![layout.all_spent(), absent(names::UNMINED_SINCE), is_mined, all_pages]);
    let by_retention = add_height(least_height(layout), retention);
    let preserved = int_bin(names::PRESERVE_UNTIL);
    let is_longer = and(vec![bin_exists(names::PRESERVE_UNTIL), gt(preserved.clone(), by_retention.clone())]);
    let value = cond(vec![due, cond(vec![is_longer, preserved, by_retention]), unknown()]);
    Some(write_exp(names::DELETE_AT_HEIGHT, prepack(&value), ExpWriteFlags::EVAL_NO_FAIL))
}

fn least_height(layout: Layout) -> Expression {
    let least = |kind, bin| lists::get_by_rank(ListReturnType::VALUES, kind, int_val(0), list_bin(bin), &[]);
    match layout {
        Layout::Teranode => least(ExpType::Int, names::BLOCK_HEIGHTS),
        Layout::Compact => get_int(int_val(0), int_val(32), false, least(ExpType::Blob, names::BLOCKS)),
    }
}

/// Reads the value that [`parse_reply`] parses: 0 not all spent, 1 all spent, else `deleteAtHeight` + 2.
pub fn read_reply(layout: Layout) -> ServerOperation {
    let reply = cond(vec![
        not(layout.all_spent()),
        int_val(0),
        absent(names::DELETE_AT_HEIGHT),
        int_val(1),
        add_height(int_bin(names::DELETE_AT_HEIGHT), 2),
    ]);
    read_exp("told", prepack(&reply), ExpReadFlags::DEFAULT)
}

/// Parses the reply to a change of slots of a record that had no `deleteAtHeight`.
pub fn parse_reply(value: Option<&Value>) -> Option<Reply> {
    let delete_at_height = match as_integer(value)? {
        0 => return Some(Reply::Slots { all_spent: false, delete_at_height: None }),
        1 => None,
        more => Some(Some(u32::try_from(more - 2).ok()?)),
    };
    Some(Reply::Slots { all_spent: true, delete_at_height })
}
