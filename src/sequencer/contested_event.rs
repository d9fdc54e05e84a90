//! Reads the event of a contest again from its topic, and stores the transaction as that event has it.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    broker::{BrokerErrorKind, Message, TopicPartition},
    event::{Contest, DeadLetterClass, Event, EventPosition},
    prepare::{BodyLoadError, PrepareSettings, PreparedEvent, load_body, prepare_loaded},
    record::{Body, ClaimedBody, Page, Phase, Sequenced, TxState},
    sequencer::{
        SequencerError,
        bodies::{parse_inputs, read_body},
        context::HandlerContext,
        dead_letters::RefusedMessage,
        holders::contest_holder,
        lost_records::wait_for_bodies,
        pages::create_contested,
        reader_cache::RereadOutcome,
        settle::{list_held_slots, settle_slots},
        waiting::ReportedWait,
    },
    store::canonical::BodyHash,
    tx::{Transaction, Txid},
};

/// Returns the claims of the contested event, where they differ from the stored body. Two events of one transaction
/// can claim different previous outputs. The order in which they were stored is an accident; the contest fixes the
/// event that is decided on.
pub async fn find_differing_claims(
    cx: &HandlerContext<'_>,
    contest: &Contest,
    page: &Page,
) -> Result<Option<ClaimedBody>, SequencerError> {
    let Some(stored) = read_body(cx, page).await? else { return Ok(None) };
    if BodyHash::of(&Body::Transaction(stored)).hash() == contest.body {
        return Ok(None);
    }
    // Boxed, like other rare work: else a part of the future of every contest.
    Box::pin(reread_claimed_body(cx, contest)).await
}

/// Reads the claims of the contested event again; `None`: a partial transaction claims nothing of the outputs that it
/// spends.
async fn reread_claimed_body(
    cx: &HandlerContext<'_>,
    contest: &Contest,
) -> Result<Option<ClaimedBody>, SequencerError> {
    let message = reread_event(cx, &contest.position).await?;
    let body = load_contested_body(cx, contest, &message).await?;
    decode_claimed_body(&message, body, contest).map_err(SequencerError::Halt)
}

/// Loads the body to which the contested event refers, and waits for the object by name.
async fn load_contested_body(
    cx: &HandlerContext<'_>,
    contest: &Contest,
    message: &Message,
) -> Result<Option<Bytes>, SequencerError> {
    let mut waiting = ReportedWait::new(cx.parts, format!("the contest of {}", contest.txid));
    loop {
        match waiting.run_short(load_body(cx.parts.store.event_bodies.as_ref(), message)).await {
            Ok(body) => return Ok(body),
            Err(BodyLoadError::Unavailable(why)) => waiting.pause_for(&why).await,
            Err(BodyLoadError::Halt(why)) => return Err(SequencerError::Halt(why)),
            // The pipeline read the same object when the transaction was contested.
            Err(BodyLoadError::Poison(poison)) => return Err(SequencerError::Halt(poison.message)),
        }
    }
}

/// Stores the transaction as the contested event has it. The body of a live transaction is replaced only if it won
/// by this event.
pub async fn store_contested_body(
    cx: &HandlerContext<'_>,
    contest: &Contest,
    has_won: bool,
) -> Result<(), SequencerError> {
    let Some(page) = wait_for_bodies(cx, &[contest.txid]).await?.pop() else { return Ok(()) };
    if page.state() == TxState::Live && !has_won {
        return Ok(());
    }
    let Some(claimed) = find_differing_claims(cx, contest, &page).await? else { return Ok(()) };
    Box::pin(replace_body(cx, contest.txid, claimed)).await
}

/// Stores a transaction with these claims. An object of the blob store is not overwritten: another object is put
/// beside the first, and the record then names the new one.
pub async fn replace_body(cx: &HandlerContext<'_>, txid: Txid, claimed: ClaimedBody) -> Result<(), SequencerError> {
    let page = cx.master(txid).await?.unwrap_or_else(|| Page::empty(txid).into());
    let placed = Box::pin(cx.parts.wait_for("the store", cx.parts.store.externalize_claims(&page, claimed))).await?;
    cx.apply_to_master(txid, Sequenced::ReplaceBody(placed)).await
}

/// Stores a contestant again that a node lost, from the event that its contest names. Waiting for the pipeline
/// could last for ever: the event may wait there for a parent whose own contest has a later offset.
pub async fn restore_contestant(cx: &HandlerContext<'_>, contest: &Contest) -> Result<(), SequencerError> {
    contest_holder(cx, Phase::Apply, contest.txid).await?;
    let stored = cx.master(contest.txid).await?;
    if stored.is_none_or(|page| !matches!(page.state(), TxState::Stub(_))) {
        return Ok(());
    }
    let message = reread_event(cx, &contest.position).await?;
    let body = load_contested_body(cx, contest, &message).await?;
    let prepared = prepare_loaded(&PrepareSettings::of(&cx.parts.store), &message, body.as_ref());
    let (page, others) = match prepared.map_err(|poison| SequencerError::Halt(poison.message))? {
        PreparedEvent::Validated(tx) => (tx.page.clone(), tx.others.clone()),
        PreparedEvent::Seeded(seed) => (seed.page.clone(), seed.others.clone()),
    };
    create_contested(cx, page, others).await.map(drop)
}

