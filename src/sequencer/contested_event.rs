//! Reads the event of a contest again from its topic, and stores the transaction as that event has it.

use std::sync::Arc;

use crate::{
    broker::{BrokerErrorKind, Message, TopicPartition},
    engine::Row,
    event::{Contest, DeadLetter, DeadLetterClass, Event, EventPosition},
    prepare::{PrepareSettings, PreparedEvent, prepare},
    record::{Body, ClaimedBody, Key, Operation, Page, Phase, Sequenced, TxState},
    sequencer::{
        SequencerError,
        handler::{EventContext, Handler},
        reader_cache::RereadOutcome,
        steps::DecisionMode,
        verdict::list_held_slots,
        waiting::ReportedWait,
    },
    store::{
        canonical::BodyHash,
        create::{InitialState, PagedTx},
    },
    tx::{Transaction, Txid},
};

impl Handler {
    /// Returns the claims of the contested event, where they differ from the stored body. Two events of one transaction
    /// can claim different previous outputs. The order in which they were stored is an accident; the contest fixes the
    /// event that is decided on.
    pub(super) async fn find_differing_claims(
        &self,
        contest: &Contest,
        page: &Page,
    ) -> Result<Option<ClaimedBody>, SequencerError> {
        let Some(stored) = self.read_body(page).await? else { return Ok(None) };
        if BodyHash::of(&Body::Transaction(stored)).hash() == contest.body {
            return Ok(None);
        }
        let message = self.reread_event(&contest.position).await?;
        decode_claimed_body(&message, contest).map_err(SequencerError::Halt)
    }

    /// Stores the transaction as the contested event has it. The body of a live transaction is replaced only if it won
    /// by this event.
    pub(super) async fn store_contested_body(
        &self,
        ctx: EventContext,
        applied_again: bool,
        contest: &Contest,
        has_won: bool,
    ) -> Result<(), SequencerError> {
        let Some(page) = self.wait_for_bodies(ctx, applied_again, &[contest.txid]).await?.pop() else { return Ok(()) };
        if page.state() == TxState::Live && !has_won {
            return Ok(());
        }
        let Some(claimed) = self.find_differing_claims(contest, &page).await? else { return Ok(()) };
        self.replace_body(ctx, contest.txid, claimed).await
    }

    /// Stores a transaction with these claims. An object of the blob store is not overwritten: another object is put
    /// beside the first, and the record then names the new one.
    pub(super) async fn replace_body(
        &self,
        ctx: EventContext,
        txid: Txid,
        claimed: ClaimedBody,
    ) -> Result<(), SequencerError> {
        let page = self.master(txid).await?.unwrap_or_else(|| Page::empty(txid).into());
        let placed = Box::pin(self.wait_for("the store", self.parts.store.externalize_claims(&page, claimed))).await?;
        let row = ctx.row(Phase::Apply, Key::master(txid), Sequenced::ReplaceBody(placed));
        self.apply_decided(ctx, vec![row]).await
    }

    /// Stores a contestant again that a node lost, from the event that its contest names. Waiting for the pipeline
    /// could last for ever: the event may wait there for a parent whose own contest has a later offset.
    pub(super) async fn restore_contestant(&self, ctx: EventContext, contest: &Contest) -> Result<(), SequencerError> {
        self.contest_holders(ctx, Phase::Apply, vec![contest.txid]).await?;
        let stored = self.master(contest.txid).await?;
        if stored.is_none_or(|page| !matches!(page.state(), TxState::Stub(_))) {
            return Ok(());
        }
        let message = self.reread_event(&contest.position).await?;
        let prepared = prepare(&PrepareSettings::of(&self.parts.store), &message);
        let (page, others) = match prepared.map_err(|poison| SequencerError::Halt(poison.message))? {
            PreparedEvent::Validated(tx) => (tx.page.clone(), tx.others.clone()),
            PreparedEvent::Seeded(seed) => (seed.page.clone(), seed.others.clone()),
        };
        if let Some(others) = others {
            self.create_paged(&PagedTx { master: page, others, initial_state: InitialState::Contested }).await?;
            return Ok(());
        }
        let contested = Operation::CreateContested(Arc::new(Page::clone(&page).contested()));
        self.apply(vec![Row { key: Key::master(contest.txid), operation: contested }]).await?;
        Ok(())
    }

