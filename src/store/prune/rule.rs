//! Rule that decides whether a transaction may be pruned, from its records and those of its spenders. Pure.

use crate::record::{Page, TxState, Verdict};

/// Values by which the rule decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PruneTerms {
    /// Greatest height that the longest chain has had, as of the committed chain offset.
    pub height: u32,
    /// `block_height_retention`, in blocks; not 0.
    pub retention: u32,
    /// Committed chain offset: events below are never handled again.
    pub committed: u64,
}

impl PruneTerms {
    /// Greatest height of a block that may list a transaction pruned by these terms.
    pub fn reorg_floor(&self) -> u32 {
        self.height.saturating_sub(self.retention)
    }
}

/// Facts about all pages of a transaction that decide whether it is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PruneFacts {
    /// State of the transaction.
    pub state: TxState,
    /// Chain offset of the sequencer's last change of any page.
    pub changed_at: Option<u64>,
    /// An output was given to a new owner.
    pub has_reassigned_output: bool,
    /// An operator has frozen the transaction, or has frozen, delayed or reassigned an output.
    pub is_barred: bool,
    /// Height until which `preserveUntil` keeps the transaction.
    pub preserve_until: Option<u32>,
    /// The transaction is locked, frozen as a whole, or live with an open verdict.
    pub is_withheld: bool,
    /// Every page exists, is complete, and is all spent by its own count.
    pub all_spent: bool,
    /// Greatest height of the blocks of the longest chain that list the transaction.
    pub mined: Option<u32>,
    /// Summary of the spenders of all slots.
    pub spenders: Spenders,
}

/// Summary of all spenders of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spenders {
    /// Each spender is pruned or mined on the longest chain. The value is the greatest known height.
    Mined(Option<u32>),
    /// At least one spender is neither pruned nor mined on the longest chain.
    NotMined,
}

impl Spenders {
    /// Combines the summaries of two groups of spenders.
    pub fn combine(self, other: Spenders) -> Spenders {
        match (self, other) {
            (Spenders::Mined(a), Spenders::Mined(b)) => Spenders::Mined(a.max(b)),
            _ => Spenders::NotMined,
        }
    }
}

/// Ruling on a transaction that the index lists as due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ruling {
    /// The transaction is due now.
    Due,
    /// The transaction is examined again at this height.
    Later(u32),
    /// The last change came from an event that is not committed and may be handled again: the transaction is examined
    /// again once more of the chain is committed.
    Uncommitted,
    /// The transaction is a tombstone that has been kept long enough.
    Tombstone,
}

/// Decides whether a transaction is due (`docs/protocols/pruning.md`).
pub fn rule(terms: &PruneTerms, facts: &PruneFacts) -> Ruling {
    let next = terms.height.saturating_add(1);
    match facts.state {
        _ if facts.changed_at.is_some_and(|offset| offset >= terms.committed) => return Ruling::Uncommitted,
        TxState::Pruned(_) => return Ruling::Tombstone,
        _ if facts.has_reassigned_output => return Ruling::Later(u32::MAX),
        // An operator may unfreeze the output.
        TxState::Conflicting(_) if facts.is_barred => return Ruling::Later(next),
        _ if facts.preserve_until.is_some_and(|until| until > terms.height) => {
            return Ruling::Later(facts.preserve_until.unwrap_or(next));
        }
        // The hint of a conflicting transaction is the height of its verdict plus the retention, and is reached.
        TxState::Conflicting(Verdict::Conflicting(_)) => return Ruling::Due,
        TxState::Live if facts.all_spent && !facts.is_withheld => {}
        // A stub is kept, too: the transaction's event may still come, and has to settle the slots that it takes.
        _ => return Ruling::Later(next),
    }
    let (Some(mined), Spenders::Mined(spent)) = (facts.mined, facts.spenders) else { return Ruling::Later(next) };
    let due = mined.max(spent.unwrap_or(0)).saturating_add(terms.retention);
    if due <= terms.height { Ruling::Due } else { Ruling::Later(due) }
}

impl PruneFacts {
    /// Facts of the master alone, without other pages, blocks and spenders.
    pub fn of_master(master: &Page) -> Self {
        let bins = master.master.as_deref();
        PruneFacts {
            state: master.state(),
            changed_at: master.chain_pos.map(|stamp| stamp.chain_offset()),
            has_reassigned_output: !master.reassignments.is_empty(),
            is_barred: master.is_barred(),
            preserve_until: bins.and_then(|bins| bins.preserve_until),
            is_withheld: master.locked || master.frozen || master.verdict() == Some(Verdict::Pending),
            all_spent: master.utxos.is_some() && master.is_all_spent(),
            mined: None,
            spenders: Spenders::Mined(None),
        }
    }

