//! The page of a transaction: its state, its inputs, its outputs with their spenders, its conflicts.

use maud::{Markup, html};

use super::{
    PAGE_BYTES,
    layout::{self, ROWS},
};
use crate::{
    api::{
        byte_budget::RequestBytes,
        problem::Problem,
        v1::{OutputStatus, OutputView, estimate_body},
    },
    record::{Body, StoredOutput, TxState, Verdict},
    store::{
        StateStore,
        body::{BodyError, ParsedBody},
        outputs::{OutputOptions, OutputQuery, OutputReader, OutputState},
        queries::{RelatedTxs, StoreQueries},
        read::{FROZEN_SPENDER, ReadError, ReadFields, StoredTransaction, TxReader},
    },
    tx::{Outpoint, Txid},
};

/// Largest body of which the page shows the inputs, bytes.
const LARGEST_BODY: u64 = 4 << 20;
/// Copies of a body: as read for the inputs and for the outputs, and the scripts of the shown outputs.
const BODY_COPIES: u64 = 3;
/// Transactions in conflict that the page shows, at most.
const CONFLICTS: usize = 50;
/// Bytes of a locking script that the page shows, at most.
const SCRIPT: usize = 256;

/// An input as the page shows it: the outpoint that the input spends, and the satoshis of that output.
type ShownInput = (Outpoint, Option<u64>);

/// First input and first output that the page shows.
#[derive(Debug, Clone, Copy, Default)]
pub struct ShownRange {
    /// Index of the first input.
    pub inputs: u32,
    /// Index of the first output.
    pub outputs: u32,
}

/// A transaction as the page shows it.
pub struct ShownTransaction {
    stored: StoredTransaction,
    range: ShownRange,
    /// Shown inputs, and the number of all inputs; `None`: the body is not read.
    inputs: Option<(Vec<ShownInput>, u32)>,
    outputs: Vec<Result<OutputState, ReadError>>,
    conflicting_descendants: RelatedTxs,
}

/// Reads what the page shows of a transaction; `None`: the store has no record of it. `height`: height of the next
/// block.
///
/// # Errors
/// The store does not answer, a record is damaged, or the request has no room.
pub async fn read(
    store: &StateStore,
    txid: Txid,
    height: u32,
    range: ShownRange,
    memory: &RequestBytes,
) -> Result<Option<ShownTransaction>, Problem> {
    let reader = TxReader::of(store);
    let Some(master) = reader.get(txid, ReadFields::default()).await? else { return Ok(None) };
    let fields = ReadFields { body: master.master.extended_size <= LARGEST_BODY, slots: false };
    let body = if fields.body { estimate_body(&master.master) } else { 0 };
    memory.reserve(PAGE_BYTES + body * BODY_COPIES)?;
    let stored = reader.get(txid, fields).await?.unwrap_or(master);
    let inputs = match &stored.body {
        Some(body) => read_inputs(txid, body, range.inputs).map_err(ReadError::from)?,
        None => None,
    };
    let query = |vout| OutputQuery { outpoint: Outpoint { txid, vout }, hash: None };
    let end = range.outputs.saturating_add(ROWS).min(total_outputs(&stored));
    let queries: Vec<OutputQuery> = (range.outputs..end).map(query).collect();
    let options = OutputOptions { height: Some(height), output: fields.body, ..OutputOptions::default() };
    let outputs = OutputReader::of(store).read(&queries, options).await;
    let conflicting_descendants = StoreQueries::of(store).conflicting_descendants(txid, CONFLICTS).await?;
    Ok(Some(ShownTransaction { stored, range, inputs, outputs, conflicting_descendants }))
}

fn total_outputs(stored: &StoredTransaction) -> u32 {
    stored.master.master.as_ref().map_or(0, |bins| bins.total_utxos)
}

