//! What a contest refers to: the event itself, read again from its topic.

use std::sync::Arc;

use crate::{
    broker::{BrokerErrorKind, Message, TopicPartition},
    engine::Row,
    event::{Contest, DeadLetter, DeadLetterClass, Event, Position},
    prepare::{PrepareSettings, Prepared, prepare},
    record::{Body, ClaimedBody, Key, Operation, Page, Phase, Sequenced, TxState},
    sequencer::{
        Stop,
        handler::{At, Handler},
        reread::Reread,
        steps::Making,
        verdict::held_by,
        waiting::Waiting,
    },
    store::{
        canonical::BodyHash,
        create::{Paged, Starts},
    },
    tx::{Transaction, Txid},
};

impl Handler {
    /// The transaction as the contested event has it, where that is not how it is stored. Two events for one transaction
    /// can claim different previous outputs; which of them was stored first is an accident, which one is decided on is not.
    pub(super) async fn other_claims(&self, contest: &Contest, page: &Page) -> Result<Option<ClaimedBody>, Stop> {
        let Some(stored) = self.transaction_of(page).await? else { return Ok(None) };
        if BodyHash::of(&Body::Transaction(stored)).hash() == contest.body {
            return Ok(None);
        }
        let message = self.source(&contest.position).await?;
        claimed_body(&message, contest).map_err(Stop::Halt)
    }

    /// Stores the transaction as the contested event has it; what is live only where that is what let it win.
    pub(super) async fn adopt_body(
        &self,
        at: At,
        applied_again: bool,
        contest: &Contest,
        has_won: bool,
    ) -> Result<(), Stop> {
        let Some(page) = self.wait_for_bodies(at, applied_again, &[contest.txid]).await?.pop() else { return Ok(()) };
        if page.state() == TxState::Live && !has_won {
            return Ok(());
        }
        let Some(claimed) = self.other_claims(contest, &page).await? else { return Ok(()) };
        self.replace_body(at, contest.txid, claimed).await
    }

    /// Stores a transaction with these claims. In the blob store nothing is replaced: another blob is put beside the first, and the
    /// record changes over to it.
    pub(super) async fn replace_body(&self, at: At, txid: Txid, claimed: ClaimedBody) -> Result<(), Stop> {
        let page = self.master(txid).await?.unwrap_or_else(|| Page::empty(txid).into());
        let placed = Box::pin(self.answer("the store", self.parts.store.placed(&page, claimed))).await?;
        let row = at.row(Phase::Apply, Key::master(txid), Sequenced::ReplaceBody(placed));
        self.apply_decided(at, vec![row]).await
    }

    /// Stores a contestant again that a node forgot, from the event that its contest names. To wait for the pipeline to bring
    /// it might be for ever: it may wait there for a parent whose own contest stands behind this one.
    pub(super) async fn restore_contestant(&self, at: At, contest: &Contest) -> Result<(), Stop> {
        self.contest_holders(at, Phase::Apply, vec![contest.txid]).await?;
        let stored = self.master(contest.txid).await?;
        if stored.is_none_or(|page| !matches!(page.state(), TxState::Stub(_))) {
            return Ok(());
        }
        let message = self.source(&contest.position).await?;
        let prepared = prepare(&PrepareSettings::of(&self.parts.store), &message);
        let (page, others) = match prepared.map_err(|poison| Stop::Halt(poison.message))? {
            Prepared::Validated(tx) => (tx.page.clone(), tx.others.clone()),
            Prepared::Seeded(seed) => (seed.page.clone(), seed.others.clone()),
        };
        if let Some(others) = others {
            self.create_paged(&Paged { master: page, others, starts: Starts::Contested }).await?;
            return Ok(());
        }
        let contested = Operation::CreateContested(Arc::new(Page::clone(&page).contested()));
        self.apply(vec![Row { key: Key::master(contest.txid), operation: contested }]).await?;
        Ok(())
    }

