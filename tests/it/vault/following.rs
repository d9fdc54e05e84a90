//! A vault beside a real instance: payments, rivals, blocks, reorgs and commands, through the log and the store.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, Instant},
};

use object_store::{ObjectStoreExt, path::Path};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use utxo_store::{
    Store,
    event::CommandAction,
    vault::{
        Asker, AskerSettings, Balance, Fee, Follower, LockCondition, NewScript, OwnStore, PermittedInputs, Rescan,
        RescanPlace, SelectionRequest, Vault, VaultError, VaultSettings,
    },
};

use super::{fake_store, on_each_database, owner};
use crate::{
    harness::{Coin, Made, Running, World, coinbase, spend_to},
    made_blocks::MadeBlock,
    snapshots,
};

/// A vault at work beside an instance.
struct Beside {
    world: World,
    instance: Running,
    vault: Vault,
    url: String,
    shutdown: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

impl Beside {
    async fn start(url: &str) -> Self {
        let world = World::new().await;
        let instance = world.start();
        // The vault asks for the tip only once the store has its meta record.
        while world.store.meta().await.unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let source = Arc::new(OwnStore::of(&Store::of_state_store(world.store.clone())));
        let settings = VaultSettings { network: world.store.settings.network, ..VaultSettings::default() };
        let vault = super::open_with(url, source, settings).await;
        let mut beside = Beside {
            world,
            instance,
            vault,
            url: url.to_owned(),
            shutdown: CancellationToken::new(),
            tasks: Vec::new(),
        };
        beside.follower().begin().await.unwrap();
        beside.start_loops();
        beside
    }

    fn follower(&self) -> Follower {
        Follower {
            vault: self.vault.clone(),
            broker: Arc::new(self.world.broker.clone()),
            topics: fake_store::topics(),
            group: "vault".into(),
            bodies: None,
            counts: Arc::default(),
        }
    }

    fn start_loops(&mut self) {
        self.shutdown = CancellationToken::new();
        let (follower, stop) = (self.follower(), self.shutdown.clone());
        self.tasks.push(tokio::spawn(async move { follower.run(&stop).await.unwrap() }));
        let (asker, stop) = (Asker::new(self.vault.clone(), AskerSettings::default()), self.shutdown.clone());
        self.tasks.push(tokio::spawn(async move { asker.run(&stop).await.unwrap() }));
    }

    async fn stop_loops(&mut self) {
        self.shutdown.cancel();
        for task in self.tasks.drain(..) {
            task.await.unwrap();
        }
    }

    async fn watch(&self, name: &str, script: &[u8]) {
        let script = NewScript { script: bytes::Bytes::copy_from_slice(script), address: None };
        self.vault.watch(&owner(name), &[script]).await.unwrap();
    }