    /// Adds the facts of another page; `None`: the page is absent.
    pub fn with_page(self, page: Option<&Page>) -> Self {
        let Some(page) = page else { return PruneFacts { all_spent: false, ..self } };
        let whole = page.utxos.is_some() && page.creating_at.is_none() && !page.conflicting && page.is_all_spent();
        PruneFacts {
            changed_at: self.changed_at.max(page.chain_pos.map(|stamp| stamp.chain_offset())),
            has_reassigned_output: self.has_reassigned_output || !page.reassignments.is_empty(),
            is_barred: self.is_barred || page.is_barred(),
            is_withheld: self.is_withheld || page.frozen,
            // A tombstone of a pass that was killed counts as all spent.
            all_spent: self.all_spent && (whole || page.pruned.is_some()),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{option, prelude::*};

    use super::*;
    use crate::record::Reason;

    const LOST: Verdict = Verdict::Conflicting(Reason::Command);
    const TERMS: PruneTerms = PruneTerms { height: 400, retention: 288, committed: 50 };

    fn done() -> PruneFacts {
        PruneFacts {
            state: TxState::Live,
            changed_at: Some(49),
            has_reassigned_output: false,
            is_barred: false,
            preserve_until: None,
            is_withheld: false,
            all_spent: true,
            mined: Some(100),
            spenders: Spenders::Mined(Some(112)),
        }
    }

    #[test]
    fn due_height_is_the_greatest_height_plus_retention() {
        for (mined, spent, ruling) in [
            (100, Some(112), Ruling::Due),
            (112, Some(100), Ruling::Due),
            (112, None, Ruling::Due),
            (100, Some(113), Ruling::Later(401)),
            (200, Some(100), Ruling::Later(488)),
        ] {
            let facts = PruneFacts { mined: Some(mined), spenders: Spenders::Mined(spent), ..done() };
            assert_eq!(rule(&TERMS, &facts), ruling, "{mined} {spent:?}");
        }
    }

    #[test]
    fn each_obstacle_keeps_the_transaction() {
        let later = |facts| assert_eq!(rule(&TERMS, &facts), Ruling::Later(401), "{facts:?}");
        later(PruneFacts { is_withheld: true, ..done() });
        later(PruneFacts { all_spent: false, ..done() });
        later(PruneFacts { mined: None, ..done() });
        later(PruneFacts { spenders: Spenders::NotMined, ..done() });
        later(PruneFacts { state: TxState::Creating, ..done() });
        later(PruneFacts { state: TxState::Conflicting(Verdict::Pending), ..done() });
        later(PruneFacts { state: TxState::Stub(Verdict::Pending), ..done() });
        for state in [TxState::Live, TxState::Conflicting(LOST)] {
            let facts = PruneFacts { state, ..done() };
            assert_eq!(rule(&TERMS, &PruneFacts { has_reassigned_output: true, ..facts }), Ruling::Later(u32::MAX));
            assert_eq!(rule(&TERMS, &PruneFacts { preserve_until: Some(900), ..facts }), Ruling::Later(900));
            assert_eq!(rule(&TERMS, &PruneFacts { preserve_until: Some(400), ..facts }), Ruling::Due);
            assert_eq!(rule(&TERMS, &PruneFacts { changed_at: Some(50), ..facts }), Ruling::Uncommitted);
        }
    }

    fn facts() -> impl Strategy<Value = PruneFacts> {
        let state = prop_oneof![
            4 => Just(TxState::Live),
            1 => Just(TxState::Creating),
            1 => Just(TxState::Conflicting(Verdict::Pending)),
            2 => Just(TxState::Conflicting(LOST)),
            1 => Just(TxState::Stub(LOST)),
        ];
        let height = || 80..140_u32;
        let spenders = prop_oneof![
            4 => option::of(height()).prop_map(Spenders::Mined),
            1 => Just(Spenders::NotMined),
        ];
        let flags = [0.1, 0.1, 0.8].map(prop::bool::weighted);
        let numbers = (option::of(45..55_u64), option::weighted(0.2, 390..410_u32), option::weighted(0.9, height()));
        (state, flags, numbers, spenders).prop_map(
            |(state, [reassigned, withheld, all_spent], (changed_at, preserve_until, mined), spenders)| PruneFacts {
                state,
                changed_at,
                has_reassigned_output: reassigned,
                is_barred: false,
                preserve_until,
                is_withheld: withheld,
                all_spent,
                mined,
                spenders,
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4_096, ..ProptestConfig::default() })]

        /// A due transaction has no obstacle, and a waiting transaction is examined again at a later height.
        #[test]
        fn a_due_transaction_has_no_obstacle(facts in facts()) {
            match rule(&TERMS, &facts) {
                Ruling::Due => {
                    prop_assert!(!facts.has_reassigned_output);
                    prop_assert!(facts.changed_at.is_none_or(|offset| offset < TERMS.committed));
                    prop_assert!(facts.preserve_until.is_none_or(|until| until <= TERMS.height));
                    if facts.state == TxState::Live {
                        let Spenders::Mined(spent) = facts.spenders else { panic!("{facts:?}") };
                        let least = TERMS.height - TERMS.retention;
                        prop_assert!(facts.all_spent && !facts.is_withheld);
                        prop_assert!(facts.mined.unwrap() <= least && spent.is_none_or(|spent| spent <= least));
                    } else {
                        let verdict = facts.state;
                        prop_assert!([TxState::Conflicting(LOST), TxState::Stub(LOST)].contains(&verdict));
                    }
                }
                Ruling::Later(height) => prop_assert!(height > TERMS.height),
                Ruling::Uncommitted => prop_assert!(facts.changed_at >= Some(TERMS.committed)),
                Ruling::Tombstone => panic!("{facts:?}"),
            }
        }

        /// A due transaction stays due: time alone creates no obstacle.
        #[test]
        fn a_due_transaction_stays_due(facts in facts(), more in 0..500_u32) {
            if rule(&TERMS, &facts) == Ruling::Due {
                let later = PruneTerms { height: TERMS.height + more, committed: TERMS.committed + 1, ..TERMS };
                prop_assert_eq!(rule(&later, &facts), Ruling::Due);
            }
        }

        /// No transaction is due at a height before the height at which it is examined again.
        #[test]
        fn no_transaction_is_due_before_its_next_examination(facts in facts()) {
            let Ruling::Later(height) = rule(&TERMS, &facts) else { return Ok(()) };
            let at = |height| rule(&PruneTerms { height, committed: u64::MAX, ..TERMS }, &facts);
            for earlier in TERMS.height..height.min(TERMS.height + 200) {
                prop_assert_ne!(at(earlier), Ruling::Due);
            }
        }
    }
}
