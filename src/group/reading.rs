//! Causes for which a partition is not read, and their transitions. Pure.

use crate::group::commit_metadata::Halt;

/// State of the reads of one assigned partition.
///
/// Three causes stop the reads. Each begins and ends on its own, so that every combination exists: a full partition
/// halts, an operator pauses a halted partition. The highest cause is shown; a lower one shows once the higher one has
/// ended.
///
/// ```text
///  shown state           begins with                        ends with                          rewind, new epoch
///
///  PAUSED BY OPERATOR    pause_by_operator                  resume_by_operator                 stays
///        ▲ │
///        │ ▼
///  HALTED                enter_halt: an event can neither   after_retry: an operator's         stays
///        ▲ │             be applied nor skipped             retry, under a new epoch
///        │ ▼
///  FULL                  enter_full: the unfinished         leave_full: they are below         ends: nothing
///        ▲ │             events exceed a limit              half of the limit                  is in flight
///        │ ▼
///  READ
/// ```
///
/// The consumer's pause follows the causes, and is a state of its own: a partition that is being revoked cannot be
/// paused, and a member can pause all partitions for a reason of its own (a throttle).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadState {
    is_paused_by_operator: bool,
    halt: Option<Halt>,
    is_full: bool,
    is_paused: bool,
}

/// The shown state of the reads: the highest cause of [`ReadState`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading<'a> {
    /// No cause of the partition stops its reads.
    Read,
    /// The unfinished events have reached a limit, and are not below half of the limit since.
    Full,
    /// The partition is halted.
    Halted(&'a Halt),
    /// An operator has paused the partition in this instance.
    PausedByOperator,
}

