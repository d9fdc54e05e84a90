//! The waits of the chain: silent at first, and then said by readiness for as long as they last.

use std::{
    fmt::Display,
    pin::{Pin, pin},
    time::Duration,
};

use tokio::time::Instant;

use crate::{sequencer::SequencerParts, status::Condition, tx::Txid};

/// First and longest pause between looks at something that is waited for.
pub const LOOK_AGAIN: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));

/// A wait says that it goes on at least so often.
const STILL: Duration = Duration::from_secs(10);

/// One wait. The state page has it while it lasts. When it takes longer than a block may wait for its transactions, the chain counts as halted, with what it
/// waits for, until the wait is over (or given up).
pub struct Waiting<'a> {
    parts: &'a SequencerParts,
    condition: Condition,
    about: String,
    since_ms: u64,
    pause: Duration,
    longest: Duration,
    told: bool,
    /// What the state page knows it by.
    number: u64,
}

impl<'a> Waiting<'a> {
    /// A wait that begins now; `about` says who waits.
    pub fn new(parts: &'a SequencerParts, about: impl Into<String>) -> Self {
        let (pause, longest) = LOOK_AGAIN;
        let since_ms = parts.clock.steady_ms();
        let condition = Condition::ChainRunning;
        let number = parts.health.status_registry().start_wait();
        parts.beat();
        Waiting { parts, condition, about: about.into(), since_ms, pause, longest, told: false, number }
    }

    /// A wait of another part of readiness.
    pub fn of(mut self, condition: Condition) -> Self {
        self.condition = condition;
        self
    }

    /// With another first and longest pause.
    pub fn paced(mut self, (pause, longest): (Duration, Duration)) -> Self {
        (self.pause, self.longest) = (pause, longest);
        self
    }

    /// Who waits.
    pub fn about(&self) -> &str {
        &self.about
    }

    /// Pauses before the next look at what is `missing`.
    pub async fn look_again(&mut self, missing: &str) {
        self.show(missing);
        if self.parts.clock.steady_ms().saturating_sub(self.since_ms) >= self.limit().as_millis() as u64 {
            self.tell(missing);
        }
        self.attend(tokio::time::sleep(self.pause)).await;
        self.pause = (self.pause * 2).min(self.longest);
    }

    /// Waits for what ends by itself, before long or not: who waits so does not stand.
    pub async fn attend<T>(&self, work: impl Future<Output = T>) -> T {
        attended(self.parts, pin!(work)).await
    }

    /// Waits for work that tries again by itself, for as long as it takes; says so where it is the blob store that does not answer.
    pub async fn until_done<T>(mut self, work: impl Future<Output = T>) -> T {
        // Futures here are large: it is kept once, and what goes on with it is small.
        let work = pin!(work);
        let mut work = pin!(attended(self.parts, work));
        self.show("an answer");
        if let Ok(done) = tokio::time::timeout(self.limit(), work.as_mut()).await {
            return done;
        }
        let mut trouble = self.parts.store.trouble.watched();
        loop {
            let blobs = trouble.borrow_and_update().as_ref().map(|why| format!("the blob store ({why})"));
            let missing = blobs.as_deref().unwrap_or("an answer");
            self.show(missing);
            self.tell(missing);
            tokio::select! {
                biased;
                done = &mut work => return done,
                Ok(()) = trouble.changed() => {}
            }
        }
    }

    fn show(&self, missing: &str) {
        self.parts.health.status_registry().publish_wait(self.number, &self.about, missing, self.since_ms);
    }

    fn limit(&self) -> Duration {
        self.parts.settings.block_wait
    }

    /// Says it again each time: another wait inside this one may have ended meanwhile.
    fn tell(&mut self, missing: &str) {
        let why = format!("{}: still waiting for {missing}", self.about);
        if !std::mem::replace(&mut self.told, true) {
            tracing::error!("{why}");
        }
        self.say(Some(why));
    }

    fn say(&self, why: Option<String>) {
        if self.condition == Condition::ChainRunning {
            self.parts.metrics.chain_halted.set(i64::from(why.is_some()));
        }
        self.parts.health.set(self.condition, why);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.parts.health.status_registry().end_wait(self.number);
        if self.told {
            self.say(None);
        }
    }
}

async fn attended<T>(parts: &SequencerParts, mut work: Pin<&mut impl Future<Output = T>>) -> T {
    let Some(monitor) = &parts.monitor else { return work.await };
    loop {
        parts.beat();
        let due = monitor.next_beat().min(Instant::now() + STILL);
        // The work first: what has ended costs no timer.
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep_until(due) => {}
        }
    }
}

/// What a message about a wait names at the most.
const NAMED: usize = 10;

/// Names what is waited for: the first few, and how many more there are.
pub fn names<T: Display>(missing: impl IntoIterator<Item = T>) -> String {
    let mut missing = missing.into_iter();
    let mut names: Vec<String> = missing.by_ref().take(NAMED).map(|one| one.to_string()).collect();
    match missing.count() {
        0 => {}
        more => names.push(format!("and {more} more")),
    }
    names.join(", ")
}

/// The reference's placeholder for the coinbase in the list of a block.
const COINBASE_PLACEHOLDER: Txid = Txid([0xff; 32]);

/// Names the transactions that a block lists and that are waited for. No event brings the reference's placeholder.
pub fn names_of_listed(missing: &[Txid]) -> String {
    let names = names(missing);
    match missing.contains(&COINBASE_PLACEHOLDER) {
        false => names,
        true => format!(
            "{names}; {COINBASE_PLACEHOLDER} is the reference's placeholder of the coinbase: the list of a block's event begins \
             behind the coinbase, without it"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_placeholder_of_the_coinbase_is_recognised() {
        let other = Txid([7; 32]);
        assert_eq!(names_of_listed(&[other]), other.to_string());
        let told = names_of_listed(&[other, COINBASE_PLACEHOLDER]);
        assert!(told.starts_with(&other.to_string()) && told.contains("placeholder of the coinbase"), "{told}");
        // Beyond what is named one by one, too.
        let many: Vec<Txid> = (0..NAMED as u8 + 5).map(|byte| Txid([byte; 32])).chain([COINBASE_PLACEHOLDER]).collect();
        assert!(names_of_listed(&many).contains("placeholder of the coinbase"));
    }
}
