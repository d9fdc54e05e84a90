//! The lists of unmined and of conflicting transactions.

use maud::{Markup, html};

use super::layout;
use crate::{
    api::{
        byte_budget::RequestBytes,
        problem::Problem,
        v1::{ApiContext, ListPart, begin_list},
    },
    engine::EngineError,
    store::tx_list::{ConflictingEntry, TxListEntry, TxSelection},
};

/// Transactions that a page of a list shows, at most.
const SHOWN: usize = 200;

/// A part of a list as a page shows it.
pub struct ShownList {
    entries: ListPart,
    has_more: bool,
    /// True unless the part is the first.
    is_continued: bool,
}

/// Reads the part of a list that begins after a cursor. The parts of the index can be smaller than a page.
///
/// # Errors
/// As [`begin_list`].
pub async fn read(
    context: &ApiContext,
    selection: TxSelection,
    cursor: Option<&str>,
    memory: &RequestBytes,
) -> Result<ShownList, Problem> {
    let (mut list, mut entries) = begin_list(context, context.store()?, selection, cursor, memory).await?;
    let mut has_more = !entries.is_empty();
    let fill = async {
        while has_more && entries.len() <= SHOWN {
            let found = list.next().await?;
            has_more = !found.is_empty();
            entries.extend(found);
        }
        Ok::<(), EngineError>(())
    };
    context.bound_store(fill).await??;
    has_more |= entries.len() > SHOWN;
    entries.truncate(SHOWN);
    Ok(ShownList { entries, has_more, is_continued: cursor.is_some() })
}

/// Renders the list of unmined transactions.
pub fn render_unmined(list: &ShownList) -> Markup {
    html! {
        h1 { "Unmined transactions" }
        p { "Transactions that no block of the longest chain lists, in no particular order." }
        (render_list(list, "/unmined", &["Transaction", "Unmined since", "Time of the event"]))
    }
}

/// Renders the list of conflicting transactions.
pub fn render_conflicting(list: &ShownList) -> Markup {
    html! {
        h1 { "Conflicting transactions" }
        p {
            "Transactions that a verdict has refused, and contested ones that wait for their verdict, in no particular "
            "order. The reason names the winner or the parent."
        }
        (render_list(list, "/conflicting", &["Transaction", "Reason", "Time of the event", "Kept until"]))
    }
}

fn render_list(list: &ShownList, path: &str, columns: &[&str]) -> Markup {
    html! {
        @if list.entries.is_empty() { p.empty { "None" @if list.is_continued { " more" } "." } }
        @else {
            table {
                thead { tr { @for column in columns { th { (column) } } } }
                tbody { @for (entry, _) in &list.entries { (render_entry(entry, columns)) } }
            }
            @if let Some((_, cursor)) = list.entries.last().filter(|_| list.has_more) {
                p { a href={ (path) "?cursor=" (cursor) } { "Further transactions" } }
            }
        }
    }
}

fn render_entry(entry: &TxListEntry, columns: &[&str]) -> Markup {
    html! {
        @match entry {
            TxListEntry::Unmined(unmined) => {
                tr {
                    td.mono { (layout::transaction_link(&unmined.txid)) }
                    td data-label=(columns[1]) {
                        "height " (unmined.unmined_since) @if unmined.creating { ", half created" }
                    }
                    td.time data-label=(columns[2]) { (layout::time_text(unmined.created_at)) }
                }
            },
            TxListEntry::Conflicting(ConflictingEntry { txid, reason, created_at, delete_at_height }) => {
                tr {
                    td.mono { (layout::transaction_link(txid)) }
                    td data-label=(columns[1]) {
                        @match reason {
                            Some(reason) => { (layout::linked_text(&reason.to_string())) },
                            None => { "no verdict yet" },
                        }
                    }
                    td.time data-label=(columns[2]) {
                        @match created_at {
                            Some(created_at) => { (layout::time_text(*created_at)) },
                            None => { "no event yet" },
                        }
                    }
                    td data-label=(columns[3]) {
                        @if let Some(height) = delete_at_height { "height " (height) }
                    }
                }
            },
        }
    }
}
