//! The history of a transaction: its contests, the decisions on the transaction, the commands that name the
//! transaction.

use maud::{Markup, html};

use super::layout;
use crate::{client::history::HistoryPart, tx::Txid};

/// A part of the history of a transaction.
pub struct ShownHistory {
    /// Id of the transaction.
    pub txid: Txid,
    /// Entries of the part.
    pub part: HistoryPart,
    /// True where a cursor names the start of the part.
    pub is_continued: bool,
}

/// Renders the history of a transaction as a page.
pub fn render(history: &ShownHistory) -> Markup {
    let ShownHistory { txid, part, is_continued } = history;
    html! {
        h1 { "History of " span.mono { (txid) } }
        p { a href={ "/transactions/" (txid) } { "The transaction" } }
        p { "Contests, decisions and commands in the order of the chain log." }
        @if part.entries.is_empty() { p.empty { "None in this part of the log." } }
        @else {
            table {
                thead { tr { th.number { "Chain offset" } th { "Step" } th { "Time" } th { "Event or decision" } } }
                tbody {
                    @for entry in &part.entries {
                        tr {
                            td.number data-label="Chain offset" { (entry.chain_offset) }
                            td data-label="Step" {
                                @match entry.step { Some(step) => { (step) }, None => { "the event" } }
                            }
                            td.time data-label="Time" {
                                (layout::time_text(u64::try_from(entry.timestamp_ms).unwrap_or_default()))
                            }
                            td { (layout::linked_text(&entry.what)) }
                        }
                    }
                }
            }
        }
        p {
            @if let Some(cursor) = &part.next {
                a href={ "/transactions/" (txid) "/history?cursor=" (cursor) } { "Later entries" } " "
            }
            @if !is_continued {
                a href={ "/transactions/" (txid) "/history?cursor=earliest" } { "From the start of the log" }
                " (commands that named the transaction before its event)"
            }
        }
    }
}
