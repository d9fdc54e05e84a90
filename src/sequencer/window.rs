//! Windows: consecutive contests that are decided together.
//!
//! The handlers of a window run one after the other, each ahead of its decisions ([`speculation`](super::speculation)).
//! The decisions of all events are published as one group, then the operations of all events go to the store in a few
//! requests, then their messages go to the log. Meanwhile the next window is evaluated. An event that cannot be handled
//! ahead ends the window. Everything that goes wrong ends in the handling of single events, which finds the decisions
//! in the log as after a crash.

use std::sync::Arc;

use crate::{
    broker::{Message, OutgoingMessage, produce_until_acknowledged},
    event::{Command, CommandAction, Contest, Event},
    record::{Body, Key, Page, Slot},
    sequencer::{
        SequencerError, SequencerParts,
        contest::ContestHandler,
        context::{HandlerContext, count_outcome},
        decisions::DecisionLog,
        handler::Handler,
        speculation::{RecordWork, SpeculatedWork, Speculation, SpeculativeEngine, SpeculativeProducer, into_waves},
        steps::DecisionMode,
        waiting::POLL_PAUSE,
    },
    telemetry::EventKind,
    tx::{Transaction, Txid},
};

/// Bytes of the messages of a window, at most. One message more may exceed the limit.
const MAX_BYTES: usize = 8 << 20;
/// Operations of a window, at most. One event more may exceed the limit.
const MAX_ROWS: usize = 8_192;
/// Records that are read ahead in one request.
const READ_AT_ONCE: usize = 128;
/// Inputs of a transaction that are read ahead of its handler. A handler reads further ones itself.
const MAX_INPUTS_AHEAD: usize = 64;

/// An event that a window may have.
enum WindowEvent {
    Contest(Contest),
    Reconsider { id: [u8; 16], txid: Txid },
}

impl WindowEvent {
    fn of(message: &Message) -> Option<(Self, EventKind)> {
        let event = Event::decode(&message.payload).ok()?;
        let kind = EventKind::of_chain(&event)?;
        match event {
            Event::Contest(contest) => Some((WindowEvent::Contest(contest), kind)),
            Event::Command(Command { id, action: CommandAction::Reconsider { txid } }) => {
                Some((WindowEvent::Reconsider { id, txid }, kind))
            }
            _ => None,
        }
    }

    fn txid(&self) -> Txid {
        match self {
            WindowEvent::Contest(contest) => contest.txid,
            WindowEvent::Reconsider { txid, .. } => *txid,
        }
    }
}

/// Number of events of the next window. An event that is handled alone costs the reads for all later events of its
/// window, so that windows become small among such events. Pure.
#[derive(Debug, Clone, Copy)]
pub struct WindowBound {
    present: usize,
    limit: usize,
}

impl WindowBound {
    /// Begins with windows of `limit` events; 0: each event is handled alone.
    pub fn new(limit: usize) -> Self {
        WindowBound { present: limit, limit }
    }

    /// Follows a window of `selected` events, of which `evaluated` can be decided together.
    fn follow(&mut self, selected: usize, evaluated: usize) {
        let next = if evaluated == selected { self.present * 2 } else { (evaluated * 2).max(1) };
        self.present = next.min(self.limit);
    }
}

/// An event of a window with its chain offset.
type Numbered = (u64, WindowEvent, EventKind);

/// Number of events that were handled in windows.
pub struct HandledEvents {
    pub count: usize,
    /// The event after them is handled alone.
    pub is_next_single: bool,
}

