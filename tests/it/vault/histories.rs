//! Random histories of a vault against a plain model: selections, reservations, releases, leases that end, spends,
//! spends that fall, and requests that are dropped at any await.
//!
//! A failure prints its seed; `VAULT_SEED` replays it, `VAULT_SEEDS` runs more.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use utxo_store::{
    event::{Event, OutcomeEvent, OutcomeKind, OutcomeSource},
    record::SpendingData,
    rng::SplitMix64,
    store::spend_status::SpendStatus,
    tx::{Outpoint, Txid},
    vault::{Asker, AskerSettings, Fee, LockCondition, LockId, SelectionRequest, Strategy, Terms, VaultError},
};

use super::{fake_store::FakeWorld, lock, new_script, on_each_database, outpoint, owner};
use crate::postgres_server;

const STEPS: usize = 60;
const OWNERS: [&str; 2] = ["alice", "bob"];

/// Waits until the database has ended the work of a request that was dropped.
async fn until_idle(url: &str) {
    let url = url.to_owned();
    // The drop of a request spawns a task. This thread may have to run the task.
    tokio::task::spawn_blocking(move || postgres_server::until_idle(&url)).await.unwrap();
}

/// A future that is dropped at its nth wait, as a crash of the process would drop it.
struct Crashing<'a, T> {
    work: Pin<&'a mut (dyn Future<Output = T> + Send)>,
    polls: u64,
}

impl<T> Future for Crashing<'_, T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        if self.polls == 0 {
            return Poll::Ready(None);
        }
        self.polls -= 1;
        self.work.as_mut().poll(context).map(Some)
    }
}

/// An output as the model knows it.
#[derive(Clone, Debug)]
struct ModelOutput {
    owner: usize,
    satoshis: u64,
    is_spent: bool,
    lock: Option<LockId>,
}

/// The plain model: what the store has, and which lock has which output.
#[derive(Default)]
struct Model {
    outputs: BTreeMap<Outpoint, ModelOutput>,
    ended: BTreeSet<LockId>,
    owners: BTreeMap<LockId, usize>,
    /// Outputs that have changed since the vault was settled: the vault may or may not know.
    uncertain: BTreeSet<Outpoint>,
}

struct History {
    url: String,
    world: FakeWorld,
    model: Model,
    rng: SplitMix64,
    next: u8,
    next_lock: u128,
    next_request: u32,
}

impl History {
    fn some_lock(&mut self, owner: usize) -> LockId {
        let known: Vec<LockId> = self.model.owners.iter().filter(|(_, of)| **of == owner).map(|(id, _)| *id).collect();
        if known.is_empty() || self.rng.chance(0.4) {
            self.next_lock += 1;
            return lock(self.next_lock);
        }
        *self.rng.pick(&known)
    }

    fn some_outputs(&mut self, owner: usize) -> Vec<Outpoint> {
        let own: Vec<Outpoint> =
            self.model.outputs.iter().filter(|(_, output)| output.owner == owner).map(|(at, _)| *at).collect();
        if own.is_empty() {
            return Vec::new();
        }
        let picked: BTreeSet<Outpoint> = (0..1 + self.rng.below(3)).map(|_| *self.rng.pick(&own)).collect();
        picked.into_iter().collect()
    }

    async fn add(&mut self) {
        self.next += 1;
        let (at, owner) = (outpoint(self.next), self.rng.below(2) as usize);
        let satoshis = 1_000 + self.rng.below(9_000);
        self.world.add(at, OWNERS[owner], satoshis, Some(50)).await;
        self.model.outputs.insert(at, ModelOutput { owner, satoshis, is_spent: false, lock: None });
        self.model.uncertain.insert(at);
    }

    /// Spends an output in the store, or takes its spend back. The vault hears of it sooner or later.
    async fn change(&mut self) {
        let all: Vec<Outpoint> = self.model.outputs.keys().copied().collect();
        if all.is_empty() {
            return;
        }
        let at = *self.rng.pick(&all);
        let output = self.model.outputs.get_mut(&at).unwrap();
        output.is_spent = !output.is_spent;
        let spender = output.is_spent.then_some(SpendingData { txid: Txid([0xEE; 32]), input: 0 });
        self.world.store.change(at, |state| {
            state.status = spender.map_or(SpendStatus::Unspent, SpendStatus::Spent);
            state.spender = spender;
        });
        let kind = OutcomeKind::Accepted;
        let outcome = OutcomeEvent { txid: at.txid, source: OutcomeSource::Chain { offset: 0 }, kind };
        self.world.publish("outcomes", &at.txid.0, Event::Outcome(outcome).encode()).await;
        self.model.uncertain.insert(at);
    }

