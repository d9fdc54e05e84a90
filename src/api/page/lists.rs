//! The lists of unmined and of conflicting transactions.

use maud::{Markup, html};

use super::layout;
use crate::{
    api::v1::ListPart,
    store::tx_list::{ConflictingEntry, TxListEntry},
};

/// Renders the list of unmined transactions. `is_continued`: the part is not the first.
pub fn render_unmined(part: &ListPart, is_continued: bool) -> Markup {
    html! {
        h1 { "Unmined transactions" }
        p { "Transactions that no block of the longest chain lists, in no particular order." }
        (render_list(part, is_continued, "/unmined", &["Transaction", "Unmined since", "Time of the event"]))
    }
}

/// Renders the list of conflicting transactions. `is_continued`: the part is not the first.
pub fn render_conflicting(part: &ListPart, is_continued: bool) -> Markup {
    html! {
        h1 { "Conflicting transactions" }
        p {
            "Transactions that a verdict has refused, and contested ones that wait for their verdict, in no particular "
            "order. The reason names the winner or the parent."
        }
        (render_list(part, is_continued, "/conflicting", &["Transaction", "Reason", "Time of the event", "Kept until"]))
    }
}

fn render_list(part: &ListPart, is_continued: bool, path: &str, columns: &[&str]) -> Markup {
    html! {
        @if part.is_empty() { p.empty { "None" @if is_continued { " more" } "." } }
        @else {
            table {
                thead { tr { @for column in columns { th { (column) } } } }
                tbody { @for (entry, _) in part { (render_entry(entry, columns)) } }
            }
            @if let Some((_, cursor)) = part.last() {
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
