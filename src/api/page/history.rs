//! The history of a transaction: its contests, the decisions on the transaction, the commands that name the
//! transaction.

use maud::{Markup, html};

use super::layout;
use crate::{
    client::history::{HistoryEntry, HistoryPart},
    tx::Txid,
};

/// Renders a part of the history of a transaction as a page.
pub fn render(txid: &Txid, part: &HistoryPart) -> Markup {
    let HistoryPart { entries, next } = part;
    html! {
        h1 { "History of " span.mono { (txid) } }
        p { a href={ "/transactions/" (txid) } { "The transaction" } }
        p {
            "Contests, decisions and commands in the order of the chain log, from an hour before the event of the "
            "transaction on. " a href="?cursor=earliest" { "From the start of the log" } "."
        }
        @if !entries.is_empty() {
            table {
                thead { tr { th.number { "Chain offset" } th { "Step" } th { "Time" } th { "Event or decision" } } }
                tbody { @for entry in entries { (render_entry(entry)) } }
            }
        }
        @match next {
            Some(next) => { p { "The log goes on. " a href={ "?cursor=" (next) } { "Continue" } } },
            None if entries.is_empty() => {
                p.empty { "None: the transaction was never contested, and no command names it." }
            },
            None => {},
        }
    }
}

fn render_entry(entry: &HistoryEntry) -> Markup {
    html! {
        tr {
            td.number data-label="Chain offset" { (entry.chain_offset) }
            td data-label="Step" { @match entry.step { Some(step) => { (step) }, None => { "the event" } } }
            td.time data-label="Time" {
                (layout::time_text(u64::try_from(entry.timestamp_ms).unwrap_or_default()))
            }
            td { (layout::linked_text(&entry.what)) }
        }
    }
}