/// Returns the inputs of a body from `first`, as many as the page shows, and the number of all inputs; `None`: a
/// partial transaction.
fn read_inputs(txid: Txid, body: &Body, first: u32) -> Result<Option<(Vec<ShownInput>, u32)>, BodyError> {
    let parsed = ParsedBody::parse(txid, body)?;
    let Some(transaction) = parsed.transaction() else { return Ok(None) };
    let shown = transaction.inputs().skip(first as usize).take(ROWS as usize);
    let inputs = shown.map(|input| (input.outpoint, input.previous.map(|previous| previous.satoshis))).collect();
    Ok(Some((inputs, u32::try_from(transaction.inputs().count()).unwrap_or(u32::MAX))))
}

/// Renders a transaction as a page.
pub fn render(shown: &ShownTransaction) -> Markup {
    let master = &*shown.stored.master;
    html! {
        h1 { "Transaction " span.mono { (master.txid) } }
        (render_state(shown))
        p {
            a href={ "/transactions/" (master.txid) "/history" } { "History" } " · "
            a href={ "/v1/transactions/" (master.txid) "?fields=*" } { "JSON" } " · "
            a href={ "/v1/transactions/" (master.txid) "/raw" } { "Raw transaction" } " · "
            a href={ "/v1/conflicts/" (master.txid) } { "Conflicts" }
        }
        @if !matches!(master.state(), TxState::Pruned(_) | TxState::Stub(_)) {
            h2 id="inputs" { "Inputs" }
            (render_inputs(shown))
            h2 id="outputs" { "Outputs" }
            (render_outputs(shown))
        }
        @if !shown.conflicting_descendants.txids.is_empty() {
            h2 { "Conflicting descendants" }
            ul { @for txid in &shown.conflicting_descendants.txids { li.mono { (layout::transaction_link(txid)) } } }
            @if shown.conflicting_descendants.more { p { "and more" } }
        }
    }
}

fn render_state(shown: &ShownTransaction) -> Markup {
    let master = &*shown.stored.master;
    let state: &'static str = master.state().into();
    let flags = [("coinbase", master.is_coinbase), ("locked", master.locked), ("frozen", master.frozen)];
    let flags: Vec<&str> = flags.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect();
    let is_conflicting = matches!(master.state(), TxState::Conflicting(_) | TxState::Stub(_));
    html! {
        dl {
            dt { "State" } dd {
                span class=[is_conflicting.then_some("bad")] { (state) } @for flag in flags { ", " (flag) }
            }
            @match (master.state(), master.verdict()) {
                (TxState::Pruned(height), _) => {
                    dt { "Pruned" }
                    dd { "at height " (height) ": the store keeps that the transaction existed, and not its outputs" }
                },
                (_, Some(Verdict::Conflicting(reason))) => {
                    dt { "Reason" } dd { (layout::linked_text(&reason.to_string())) }
                },
                (_, Some(Verdict::Pending)) => { dt { "Verdict" } dd { "not yet: the sequencer has to decide" } },
                _ => {},
            }
            @if matches!(master.state(), TxState::Stub(_)) {
                dt { "Content" } dd { "not known: the transaction's own event has not come" }
            } @else if master.is_partial() {
                dt { "Content" } dd { "outputs only: inputs, fee and size are not known" }
            } @else if !matches!(master.state(), TxState::Pruned(_)) {
                @if !master.is_coinbase { dt { "Fee" } dd { (layout::number_text(master.fee)) " satoshis" } }
                dt { "Size" } dd { (layout::number_text(master.size_in_bytes)) " bytes" }
                dt { "Lock time" } dd { (master.lock_time) }
            }
            (render_blocks(shown))
        }
    }
}

fn render_blocks(shown: &ShownTransaction) -> Markup {
    let master = &*shown.stored.master;
    let has_event = !matches!(master.state(), TxState::Stub(_) | TxState::Pruned(_));
    html! {
        @if let Some(bins) = master.master.as_deref().filter(|_| has_event) {
            dt { "Time of the event" } dd { (layout::time_text(bins.created_at)) }
            dt { "Blocks" } dd {
                @if bins.mined.is_empty() { "none" }
                @for block in &bins.mined { a href={ "/blocks/" (block.block_id) } { "height " (block.height) } " " }
            }
            @if let Some(height) = bins.unmined_since { dt { "Unmined since" } dd { "height " (height) } }
        }
        @if let Some(height) = master.delete_at_height { dt { "Kept until" } dd { "height " (height) } }
    }
}

