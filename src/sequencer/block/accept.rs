//! Makes listed transactions that are conflicting or pruned ready to be set mined.

use std::{fmt::Display, sync::Arc};

use futures_util::future::BoxFuture;

use crate::{
    event::{Block, DecisionBody},
    record::{
        Key, Page, Phase, Reason, RespendChecks, Sequenced, TxState,
        build::{NewTxState, Pages, build_pages},
    },
    sequencer::{
        SequencerError,
        added_slots::needs_slots,
        block::{coinbase::page_params, record::read_block_records},
        bodies::{damaged_body, parse_body, read_body, read_parents},
        claims::{ClaimCheck, check_claims},
        contested_event::replace_claims,
        context::HandlerContext,
        evaluate::evaluate_listed,
        findings::{InputFindings, collect_findings},
        holders::is_mined,
        listing::ListedTx,
        pages::{accept, create_contested},
        steps::Steps,
        verdict::apply_verdict,
    },
    text::hex_reversed,
    tx::Txid,
};

/// Returns whether all parents are live and, where this block lists them too, unlocked and with the slots of the
/// block's height: a parent that was accepted just now has yet to be set mined. The lock of any other parent does
/// not bar a listed transaction, since the unlock can have a later offset than the block.
pub async fn are_parents_ready(
    cx: &HandlerContext<'_>,
    height: u32,
    page: &Page,
    open: &[ListedTx],
) -> Result<bool, SequencerError> {
    let masters = cx.masters(&read_parents(cx, page).await?).await?;
    Ok(masters.iter().all(|master| {
        master.as_ref().is_some_and(|page| match page.state() {
            TxState::Live => {
                let is_mined = open.iter().all(|listed| listed.txid != page.txid);
                is_mined || !(page.locked || needs_slots(cx, page, height))
            }
            // A pruned conflicting parent is revived first, if this block lists the parent.
            TxState::Pruned(_) => !page.conflicting,
            _ => false,
        })
    }))
}

/// Accepts a listed transaction that is conflicting: its rivals and their descendants become conflicting. Returns
/// `false` while its own parents are not ready.
pub fn accept_listed<'a>(
    cx: &'a HandlerContext<'_>,
    steps: &'a mut Steps<'_>,
    block: &'a Block<'_>,
    txid: Txid,
    open: &'a [ListedTx],
) -> BoxFuture<'a, Result<bool, SequencerError>> {
    Box::pin(async move {
        let Some(page) = cx.master(txid).await? else { return Ok(false) };
        if !are_parents_ready(cx, block.height, &page, open).await? {
            return Ok(false);
        }
        // A rebuild of a history in which a node lost the coinbase: the block created it anew, without a decision.
        if page.is_coinbase && cx.is_replay() {
            accept(cx, &page).await?;
            return Ok(true);
        }
        // After a node lost a listed transaction the closed event is open again: a rival can have taken its slots.
        steps.skip_closed();
        // Stamped with the phase of applying: the event has applied rows before, and a listed transaction is accepted
        // whichever sequencer takes the free slots.
        let body = steps.decide(Box::pin(evaluate(cx, block, page))).await?;
        if body != DecisionBody::Closed {
            apply_verdict(cx, steps, body).await?;
        }
        Ok(true)
    })
}

/// Decides on a listed transaction whose parents are ready.
pub async fn evaluate(
    cx: &HandlerContext<'_>,
    block: &Block<'_>,
    mut page: Arc<Page>,
) -> Result<DecisionBody, SequencerError> {
    let txid = page.txid;
    if let ClaimCheck::Differs(proven) = check_claims(cx, &page).await? {
        replace_claims(&mut page, proven);
    }
    let checks = RespendChecks::Listed { height: block.height };
    let InputFindings::Inputs(inputs) = collect_findings(cx, Phase::Apply, &page, checks, true).await? else {
        return Err(halt_listed(block, txid, "was spent completely and pruned"));
    };
    let body =
        evaluate_listed(txid, block.height, &inputs).map_err(|reason| halt_barred(cx.offset, block, txid, reason))?;
    check_rivals(cx, block, &body).await?;
    Ok(body)
}