/// Handles the first events of `messages` in windows.
///
/// A window is evaluated while the window before is applied: its copy has what that window changes. After an event that
/// cannot be decided ahead no window follows: its copy would be without the changes that are being applied.
pub async fn handle_windows(
    handler: &Handler,
    log: &mut DecisionLog,
    messages: &[Message],
    bound: &mut WindowBound,
) -> Result<HandledEvents, SequencerError> {
    let (mut selected, mut handled) = (0, 0);
    // The window whose decisions are published and whose operations are not applied yet.
    let mut decided: Option<(Vec<Numbered>, SpeculatedWork)> = None;
    let mut next = Some(Speculation::default());
    loop {
        let is_next_single = next.is_none();
        let speculation = Arc::new(next.unwrap_or_default());
        let limit = if is_next_single { 0 } else { bound.present };
        let mut events = select_events(log, &messages[selected..], limit);
        let applied = async {
            match decided.take() {
                Some((events, work)) => apply_window(handler, &events, work).await,
                None => Ok((0, false)),
            }
        };
        let evaluated = evaluate_window(handler, log, &speculation, &events, bound);
        let (applied, evaluated) = futures_util::join!(applied, evaluated);
        // After a failure the next call meets the same failure; the windows before are handled.
        let (applied, evaluated) = match (applied, evaluated) {
            (Ok((applied, false)), Ok(evaluated)) => (applied, evaluated),
            (Ok((applied, true)), _) => (applied, 0),
            (Ok((applied, false)), Err(_)) if handled + applied > 0 => (applied, 0),
            (Err(_), _) if handled > 0 => (0, 0),
            (applied, evaluated) => (applied?.0, evaluated?),
        };
        handled += applied;
        let is_next_single = is_next_single || (evaluated == 0 && !events.is_empty());
        events.drain(evaluated..).for_each(|(offset, ..)| log.discard_staged(offset));
        if events.is_empty() {
            return Ok(HandledEvents { count: handled, is_next_single });
        }
        // Checked after all reads: the decisions are valid only if no node lost writes meanwhile.
        if log.have_nodes_restarted().await? {
            return Err(SequencerError::NodeRestarted);
        }
        let offsets: Vec<u64> = events.iter().map(|(offset, ..)| *offset).collect();
        if !log.publish_staged(&offsets).await? {
            return Ok(HandledEvents { count: handled, is_next_single: true });
        }
        selected += events.len();
        let work;
        (work, next) = speculation.finish();
        decided = Some((events, work));
    }
}

/// Reads what the events need and evaluates them, one after the other, until one cannot be decided ahead. Returns how
/// many can.
async fn evaluate_window(
    handler: &Handler,
    log: &mut DecisionLog,
    speculation: &Arc<Speculation>,
    events: &[Numbered],
    bound: &mut WindowBound,
) -> Result<usize, SequencerError> {
    if events.is_empty() {
        return Ok(0);
    }
    let parts = make_parts(&handler.parts, speculation);
    read_ahead(&handler.parts, speculation, events).await?;
    log.set_staging(true);
    let evaluated = evaluate_events(handler, &parts, speculation, log, events).await;
    log.set_staging(false);
    bound.follow(events.len(), evaluated);
    Ok(evaluated)
}

/// Applies a window whose decisions are published. Returns the number of handled events, and whether the store has
/// refused an operation of the next one.
async fn apply_window(
    handler: &Handler,
    events: &[Numbered],
    work: SpeculatedWork,
) -> Result<(usize, bool), SequencerError> {
    let failed = apply_work(&handler.parts, work).await?;
    let handled = failed.map_or(events.len(), |failed| events.partition_point(|(offset, ..)| *offset < failed));
    events[..handled].iter().for_each(|(.., kind)| handler.parts.metrics.events.of(*kind).inc());
    Ok((handled, failed.is_some()))
}

/// Selects the events of a window: the first messages that are contests without a decision.
fn select_events(log: &DecisionLog, messages: &[Message], limit: usize) -> Vec<Numbered> {
    let (mut bytes, mut next) = (0, 0);
    let selected = messages.iter().take(limit).map_while(|message| {
        // The broker may deliver a message twice.
        if message.offset < std::mem::replace(&mut next, message.offset + 1) {
            return None;
        }
        if bytes > MAX_BYTES || log.table().has_decisions(message.offset) {
            return None;
        }
        bytes += message.payload.len();
        let (event, kind) = WindowEvent::of(message)?;
        Some((message.offset, event, kind))
    });
    selected.collect()
}

/// Makes the parts of the handlers of a window: their store and their producer are those of the speculation.
fn make_parts(parts: &SequencerParts, speculation: &Arc<Speculation>) -> SequencerParts {
    let mut store = parts.store.clone();
    let engine = SpeculativeEngine::new(store.engine.clone(), speculation.clone(), store.settings.rules);
    store.engine = Arc::new(engine);
    SequencerParts {
        creator: parts.creator.with_store(store.clone()),
        store,
        producer: Arc::new(SpeculativeProducer(speculation.clone())),
        speculation: Some(speculation.clone()),
        ..parts.clone()
    }
}

