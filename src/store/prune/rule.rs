//! When a transaction may be forgotten: pure, from what its records and those of its spenders say.

use crate::record::{Page, TxState, Verdict};

/// By what is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The greatest height that the longest chain has had, as of what is committed.
    pub height: u32,
    /// `block_height_retention`, blocks; not 0.
    pub retention: u32,
    /// Chain offset: what is below is handled for good, and never done again.
    pub safe: u64,
}

impl Terms {
    /// The greatest height at which a block may list what goes by these terms.
    pub fn reorg_floor(&self) -> u32 {
        self.height.saturating_sub(self.retention)
    }
}

/// Everything that counts, of all pages of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// How it stands.
    pub state: TxState,
    /// Chain offset of the sequencer's last change of any of its pages.
    pub changed_at: Option<u64>,
    /// An output of it was given to a new owner.
    pub reassigned: bool,
    /// An operator has barred an output of it, or given it away.
    pub barred: bool,
    /// `preserveUntil`
    pub preserve_until: Option<u32>,
    /// It is locked, frozen as a whole, or waits for a verdict though it is live.
    pub held: bool,
    /// All its pages are there, complete, and by their own counts all spent.
    pub all_spent: bool,
    /// The greatest height at which a block of the longest chain lists it; `None`: none does.
    pub mined: Option<u32>,
    /// Who spends it.
    pub spenders: Spenders,
}

/// All who spend a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spenders {
    /// Each was pruned, or is mined on the longest chain: the greatest of their heights that are known.
    Mined(Option<u32>),
    /// Of one neither is so.
    NotMined,
}

impl Spenders {
    /// One more.
    pub fn and(self, other: Spenders) -> Spenders {
        match (self, other) {
            (Spenders::Mined(a), Spenders::Mined(b)) => Spenders::Mined(a.max(b)),
            _ => Spenders::NotMined,
        }
    }
}

/// What becomes of a transaction whose hint says that it is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ruling {
    /// It is due.
    Due,
    /// It is looked at again at this height.
    Later(u32),
    /// It may be due, but what was done to it last may have to be done again: it is looked at again once more is committed.
    Unsafe,
    /// What is left of it has served.
    Tombstone,
}

/// What becomes of it. (`DESIGN.md` section 8.)
pub fn rule(terms: &Terms, facts: &Facts) -> Ruling {
    let next = terms.height.saturating_add(1);
    match facts.state {
        _ if facts.changed_at.is_some_and(|offset| offset >= terms.safe) => return Ruling::Unsafe,
        TxState::Pruned(_) => return Ruling::Tombstone,
        _ if facts.reassigned => return Ruling::Later(u32::MAX),
        // It may be unfrozen.
        TxState::Conflicting(_) if facts.barred => return Ruling::Later(next),
        _ if facts.preserve_until.is_some_and(|until| until > terms.height) => {
            return Ruling::Later(facts.preserve_until.unwrap_or(next));
        }
        // Its hint is retention behind its verdict, and has come.
        TxState::Conflicting(Verdict::Conflicting(_)) => return Ruling::Due,
        TxState::Live if facts.all_spent && !facts.held => {}
        // A stub, too: its event may come yet, and has to give back what it takes.
        _ => return Ruling::Later(next),
    }
    let (Some(mined), Spenders::Mined(spent)) = (facts.mined, facts.spenders) else { return Ruling::Later(next) };
    let due = mined.max(spent.unwrap_or(0)).saturating_add(terms.retention);
    if due <= terms.height { Ruling::Due } else { Ruling::Later(due) }
}

impl Facts {
    /// What a master alone says: nothing of its other pages, of blocks, or of spenders.
    pub fn of_master(master: &Page) -> Self {
        let bins = master.master.as_deref();
        Facts {
            state: master.state(),
            changed_at: master.chain_pos.map(|stamp| stamp.chain_offset()),
            reassigned: !master.reassignments.is_empty(),
            barred: master.is_barred(),
            preserve_until: bins.and_then(|bins| bins.preserve_until),
            held: master.locked || master.frozen || master.verdict() == Some(Verdict::Pending),
            all_spent: master.utxos.is_some() && master.all_spent(),
            mined: None,
            spenders: Spenders::Mined(None),
        }
    }

