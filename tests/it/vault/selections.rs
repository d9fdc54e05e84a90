//! Selections: what is taken, what is missing, repeats, and many requesters at once.

use std::{collections::BTreeSet, time::Duration};

use utxo_store::{
    event::{Event, OutcomeEvent, OutcomeKind, OutcomeSource, Validated},
    record::SpendingData,
    store::spend_status::SpendStatus,
    tx::{Outpoint, Output, Transaction, TransactionBuilder, Txid},
    vault::{
        Fee, LockCondition, LockId, ReserveObstacle, SelectedOutputs, SelectionRequest, Strategy, Terms, VaultError,
    },
};

use super::{fake_store::FakeWorld, lock, on_each_database, outpoint, owner, script};

fn request(amount: u64) -> SelectionRequest {
    SelectionRequest::new(amount, Fee::Fixed(0))
}

fn numbers(selected: &SelectedOutputs) -> Vec<u8> {
    let mut numbers: Vec<u8> = selected.outputs.iter().map(|(output, _)| output.outpoint.txid.0[0]).collect();
    numbers.sort_unstable();
    numbers
}

/// Outputs of alice: number `n` of `n` thousand satoshis, with one to four confirmations under tip 100.
async fn four_outputs(url: &str) -> FakeWorld {
    let world = FakeWorld::new(url, &["alice"]).await;
    for number in 1..=4_u8 {
        world.add(outpoint(number), "alice", 1_000 * u64::from(number), Some(96 + u32::from(number))).await;
    }
    world.settle().await;
    world
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_selection_takes_what_its_strategy_says() {
    on_each_database(async |url: &str| {
        let world = four_outputs(url).await;
        let (vault, alice) = (&world.vault, owner("alice"));
        let select = async |amount, strategy| {
            let terms = Terms { strategy, ..request(amount).terms };
            let selected = vault.select(&alice, &SelectionRequest { terms, ..request(amount) }).await.unwrap();
            assert_eq!(selected.sum, amount + selected.fee + selected.change.unwrap_or(0));
            vault.soft_lock_release(&alice, selected.lock_id, None).await.unwrap();
            numbers(&selected)
        };
        assert_eq!(select(3_500, Strategy::LargestFirst).await, [4]);
        assert_eq!(select(2_500, Strategy::OldestFirst).await, [1, 2]);
        assert_eq!(select(7_000, Strategy::WithoutChange).await, [3, 4]);
        assert_eq!(select(10_000, Strategy::LowestFee).await, [1, 2, 3, 4]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_missing_is_said() {
    on_each_database(async |url: &str| {
        let world = four_outputs(url).await;
        let (vault, alice) = (&world.vault, owner("alice"));
        let first = vault.select(&alice, &request(3_500)).await.unwrap();
        let error = vault.select(&alice, &request(6_500)).await.unwrap_err();
        let VaultError::InsufficientBalance { asked, available, locked } = error else { panic!("{error}") };
        assert_eq!((asked, available, locked), (6_500, 6_000, 4_000));
        let terms = Terms { most_inputs: 1, ..request(4_000).terms };
        let error = vault.select(&alice, &SelectionRequest { terms, ..request(4_000) }).await.unwrap_err();
        assert!(matches!(error, VaultError::TooManyInputs(1)), "{error}");
        // Another request waits until the lock ends.
        let waiting = SelectionRequest { wait: Duration::from_secs(20), ..request(6_500) };
        let (again, alice_again) = (vault.clone(), alice.clone());
        let waiter = tokio::spawn(async move { again.select(&alice_again, &waiting).await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!waiter.is_finished());
        vault.soft_lock_release(&alice, first.lock_id, None).await.unwrap();
        assert_eq!(waiter.await.unwrap().unwrap().sum, 7_000);
        let hopeless = SelectionRequest { wait: Duration::from_secs(20), ..request(20_000) };
        let error = vault.select(&alice, &hopeless).await.unwrap_err();
        assert!(matches!(error, VaultError::InsufficientBalance { .. }), "locks are not what is missing: {error}");
    })
    .await;
}

/// Protects: a payment is in the log, and the store has not come to the event. The same inputs must not fund another.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_output_that_an_event_spends_is_not_handed_out() {
    on_each_database(async |url: &str| {
        let world = four_outputs(url).await;
        let (vault, alice) = (&world.vault, owner("alice"));
        let sum = async || vault.select(&alice, &SelectionRequest::new(1, Fee::Fixed(0))).await.map(|found| found.sum);
        let first = sum().await.unwrap();
        let locks: Vec<LockId> = vault.locks(&alice).await.unwrap().iter().map(|lock| lock.id).collect();
        let held = vault.outputs(&alice, &LockCondition::LockedOnly, None, 10).await.unwrap();
        vault.soft_lock_release(&alice, locks[0], None).await.unwrap();
        let spent = held[0].output.outpoint;
        let previous = Output { satoshis: first, script: &script("alice") };
        let builder = TransactionBuilder::default().input(spent, &[7], u32::MAX, Some(previous));
        let spend = builder.output(1, &[0x53]).extended();
        let txid = Transaction::parse(&spend).unwrap().txid();
        world.publish("txs", &txid.0, Validated { tx: &spend, height: 100, locked: false }.encode()).await;
        world.settle().await;
        assert!(sum().await.unwrap() < first, "the store still has the output as unspent");
        let refused = vault.soft_lock_reserve(&alice, lock(77), &[spent], None).await.unwrap_err();
        let VaultError::StatesNotAvailable(obstacles) = refused else { panic!("{refused}") };
        assert_eq!(obstacles, [(spent, ReserveObstacle::Claimed)]);
        // A verdict against the spender frees the output.
        let kind = OutcomeKind::Refused { code: "INVALID".into(), message: "no".into() };
        let outcome = OutcomeEvent { txid, source: OutcomeSource::Chain { offset: 1 }, kind };
        world.publish("outcomes", &txid.0, Event::Outcome(outcome).encode()).await;
        world.settle().await;
        assert_eq!(sum().await.unwrap(), first);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn confirmations_and_scripts_limit_a_selection() {
    on_each_database(async |url: &str| {
        let world = four_outputs(url).await;
        let (vault, alice) = (&world.vault, owner("alice"));
        world.add(outpoint(5), "alice", 5_000, None).await;
        world.add(outpoint(6), "alice", 6_000, Some(100)).await;
        world.store.change(outpoint(6), |state| state.status = SpendStatus::Immature(150));
        world.settle().await;
        let sum = async |min_confirmations, foreign_unconfirmed| {
            let limits = SelectionRequest { min_confirmations, foreign_unconfirmed, ..request(100_000) };
            match vault.select(&alice, &limits).await.unwrap_err() {
                VaultError::InsufficientBalance { available, .. } => available,
                other => panic!("{other}"),
            }
        };
        assert_eq!(sum(1, false).await, 10_000);
        assert_eq!(sum(3, false).await, 3_000);
        assert_eq!(sum(0, false).await, 10_000, "the unconfirmed output is no change of alice");
        assert_eq!(sum(0, true).await, 15_000);
        let balance = vault.balance(&alice).await.unwrap().balance;
        assert_eq!((balance.available.satoshis, balance.immature.satoshis), (10_000, 6_000));
        assert_eq!((balance.foreign_unconfirmed.satoshis, balance.foreign_unconfirmed.outputs), (5_000, 1));
        let unknown = SelectionRequest { scripts: vec![super::script("x").into()], ..request(1) };
        assert!(vault.select(&alice, &unknown).await.is_err());
        let own = SelectionRequest { scripts: vec![super::script("alice").into()], ..request(1) };
        assert_eq!(numbers(&vault.select(&alice, &own).await.unwrap()), [4]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_repeat_of_a_request_has_the_same_answer() {
    on_each_database(async |url: &str| {
        let world = four_outputs(url).await;
        let (vault, alice) = (&world.vault, owner("alice"));
        let with_id = SelectionRequest { request_id: Some("first".parse().unwrap()), ..request(3_500) };
        let selected = vault.select(&alice, &with_id).await.unwrap();
        let again = vault.select(&alice, &with_id).await.unwrap();
        assert_eq!((again.lock_id, again.held, selected.held), (selected.lock_id, true, true));
        vault.soft_lock_release(&alice, selected.lock_id, None).await.unwrap();
        let after = vault.select(&alice, &with_id).await.unwrap();
        assert_eq!(
            (numbers(&after), after.held),
            (vec![4], false),
            "the answer says that the release has ended its lock"
        );
        let other = SelectionRequest { request_id: Some("first".parse().unwrap()), ..request(3_600) };
        let error = vault.select(&alice, &other).await.unwrap_err();
        assert!(matches!(error, VaultError::RequestReused), "{error}");
        // The store was away before the answer: nothing is reserved, and a repeat selects.
        world.store.set_away(true);
        let second = SelectionRequest { request_id: Some("second".parse().unwrap()), ..request(9_500) };
        assert!(matches!(vault.select(&alice, &second).await, Err(VaultError::Source(_))));
        world.store.set_away(false);
        assert_eq!(vault.balance(&alice).await.unwrap().balance.soft_locked.outputs, 0);
        assert_eq!(vault.select(&alice, &second).await.unwrap().outputs.len(), 4);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_output_that_the_store_has_lost_is_not_handed_out() {
    on_each_database(async |url: &str| {
        let world = four_outputs(url).await;
        let (vault, alice) = (&world.vault, owner("alice"));
        let spender = SpendingData { txid: Txid([77; 32]), input: 0 };
        world.store.change(outpoint(4), |state| {
            (state.status, state.spender) = (SpendStatus::Spent(spender), Some(spender));
        });
        world.store.change(outpoint(3), |state| state.mined_height = None);
        let selected = vault.select(&alice, &request(1_500)).await.unwrap();
        assert_eq!(numbers(&selected), [2], "4 is spent, and 3 is unconfirmed after a reorg");
        assert_eq!(vault.balance(&alice).await.unwrap().balance.soft_locked.outputs, 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requesters_at_once_share_no_output_and_fail_only_for_lack_of_money() {
    on_each_database(async |url: &str| {
        let world = FakeWorld::new(url, &["alice"]).await;
        let at = |number: u32| Outpoint { txid: Txid([1; 32]), vout: number };
        for number in 0..200 {
            world.add(at(number), "alice", 1_000 + u64::from(number), Some(50)).await;
        }
        world.settle().await;
        let mut requesters = tokio::task::JoinSet::new();
        for number in 0..50_u32 {
            let vault = world.vault.clone();
            let strategy = [Strategy::LargestFirst, Strategy::OldestFirst, Strategy::LowestFee][number as usize % 3];
            requesters.spawn(async move {
                let terms = Terms { strategy, ..request(3_000).terms };
                vault.select(&owner("alice"), &SelectionRequest { terms, ..request(3_000) }).await
            });
        }
        let mut taken = BTreeSet::new();
        for selected in requesters.join_all().await {
            for (output, _) in selected.unwrap().outputs {
                assert!(taken.insert(output.outpoint), "{} was handed out twice", output.outpoint);
            }
        }
        assert_eq!(world.vault.balance(&owner("alice")).await.unwrap().balance.soft_locked.outputs, taken.len() as u64);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn malformed_requests_are_refused() {
    on_each_database(async |url: &str| {
        let world = four_outputs(url).await;
        let refuse = async |request: SelectionRequest| match world.vault.select(&owner("alice"), &request).await {
            Err(VaultError::Invalid(problem)) => problem,
            other => panic!("{other:?}"),
        };
        assert_eq!(refuse(request(0)).await, "the amount is 0");
        assert!(refuse(request(2_100_000_000_000_001)).await.starts_with("the amount is above"));
        let rate = SelectionRequest::new(1, Fee::Rate(u64::MAX));
        assert!(refuse(rate).await.starts_with("the fee rate is above"));
        let lease = SelectionRequest { ttl: Some(Duration::from_secs(366 * 86_400)), ..request(1) };
        assert!(refuse(lease).await.starts_with("a lease or TTL is 1 ms to"));
        let eaten = SelectionRequest::new(1, Fee::Rate(100_000_000));
        let error = world.vault.select(&owner("alice"), &eaten).await.unwrap_err();
        assert!(matches!(error, VaultError::InsufficientBalance { .. }), "{error}");
        let ended = SelectionRequest { lock_id: Some(lock(4)), ..request(1) };
        world.vault.open_session(&owner("alice"), None, Some(lock(4))).await.unwrap();
        world.vault.soft_lock_release(&owner("alice"), lock(4), None).await.unwrap();
        let error = world.vault.select(&owner("alice"), &ended).await.unwrap_err();
        assert!(matches!(error, VaultError::LockEnded(_)), "{error}");
    })
    .await;
}
