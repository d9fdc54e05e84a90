//! Contests and dead letters that are being published.

use tokio::sync::mpsc;

use crate::{
    broker::Message,
    ingest::{dispatch::TaskMessage, flight::FlightId, plan::EventRef, publish::Publisher},
    prepare::Poison,
    record::Reason,
    tx::Txid,
};

/// Publishes the messages of the pipeline and counts those without an acknowledgement.
pub(super) struct Publications {
    publisher: Publisher,
    sender: mpsc::UnboundedSender<TaskMessage>,
    pending: usize,
    contests: u64,
    dead_letters: u64,
}

impl Publications {
    pub(super) fn new(publisher: Publisher, sender: mpsc::UnboundedSender<TaskMessage>) -> Self {
        Publications { publisher, sender, pending: 0, contests: 0, dead_letters: 0 }
    }

    pub(super) fn publish_contest(
        &mut self,
        flight: FlightId,
        txid: Txid,
        event: EventRef,
        body: [u8; 32],
        reason: Reason,
    ) {
        self.contests += 1;
        self.pending += 1;
        self.publisher.publish_contest(flight, txid, event, body, reason, self.sender.clone());
    }

    pub(super) fn publish_dead_letter(&mut self, event: EventRef, message: Message, poison: Poison) {
        self.dead_letters += 1;
        self.pending += 1;
        self.publisher.publish_dead_letter(event, message, poison, self.sender.clone());
    }

    /// Notes that a message is acknowledged, or refused for good.
    pub(super) fn end_one(&mut self) {
        self.pending -= 1;
    }

    /// Returns the number of messages without an acknowledgement.
    pub(super) fn pending(&self) -> usize {
        self.pending
    }

    /// Returns the number of contests, and of dead letters.
    pub(super) fn totals(&self) -> (u64, u64) {
        (self.contests, self.dead_letters)
    }
}
