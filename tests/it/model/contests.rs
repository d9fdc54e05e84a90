//! Every message that the store itself wrote must be explained by the history, and every one of the validated topic must
//! be accounted for in exactly one way.

use std::collections::{BTreeMap, BTreeSet};

use utxo_store::{
    event::{Contest, DeadLetter, DeadLetterClass, Event, OutcomeEvent, OutcomeKind},
    record::Reason,
    tx::Txid,
};

use super::{
    Logged, Logs, Place,
    facts::{Second, Version},
    history::{Standing, is_at},
    replay::Replay,
};

/// Header of an event that was fed into the chain: its offset in the topic that it comes from.
const SOURCE_OFFSET: &str = "utxo-source-offset";

/// Topic, partition, offset of the message that a dead letter is about.
type Buried = (String, i32, u64);

impl Replay<'_> {
    /// A contested transaction conflicts with something in the history, and its contest says where its event is.
    pub fn check_contest(&mut self, contest: &Contest) {
        let Contest { txid, position, body, reason } = contest;
        let topic = &self.logs.validated_topic;
        let says = |version: &Version| is_at(version, position) && blake3::hash(&version.body) == *body;
        if self.is_of_partial(contest) {
            return;
        }
        let there = position.topic == *topic && self.history.tx(txid).is_some_and(|tx| tx.versions().iter().any(says));
        if !there {
            self.complain(format!("contests {txid} by an event that is not there: {position:?}"));
        } else if !self.explains(contest) {
            self.complain(format!("contests {txid} because of {reason:?}, which the history does not know"));
        }
    }

    /// A contest of a transaction whose first event was a partial one: by a whole one that came second, which is to give back
    /// what it took, or by the partial one itself, whose record was found contested.
    fn is_of_partial(&self, contest: &Contest) -> bool {
        let Contest { txid, position, body, reason } = contest;
        let facts = &self.history.facts;
        let second = |second: &Second| is_at(&second.version, position) && blake3::hash(&second.version.body) == *body;
        let at = |place: &Place| (place.partition, place.offset) == (position.partition, position.offset);
        let partial = facts.txs.get(txid).is_some_and(|tx| tx.seeded_at().is_some());
        let by = |reason: &Reason| match reason {
            Reason::Seeded => facts.second.get(txid).into_iter().flatten().any(second),
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
            Reason::ConflictingParent { parent } => spends(&parent) && self.ever_lost.contains(&parent),
            Reason::MissingParent { parent } => spends(&parent) && self.was_missing(&parent, &contest.position),
            Reason::PrunedParent { parent } => spends(&parent) && history.may_be_pruned(&parent),
            Reason::Immature { input } => outpoint(input).is_some_and(|outpoint| {
                let from = history.spending_height(&outpoint.txid);
                from.is_some_and(|from| height.is_some_and(|height| from > height))
            }),
            Reason::NoSuchOutput { input } => outpoint(input).is_some_and(|outpoint| history.owed(&outpoint).is_none()),
            Reason::Mismatch { input } => history.tx(txid).is_some_and(|tx| {
                let version = tx.versions().iter().find(|version| is_at(version, &contest.position));
                let claim = version.and_then(|version| version.claims.get(input as usize));
                outpoint(input).is_some_and(|outpoint| {
                    let reassigned = history.bars.reassigned.contains_key(&outpoint);
                    reassigned || history.owed(&outpoint).as_ref() != claim
                })
            }),
            Reason::Locked { parent } => spends(&parent) && self.ever_locked(&parent),
            // A command touched it, and was handled before.
            Reason::Frozen { input } | Reason::NotYetSpendable { input } | Reason::History { input } => outpoint(input)
                .is_some_and(|outpoint| self.touched.get(&outpoint).is_some_and(|since| *since < self.at)),
            Reason::Found => {
                // It may have been stored contested when a parent was missing, by somebody who died before saying so.
                let was_missing = inputs.iter().any(|input| self.was_missing(&input.txid, &contest.position));
                self.mentioned.contains(txid) || self.has_any_cause(txid) || was_missing
            }
            Reason::Command | Reason::Disconnected | Reason::Seeded => false,
        }
    }

    fn ever_locked(&self, txid: &Txid) -> bool {
        let fate = self.history.fates.get(txid);
        let by_event = self.history.tx(txid).is_some_and(|tx| tx.versions().iter().any(|version| version.locked));
        by_event || fate.is_some_and(|fate| fate.locked.is_some())
    }

    /// Its record may have been stored contested by somebody who died before its contest was in the log: whatever could
    /// have been the reason will do.
    fn has_any_cause(&self, txid: &Txid) -> bool {
        let history = &self.history;
        history.inputs(txid).iter().any(|input| {
            let second = history.facts.second.keys().any(|second| history.facts.may_be_named(second, input));
            let rivals = second || history.facts.spenders.get(input).is_some_and(|spenders| spenders.len() > 1);
            let touched = self.touched.contains_key(input);
            rivals || touched || self.ever_lost.contains(&input.txid) || self.ever_locked(&input.txid)
        }) || !history.against(txid, 0).is_empty()
    }

    /// What must hold once everything is handled.
    pub fn finish(&mut self) {
        self.at = self.logs.chain.last().map_or(0, |logged| logged.message.offset);
        for txid in self.history.facts.txs.keys().copied().collect::<Vec<_>>() {
            match self.history.standing(&txid) {
                Some(Standing::Pending) => self.complain_of(txid, "is contested, and has no verdict"),
                Some(Standing::Live | Standing::Uncontested) => self.check_live(txid),
                Some(Standing::Lost(reason)) => {
                    if matches!(reason, Reason::Mismatch { .. }) {
                        self.check_all_had_a_turn(txid);
                    }
                    self.check_is_barred(txid, reason);
                }
                Some(Standing::Pruned(_)) | None => {}
            }
        }
        for (txid, offset) in std::mem::take(&mut self.chances) {
            // Whoever is pruned has no second chance, nor is known to parents that came back.
            let forgotten = self.history.may_be_pruned(&txid)
                || self.history.inputs(&txid).iter().any(|input| self.history.may_be_pruned(&input.txid));
            let lost = matches!(self.history.standing(&txid), Some(Standing::Lost(_))) && !forgotten;
            if lost && self.reconsidered.get(&txid).is_none_or(|last| *last <= offset) {
                self.complain_of(txid, format!("deserves a second chance since chain offset {offset}, and gets none"));
            }
        }
    }

    /// Complains of a conflicting transaction that nothing bars. A verdict that only an operator or a block takes back,
    /// and one for immaturity, needs no other reason.
    fn check_is_barred(&mut self, txid: Txid, reason: Reason) {
        let history = &self.history;
        let parents = history.inputs(&txid).into_iter().map(|input| input.txid);
        let unknown = history.may_be_pruned(&txid) || parents.into_iter().any(|parent| history.may_be_pruned(&parent));
        if unknown || reason.is_for_good() || reason == Reason::Disconnected {
            return;
        }
        let height = history.unmined_since(&txid).unwrap_or(history.height());
        if history.against(&txid, height).is_empty() {
            self.complain_of(txid, format!("is conflicting because of {reason:?}, and nothing bars it"));
        }
    }

    /// Whoever lost by what an event of it claims had a turn with all that its events claim.
    fn check_all_had_a_turn(&mut self, txid: Txid) {
        let versions = self.history.tx(&txid).map(|tx| tx.versions().to_vec()).unwrap_or_default();
        let named = self.contested_bodies.get(&txid).cloned().unwrap_or_default();
        let versions = if self.history.may_be_pruned(&txid) { Vec::new() } else { versions };
        for version in versions.iter().filter(|version| !named.contains(blake3::hash(&version.body).as_bytes())) {
            self.complain_of(txid, format!("lost by its claims, and its event at {:?} had no turn", version.place));
        }
    }

    /// Its parents are live (or pruned), its inputs are its own, and agree with what its parents hold.
    fn check_live(&mut self, txid: Txid) {
        // As of the block that has it; what came later (a lock, a freeze) does not bar what is live.
        for reason in self.history.against(&txid, u32::MAX) {
            match reason {
                Reason::Locked { .. } | Reason::Frozen { .. } | Reason::PrunedParent { .. } => {}
                reason => self.complain_of(txid, format!("is live, though {reason:?}")),
            }
        }
        let Some(height) = self.history.first(&txid).map(|version| version.height) else { return };
        // What a block has once listed was old enough, wherever that block is now.
        let was_mined = self.history.fates.get(&txid).is_some_and(|fate| fate.unmined_since.is_some());
        let young = self.history.standing(&txid) == Some(Standing::Uncontested) || !was_mined;
        let immature = |reason: &Reason| matches!(reason, Reason::Immature { .. });
        if young && let Some(reason) = self.history.against(&txid, height).into_iter().find(immature) {
            self.complain_of(txid, format!("is live, though {reason:?} at its height {height}"));
        }
    }

    /// Dead letters, outcomes and fed blocks.
    pub fn check_messages(&mut self) {
        self.check_dead_letters();
        self.check_outcomes();
        self.check_fed();
    }

    fn check_dead_letters(&mut self) {
        let mut expected: BTreeMap<Buried, DeadLetterClass> = BTreeMap::new();
        let validated = self.logs.validated_topic.clone();
        let mut expect = |topic: &str, partition, offset, class| {
            expected.insert((topic.to_owned(), partition, offset), class);
        };
        for (place, class) in &self.history.facts.poison {
            expect(&validated, place.partition, place.offset, *class);
        }
        for place in &self.buried {
            expect(&validated, place.partition, place.offset, DeadLetterClass::MissingParent);
        }
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
            let buried = (letter.topic.clone(), letter.partition, letter.offset);
            match expected.get(&buried) {
                Some(class) if *class == letter.class => {}
                Some(class) => self.complain_of(&about, format!("is {:?}, and must be {class:?}", letter.class)),
                None => self.complain_of(&about, format!("{:?} is not explained: {}", letter.class, letter.message)),
            }
            let source = sources.find(&buried);
            let same = |source: &&Logged| {
                let (ours, theirs) = (&source.message, &logged.message);
                (&ours.key, &ours.payload, ours.timestamp_ms) == (&theirs.key, &theirs.payload, letter.timestamp_ms)
            };
            if !source.as_ref().is_some_and(same) {
                self.complain_of(&about, "is not what its source says");
            }
        }
        let letters =
            logs.dead_letters.iter().filter_map(|logged| DeadLetter::from_headers(&logged.message.headers).ok());
        let there: BTreeSet<Buried> = letters.map(|letter| (letter.topic, letter.partition, letter.offset)).collect();
        // What contradicts what is stored does not once that is pruned.
        let may_be_left_out = |buried: &Buried, class: &DeadLetterClass| {
            let about =
                sources.find(buried).and_then(|source| Some(Txid(source.message.key.as_ref().try_into().ok()?)));
            *class == DeadLetterClass::SeedMismatch && about.is_some_and(|txid| self.history.may_be_pruned(&txid))
        };
        let left_out: Vec<Buried> = expected
            .iter()
            .filter(|(buried, class)| !there.contains(*buried) && !may_be_left_out(buried, class))
            .map(|(buried, _)| buried.clone())
            .collect();
        for (topic, partition, offset) in left_out {
            self.complain_of(format!("{topic} {partition}/{offset}"), "has no dead letter, and must have one");
        }
    }

    /// All that must be told is told, and nothing else.
    fn check_outcomes(&mut self) {
        let told = std::mem::take(&mut self.told);
        let mut heard: BTreeMap<(u64, Txid), Vec<OutcomeKind>> = BTreeMap::new();
        let logs = self.logs;
        for logged in &logs.outcomes {
            let about = format!("outcome {}/{}", logged.partition, logged.message.offset);
            let Ok(Event::Outcome(OutcomeEvent { txid, chain_offset, kind })) = Event::decode(&logged.message.payload)
            else {
                self.complain_of(about, "is no outcome");
                continue;
            };
            let subject = (chain_offset, txid);
            if !told.get(&subject).is_some_and(|kinds| kinds.contains(&kind)) {
                self.complain_of(about, format!("tells what never became of it: {txid} at {chain_offset}: {kind:?}"));
            }
            heard.entry(subject).or_default().push(kind);
        }
        for (subject @ (offset, txid), kinds) in told {
            let heard = heard.remove(&subject).unwrap_or_default();
            for kind in kinds.into_iter().filter(|kind| !heard.contains(kind)) {
                self.complain_of(txid, format!("nobody is told what chain offset {offset} made of it: {kind:?}"));
            }
        }
    }

    /// What was fed into the chain is what its topic holds, and all of it is there.
    fn check_fed(&mut self) {
        let logs = self.logs;
        for logged in logs.chain.iter().filter(|logged| sequence_of(logged).is_some()) {
            let number = logged.message.headers.iter().find(|(name, _)| name == SOURCE_OFFSET);
            let number = number.and_then(|(_, value)| std::str::from_utf8(value).ok()?.parse::<u64>().ok());
            let same = |source: &&Logged| {
                Some(source.message.offset) == number && source.message.payload == logged.message.payload
            };
            if !logs.block_mined.iter().chain(&logs.reorgs).any(|source| same(&source)) {
                self.complain_of(format!("chain offset {}", logged.message.offset), "holds what no topic was fed from");
            }
        }
        let sources: BTreeSet<u64> = logs.block_mined.iter().chain(&logs.reorgs).filter_map(sequence_of).collect();
        let handled = self.history.sequence;
        let due = (1..).zip(&sources).take_while(|(due, found)| due == *found).count() as u64;
        if handled != due {
            self.complain_of("the chain", format!("has handled {handled} blocks and reorgs of {due}"));
        }
    }
}

/// Messages that a dead letter may be about.
struct Sources<'l>(BTreeMap<Buried, &'l Logged>);

impl<'l> Sources<'l> {
    fn of(logs: &'l Logs) -> Self {
        let topics = logs.topics.iter().flat_map(|topics| {
            [(&topics.chain, &logs.chain), (&topics.block_mined, &logs.block_mined), (&topics.reorgs, &logs.reorgs)]
        });
        let all = topics.chain([(&logs.validated_topic, &logs.validated)]);
        let named = |topic: &String, logged: &Logged| (topic.clone(), logged.partition, logged.message.offset);
        Sources(all.flat_map(|(topic, all)| all.iter().map(move |logged| (named(topic, logged), logged))).collect())
    }

    fn find(&self, buried: &Buried) -> Option<&'l Logged> {
        self.0.get(buried).copied()
    }
}

fn sequence_of(logged: &Logged) -> Option<u64> {
    match Event::decode(&logged.message.payload) {
        Ok(Event::BlockMined(mined)) => Some(mined.sequence),
        Ok(Event::Reorg(reorg)) => Some(reorg.sequence),
        _ => None,
    }
}
