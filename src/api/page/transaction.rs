//! The page of a transaction: its state, its inputs, its outputs with their spenders, its conflicts.

use maud::{Markup, html};

use super::layout;
use crate::{
    api::{
        problem::Problem,
        v1::{OutputView, status_code},
    },
    record::{Body, Verdict},
    store::{
        StateStore,
        body::{BodyError, ParsedBody},
        outputs::{OutputOptions, OutputQuery, OutputReader, OutputState},
        queries::{RelatedTxs, StoreQueries},
        read::{ReadError, ReadFields, StoredTransaction, TxReader},
    },
    tx::{Outpoint, Txid},
};

/// Inputs and outputs that the page shows, at most.
const SHOWN: usize = 200;
/// Largest body of which the page shows the inputs, bytes.
const LARGEST_BODY: u64 = 4 << 20;
/// Transactions in conflict that the page shows, at most.
const CONFLICTS: usize = 50;

/// An input as the page shows it: the outpoint that the input spends, and the satoshis of that output.
type ShownInput = (Outpoint, Option<u64>);

/// A transaction as the page shows it.
pub struct ShownTransaction {
    stored: StoredTransaction,
    /// Inputs of the transaction; `None`: the body is not read.
    inputs: Option<Vec<ShownInput>>,
    outputs: Vec<Result<OutputState, ReadError>>,
    conflicting_descendants: RelatedTxs,
}

/// Reads what the page shows of a transaction; `None`: the store has no record of it. `height`: height of the next
/// block.
///
/// # Errors
/// The store does not answer, or a record is damaged.
pub async fn read(store: &StateStore, txid: Txid, height: u32) -> Result<Option<ShownTransaction>, Problem> {
    let reader = TxReader::of(store);
    let Some(master) = reader.get(txid, ReadFields::default()).await? else { return Ok(None) };
    let fields = ReadFields { body: master.master.extended_size <= LARGEST_BODY, slots: false };
    let stored = reader.get(txid, fields).await?.unwrap_or(master);
    let inputs = match &stored.body {
        Some(body) => read_inputs(txid, body).map_err(ReadError::from)?,
        None => None,
    };
    let total = stored.master.master.as_ref().map_or(0, |bins| bins.total_utxos);
    let shown = u32::try_from(SHOWN).unwrap_or(u32::MAX).min(total);
    let query = |vout| OutputQuery { outpoint: Outpoint { txid, vout }, hash: None };
    let queries: Vec<OutputQuery> = (0..shown).map(query).collect();
    let options = OutputOptions { height: Some(height), output: fields.body };
    let outputs = OutputReader::of(store).read(&queries, options).await;
    let conflicting_descendants = StoreQueries::of(store).conflicting_descendants(txid, CONFLICTS).await?;
    Ok(Some(ShownTransaction { stored, inputs, outputs, conflicting_descendants }))
}

/// Returns the inputs of a body, as many as the page shows; `None`: a partial transaction.
fn read_inputs(txid: Txid, body: &Body) -> Result<Option<Vec<ShownInput>>, BodyError> {
    let parsed = ParsedBody::parse(txid, body)?;
    let Some(transaction) = parsed.transaction() else { return Ok(None) };
    let inputs = transaction.inputs().take(SHOWN);
    Ok(Some(inputs.map(|input| (input.outpoint, input.previous.map(|previous| previous.satoshis))).collect()))
}

/// Renders the page.
pub fn render(shown: &ShownTransaction) -> Markup {
    let master = &*shown.stored.master;
    let state: &'static str = master.state().into();
    html! {
        h1 { "Transaction " span.mono { (master.txid) } }
        (render_state(shown, state))
        h2 { "Inputs" }
        (render_inputs(shown))
        h2 { "Outputs" }
        (render_outputs(shown))
        @if !shown.conflicting_descendants.txids.is_empty() {
            h2 { "Conflicting descendants" }
            ul { @for txid in &shown.conflicting_descendants.txids { li.mono { (layout::transaction_link(txid)) } } }
            @if shown.conflicting_descendants.more { p { "and more" } }
        }
        p {
            a href={ "/v1/transactions/" (master.txid) "?fields=*" } { "JSON" } " · "
            a href={ "/v1/transactions/" (master.txid) "/raw" } { "raw transaction" } " · "
            a href={ "/v1/transactions/" (master.txid) "/history" } { "history" } " · "
            a href={ "/v1/conflicts/" (master.txid) } { "conflicts" }
        }
    }
}

fn render_state(shown: &ShownTransaction, state: &str) -> Markup {
    let master = &*shown.stored.master;
    let bins = master.master.as_deref();
    let flags = [("coinbase", master.is_coinbase), ("locked", master.locked), ("frozen", master.frozen)];
    let flags: Vec<&str> = flags.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect();
    html! {
        dl {
            dt { "State" } dd { (state) @for flag in flags { ", " (flag) } }
            @if let Some(Verdict::Conflicting(reason)) = master.verdict() {
                dt { "Reason" } dd.bad { (reason.to_string()) }
            }
            dt { "Fee" } dd { (master.fee) " satoshis" }
            dt { "Size" } dd { (master.size_in_bytes) " bytes" }
            dt { "Lock time" } dd { (master.lock_time) }
            @if let Some(bins) = bins {
                dt { "Time of the event" } dd { (layout::time_text(bins.created_at)) }
                dt { "Blocks" } dd {
                    @if bins.mined.is_empty() { "none" }
                    @for block in &bins.mined {
                        a href={ "/blocks/" (block.block_id) } { "height " (block.height) } " "
                    }
                }
                @if let Some(height) = bins.unmined_since { dt { "Unmined since" } dd { "height " (height) } }
            }
        }
    }
}

fn render_inputs(shown: &ShownTransaction) -> Markup {
    html! {
        @match &shown.inputs {
            None if shown.stored.master.is_partial() => {
                p { "The store knows only the outputs of this transaction." }
            },
            None => { p { "The body is too large for this page, or absent." } },
            Some(inputs) => {
                table {
                    tr { th { "Previous output" } th.number { "Satoshis" } }
                    @for (outpoint, satoshis) in inputs {
                        tr {
                            td.mono {
                                @if *outpoint == Outpoint::NULL { "coinbase" }
                                @else {
                                    a href={ "/transactions/" (outpoint.txid) "#output-" (outpoint.vout) } {
                                        (outpoint)
                                    }
                                }
                            }
                            td.number { @if let Some(satoshis) = satoshis { (satoshis) } }
                        }
                    }
                }
                @if inputs.len() == SHOWN { p { "The page shows the first " (SHOWN) " inputs." } }
            },
        }
    }
}

fn render_outputs(shown: &ShownTransaction) -> Markup {
    html! {
        table {
            tr { th { "Output" } th { "Status" } th.number { "Satoshis" } th { "Spender" } }
            @for (state, vout) in shown.outputs.iter().zip(0_u32..) {
                tr id={ "output-" (vout) } {
                    td { (vout) }
                    @match state {
                        Err(error) => { td.bad { (error.to_string()) } td {} td {} },
                        Ok(state) => {
                            @let view = OutputView::from(state);
                            td {
                                (status_code(&state.status))
                                @if let Some(height) = view.height { " (height " (height) ")" }
                            }
                            td.number { @if let Some(satoshis) = view.satoshis { (satoshis) } }
                            td.mono {
                                @if let Some(spender) = state.spender { (layout::transaction_link(&spender.txid)) }
                            }
                        },
                    }
                }
            }
        }
        @if shown.outputs.len() == SHOWN { p { "The page shows the first " (SHOWN) " outputs." } }
    }
}