/// Revives the tombstone of a conflicting transaction that a block lists: the tombstone becomes a stub and gets the
/// slots of the body that it kept. A tombstone without a body is waited for, like an absent transaction.
pub fn revive<'a>(
    cx: &'a HandlerContext<'_>,
    block: &'a Block<'_>,
    txid: Txid,
) -> BoxFuture<'a, Result<(), SequencerError>> {
    Box::pin(async move {
        let Some(tombstone) = cx.master(txid).await?.filter(|page| page.pruned.is_some()) else { return Ok(()) };
        if !tombstone.conflicting {
            return Err(halt_listed(block, txid, "was spent completely and pruned"));
        }
        let name = hex_reversed(&block.hash);
        tracing::warn!(%txid, block = name, "sequencer: conflicting transaction revived, a block lists its tombstone");
        let row = |number| cx.row(Phase::Apply, Key::Page(txid, number), Sequenced::Revive);
        // The other pages first: a repeat judges by the master.
        cx.apply((1..=tombstone.extra_pages()).map(row).collect()).await?;
        cx.apply_decided(vec![row(0)]).await?;
        match cx.master(txid).await? {
            Some(stub) => restore_stub_slots(cx, block.height, &stub).await.map(drop),
            None => Ok(()),
        }
    })
}

/// Gives a stub the slots of the body that it kept. Returns `false` for a page that is no stub or has no body.
pub async fn restore_stub_slots(cx: &HandlerContext<'_>, height: u32, stub: &Page) -> Result<bool, SequencerError> {
    if !matches!(stub.state(), TxState::Stub(_)) {
        return Ok(false);
    }
    let Some(body) = read_body(cx, stub).await? else { return Ok(false) };
    let txid = stub.txid;
    let params = page_params(cx, height, stub.master.as_ref().map_or(0, |master| master.created_at));
    let tx = parse_body(txid, &body)?;
    let pages = build_pages(&tx, body.clone(), txid, &params, &NewTxState::default());
    let pages = pages.map_err(|error| damaged_body(txid, error))?;
    let Pages { master, others } = pages.place_body(cx.parts.store.inline(), &params);
    create_contested(cx, master.into(), others.map(Arc::new)).await?;
    Ok(true)
}

/// Halts when a rival is mined on the longest chain, too: such a block is impossible.
async fn check_rivals(cx: &HandlerContext<'_>, block: &Block<'_>, body: &DecisionBody) -> Result<(), SequencerError> {
    let DecisionBody::Accepted { txid, losers, .. } = body else { return Ok(()) };
    for rival in cx.masters(losers).await?.into_iter().flatten().filter(|rival| is_mined(rival)) {
        if is_mined_before(cx, &rival).await? {
            let (name, rival) = (hex_reversed(&block.hash), rival.txid);
            return Err(SequencerError::Halt(format!("block {name} lists {txid}, whose rival {rival} is mined")));
        }
    }
    Ok(())
}

/// Returns whether a block of this or an earlier event lists the transaction. After a node lost writes the event is
/// applied again, and a later reorg may have mined a rival in place of this block's transaction.
async fn is_mined_before(cx: &HandlerContext<'_>, page: &Page) -> Result<bool, SequencerError> {
    let mined = page.master.iter().flat_map(|master| &master.mined);
    // Where a node lost a record, only a later event writes it again: the records of this event and of earlier ones are
    // written before, or durable.
    let records = read_block_records(cx, mined.map(|mined| mined.block_id)).await?;
    Ok(records
        .into_iter()
        .flatten()
        .any(|record| record.longest_chain && record.chain_pos.is_none_or(|pos| pos.chain_offset() <= cx.offset)))
}

/// Halts at a listed transaction that cannot be live. The halt names the exit where the bar may be one of a command.
fn halt_barred(chain_offset: u64, block: &Block<'_>, txid: Txid, reason: Reason) -> SequencerError {
    let exit = match reason {
        Reason::Frozen { .. } | Reason::NotYetSpendable { .. } | Reason::Mismatch { .. } => {
            format!("; `utxo-store command decide {chain_offset} --accept {txid}` lifts the bars of commands")
        }
        _ => String::new(),
    };
    halt_listed(block, txid, format_args!("cannot be live: {reason:?}{exit}"))
}

fn halt_listed(block: &Block<'_>, txid: Txid, why: impl Display) -> SequencerError {
    SequencerError::Halt(format!("block {} lists {txid}, which {why}", hex_reversed(&block.hash)))
}