    /// The same with one more of its pages; `None`: it is not there.
    pub fn with_page(self, page: Option<&Page>) -> Self {
        let Some(page) = page else { return Facts { all_spent: false, ..self } };
        let whole = page.utxos.is_some() && page.creating_at.is_none() && !page.conflicting && page.all_spent();
        Facts {
            changed_at: self.changed_at.max(page.chain_pos.map(|stamp| stamp.chain_offset())),
            reassigned: self.reassigned || !page.reassignments.is_empty(),
            barred: self.barred || page.is_barred(),
            held: self.held || page.frozen,
            // One that was begun with before a crash.
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
    const TERMS: Terms = Terms { height: 400, retention: 288, safe: 50 };

    fn done() -> Facts {
        Facts {
            state: TxState::Live,
            changed_at: Some(49),
            reassigned: false,
            barred: false,
            preserve_until: None,
            held: false,
            all_spent: true,
            mined: Some(100),
            spenders: Spenders::Mined(Some(112)),
        }
    }

    #[test]
    fn retention_behind_the_greatest_height_of_itself_and_its_spenders() {
        for (mined, spent, ruling) in [
            (100, Some(112), Ruling::Due),
            (112, Some(100), Ruling::Due),
            (112, None, Ruling::Due),
            (100, Some(113), Ruling::Later(401)),
            (200, Some(100), Ruling::Later(488)),
        ] {
            let facts = Facts { mined: Some(mined), spenders: Spenders::Mined(spent), ..done() };
            assert_eq!(rule(&TERMS, &facts), ruling, "{mined} {spent:?}");
        }
    }

    #[test]
    fn whatever_keeps_it_keeps_it() {
        let later = |facts| assert_eq!(rule(&TERMS, &facts), Ruling::Later(401), "{facts:?}");
        later(Facts { held: true, ..done() });
        later(Facts { all_spent: false, ..done() });
        later(Facts { mined: None, ..done() });
        later(Facts { spenders: Spenders::NotMined, ..done() });
        later(Facts { state: TxState::Creating, ..done() });
        later(Facts { state: TxState::Conflicting(Verdict::Pending), ..done() });
        later(Facts { state: TxState::Stub(Verdict::Pending), ..done() });
        for state in [TxState::Live, TxState::Conflicting(LOST)] {
            let facts = Facts { state, ..done() };
            assert_eq!(rule(&TERMS, &Facts { reassigned: true, ..facts }), Ruling::Later(u32::MAX));
            assert_eq!(rule(&TERMS, &Facts { preserve_until: Some(900), ..facts }), Ruling::Later(900));
            assert_eq!(rule(&TERMS, &Facts { preserve_until: Some(400), ..facts }), Ruling::Due);
            assert_eq!(rule(&TERMS, &Facts { changed_at: Some(50), ..facts }), Ruling::Unsafe);
        }
    }

    fn facts() -> impl Strategy<Value = Facts> {
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
            |(state, [reassigned, held, all_spent], (changed_at, preserve_until, mined), spenders)| Facts {
                state,
                changed_at,
                reassigned,
                barred: false,
                preserve_until,
                held,
                all_spent,
                mined,
                spenders,
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4_096, ..ProptestConfig::default() })]

        /// Nothing goes that anything speaks for, and whatever waits is looked at at a later height.
        #[test]
        fn what_is_due_has_nothing_to_keep_it(facts in facts()) {
            match rule(&TERMS, &facts) {
                Ruling::Due => {
                    prop_assert!(!facts.reassigned && facts.changed_at.is_none_or(|offset| offset < TERMS.safe));
                    prop_assert!(facts.preserve_until.is_none_or(|until| until <= TERMS.height));
                    if facts.state == TxState::Live {
                        let Spenders::Mined(spent) = facts.spenders else { panic!("{facts:?}") };
                        let least = TERMS.height - TERMS.retention;
                        prop_assert!(facts.all_spent && !facts.held);
                        prop_assert!(facts.mined.unwrap() <= least && spent.is_none_or(|spent| spent <= least));
                    } else {
                        let verdict = facts.state;
                        prop_assert!([TxState::Conflicting(LOST), TxState::Stub(LOST)].contains(&verdict));
                    }
                }
                Ruling::Later(height) => prop_assert!(height > TERMS.height),
                Ruling::Unsafe => prop_assert!(facts.changed_at >= Some(TERMS.safe)),
                Ruling::Tombstone => panic!("{facts:?}"),
            }
        }

        /// What is due stays due: time alone brings nothing back.
        #[test]
        fn what_is_due_once_is_due_later(facts in facts(), more in 0..500_u32) {
            if rule(&TERMS, &facts) == Ruling::Due {
                let later = Terms { height: TERMS.height + more, safe: TERMS.safe + 1, ..TERMS };
                prop_assert_eq!(rule(&later, &facts), Ruling::Due);
            }
        }

        /// Looked at again when it says, and not before, it is due then unless something else keeps it.
        #[test]
        fn the_height_to_look_again_is_neither_early_nor_late(facts in facts()) {
            let Ruling::Later(height) = rule(&TERMS, &facts) else { return Ok(()) };
            let at = |height| rule(&Terms { height, safe: u64::MAX, ..TERMS }, &facts);
            for earlier in TERMS.height..height.min(TERMS.height + 200) {
                prop_assert_ne!(at(earlier), Ruling::Due);
            }
        }
    }
}