    /// Publishes the dead letter of a transaction whose parent is missing. The dead letter is acknowledged before the
    /// chain offset is handled.
    pub(super) async fn publish_missing_parent_letter(
        &self,
        ctx: EventContext,
        contest: &Contest,
        parent: Txid,
    ) -> Result<(), SequencerError> {
        if ctx.mode == DecisionMode::Replay {
            return Ok(());
        }
        let position = &contest.position;
        let source = self.reread_event(position).await?;
        let letter = DeadLetter {
            topic: position.topic.clone(),
            partition: position.partition,
            offset: position.offset,
            stage: "sequencer".to_owned(),
            class: DeadLetterClass::MissingParent,
            message: format!(
                "inputs: parent {parent} of {} is missing: no event before this one in the order of timestamp, \
                 partition and offset produced it",
                contest.txid
            ),
            timestamp_ms: position.timestamp_ms,
        };
        tracing::warn!(txid = %contest.txid, %parent, "sequencer: dead letter for a missing parent");
        self.publish_dead_letter(source, &letter).await
    }

    /// Settles the slots that an event took before its transaction turned out to be a partial one, which spends
    /// nothing. In a rebuild the event reads its own record before it takes any slot, so nothing is settled.
    pub(super) async fn settle_slots_of_partial(
        &self,
        ctx: EventContext,
        contest: &Contest,
    ) -> Result<(), SequencerError> {
        let is_whole = |page: Arc<Page>| (page.body().is_some() || page.pruned.is_some()) && !page.is_partial();
        if ctx.mode == DecisionMode::Replay || self.master(contest.txid).await?.is_some_and(is_whole) {
            return Ok(());
        }
        let message = self.reread_event(&contest.position).await?;
        let claimed = decode_claimed_body(&message, contest).map_err(SequencerError::Halt)?;
        let Some(Body::Transaction(body)) = claimed.map(|claimed| claimed.body) else { return Ok(()) };
        let inputs = list_held_slots(contest.txid, &self.parse_inputs(&contest.txid, &body)?);
        self.settle_slots(ctx, &inputs, |_| true).await
    }

    /// Reads one message again and waits until the log answers.
    ///
    /// # Errors
    /// Halts when the message is gone, when its timestamp shows another message, or when the broker refuses the read.
    pub(super) async fn reread_event(&self, position: &EventPosition) -> Result<Message, SequencerError> {
        let partition = TopicPartition { topic: position.topic.as_str().into(), partition: position.partition };
        let what = format!("offset {} of {partition}", position.offset);
        let mut waiting = ReportedWait::new(&self.parts, "an event that is read again");
        let mut readers = self.readers.lock().await;
        loop {
            match waiting.run_short(readers.get(self.parts.broker.as_ref(), &partition, position.offset)).await {
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
}

/// Replaces the body of a page by other claims, to evaluate it by them.
pub(super) fn replace_claims(page: &mut Arc<Page>, claimed: ClaimedBody) {
    if let Some(master) = &mut Arc::make_mut(page).master {
        master.body = Some(claimed.body);
    }
}

/// Decodes the claims of the contested event; `None`: a partial transaction claims nothing of the outputs that it
/// spends.
fn decode_claimed_body(message: &Message, contest: &Contest) -> Result<Option<ClaimedBody>, String> {
    let EventPosition { topic, partition, offset, .. } = &contest.position;
    let wrong =
        |what: String| format!("the contest of {} names offset {offset} of {topic}/{partition}: {what}", contest.txid);
    let validated = match Event::decode(&message.payload).map_err(|error| wrong(error.to_string()))? {
        Event::Validated(validated) => validated,
        Event::Seeded(_) => return Ok(None),
        other => return Err(wrong(format!("the offset holds a {} event", other.kind().name()))),
    };
    let tx = Transaction::parse(validated.tx).map_err(|error| wrong(error.to_string()))?;
    if tx.txid() != contest.txid {
        return Err(wrong(format!("the offset holds the transaction {}", tx.txid())));
    }
    let fee = tx.fee().map_err(|error| wrong(error.to_string()))?;
    let body = Body::Transaction(message.payload.slice_ref(validated.tx));
    Ok(Some(ClaimedBody { body, fee, extended_size: validated.tx.len() as u64 }))
}