/// Publishes the dead letter of a transaction whose parent is missing. The dead letter is acknowledged before the
/// chain offset is handled.
pub async fn publish_missing_parent_letter(
    cx: &HandlerContext<'_>,
    contest: &Contest,
    parent: Txid,
) -> Result<(), SequencerError> {
    if cx.is_replay() {
        return Ok(());
    }
    let position = &contest.position;
    let message = reread_event(cx, position).await?;
    let why = format!(
        "inputs: parent {parent} of {} is missing: no event before this one in the order of timestamp, partition and \
         offset produced it",
        contest.txid
    );
    tracing::warn!(txid = %contest.txid, %parent, "sequencer: dead letter for a missing parent");
    let (stage, class) = ("sequencer", DeadLetterClass::MissingParent);
    cx.publish_dead_letter(RefusedMessage { stage, partition: partition_of(position), message, class, why }).await
}

/// Settles the slots that an event took before its transaction turned out to be a partial one, which spends
/// nothing. In a rebuild the event reads its own record before it takes any slot, so nothing is settled.
pub async fn settle_slots_of_partial(cx: &HandlerContext<'_>, contest: &Contest) -> Result<(), SequencerError> {
    let is_whole = |page: Arc<Page>| (page.body().is_some() || page.pruned.is_some()) && !page.is_partial();
    if cx.is_replay() || cx.master(contest.txid).await?.is_some_and(is_whole) {
        return Ok(());
    }
    let claimed = reread_claimed_body(cx, contest).await?;
    let Some(Body::Transaction(body)) = claimed.map(|claimed| claimed.body) else { return Ok(()) };
    let inputs = list_held_slots(contest.txid, &parse_inputs(cx, &contest.txid, &body)?);
    settle_slots(cx, &inputs, |_| true).await
}

/// Reads one message again and waits until the log answers.
///
/// # Errors
/// Halts when the message is gone, when its timestamp shows another message, or when the broker refuses the read.
pub async fn reread_event(cx: &HandlerContext<'_>, position: &EventPosition) -> Result<Message, SequencerError> {
    let partition = partition_of(position);
    let what = format!("offset {} of {partition}", position.offset);
    let mut waiting = ReportedWait::new(cx.parts, "an event that is read again");
    let mut readers = cx.readers.lock().await;
    loop {
        match waiting.run_short(readers.get(cx.parts.broker.as_ref(), &partition, position.offset)).await {
            Ok(RereadOutcome::Found(message)) if message.timestamp_ms == position.timestamp_ms => {
                return Ok(message);
            }
            Ok(RereadOutcome::Found(_)) => {
                let why = "is another event by now: its topic was deleted and created again";
                return Err(SequencerError::Halt(format!("{what} {why}")));
            }
            Ok(RereadOutcome::Gone) => {
                let why = "is gone: its topic no longer has the event that the chain refers to";
                return Err(SequencerError::Halt(format!("{what} {why}")));
            }
            Ok(RereadOutcome::NoAnswer) => tracing::warn!("contested event: no answer for {what}; reading again"),
            Err(error) if error.kind == BrokerErrorKind::Retryable => {
                tracing::warn!(%error, "contested event: cannot read {what}; trying again");
            }
            Err(error) if error.kind == BrokerErrorKind::Refused => {
                return Err(SequencerError::Halt(format!("{what} cannot be read: {error}")));
            }
            Err(error) => return Err(error.into()),
        }
        waiting.pause_for(&what).await;
    }
}

fn partition_of(position: &EventPosition) -> TopicPartition {
    TopicPartition { topic: position.topic.as_str().into(), partition: position.partition }
}

/// Replaces the body of a page by other claims, to evaluate it by them.
pub fn replace_claims(page: &mut Arc<Page>, claimed: ClaimedBody) {
    if let Some(master) = &mut Arc::make_mut(page).master {
        master.body = Some(claimed.body);
    }
}

/// Decodes the claims of the contested event; `None`: a partial transaction. `loaded`: the body to which the event
/// refers.
fn decode_claimed_body(
    message: &Message,
    loaded: Option<Bytes>,
    contest: &Contest,
) -> Result<Option<ClaimedBody>, String> {
    let EventPosition { topic, partition, offset, .. } = &contest.position;
    let wrong =
        |what: String| format!("the contest of {} names offset {offset} of {topic}/{partition}: {what}", contest.txid);
    let event = Event::decode(&message.payload).map_err(|error| wrong(error.to_string()))?;
    let body = match (event, loaded) {
        (Event::Validated(validated), _) => message.payload.slice_ref(validated.tx),
        (Event::ValidatedReference(_), Some(body)) => body,
        (Event::Seeded(_) | Event::SeededReference(_), _) => return Ok(None),
        (other, _) => return Err(wrong(format!("the offset holds a {} event", other.kind().name()))),
    };
    let tx = Transaction::parse(&body).map_err(|error| wrong(error.to_string()))?;
    if tx.txid() != contest.txid {
        return Err(wrong(format!("the offset holds the transaction {}", tx.txid())));
    }
    let fee = tx.fee().map_err(|error| wrong(error.to_string()))?;
    let extended_size = body.len() as u64;
    Ok(Some(ClaimedBody { body: Body::Transaction(body), fee, extended_size }))
}