    /// Waits until the balance of an owner is as expected.
    async fn until(&self, name: &str, what: &str, is_reached: impl Fn(&Balance) -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let balance = self.vault.balance(&owner(name)).await.unwrap().balance;
            if is_reached(&balance) {
                return;
            }
            assert!(Instant::now() < until, "{}: {what}: {balance:#?}", self.url);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn stop(mut self) {
        self.stop_loops().await;
        self.instance.stop().await;
    }
}

const ALICE: &[u8] = &[0x51, 1, 1];
const BOB: &[u8] = &[0x51, 2, 2];

fn pay(coins: &[Coin], outputs: &[(u64, &[u8])], tag: u8) -> Made {
    spend_to(coins, outputs.iter().map(|(satoshis, script)| (*satoshis, script.to_vec())).collect(), tag)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn payments_blocks_and_rivals_reach_the_balances() {
    on_each_database(async |url: &str| {
        let mut beside = Beside::start(url).await;
        beside.watch("alice", ALICE).await;
        beside.watch("bob", BOB).await;
        let seed = beside.world.seed(9, 2).await;
        let to_alice = pay(&[seed.coin(0)], &[(600_000, ALICE), (400_000, &[0x53])], 1);
        beside.world.validate(&to_alice).await;
        beside.until("alice", "unconfirmed", |balance| balance.foreign_unconfirmed.satoshis == 600_000).await;
        let first = MadeBlock::new(1, 101, &coinbase(1), &[&to_alice]);
        beside.world.bring(1, &first).await;
        beside.until("alice", "mined", |balance| balance.available.satoshis == 600_000).await;

        // Alice pays Bob, with change for herself.
        let to_bob = pay(&[to_alice.coin(0)], &[(250_000, BOB), (350_000, ALICE)], 2);
        beside.world.validate(&to_bob).await;
        beside.until("bob", "paid", |balance| balance.foreign_unconfirmed.satoshis == 250_000).await;
        beside.until("alice", "spent", |balance| balance.available.outputs == 0).await;
        beside.until("alice", "her change", |balance| balance.own_unconfirmed.satoshis == 350_000).await;

        // A rival of the payment loses, and its output for Bob never counts.
        let rival = pay(&[to_alice.coin(0)], &[(599_999, BOB)], 3);
        beside.world.validate(&rival).await;
        beside.world.until_consumed().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        beside.until("bob", "the rival", |balance| balance.pending.outputs == 0).await;
        beside.until("bob", "the rival", |balance| balance.foreign_unconfirmed.outputs == 1).await;

        // The vault stops. A block with the rival makes Alice's payment lose meanwhile.
        beside.stop_loops().await;
        let second = first.followed_by(2, &coinbase(2), &[&rival]);
        beside.world.bring(2, &second).await;
        beside.world.until_consumed().await;
        let takes = SelectionRequest {
            min_confirmations: 0,
            foreign_unconfirmed: true,
            ..SelectionRequest::new(1, Fee::Fixed(0))
        };
        let error = beside.vault.select(&owner("alice"), &takes).await.unwrap_err();
        assert!(
            matches!(error, VaultError::InsufficientBalance { .. }),
            "no news has come, and nothing is handed out: {error}"
        );
        beside.start_loops();
        beside.until("bob", "the rival won", |balance| balance.available.satoshis == 599_999).await;
        beside.until("bob", "the payment fell", |balance| balance.foreign_unconfirmed.outputs == 0).await;
        beside.until("alice", "nothing is left", |balance| *balance == Balance::default()).await;
        beside.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reorg_takes_confirmations_back() {
    on_each_database(async |url: &str| {
        let beside = Beside::start(url).await;
        beside.watch("alice", ALICE).await;
        beside.watch("miner", &[0x51, 0xCB]).await;
        let seed = beside.world.seed(9, 1).await;
        let to_alice = pay(&[seed.coin(0)], &[(700_000, ALICE)], 1);
        beside.world.validate(&to_alice).await;
        let first = MadeBlock::new(1, 101, &coinbase(1), &[]);
        let second = first.followed_by(2, &coinbase(2), &[&to_alice]);
        beside.world.bring(1, &first).await;
        beside.world.bring(2, &second).await;
        beside.until("alice", "mined", |balance| balance.available.satoshis == 700_000).await;
        beside.until("miner", "two coinbases", |balance| balance.immature.satoshis == 10_000).await;
        let other = first.followed_by(3, &coinbase(3), &[]);
        let longer = other.followed_by(4, &coinbase(4), &[]);
        beside.world.reorganise(3, std::slice::from_ref(&second), &[other, longer]).await;
        beside.until("alice", "unconfirmed again", |balance| balance.foreign_unconfirmed.satoshis == 700_000).await;
        beside.until("miner", "one coinbase left, two came", |balance| balance.immature.satoshis == 15_000).await;
        beside.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn commands_reach_the_rows() {
    on_each_database(async |url: &str| {
        let beside = Beside::start(url).await;
        beside.watch("alice", ALICE).await;
        beside.watch("bob", BOB).await;
        let seed = beside.world.seed(9, 1).await;
        let to_alice = pay(&[seed.coin(0)], &[(700_000, ALICE)], 1);
        beside.world.validate(&to_alice).await;
        beside.world.bring(1, &MadeBlock::new(1, 101, &coinbase(1), &[&to_alice])).await;
        beside.until("alice", "mined", |balance| balance.available.satoshis == 700_000).await;
        let outpoint = to_alice.coin(0).outpoint;
        beside.world.command(1, CommandAction::Freeze { outpoint }).await;
        beside.until("alice", "frozen", |balance| balance.frozen.satoshis == 700_000).await;
        let utxo_hash = to_alice.coin(0).utxo_hash();
        let reassign = CommandAction::Reassign {
            outpoint,
            utxo_hash,
            new_script: BOB,
            satoshis: 700_000,
            height: 101,
            spendable_after: 1,
        };
        beside.world.command(2, reassign).await;
        beside.until("alice", "reassigned", |balance| *balance == Balance::default()).await;
        beside
            .until("bob", "reassigned", |balance| balance.available.satoshis + balance.immature.satoshis == 700_000)
            .await;
        let listed = beside.vault.outputs(&owner("bob"), &LockCondition::Any, None, 10).await.unwrap();
        assert_eq!(listed[0].stored.script, BOB);
        beside.stop().await;
    })
    .await;
}

/// A script that is added later finds its earlier outputs in the log, and in the store; events that come meanwhile are
/// not missed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_script_that_is_added_later_finds_its_earlier_outputs() {
    on_each_database(async |url: &str| {
        let beside = Beside::start(url).await;
        beside.watch("bob", BOB).await;
        let seed = beside.world.seed(9, 3).await;
        let mined = pay(&[seed.coin(0)], &[(300_000, ALICE), (700_000, ALICE)], 1);
        let unmined = pay(&[seed.coin(1)], &[(200_000, ALICE), (800_000, BOB)], 2);
        let spend = pay(&[mined.coin(1)], &[(700_000, BOB)], 3);
        for made in [&mined, &unmined, &spend] {
            beside.world.validate(made).await;
        }
        beside.world.bring(1, &MadeBlock::new(1, 101, &coinbase(1), &[&mined])).await;
        beside.until("bob", "two payments", |balance| balance.foreign_unconfirmed.satoshis == 1_500_000).await;
        let script = NewScript { script: bytes::Bytes::from_static(ALICE), address: None };
        let watched = beside.vault.watch(&owner("alice"), &[script]).await.unwrap();
        beside.world.validate(&pay(&[seed.coin(2)], &[(50_000, ALICE)], 4)).await;
        beside.until("alice", "the new output", |balance| balance.foreign_unconfirmed.satoshis == 50_000).await;

        let rescan = Rescan {
            vault: beside.vault.clone(),
            broker: Arc::new(beside.world.broker.clone()),
            topics: fake_store::topics(),
            bodies: None,
            store: Some(Store::of_state_store(beside.world.store.clone())),
            snapshots: None,
        };
        rescan.begin_store(watched.version - 1).await.unwrap();
        assert_eq!(rescan.pending().await.unwrap().len(), 1);
        let report = rescan.run(&CancellationToken::new(), &AtomicU64::new(0)).await.unwrap();
        assert_eq!(report.found, 2, "{url}: the unmined spend of an output does not hide the output");
        beside.until("alice", "the mined output", |balance| balance.available.satoshis == 300_000).await;

        let rescan = Rescan { store: None, ..rescan };
        assert!(rescan.begin_store(0).await.unwrap_err().to_string().contains("has no store open"));
        // A rescan for scripts that were added still later does not take the place of this one.
        let carol = NewScript { script: bytes::Bytes::from_static(&[0x51, 3, 3]), address: None };
        let later = beside.vault.watch(&owner("carol"), &[carol]).await.unwrap();
        rescan.begin(later.version - 1).await.unwrap();
        rescan.begin(watched.version - 1).await.unwrap();
        // A rescan that was stopped goes on.
        let stopped = CancellationToken::new();
        stopped.cancel();
        assert_eq!(rescan.run(&stopped, &AtomicU64::new(0)).await.unwrap().read, 0);
        let report = rescan.run(&CancellationToken::new(), &AtomicU64::new(0)).await.unwrap();
        assert!(report.found >= 4, "{url}: {report:?}");
        assert_eq!(
            rescan.run(&CancellationToken::new(), &AtomicU64::new(0)).await.unwrap().read,
            0,
            "everything was read"
        );
        beside.until("alice", "the unmined output", |balance| balance.foreign_unconfirmed.satoshis == 250_000).await;
        beside.until("alice", "the mined output", |balance| balance.available.satoshis == 300_000).await;
        beside.stop().await;
    })
    .await;
}

/// A snapshot has the transactions that the log no longer has. A damaged chunk keeps the rescan waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_rescan_of_a_snapshot_finds_what_the_store_had() {
    on_each_database(async |url: &str| {
        let beside = Beside::start(url).await;
        let seed = beside.world.seed(9, 2).await;
        let mined = pay(&[seed.coin(0)], &[(300_000, ALICE), (700_000, ALICE)], 1);
        let spend = pay(&[mined.coin(1)], &[(100_000, ALICE), (600_000, BOB)], 3);
        for made in [&mined, &spend] {
            beside.world.validate(made).await;
        }
        beside.world.bring(1, &MadeBlock::new(1, 101, &coinbase(1), &[&mined])).await;
        beside.watch("bob", BOB).await;
        beside.until("bob", "nothing yet", |balance| balance.available.satoshis == 0).await;
        let is_mined = async || {
            let master = beside.world.store.master(mined.txid).await.unwrap();
            master.is_some_and(|master| master.master.as_ref().is_some_and(|master| !master.mined.is_empty()))
        };
        while !is_mined().await || beside.world.store.master(spend.txid).await.unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let (objects, shelf) = snapshots::shelf();
        let rescan = |snapshots| Rescan {
            vault: beside.vault.clone(),
            broker: Arc::new(beside.world.broker.clone()),
            topics: fake_store::topics(),
            bodies: None,
            store: None,
            snapshots,
        };
        assert!(rescan(None).begin_snapshot(0).await.unwrap_err().to_string().contains("snapshot.url is not set"));
        let rescan = rescan(Some(shelf.clone()));
        assert!(rescan.begin_snapshot(0).await.unwrap_err().to_string().contains("no complete snapshot"));
        let name = snapshots::create_snapshot(&beside.world, &shelf).await.unwrap().name;

        let script = NewScript { script: bytes::Bytes::from_static(ALICE), address: None };
        let watched = beside.vault.watch(&owner("alice"), &[script]).await.unwrap();
        rescan.begin_snapshot(watched.version - 1).await.unwrap();
        let pending = rescan.pending().await.unwrap();
        assert_eq!(pending[0].place, RescanPlace::Snapshot(name.clone()));
        assert!(pending.len() == 1 && pending[0].next == 0 && pending[0].end > 0, "{pending:?}");

        let run = async || rescan.run(&CancellationToken::new(), &AtomicU64::new(0)).await;
        let manifest = shelf.read_manifest(&name).await.unwrap();
        let last = manifest.chunks.last().unwrap();
        let last = Path::from(format!("{name}/chunks/{:03}-{:06}", last.part, last.number));
        let whole = objects.get(&last).await.unwrap().bytes().await.unwrap();
        objects.put(&last, whole.slice(1..).into()).await.unwrap();
        assert!(run().await.unwrap_err().to_string().contains("damaged"));
        assert_eq!(rescan.pending().await.unwrap()[0].next, pending[0].end - 1, "the chunks before are done");
        objects.put(&last, whole.into()).await.unwrap();
        run().await.unwrap();
        assert!(rescan.pending().await.unwrap().is_empty());
        beside.until("alice", "the mined output", |balance| balance.available.satoshis == 300_000).await;
        beside.until("alice", "the unmined output", |balance| balance.foreign_unconfirmed.satoshis == 0).await;
        let sum = |balance: &Balance| balance.own_unconfirmed.satoshis == 100_000;
        beside.until("alice", "the change of a spend of its own", sum).await;

        // The rescan is repeated, and finds nothing new.
        rescan.begin_snapshot(watched.version - 1).await.unwrap();
        run().await.unwrap();
        beside
            .until("alice", "the same balance", |balance| balance.available.satoshis == 300_000 && sum(balance))
            .await;
        beside.stop().await;
    })
    .await;
}

/// A transaction that is submitted under a session locks its own outputs for the session, before and after the store
/// has the transaction; the end of the session frees them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_submitted_transaction_locks_its_own_outputs() {
    on_each_database(async |url: &str| {
        let beside = Beside::start(url).await;
        beside.watch("alice", ALICE).await;
        let seed = beside.world.seed(9, 1).await;
        let issue = pay(&[seed.coin(0)], &[(600_000, ALICE), (400_000, BOB)], 1);
        let (vault, alice) = (&beside.vault, owner("alice"));
        let session = vault.open_session(&alice, None, None).await.unwrap();
        assert_eq!(
            vault
                .submission(&alice, session.lock_id, &issue.extended)
                .unwrap()
                .record(PermittedInputs::Any)
                .await
                .unwrap(),
            1
        );
        assert_eq!(
            vault
                .submission(&alice, session.lock_id, &issue.extended)
                .unwrap()
                .record(PermittedInputs::Any)
                .await
                .unwrap(),
            1,
            "a repeat"
        );
        beside.world.validate(&issue).await;
        beside.world.bring(1, &MadeBlock::new(1, 101, &coinbase(1), &[&issue])).await;
        beside.until("alice", "issued to the session", |balance| balance.soft_locked.satoshis == 600_000).await;
        let others = vault.select(&alice, &SelectionRequest::new(1, Fee::Fixed(0))).await.unwrap_err();
        assert!(matches!(others, VaultError::InsufficientBalance { locked: 600_000, .. }), "{others}");
        let error = vault
            .submission(&alice, super::lock(99), &issue.extended)
            .unwrap()
            .record(PermittedInputs::Any)
            .await
            .unwrap_err();
        assert!(matches!(error, VaultError::NoLock(_)), "{error}");
        vault.soft_lock_release(&alice, session.lock_id, None).await.unwrap();
        let error = vault
            .submission(&alice, session.lock_id, &issue.extended)
            .unwrap()
            .record(PermittedInputs::Any)
            .await
            .unwrap_err();
        assert!(matches!(error, VaultError::LockEnded(_)), "{error}");
        beside.until("alice", "free", |balance| balance.available.satoshis == 600_000).await;
        beside.stop().await;
    })
    .await;
}