    async fn reserve(&mut self, crash: Option<u64>) {
        let owner_number = self.rng.below(2) as usize;
        let (id, refs) = (self.some_lock(owner_number), self.some_outputs(owner_number));
        if refs.is_empty() {
            return;
        }
        let (vault, name) = (self.world.vault.clone(), owner(OWNERS[owner_number]));
        let polls = crash.unwrap_or(u64::MAX);
        let result = {
            // The work is dropped with its connection at the end of the block.
            let mut work = pin!(vault.soft_lock_reserve(&name, id, &refs, None));
            Crashing { work: work.as_mut(), polls }.await
        };
        let Some(result) = result else {
            // The reservation is there as a whole, or it is not; so is its lock.
            self.adopt(owner_number, id, &refs).await;
            return;
        };
        let bars = |output: &ModelOutput| output.is_spent || output.lock.is_some_and(|held| held != id);
        let barred: Vec<Outpoint> = refs.iter().copied().filter(|at| bars(&self.model.outputs[at])).collect();
        let is_certain = refs.iter().all(|at| !self.model.uncertain.contains(at));
        match result {
            Ok(_) => {
                assert!(!self.model.ended.contains(&id), "reserved under {id}, which has ended");
                for at in &refs {
                    let output = self.model.outputs.get_mut(at).unwrap();
                    assert!(!output.is_spent, "{at} is spent, and was handed out");
                    assert!(
                        output.lock.is_none_or(|held| held == id) || self.model.uncertain.contains(at),
                        "{at} has the lock {:?}, and was handed out under {id}",
                        output.lock
                    );
                    output.lock = Some(id);
                }
                self.model.owners.insert(id, owner_number);
            }
            Err(VaultError::StatesNotAvailable(_)) => {
                assert!(!is_certain || !barred.is_empty(), "{refs:?} are free, and were refused");
                // The refusal of the store comes after the lock was made.
                self.adopt(owner_number, id, &[]).await;
            }
            Err(VaultError::LockEnded(_)) => assert!(self.model.ended.contains(&id), "{id} has not ended"),
            Err(other) => panic!("{other}"),
        }
    }

    /// Takes over from the vault whether a lock exists, and whether it has these outputs: all of them, or none.
    async fn adopt(&mut self, owner_number: usize, id: LockId, refs: &[Outpoint]) {
        let name = owner(OWNERS[owner_number]);
        // A commit that was on its way when the request was dropped is done first: SQLite has one writer, and
        // PostgreSQL works on it without a client.
        Asker::new(self.world.vault.clone(), AskerSettings::default()).end_expired_locks().await.unwrap();
        until_idle(&self.url).await;
        if self.world.vault.locks(&name).await.unwrap().iter().any(|lock| lock.id == id) {
            self.model.owners.insert(id, owner_number);
        }
        let held = self.held(owner_number).await;
        // The lock of a spent output ends once the store was asked, before the rest is given back.
        let unspent = || refs.iter().filter(|at| !self.model.outputs[at].is_spent);
        let taken: Vec<&Outpoint> = unspent().filter(|at| held.get(at) == Some(&id)).collect();
        let before = unspent().filter(|at| self.model.outputs[at].lock == Some(id)).count();
        assert!(
            taken.len() == unspent().count() || taken.len() <= before,
            "of {refs:?} only {taken:?} are reserved under {id}"
        );
        let taken: Vec<Outpoint> = refs.iter().copied().filter(|at| held.get(at) == Some(&id)).collect();
        for at in &taken {
            let output = self.model.outputs.get_mut(at).unwrap();
            assert!(output.lock.is_none_or(|held| held == id) || self.model.uncertain.contains(at));
            output.lock = Some(id);
        }
    }