/// Reads the records that the handlers will probably need: the transactions, the pages with the slots that the
/// transactions spend, and the holders of the slots.
async fn read_ahead(
    parts: &SequencerParts,
    speculation: &Speculation,
    events: &[Numbered],
) -> Result<(), SequencerError> {
    let read = async |keys: Vec<Key>| -> Result<(), SequencerError> {
        for keys in speculation.missing(keys).chunks(READ_AT_ONCE) {
            if speculation.is_full() {
                break;
            }
            let records = parts.wait_for("the store", parts.store.read(keys.to_vec())).await?;
            speculation.add_records(keys.iter().copied().zip(records));
        }
        Ok(())
    };
    read(events.iter().map(|(_, event, _)| Key::master(event.txid())).collect()).await?;
    let mut slots = Vec::new();
    for (_, event, _) in events {
        if let Some(page) = speculation.page(&Key::master(event.txid())) {
            slots.extend(list_inputs(parts, &page));
        }
    }
    let pages = slots.iter().flat_map(|(key, _)| [Some(*key), master_of(key)]).flatten();
    read(pages.collect()).await?;
    let holder = |(key, offset): &(Key, u32)| {
        let page = speculation.page(key)?;
        let spender = page.utxos.as_ref()?.get(*offset as usize).and_then(Slot::spender)?;
        Some(Key::master(spender.txid))
    };
    read(slots.iter().filter_map(holder).collect()).await
}

/// Returns the key of the master of a further page.
pub fn master_of(key: &Key) -> Option<Key> {
    match key {
        Key::Page(txid, 1..) => Some(Key::master(*txid)),
        _ => None,
    }
}

/// Returns the slots that an inline transaction spends, each with the key of its page and the offset there.
pub fn list_inputs(parts: &SequencerParts, page: &Page) -> Vec<(Key, u32)> {
    let Some(Body::Transaction(bytes)) = page.body() else { return Vec::new() };
    let Ok(tx) = Transaction::parse(bytes) else { return Vec::new() };
    let place = |outpoint| {
        let (number, offset) = parts.store.locate_slot(outpoint);
        (Key::Page(outpoint.txid, number), offset)
    };
    tx.inputs().take(MAX_INPUTS_AHEAD).map(|input| place(input.outpoint)).collect()
}

/// Runs the handlers of the events, one after the other, and returns how many can be decided together.
async fn evaluate_events(
    handler: &Handler,
    parts: &SequencerParts,
    speculation: &Speculation,
    log: &mut DecisionLog,
    events: &[Numbered],
) -> usize {
    for (number, (offset, event, _)) in events.iter().enumerate() {
        if speculation.row_count() > MAX_ROWS {
            return number;
        }
        handler.parts.beat();
        let cx = HandlerContext { parts, ..handler.context(*offset, DecisionMode::Live) };
        let contests = ContestHandler::new(&cx);
        let handled = match event {
            WindowEvent::Contest(contest) => speculation.run(Box::pin(contests.handle_contest(log, contest))).await,
            WindowEvent::Reconsider { id, txid } => {
                speculation.run(Box::pin(contests.handle_reconsider(log, *id, *txid))).await
            }
        };
        // An error is met again when the event is handled alone.
        if !matches!(handled, Some(Ok(()))) {
            speculation.abandon_present();
            return number;
        }
        speculation.keep(*offset);
    }
    events.len()
}

