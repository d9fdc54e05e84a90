//! Soft locks: reserve, release, sessions with leases, queries by locks.

use std::time::Duration;

use utxo_store::{
    record::SpendingData,
    store::spend_status::SpendStatus,
    tx::Txid,
    vault::{LockCondition, LockId, ReserveObstacle, Standing, VaultError},
};

use super::{fake_store::FakeWorld, lock, new_script, on_each_database, outpoint, owner};

fn not_available(error: VaultError) -> Vec<(u8, ReserveObstacle)> {
    match error {
        VaultError::StatesNotAvailable(list) => {
            list.into_iter().map(|(outpoint, obstacle)| (outpoint.txid.0[0], obstacle)).collect()
        }
        other => panic!("{other}"),
    }
}

async fn three_outputs(url: &str) -> FakeWorld {
    let world = FakeWorld::new(url, &["alice", "bob"]).await;
    for number in 1..=3 {
        world.add(outpoint(number), "alice", 1_000 * u64::from(number), Some(10)).await;
    }
    world.add(outpoint(9), "bob", 9_000, Some(10)).await;
    world.settle().await;
    world
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reservation_is_all_or_none() {
    on_each_database(async |url: &str| {
        let world = three_outputs(url).await;
        let (vault, alice) = (&world.vault, owner("alice"));
        vault.soft_lock_reserve(&alice, lock(1), &[outpoint(1)], None).await.unwrap();
        let error = vault.soft_lock_reserve(&alice, lock(2), &[outpoint(2), outpoint(1)], None).await.unwrap_err();
        assert_eq!(not_available(error), [(1, ReserveObstacle::Locked)]);
        let error = vault.soft_lock_reserve(&alice, lock(2), &[outpoint(7), outpoint(9)], None).await.unwrap_err();
        assert_eq!(
            not_available(error),
            [(7, ReserveObstacle::Unknown), (9, ReserveObstacle::Unknown)],
            "bob's is not told apart"
        );
        let locked = async |condition: LockCondition| {
            let found = vault.outputs(&alice, &condition, None, 100).await.unwrap();
            found.iter().map(|listed| listed.output.outpoint.txid.0[0]).collect::<Vec<u8>>()
        };
        assert_eq!(locked(LockCondition::Any).await, [1, 2, 3]);
        assert_eq!(locked(LockCondition::LockedOnly).await, [1]);
        assert_eq!(locked(LockCondition::UnlockedOnly).await, [2, 3]);
        vault.soft_lock_reserve(&alice, lock(2), &[outpoint(2)], None).await.unwrap();
        assert_eq!(locked(LockCondition::Specified(vec![lock(1), lock(5)])).await, [1]);
        assert_eq!(locked(LockCondition::UnlockedAndSpecified(vec![lock(2)])).await, [2, 3]);
        let repeated = vault.soft_lock_reserve(&alice, lock(1), &[outpoint(1), outpoint(3)], None).await.unwrap();
        assert_eq!((repeated.lock_id, repeated.expires_at), (lock(1), None));
        assert_eq!(locked(LockCondition::Specified(vec![lock(1)])).await, [1, 3]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_release_frees_outputs_of_its_lock_only() {
    on_each_database(async |url: &str| {
        let world = three_outputs(url).await;
        let (vault, alice) = (&world.vault, owner("alice"));
        vault.soft_lock_reserve(&alice, lock(1), &[outpoint(1), outpoint(2)], None).await.unwrap();
        vault.soft_lock_reserve(&alice, lock(2), &[outpoint(3)], None).await.unwrap();
        assert_eq!(vault.soft_lock_release(&alice, lock(1), Some(&[outpoint(2), outpoint(3)])).await.unwrap(), 1);
        assert_eq!(vault.soft_lock_release(&alice, lock(1), None).await.unwrap(), 1);
        let error = vault.soft_lock_reserve(&alice, lock(1), &[outpoint(1)], None).await.unwrap_err();
        assert!(matches!(error, VaultError::LockEnded(id) if id == lock(1)), "{error}");
        let error = vault.soft_lock_release(&owner("bob"), lock(2), None).await.unwrap_err();
        assert!(matches!(error, VaultError::NoLock(_)), "{error}");
        let error = vault.soft_lock_reserve(&owner("bob"), lock(2), &[outpoint(9)], None).await.unwrap_err();
        assert!(matches!(error, VaultError::NoLock(_)), "a lock id of another owner: {error}");
        let locks: Vec<LockId> = vault.locks(&alice).await.unwrap().iter().map(|lock| lock.id).collect();
        assert_eq!(locks, [lock(2)]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_session_ends_with_its_lease_and_frees_its_outputs() {
    on_each_database(async |url: &str| {
        let world = three_outputs(url).await;
        let (vault, alice) = (&world.vault, owner("alice"));
        let lease = Some(Duration::from_millis(1_500));
        let session = vault.open_session(&alice, lease, None).await.unwrap();
        assert_eq!(vault.open_session(&alice, lease, Some(session.lock_id)).await.unwrap(), session, "a repeat");
        vault.soft_lock_reserve(&alice, session.lock_id, &[outpoint(1)], None).await.unwrap();
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert!(vault.heartbeat(&alice, session.lock_id, None).await.unwrap().expires_at > session.expires_at);
        tokio::time::sleep(Duration::from_millis(1_000)).await;
        let error = vault.soft_lock_reserve(&alice, lock(1), &[outpoint(1)], None).await.unwrap_err();
        assert_eq!(not_available(error), [(1, ReserveObstacle::Locked)], "the heartbeat has extended the lease");
        tokio::time::sleep(Duration::from_millis(700)).await;
        vault.soft_lock_reserve(&alice, lock(1), &[outpoint(1)], None).await.unwrap();
        let error = vault.heartbeat(&alice, session.lock_id, None).await.unwrap_err();
        assert!(matches!(error, VaultError::LockEnded(_)), "{error}");
        let error = vault.open_session(&alice, Some(Duration::from_secs(366 * 86_400)), None).await.unwrap_err();
        assert!(error.to_string().starts_with("a lease or TTL is 1 ms to"), "{error}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_output_is_asked_of_the_store_before_it_is_reserved() {
    on_each_database(async |url: &str| {
        let world = three_outputs(url).await;
        let (vault, alice) = (&world.vault, owner("alice"));
        let spender = SpendingData { txid: Txid([77; 32]), input: 0 };
        world.store.change(outpoint(1), |state| {
            (state.status, state.spender) = (SpendStatus::Spent(spender), Some(spender));
        });
        world.store.change(outpoint(2), |state| state.status = SpendStatus::Frozen);
        let all = [outpoint(1), outpoint(2), outpoint(3)];
        let error = vault.soft_lock_reserve(&alice, lock(1), &all, None).await.unwrap_err();
        let gone =
            [(1, ReserveObstacle::NotUnspent(Standing::Spent)), (2, ReserveObstacle::NotUnspent(Standing::Frozen))];
        assert_eq!(not_available(error), gone, "no event has told the vault");
        vault.soft_lock_reserve(&alice, lock(2), &[outpoint(3)], None).await.unwrap();
        world.store.set_away(true);
        let error = vault.soft_lock_reserve(&alice, lock(2), &[outpoint(3)], None).await.unwrap_err();
        assert!(matches!(error, VaultError::Source(_)), "{error}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn scripts_are_watched_for_one_owner() {
    on_each_database(async |url: &str| {
        let world = three_outputs(url).await;
        let vault = &world.vault;
        let error = vault.watch(&owner("bob"), &[new_script("alice")]).await.unwrap_err();
        assert!(matches!(error, VaultError::OtherOwner(_)), "{error}");
        assert_eq!(vault.watch(&owner("alice"), &[new_script("alice"), new_script("new")]).await.unwrap().added, 1);
        assert_eq!(vault.scripts(&owner("alice"), 0, 10).await.unwrap().len(), 2);
        let empty = utxo_store::vault::NewScript { script: bytes::Bytes::new(), address: None };
        let error = vault.watch(&owner("alice"), &[empty]).await.unwrap_err();
        assert_eq!(error.to_string(), "a script is empty: anybody can spend its outputs");
        vault.soft_lock_reserve(&owner("alice"), lock(1), &[outpoint(1)], None).await.unwrap();
        let scripts = [bytes::Bytes::from(super::script("alice"))];
        let error = vault.unwatch(&owner("alice"), &scripts).await.unwrap_err();
        assert!(matches!(error, VaultError::OutputsLocked(1)), "{error}");
        vault.soft_lock_release(&owner("alice"), lock(1), None).await.unwrap();
        assert_eq!(vault.unwatch(&owner("alice"), &scripts).await.unwrap(), 1);
        assert!(vault.outputs(&owner("alice"), &LockCondition::Any, None, 10).await.unwrap().is_empty());
        assert_eq!(vault.outputs(&owner("bob"), &LockCondition::Any, None, 10).await.unwrap().len(), 1);
        let error = vault.balance(&owner("nobody")).await.unwrap_err();
        assert_eq!(error.to_string(), "no script is watched for the owner `nobody`");
    })
    .await;
}