    /// Returns the locks of the outputs of an owner that the vault lists.
    async fn held(&self, owner_number: usize) -> BTreeMap<Outpoint, LockId> {
        let listed = self.world.vault.outputs(&owner(OWNERS[owner_number]), &LockCondition::Any, None, 1_000).await;
        let locked = listed.unwrap().into_iter().filter(|listed| listed.is_locked);
        locked.filter_map(|listed| Some((listed.output.outpoint, listed.output.lock?))).collect()
    }

    async fn release(&mut self) {
        let owner_number = self.rng.below(2) as usize;
        let id = self.some_lock(owner_number);
        let refs = self.some_outputs(owner_number);
        let part = self.rng.chance(0.5) && !refs.is_empty();
        let name = owner(OWNERS[owner_number]);
        let released = self.world.vault.soft_lock_release(&name, id, part.then_some(&refs[..])).await;
        if !self.model.owners.contains_key(&id) {
            assert!(matches!(released, Err(VaultError::NoLock(_))), "{released:?}");
            return;
        }
        released.unwrap();
        for (at, output) in &mut self.model.outputs {
            if output.lock == Some(id) && (!part || refs.contains(at)) {
                output.lock = None;
            }
        }
        if !part {
            self.model.ended.insert(id);
        }
    }

    /// Opens a session with a short lease, reserves under it, and lets the lease end.
    async fn end_a_lease(&mut self) {
        let owner_number = self.rng.below(2) as usize;
        self.next_lock += 1;
        let (id, name) = (lock(self.next_lock), owner(OWNERS[owner_number]));
        let refs = self.some_outputs(owner_number);
        self.world.vault.open_session(&name, Some(Duration::from_millis(40)), Some(id)).await.unwrap();
        let reserved = match refs.is_empty() {
            true => None,
            false => self.world.vault.soft_lock_reserve(&name, id, &refs, None).await.ok(),
        };
        if reserved.is_some() {
            for at in &refs {
                let output = &self.model.outputs[at];
                assert!(!output.is_spent, "{at} is spent, and was handed out");
                assert!(output.lock.is_none() || self.model.uncertain.contains(at), "{at} was handed out twice");
                self.model.outputs.get_mut(at).unwrap().lock = None;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        self.model.owners.insert(id, owner_number);
        self.model.ended.insert(id);
    }

    async fn select(&mut self, crash: Option<u64>) {
        let owner_number = self.rng.below(2) as usize;
        let name = owner(OWNERS[owner_number]);
        let amount = 1 + self.rng.below(20_000);
        let strategies = [Strategy::LargestFirst, Strategy::OldestFirst, Strategy::LowestFee, Strategy::WithoutChange];
        let plain = SelectionRequest::new(amount, Fee::Fixed(0));
        self.next_request += 1;
        let request = SelectionRequest {
            request_id: Some(format!("r{}", self.next_request).parse().unwrap()),
            terms: Terms { strategy: *self.rng.pick(&strategies), ..plain.terms },
            ..plain
        };
        let vault = self.world.vault.clone();
        if let Some(polls) = crash {
            let is_dropped = {
                // The work is dropped with its connection at the end of the block.
                let mut work = pin!(vault.select(&name, &request));
                Crashing { work: work.as_mut(), polls }.await.is_none()
            };
            // The repeat below finds what the crash has left.
            if is_dropped {
                until_idle(&self.url).await;
            }
        }
        let free = |(at, output): &(&Outpoint, &ModelOutput)| {
            output.owner == owner_number
                && !output.is_spent
                && output.lock.is_none()
                && !self.model.uncertain.contains(at)
        };
        let free: u64 = self.model.outputs.iter().filter(free).map(|(_, output)| output.satoshis).sum();
        match vault.select(&name, &request).await {
            Ok(selected) => {
                assert_eq!(selected.sum, amount + selected.fee + selected.change.unwrap_or(0));
                self.model.owners.insert(selected.lock_id, owner_number);
                for (output, _) in &selected.outputs {
                    let at = output.outpoint;
                    let known = self.model.outputs.get_mut(&at).unwrap();
                    assert_eq!(known.owner, owner_number);
                    assert!(!known.is_spent, "{at} is spent, and was handed out");
                    assert!(
                        known.lock.is_none() || self.model.uncertain.contains(&at),
                        "{at} has the lock {:?}, and was selected",
                        known.lock
                    );
                    known.lock = Some(selected.lock_id);
                }
                let again = vault.select(&name, &request).await.unwrap();
                assert_eq!((again.lock_id, again.sum), (selected.lock_id, selected.sum), "a repeat");
            }
            Err(VaultError::InsufficientBalance { .. }) => {
                assert!(free < amount, "{free} are free, and {amount} were refused");
            }
            Err(other) => panic!("{other}"),
        }
    }

    /// Lets the vault hear everything, and compares the rows with the model.
    async fn settle(&mut self) {
        self.world.settle().await;
        for (number, name) in OWNERS.iter().enumerate() {
            let held = self.held(number).await;
            let listed = self.world.vault.outputs(&owner(name), &LockCondition::Any, None, 1_000).await;
            let listed: BTreeSet<Outpoint> = listed.unwrap().iter().map(|listed| listed.output.outpoint).collect();
            for (at, output) in self.model.outputs.iter_mut().filter(|(_, output)| output.owner == number) {
                assert_eq!(listed.contains(at), !output.is_spent, "{at} after everything was heard");
                let found = held.get(at).copied();
                if output.is_spent || self.model.uncertain.contains(at) {
                    // The lock of an output that was spent meanwhile has ended, and of no other.
                    assert!(found.is_none() || found == output.lock, "{at}: {found:?}, not {:?}", output.lock);
                    output.lock = found;
                } else {
                    assert_eq!(found, output.lock, "the lock of {at}");
                }
            }
            let balance = self.world.vault.balance(&owner(name)).await.unwrap().balance;
            let own = || self.model.outputs.values().filter(|output| output.owner == number && !output.is_spent);
            let free: u64 = own().filter(|output| output.lock.is_none()).map(|output| output.satoshis).sum();
            let locked: u64 = own().filter(|output| output.lock.is_some()).map(|output| output.satoshis).sum();
            assert_eq!((balance.available.satoshis, balance.soft_locked.satoshis), (free, locked), "the balance");
        }
        self.model.uncertain.clear();
    }

    async fn run(url: &str, seed: u64) {
        let world = FakeWorld::new(url, &OWNERS).await;
        let (model, rng) = (Model::default(), SplitMix64::new(seed));
        let mut history = History { url: url.to_owned(), world, model, rng, next: 0, next_lock: 0, next_request: 0 };
        for _ in 0..6 {
            history.add().await;
        }
        history.settle().await;
        for step in 0..STEPS {
            let crash = history.rng.chance(0.3).then(|| 1 + history.rng.below(40));
            match history.rng.below(16) {
                0..=1 => history.add().await,
                2..=4 => history.change().await,
                5..=8 => history.reserve(crash).await,
                9..=10 => history.release().await,
                11 => history.end_a_lease().await,
                _ => history.select(crash).await,
            }
            if step % 12 == 11 {
                history.settle().await;
            }
        }
        history.world.vault.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_histories_follow_the_model() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let (first, count) = match number("VAULT_SEED") {
        Some(seed) => (seed, 1),
        None => (1, number("VAULT_SEEDS").unwrap_or(4)),
    };
    for seed in first..first + count {
        on_each_database(async |url: &str| {
            let run = std::panic::AssertUnwindSafe(History::run(url, seed));
            if let Err(panic) = futures_util::FutureExt::catch_unwind(run).await {
                eprintln!("{url}: replay with VAULT_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        })
        .await;
    }
}

/// Protects: a read that a client drops before its transaction has begun does not leave a transaction on its
/// connection, in which the next write would be refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_dropped_read_leaves_its_connection_to_the_next_write() {
    let Some(database) = postgres_server::shared_database() else { return };
    let (plain, url) = (database.url(), format!("{}&PostgresMaxOpenConns=2", database.url()));
    let world = FakeWorld::new(&url, &["alice"]).await;
    let alice = owner("alice");
    for polls in 1..=12 {
        for _ in 0..2 {
            let mut work = pin!(world.vault.balance(&alice));
            Crashing { work: work.as_mut(), polls }.await;
        }
        until_idle(&plain).await;
        world.vault.watch(&alice, &[new_script(&format!("script {polls}"))]).await.unwrap();
    }
    world.vault.close().await;
}