/// Applies the operations of a window and publishes its messages. Returns the chain offset of the first event with an
/// operation that the store refuses, though the copy did not: the event is applied again from the log. All operations
/// of the events before are applied.
async fn apply_work(parts: &SequencerParts, work: SpeculatedWork) -> Result<Option<u64>, SequencerError> {
    let mut failed: Option<u64> = None;
    for mut wave in into_waves(work.rows) {
        // The operations on one record are in the order of their events, so that the rest is the work of the events
        // before.
        if let Some(chain_offset) = failed {
            wave.iter_mut().for_each(|record| record.truncate(chain_offset));
            wave.retain(|record| !record.operations.is_empty());
        }
        let first_offsets: Vec<Option<u64>> = wave.iter().map(RecordWork::first_offset).collect();
        let rows = wave.into_iter().map(RecordWork::into_row).collect();
        let outcomes = parts.wait_for("the store", parts.store.apply(rows)).await?;
        let refused = first_offsets.into_iter().zip(outcomes).filter(|(_, outcome)| !outcome.is_done());
        failed = refused.filter_map(|(first_offset, _)| first_offset).chain(failed).min();
    }
    if let Some(chain_offset) = failed {
        tracing::debug!(chain_offset, "window: record changed since its evaluation; events are applied again");
    }
    let is_applied = |chain_offset: &u64| failed.is_none_or(|failed| *chain_offset < failed);
    let messages = work.messages.into_iter().filter(|(chain_offset, _)| is_applied(chain_offset));
    let messages: Vec<OutgoingMessage> = messages.map(|(_, message)| message).collect();
    if !messages.is_empty() {
        let produced = produce_until_acknowledged(parts.producer.as_ref(), &messages, POLL_PAUSE);
        parts.wait_for("the log", produced).await?;
    }
    let outcomes = work.outcomes.iter().filter(|(chain_offset, _)| is_applied(chain_offset));
    outcomes.for_each(|(_, kind)| count_outcome(&parts.metrics, kind));
    Ok(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        record::{Phase, Sequenced, Stamp, TxState},
        sequencer::{speculation::SpeculatedRow, tests::parts},
        store::testing,
    };

    fn row(chain_offset: u64, txid: Txid, operation: Sequenced) -> SpeculatedRow {
        SpeculatedRow { key: Key::master(txid), stamp: Stamp::in_era(0, chain_offset, Phase::Apply), operation }
    }

    /// The store refuses an operation of the third event in the first wave, while an operation of the second event
    /// waits for the second wave. Protects: the earlier events are applied whole, since they count as handled.
    #[tokio::test(start_paused = true)]
    async fn a_refusal_leaves_the_operations_of_earlier_events() {
        let parts = parts().await;
        let (parent, winner) = (testing::seeded(1, 2), testing::seeded(2, 2).contested());
        let (parent_txid, winner_txid, absent) = (parent.txid, winner.txid, Txid([9; 32]));
        parts.store.plant(parent).await;
        parts.store.plant(winner).await;
        let child = |number| Sequenced::AddConflictingChild(Txid([number; 32]));
        let rows = vec![
            row(1, parent_txid, child(1)),
            row(2, parent_txid, child(2)),
            row(2, winner_txid, Sequenced::Accept),
            row(3, absent, child(3)),
            row(4, winner_txid, child(4)),
        ];
        let message = |offset| (offset, OutgoingMessage { topic: "outcomes".into(), ..OutgoingMessage::default() });
        let work = SpeculatedWork { rows, messages: (1..=4).map(message).collect(), outcomes: vec![] };
        assert_eq!(apply_work(&parts, work).await.unwrap(), Some(3));
        let children = async |txid| {
            let stored = parts.store.master(txid).await.unwrap().unwrap();
            let master = stored.master.as_ref().unwrap();
            let children: Vec<u8> = master.conflicting_children.iter().map(|child| child.0[0]).collect();
            (stored.state(), children)
        };
        assert_eq!(children(parent_txid).await, (TxState::Live, vec![1, 2]));
        assert_eq!(children(winner_txid).await, (TxState::Live, vec![]), "operations of later events are dropped");
        let outcomes = crate::broker::TopicPartition { topic: "outcomes".into(), partition: 0 };
        assert_eq!(parts.broker.watermarks(&outcomes).await.unwrap().1, 2, "messages of handled events only");
    }

    #[test]
    fn windows_become_small_among_events_that_are_handled_alone() {
        let mut bound = WindowBound::new(256);
        let mut follow = |selected, evaluated| {
            bound.follow(selected, evaluated);
            bound.present
        };
        assert_eq!((follow(256, 0), follow(1, 0)), (1, 1));
        assert_eq!((follow(1, 1), follow(2, 2), follow(3, 3)), (2, 4, 8));
        assert_eq!(follow(8, 3), 6);
        assert_eq!((6..12).map(|_| follow(1, 1)).last(), Some(256));
        let mut none = WindowBound::new(0);
        none.follow(0, 0);
        assert_eq!(none.present, 0);
    }
}