    /// The dead letter of a transaction whose parent is missing: acknowledged before the chain offset completes.
    pub(super) async fn bury(&self, at: At, contest: &Contest, parent: Txid) -> Result<(), Stop> {
        if at.making == Making::Replaying {
            return Ok(());
        }
        let position = &contest.position;
        let source = self.source(position).await?;
        let letter = DeadLetter {
            topic: position.topic.clone(),
            partition: position.partition,
            offset: position.offset,
            stage: "sequencer".to_owned(),
            class: DeadLetterClass::MissingParent,
            message: format!(
                "inputs: parent {parent} of {} is missing: no event before this one in the order of timestamp, partition and \
                 offset produced it",
                contest.txid
            ),
            timestamp_ms: position.timestamp_ms,
        };
        tracing::warn!(txid = %contest.txid, %parent, "dead letter: missing parent");
        self.bury_letter(source, &letter).await
    }

    /// Settles what an event took whose transaction turned out to be a partial one, which spends nothing. A rebuild looks
    /// before it takes anything.
    pub(super) async fn give_back(&self, at: At, contest: &Contest) -> Result<(), Stop> {
        let is_whole = |page: Arc<Page>| (page.body().is_some() || page.pruned.is_some()) && !page.is_partial();
        if at.making == Making::Replaying || self.master(contest.txid).await?.is_some_and(is_whole) {
            return Ok(());
        }
        let message = self.source(&contest.position).await?;
        let claimed = claimed_body(&message, contest).map_err(Stop::Halt)?;
        let Some(Body::Transaction(body)) = claimed.map(|claimed| claimed.body) else { return Ok(()) };
        let inputs = held_by(contest.txid, &self.inputs_in(&contest.txid, &body)?);
        self.settle_slots(at, &inputs, |_| true).await
    }

    /// Reads one message again, for as long as it takes.
    pub(super) async fn source(&self, position: &Position) -> Result<Message, Stop> {
        let partition = TopicPartition { topic: position.topic.as_str().into(), partition: position.partition };
        let what = format!("offset {} of {partition}", position.offset);
        let mut waiting = Waiting::new(&self.parts, "an event that is read again");
        let mut readers = self.readers.lock().await;
        loop {
            match waiting.attend(readers.get(self.parts.broker.as_ref(), &partition, position.offset)).await {
                Ok(Reread::Found(message)) if message.timestamp_ms == position.timestamp_ms => return Ok(message),
                Ok(Reread::Found(_)) => {
                    let why = "is another event by now: its topic was created again";
                    return Err(Stop::Halt(format!("{what} {why}")));
                }
                Ok(Reread::Gone) => {
                    let why = "is gone: its topic no longer holds what the chain refers to";
                    return Err(Stop::Halt(format!("{what} {why}")));
                }
                Ok(Reread::NoAnswer) => tracing::warn!("{what} does not come; asked for again"),
                Err(error) if error.kind == BrokerErrorKind::Retryable => {
                    tracing::warn!(%error, "{what} cannot be read; tried again");
                }
                Err(error) if error.kind == BrokerErrorKind::Refused => {
                    return Err(Stop::Halt(format!("{what} cannot be read: {error}")));
                }
                Err(error) => return Err(error.into()),
            }
            waiting.look_again(&what).await;
        }
    }
}

/// The page as it is with other claims: to evaluate it by them.
pub(super) fn with_claims(page: &mut Arc<Page>, claimed: ClaimedBody) {
    if let Some(master) = &mut Arc::make_mut(page).master {
        master.body = Some(claimed.body);
    }
}

/// What the contested event claims. A partial transaction claims nothing of the outputs that are spent.
fn claimed_body(message: &Message, contest: &Contest) -> Result<Option<ClaimedBody>, String> {
    let Position { topic, partition, offset, .. } = &contest.position;
    let wrong =
        |what: String| format!("the contest of {} names offset {offset} of {topic}/{partition}: {what}", contest.txid);
    let validated = match Event::decode(&message.payload).map_err(|error| wrong(error.to_string()))? {
        Event::Validated(validated) => validated,
        Event::Seeded(_) => return Ok(None),
        other => return Err(wrong(format!("there is a {} event", other.kind().name()))),
    };
    let tx = Transaction::parse(validated.tx).map_err(|error| wrong(error.to_string()))?;
    if tx.txid() != contest.txid {
        return Err(wrong(format!("there is the transaction {}", tx.txid())));
    }
    let fee = tx.fee().map_err(|error| wrong(error.to_string()))?;
    let body = Body::Transaction(message.payload.slice_ref(validated.tx));
    Ok(Some(ClaimedBody { body, fee, extended_size: validated.tx.len() as u64 }))
}
