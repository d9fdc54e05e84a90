//! Checks that the history explains every message that the store wrote, and that every message of the validated topic
//! is accounted for exactly once.

use std::collections::{BTreeMap, BTreeSet};

use utxo_store::{
    event::{Contest, DeadLetter, DeadLetterClass, Event},
    record::Reason,
    tx::Txid,
};

use super::{
    LogPosition, Logged, Logs,
    facts::{EventVersion, LaterEvent},
    history::{TxStatus, is_at},
    replay::Replay,
};

/// Header of an event in the chain topic: the offset of the event in its own topic.
const SOURCE_OFFSET: &str = "utxo-source-offset";
/// Header of a copied event: the next offset of the feed in the topic that the event was copied from.
const SOURCE_NEXT_OFFSET: &str = "utxo-source-next-offset";

/// Topic, partition and offset of the message that a dead letter copies.
type SourceMessage = (String, i32, u64);

impl Replay<'_> {
    /// Checks that a contest names an existing event and a reason that the history knows.
    pub fn check_contest(&mut self, contest: &Contest) {
        let Contest { txid, position, body, reason } = contest;
        let topic = &self.logs.validated_topic;
        let says = |version: &EventVersion| is_at(version, position) && blake3::hash(&version.body) == *body;
        if self.is_of_partial(contest) {
            return;
        }
        let there = position.topic == *topic && self.history.tx(txid).is_some_and(|tx| tx.versions().iter().any(says));
        if !there {
            self.complain(format!("contests {txid} by an event that does not exist: {position:?}"));
        } else if !self.explains(contest) {
            self.complain(format!("contests {txid} because of {reason:?}, which the history does not know"));
        }
    }

    /// Whether the contest is about a txid whose first event was partial. Either a later whole event is to release its
    /// slots, or the partial transaction itself found its record contested.
    fn is_of_partial(&self, contest: &Contest) -> bool {
        let Contest { txid, position, body, reason } = contest;
        let facts = &self.history.facts;
        let is_named =
            |later: &LaterEvent| is_at(&later.version, position) && blake3::hash(&later.version.body) == *body;
        let at = |place: &LogPosition| (place.partition, place.offset) == (position.partition, position.offset);
        let partial = facts.txs.get(txid).is_some_and(|tx| tx.seeded_at().is_some());
        let by = |reason: &Reason| match reason {
            Reason::Seeded => facts.later_events.get(txid).into_iter().flatten().any(is_named),
            Reason::Found => facts.seeds.get(txid).into_iter().flatten().any(at) && self.mentioned.contains(txid),
            _ => false,
        };
        partial && position.topic == *self.logs.validated_topic && by(reason)
    }

    fn explains(&self, contest: &Contest) -> bool {
        let (txid, history) = (&contest.txid, &self.history);
        let inputs = history.inputs(txid);
        let outpoint = |input: u32| inputs.get(input as usize).copied();
        let spends = |parent: &Txid| inputs.iter().any(|input| input.txid == *parent);
        let height = history.tx(txid).and_then(|tx| {
            let version = tx.versions().iter().find(|version| is_at(version, &contest.position))?;
            Some(version.height)
        });
        match contest.reason {
            Reason::DoubleSpend { input, winner } => outpoint(input)
                .is_some_and(|outpoint| winner != *txid && history.facts.may_be_named(&winner, &outpoint)),
            Reason::ConflictingParent { parent } => spends(&parent) && self.ever_conflicting.contains(&parent),
            Reason::MissingParent { parent } => spends(&parent) && self.was_missing(&parent, &contest.position),
            Reason::PrunedParent { parent } => spends(&parent) && history.may_be_pruned(&parent),
            Reason::Immature { input } => outpoint(input).is_some_and(|outpoint| {
                let from = history.spending_height(&outpoint.txid);
                from.is_some_and(|from| height.is_some_and(|height| from > height))
            }),
            Reason::NoSuchOutput { input } => {
                outpoint(input).is_some_and(|outpoint| history.current_output(&outpoint).is_none())
            }
            Reason::Mismatch { input } => history.tx(txid).is_some_and(|tx| {
                let version = tx.versions().iter().find(|version| is_at(version, &contest.position));
                let claim = version.and_then(|version| version.claims.get(input as usize));
                outpoint(input).is_some_and(|outpoint| {
                    let reassigned = history.restrictions.reassigned.contains_key(&outpoint);
                    reassigned || history.current_output(&outpoint).as_ref() != claim
                })
            }),
            Reason::Locked { parent } => spends(&parent) && self.ever_locked(&parent),
            // An earlier command changed the output.
            Reason::Frozen { input } | Reason::NotYetSpendable { input } | Reason::History { input } => outpoint(input)
                .is_some_and(|outpoint| {
                    self.touched.get(&outpoint).is_some_and(|since| *since < self.offset)
                        || self.ever_frozen(&outpoint.txid)
                }),
            Reason::Found => {
                // The transaction may have been stored contested for a missing parent by an instance that died before
                // it published the contest.
                let was_missing = inputs.iter().any(|input| self.was_missing(&input.txid, &contest.position));
                self.mentioned.contains(txid) || self.has_any_cause(txid) || was_missing
            }
            Reason::Command | Reason::Disconnected | Reason::Seeded => false,
        }
    }

    /// Whether a command has frozen the whole transaction.
    pub fn ever_frozen(&self, txid: &Txid) -> bool {
        self.history.tx_entries.get(txid).is_some_and(|tx_entry| tx_entry.frozen.is_some())
    }

    fn ever_locked(&self, txid: &Txid) -> bool {
        let tx_entry = self.history.tx_entries.get(txid);
        let by_event = self.history.tx(txid).is_some_and(|tx| tx.versions().iter().any(|version| version.locked));
        by_event || tx_entry.is_some_and(|tx_entry| tx_entry.locked.is_some())
    }

    /// Whether any reason for a contest exists: an instance may have stored the record contested and died before
    /// publishing.
    fn has_any_cause(&self, txid: &Txid) -> bool {
        let history = &self.history;
        history.inputs(txid).iter().any(|input| {
            let is_later = history.facts.later_events.keys().any(|later| history.facts.may_be_named(later, input));
            let has_rivals = is_later || history.facts.spenders.get(input).is_some_and(|spenders| spenders.len() > 1);
            let touched = self.touched.contains_key(input);
            has_rivals
                || touched
                || self.ever_conflicting.contains(&input.txid)
                || self.ever_locked(&input.txid)
                || self.ever_frozen(&input.txid)
        }) || !history.reasons_against(txid, 0).is_empty()
    }

    /// Checks the state after the last event.
    pub fn check_end(&mut self) {
        self.offset = self.logs.chain.last().map_or(0, |logged| logged.message.offset);
        for txid in self.history.facts.txs.keys().copied().collect::<Vec<_>>() {
            match self.history.status(&txid) {
                Some(TxStatus::Pending) => self.complain_of(txid, "is contested, but has no verdict"),
                Some(TxStatus::Live | TxStatus::Uncontested) => self.check_live(txid),
                Some(TxStatus::Conflicting(reason)) => {
                    if matches!(reason, Reason::Mismatch { .. }) {
                        self.check_all_events_judged(txid);
                    }
                    self.check_is_barred(txid, reason);
                }
                Some(TxStatus::Pruned(_)) | None => {}
            }
        }
        for (txid, offset) in std::mem::take(&mut self.due_second_chances) {
            // A pruned transaction gets no second chance, and reconnected parents do not list it.
            let is_uncertain = self.history.may_be_pruned(&txid)
                || self.history.inputs(&txid).iter().any(|input| self.history.may_be_pruned(&input.txid));
            let is_conflicting = matches!(self.history.status(&txid), Some(TxStatus::Conflicting(_))) && !is_uncertain;
            if is_conflicting && self.reconsidered.get(&txid).is_none_or(|last| *last <= offset) {
                self.complain_of(txid, format!("deserves a second chance since chain offset {offset}, but gets none"));
            }
        }
    }

    /// Reports a conflicting transaction without a reason. A verdict that only an operator or a block reverts, and one
    /// for immaturity, needs no further reason.
    fn check_is_barred(&mut self, txid: Txid, reason: Reason) {
        let history = &self.history;
        let parents = history.inputs(&txid).into_iter().map(|input| input.txid);
        let unknown = history.may_be_pruned(&txid) || parents.into_iter().any(|parent| history.may_be_pruned(&parent));
        if unknown || reason.is_permanent() || reason == Reason::Disconnected {
            return;
        }
        let height = history.unmined_since(&txid).unwrap_or(history.height());
        if history.reasons_against(&txid, height).is_empty() {
            self.complain_of(txid, format!("is conflicting because of {reason:?}, but nothing bars it"));
        }
    }

    /// Checks that a transaction which lost by the claims of one event was judged by the claims of all its events.
    fn check_all_events_judged(&mut self, txid: Txid) {
        let versions = self.history.tx(&txid).map(|tx| tx.versions().to_vec()).unwrap_or_default();
        let named = self.contested_bodies.get(&txid).cloned().unwrap_or_default();
        let versions = if self.history.may_be_pruned(&txid) { Vec::new() } else { versions };
        for version in versions.iter().filter(|version| !named.contains(blake3::hash(&version.body).as_bytes())) {
            self.complain_of(
                txid,
                format!("lost by its claims, but its event at {:?} was never judged", version.place),
            );
        }
    }

    /// Checks a live transaction: parents live or pruned, inputs its own, claims equal to the parents' outputs.
    fn check_live(&mut self, txid: Txid) {
        // The block of the transaction decides; a later lock or freeze does not affect a live transaction.
        for reason in self.history.reasons_against(&txid, u32::MAX) {
            match reason {
                Reason::Locked { .. } | Reason::Frozen { .. } | Reason::PrunedParent { .. } => {}
                reason => self.complain_of(txid, format!("is live, although {reason:?}")),
            }
        }
        let Some(height) = self.history.stored_version(&txid).map(|version| version.height) else { return };
        // A transaction that any block has listed was mature, wherever that block is now.
        let was_mined = self.history.tx_entries.get(&txid).is_some_and(|tx_entry| tx_entry.unmined_since.is_some());
        let young = self.history.status(&txid) == Some(TxStatus::Uncontested) || !was_mined;
        let immature = |reason: &Reason| matches!(reason, Reason::Immature { .. });
        if young && let Some(reason) = self.history.reasons_against(&txid, height).into_iter().find(immature) {
            self.complain_of(txid, format!("is live, although {reason:?} at its height {height}"));
        }
    }

    /// Checks dead letters, outcomes and fed events.
    pub fn check_messages(&mut self) {
        self.check_dead_letters();
        self.check_outcomes();
        self.check_fed_events();
    }

    fn check_dead_letters(&mut self) {
        let mut expected: BTreeMap<SourceMessage, DeadLetterClass> = BTreeMap::new();
        let validated = self.logs.validated_topic.clone();
        let mut expect = |topic: &str, partition, offset, class| {
            expected.insert((topic.to_owned(), partition, offset), class);
        };
        for (place, class) in &self.history.facts.poison {
            expect(&validated, place.partition, place.offset, *class);
        }
        for place in &self.expected_dead_letters {
            expect(&validated, place.partition, place.offset, DeadLetterClass::MissingParent);
        }
        let possible: BTreeSet<SourceMessage> = (self.possible_dead_letters.iter())
            .map(|place| (validated.clone(), place.partition, place.offset))
            .collect();
        let logs = self.logs;
        if let Some(topics) = &logs.topics {
            self.chain_poison.iter().for_each(|offset| expect(&topics.chain, 0, *offset, DeadLetterClass::Decode));
            for (topic, messages) in [(&topics.block_mined, &logs.block_mined), (&topics.reorgs, &logs.reorgs)] {
                for logged in messages.iter().filter(|logged| sequence_of(logged).is_none()) {
                    expect(topic, logged.partition, logged.message.offset, DeadLetterClass::Decode);
                }
            }
        }
        let sources = Sources::of(logs);
        for logged in &logs.dead_letters {
            let letter = match DeadLetter::from_headers(&logged.message.headers) {
                Ok(letter) => letter,
                Err(error) => {
                    self.complain_of(
                        format!("dead letter {}/{}", logged.partition, logged.message.offset),
                        error.to_string(),
                    );
                    continue;
                }
            };
            let about = format!("dead letter of {} {}/{}", letter.topic, letter.partition, letter.offset);
            let source_message = (letter.topic.clone(), letter.partition, letter.offset);
            match expected.get(&source_message) {
                Some(class) if *class == letter.class => {}
                Some(class) => self.complain_of(&about, format!("is {:?}, but must be {class:?}", letter.class)),
                None if letter.class == DeadLetterClass::MissingParent && possible.contains(&source_message) => {}
                None => self.complain_of(&about, format!("{:?} is not explained: {}", letter.class, letter.message)),
            }
            let source = sources.find(&source_message);
            let same = |source: &&Logged| {
                let (ours, theirs) = (&source.message, &logged.message);
                (&ours.key, &ours.payload, ours.timestamp_ms) == (&theirs.key, &theirs.payload, letter.timestamp_ms)
            };
            if !source.as_ref().is_some_and(same) {
                self.complain_of(&about, "does not equal its source message");
            }
        }
        let letters =
            logs.dead_letters.iter().filter_map(|logged| DeadLetter::from_headers(&logged.message.headers).ok());
        let there: BTreeSet<SourceMessage> =
            letters.map(|letter| (letter.topic, letter.partition, letter.offset)).collect();
        // An event that contradicts a stored transaction is accepted once that is pruned.
        let may_be_left_out = |source_message: &SourceMessage, class: &DeadLetterClass| {
            let about = sources
                .find(source_message)
                .and_then(|source| Some(Txid(source.message.key.as_ref().try_into().ok()?)));
            *class == DeadLetterClass::SeedMismatch && about.is_some_and(|txid| self.history.may_be_pruned(&txid))
        };
        let left_out: Vec<SourceMessage> = expected
            .iter()
            .filter(|(source_message, class)| {
                !there.contains(*source_message) && !may_be_left_out(source_message, class)
            })
            .map(|(source_message, _)| source_message.clone())
            .collect();
        for (topic, partition, offset) in left_out {
            self.complain_of(format!("{topic} {partition}/{offset}"), "has no dead letter, but must have one");
        }
    }

    /// Checks that the fed events of the chain equal their source topics, completely.
    fn check_fed_events(&mut self) {
        let logs = self.logs;
        for logged in logs.chain.iter().filter(|logged| sequence_of(logged).is_some()) {
            let header = |wanted| {
                let (_, value) = logged.message.headers.iter().find(|(name, _)| name == wanted)?;
                std::str::from_utf8(value).ok()?.parse::<u64>().ok()
            };
            let number = header(SOURCE_OFFSET);
            let same = |source: &&Logged| {
                Some(source.message.offset) == number && source.message.payload == logged.message.payload
            };
            if !logs.block_mined.iter().chain(&logs.reorgs).any(|source| same(&source)) {
                self.complain_of(
                    format!("chain offset {}", logged.message.offset),
                    "holds an event that is in no source topic",
                );
            }
            let next = header(SOURCE_NEXT_OFFSET);
            let is_left_out =
                |source: &&Logged| Some(source.message.offset) < next && sequence_of(source) > sequence_of(logged);
            let topic =
                if logs.block_mined.iter().any(|source| same(&source)) { &logs.block_mined } else { &logs.reorgs };
            if let Some(left_out) = topic.iter().find(is_left_out) {
                self.complain_of(
                    format!("chain offset {}", logged.message.offset),
                    format!("names a next offset beyond offset {} of its source", left_out.message.offset),
                );
            }
        }
        let sources: BTreeSet<u64> = logs.block_mined.iter().chain(&logs.reorgs).filter_map(sequence_of).collect();
        let handled = self.history.sequence;
        let due = (1..).zip(&sources).take_while(|(due, found)| due == *found).count() as u64;
        if handled != due {
            self.complain_of("the chain", format!("has handled {handled} of {due} blocks and reorgs"));
        }
    }
}

/// Source messages that a dead letter may copy.
struct Sources<'l>(BTreeMap<SourceMessage, &'l Logged>);

impl<'l> Sources<'l> {
    fn of(logs: &'l Logs) -> Self {
        let topics = logs.topics.iter().flat_map(|topics| {
            [(&topics.chain, &logs.chain), (&topics.block_mined, &logs.block_mined), (&topics.reorgs, &logs.reorgs)]
        });
        let all = topics.chain([(&logs.validated_topic, &logs.validated)]);
        let named = |topic: &String, logged: &Logged| (topic.clone(), logged.partition, logged.message.offset);
        Sources(all.flat_map(|(topic, all)| all.iter().map(move |logged| (named(topic, logged), logged))).collect())
    }

    fn find(&self, source_message: &SourceMessage) -> Option<&'l Logged> {
        self.0.get(source_message).copied()
    }
}

fn sequence_of(logged: &Logged) -> Option<u64> {
    match Event::decode(&logged.message.payload) {
        Ok(Event::BlockMined(mined)) => Some(mined.sequence),
        Ok(Event::Reorg(reorg)) => Some(reorg.sequence),
        _ => None,
    }
}