fn render_inputs(shown: &ShownTransaction) -> Markup {
    html! {
        @match &shown.inputs {
            None if shown.stored.master.is_partial() => {
                p.empty { "The store knows only the outputs of this transaction." }
            },
            None => { p.empty { "The body is too large for this page, or absent." } },
            Some((inputs, total)) => {
                table {
                    thead { tr { th { "Input" } th { "Output that the input spends" } th.number { "Satoshis" } } }
                    tbody {
                        @for ((outpoint, satoshis), number) in inputs.iter().zip(shown.range.inputs..) {
                            tr id={ "input-" (number) } {
                                td data-label="Input" { (number) }
                                td.mono {
                                    @if *outpoint == Outpoint::NULL { "coinbase" }
                                    @else { a href=(layout::output_path(outpoint)) { (outpoint) } }
                                }
                                td.number data-label="Satoshis" {
                                    @if let Some(satoshis) = satoshis { (layout::number_text(*satoshis)) }
                                }
                            }
                        }
                    }
                }
                (render_neighbours(shown, "inputs", shown.range.inputs, *total))
            },
        }
    }
}

fn render_outputs(shown: &ShownTransaction) -> Markup {
    html! {
        table {
            thead { tr { th { "Output" } th { "Status" } th.number { "Satoshis" } th { "Spender" } th { "Script" } } }
            tbody {
                @for (state, vout) in shown.outputs.iter().zip(shown.range.outputs..) {
                    tr id={ "output-" (vout) } {
                        td data-label="Output" { (vout) }
                        @match state {
                            Err(error) => { td.bad { (error.to_string()) } td {} td {} td {} },
                            Ok(state) => { (render_output(state)) },
                        }
                    }
                }
            }
        }
        (render_neighbours(shown, "outputs", shown.range.outputs, total_outputs(&shown.stored)))
    }
}

fn render_output(state: &OutputState) -> Markup {
    let view = OutputView::from(state);
    let spender = state.spender.filter(|spender| *spender != FROZEN_SPENDER);
    html! {
        td data-label="Status" {
            span title=(view.detail) { (<&str>::from(OutputStatus::from(&state.status))) }
            @if let Some(height) = view.height { " (height " (height) ")" }
        }
        td.number data-label="Satoshis" { @if let Some(satoshis) = view.satoshis { (layout::number_text(satoshis)) } }
        td.mono data-label="Spender" {
            @if let Some(spender) = spender {
                a href={ "/transactions/" (spender.txid) } { (spender.txid) } " input " (spender.input)
            }
        }
        td { @if let Some(StoredOutput { script, .. }) = &state.output { (render_script(script)) } }
    }
}

/// Renders a locking script, closed until a reader opens it.
fn render_script(script: &[u8]) -> Markup {
    html! {
        details {
            summary { (script.len()) " bytes" }
            span.mono {
                (hex::encode(&script[..script.len().min(SCRIPT)])) @if script.len() > SCRIPT { "…" }
            }
        }
    }
}

/// Renders the links to the rows before and after the shown ones. `name`: the parameter of the rows.
fn render_neighbours(shown: &ShownTransaction, name: &str, first: u32, total: u32) -> Markup {
    let path = |first: u32| format!("/transactions/{}?{name}={first}#{name}", shown.stored.master.txid);
    let end = first.saturating_add(ROWS).min(total);
    html! {
        @if first > 0 || end < total {
            p {
                "The page shows the " (name) " " (first) " to " (end.saturating_sub(1)) " of " (total) ". "
                @if first > 0 { a href=(path(first.saturating_sub(ROWS))) { "Earlier" } " " }
                @if end < total { a href=(path(end)) { "Further" } }
            }
        }
    }
}
