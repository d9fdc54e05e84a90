//! Handles the messages of the tasks beside the loop.

use tokio::time::Instant;

use super::{Pipeline, PipelineError, try_waiting};
use crate::{
    ingest::{
        dispatch::{MasterRead, Publication, TaskMessage},
        plan::NamedTransaction,
    },
    record::Record,
    telemetry::Completion,
};

impl Pipeline {
    /// Handles a message of a task.
    pub(super) fn on_task_message(&mut self, message: TaskMessage) -> Result<(), PipelineError> {
        let now_ms = self.services.clock.steady_ms();
        match message {
            TaskMessage::Rows { outcomes, last } => {
                for (token, outcome) in outcomes {
                    self.status.record_progress();
                    self.dispatcher.finish_detached(token);
                    self.planner.outcome(token, outcome, now_ms);
                }
                if last {
                    self.dispatcher.batch_done();
                }
            }
            TaskMessage::MastersRead(records) => self.on_masters_read(records, now_ms),
            // Without events the partitions of the flight were revoked, and the answer to the row does not matter.
            TaskMessage::TooBig(token, row, why)
                if self.planner.flights().get(token.flight()).is_some_and(|flight| !flight.events.is_empty()) =>
            {
                self.dispatcher.externalize_body(token, row, why)
            }
            TaskMessage::TooBig(token, ..) | TaskMessage::Cancelled(token) => {
                self.dispatcher.finish_detached(token);
                self.planner.on_cancelled(token, now_ms);
            }
            TaskMessage::CannotBeStored(token, why) => {
                self.dispatcher.finish_detached(token);
                // Until an operator has made room or repaired the damaged records.
                if let Some((txid, events)) = self.planner.halt(token.flight(), now_ms) {
                    let why = format!("{txid} cannot be stored: {why}");
                    self.reads.halt_or_fail(&events, &why, PipelineError::Store(why.clone()))?;
                }
            }
            TaskMessage::Published(publication) => {
                self.publications.end(&publication);
                match publication {
                    Publication::Contests(flights) => {
                        flights.into_iter().for_each(|flight| self.planner.contest_published(flight, now_ms));
                        // Other instances may wait for the commit, and the next transaction here may be proven now. One
                        // proof follows several contests.
                        if self.publications.pending() == 0 && self.planner.flights().counts().parked > 0 {
                            self.proofs.prove_now(self.scans);
                            self.reads.member.commits.commit_soon(self.scans.next_scan());
                        }
                    }
                    Publication::DeadLetter(event) => self.complete(event, Completion::DeadLetter),
                    Publication::Live(events) => events.into_iter().for_each(|(event, how)| self.complete(event, how)),
                }
            }
            TaskMessage::NotPublished(publication, error) => {
                let events = self.publications.fail(publication, &mut self.planner, now_ms);
                self.reads.halt_or_fail(&events, &error.to_string(), error)?;
            }
            TaskMessage::TopicIdChecked { up_to, other } => {
                other.map_or(Ok(()), |why| self.reads.halt_in_other_topic(why))?;
                self.topic_confirmation.on_checked(up_to);
            }
            TaskMessage::ParentCreated(txid) => {
                // A block that creates a transaction also unlocks.
                let named = NamedTransaction { txid, can_unlock: true };
                try_waiting(&mut self.planner, &self.services, vec![named]);
            }
            TaskMessage::ProofSnapshot(snapshot) => {
                let begun = Instant::now();
                self.proofs.on_snapshot(snapshot, &mut self.reads, &self.chunks, &mut self.planner, now_ms);
                self.scans.delay_after(begun);
                self.proofs.postpone(self.scans);
            }
            TaskMessage::EndOffsets(ends) => self.reads.on_end_offsets(&ends),
            TaskMessage::StoreCompared { partition, offset } => {
                // The epoch does not matter: after a node's restart the partition was read again from the beginning.
                if let Some(state) = self.reads.member.partitions.states.get_mut(&partition) {
                    state.verify_consumed(offset);
                }
            }
            TaskMessage::StoreReachable(answer) => self.services.health.on_store_answer(answer),
            TaskMessage::Fatal(error) => return Err(error),
        }
        Ok(())
    }

    fn on_masters_read(&mut self, records: Vec<(MasterRead, Option<Record>)>, now_ms: u64) {
        for (reading, record) in records {
            self.status.record_progress();
            let page = record.as_ref().and_then(Record::page);
            match reading {
                MasterRead::Own(flight) => self.planner.own_record(flight, page, now_ms),
                MasterRead::Parent(flight, group) => self.planner.parent_record(flight, group, page, now_ms),
            }
        }
    }
}