impl ReadState {
    /// Returns the shown state.
    pub fn reading(&self) -> Reading<'_> {
        match &self.halt {
            _ if self.is_paused_by_operator => Reading::PausedByOperator,
            Some(halt) => Reading::Halted(halt),
            None if self.is_full => Reading::Full,
            None => Reading::Read,
        }
    }

    /// Returns the halt, also while an operator's pause covers the halt.
    pub fn halt(&self) -> Option<&Halt> {
        self.halt.as_ref()
    }

    /// Returns whether the partition is halted, also while an operator's pause covers the halt.
    pub fn is_halted(&self) -> bool {
        self.halt.is_some()
    }

    /// Returns whether the partition is full, also while a higher cause covers that.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns whether an operator has paused the partition.
    pub fn is_paused_by_operator(&self) -> bool {
        self.is_paused_by_operator
    }

    /// Returns whether the consumer has paused the partition.
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Halts the partition. A later halt takes the place of an earlier one.
    pub fn enter_halt(&mut self, halt: Halt) {
        self.halt = Some(halt);
    }

    /// Marks the partition as full; `false`: it was full before.
    pub fn enter_full(&mut self) -> bool {
        !std::mem::replace(&mut self.is_full, true)
    }

    /// Marks the partition as no longer full; `false`: it was not full.
    pub fn leave_full(&mut self) -> bool {
        std::mem::take(&mut self.is_full)
    }

    /// Pauses the partition for an operator; `false`: an operator had paused it before.
    pub fn pause_by_operator(&mut self) -> bool {
        !std::mem::replace(&mut self.is_paused_by_operator, true)
    }

    /// Ends the pause of an operator; `false`: no operator had paused the partition.
    pub fn resume_by_operator(&mut self) -> bool {
        std::mem::take(&mut self.is_paused_by_operator)
    }

    /// Records that the consumer delivers no messages from now on.
    pub fn record_pause(&mut self) {
        self.is_paused = true;
    }

    /// Returns whether the consumer has to deliver messages again, unless the member pauses all its partitions.
    pub fn can_resume(&self) -> bool {
        self.is_paused && self.reading() == Reading::Read
    }

    /// Records that the consumer delivers messages again; refused (`false`) unless [`can_resume`](Self::can_resume).
    pub fn record_resume(&mut self) -> bool {
        let can_resume = self.can_resume();
        self.is_paused &= !can_resume;
        can_resume
    }

    /// State after a seek to the committed offset, which starts the consumer's deliveries again.
    pub fn after_rewind(&self) -> Self {
        ReadState { is_full: false, is_paused: false, ..self.clone() }
    }

    /// State after the same seek at an operator's retry, which lifts the halt.
    pub fn after_retry(&self) -> Self {
        ReadState { halt: None, ..self.after_rewind() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum Transition {
        Halt,
        Retry,
        EnterFull,
        LeaveFull,
        PauseByOperator,
        ResumeByOperator,
        RecordPause,
        RecordResume,
        Rewind,
    }

    fn transition() -> impl Strategy<Value = Transition> {
        use Transition::*;
        let all =
            [Halt, Retry, EnterFull, LeaveFull, PauseByOperator, ResumeByOperator, RecordPause, RecordResume, Rewind];
        prop::sample::select(all.to_vec())
    }

    fn halt(since_ms: u64) -> Halt {
        Halt { why: "no room".into(), since_ms }
    }

    /// Takes a transition and returns whether it was possible.
    fn take(state: &mut ReadState, transition: Transition, now_ms: u64) -> bool {
        match transition {
            Transition::Halt => state.enter_halt(halt(now_ms)),
            Transition::Retry => *state = state.after_retry(),
            Transition::EnterFull => return state.enter_full(),
            Transition::LeaveFull => return state.leave_full(),
            Transition::PauseByOperator => return state.pause_by_operator(),
            Transition::ResumeByOperator => return state.resume_by_operator(),
            Transition::RecordPause => state.record_pause(),
            Transition::RecordResume => return state.record_resume(),
            Transition::Rewind => *state = state.after_rewind(),
        }
        true
    }

    #[test]
    fn the_highest_cause_is_shown_and_a_lower_one_is_uncovered() {
        let mut state = ReadState::default();
        assert_eq!(state.reading(), Reading::Read);
        assert!(state.enter_full() && !state.enter_full());
        assert_eq!(state.reading(), Reading::Full);
        state.enter_halt(halt(1));
        assert_eq!(state.reading(), Reading::Halted(&halt(1)));
        assert!(state.pause_by_operator() && !state.pause_by_operator());
        assert_eq!(state.reading(), Reading::PausedByOperator);
        let retried = state.after_retry();
        assert_eq!((retried.reading(), retried.is_full()), (Reading::PausedByOperator, false));
        assert!(state.resume_by_operator() && !state.resume_by_operator());
        assert_eq!(state.reading(), Reading::Halted(&halt(1)), "an operator's resume lifts no halt");
        let rewound = state.after_rewind();
        assert_eq!((rewound.reading(), rewound.is_full()), (Reading::Halted(&halt(1)), false));
    }

    proptest! {
        /// A cause changes only by its own transitions, in any order of the transitions.
        #[test]
        fn each_cause_begins_and_ends_by_its_own_transitions(taken in prop::collection::vec(transition(), 1..100)) {
            let mut state = ReadState::default();
            for (transition, now_ms) in taken.into_iter().zip(0..) {
                let before = state.clone();
                let possible = take(&mut state, transition, now_ms);
                use Transition::*;
                let expected = match transition {
                    Halt => Some(halt(now_ms)),
                    Retry => None,
                    _ => before.halt.clone(),
                };
                prop_assert_eq!(&state.halt, &expected);
                prop_assert_eq!(state.is_full, match transition {
                    EnterFull => true,
                    LeaveFull | Rewind | Retry => false,
                    _ => before.is_full,
                });
                prop_assert_eq!(state.is_paused_by_operator, match transition {
                    PauseByOperator => true,
                    ResumeByOperator => false,
                    _ => before.is_paused_by_operator,
                });
                prop_assert_eq!(state.is_paused, match transition {
                    RecordPause => true,
                    RecordResume => before.is_paused && !possible,
                    Rewind | Retry => false,
                    _ => before.is_paused,
                });
                // A refused transition changes nothing, and is refused exactly where its cause does not allow it.
                prop_assert!(possible || state == before);
                let is_allowed = match transition {
                    EnterFull => !before.is_full,
                    LeaveFull => before.is_full,
                    PauseByOperator => !before.is_paused_by_operator,
                    ResumeByOperator => before.is_paused_by_operator,
                    RecordResume => before.is_paused && before.reading() == Reading::Read,
                    Halt | Retry | RecordPause | Rewind => true,
                };
                prop_assert_eq!(possible, is_allowed);
            }
        }
    }
}
