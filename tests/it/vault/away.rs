//! A database that goes away in the middle of requests: a reservation is there or is not, and a repeat of the request
//! has the same answer.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use utxo_store::{
    tx::Outpoint,
    vault::{Fee, LockId, SelectedOutputs, SelectionRequest, Vault, VaultError},
};

use super::{fake_store::FakeWorld, outpoint, owner};
use crate::postgres_server::PostgresServer;

const OUTPUTS: u8 = 200;

/// Repeats a selection until the database answers.
async fn select(vault: &Vault, request: &SelectionRequest) -> Result<(SelectedOutputs, u32), VaultError> {
    let mut repeats = 0;
    loop {
        match vault.select(&owner("alice"), request).await {
            Err(VaultError::Database(_) | VaultError::Unknown(_)) => {
                repeats += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            answer => return answer.map(|selected| (selected, repeats)),
        }
    }
}

/// Selects until nothing is left; returns the answers by the ids of their requests, and the number of repeats.
async fn take_all(vault: Vault, requester: u32) -> (BTreeMap<String, (LockId, Vec<Outpoint>)>, u32) {
    let (mut answers, mut repeats) = (BTreeMap::new(), 0);
    for number in 0.. {
        let id = format!("{requester}-{number}");
        let request =
            SelectionRequest { request_id: Some(id.parse().unwrap()), ..SelectionRequest::new(1, Fee::Fixed(0)) };
        match select(&vault, &request).await {
            Ok((selected, again)) => {
                repeats += again;
                let outpoints = selected.outputs.iter().map(|(output, _)| output.outpoint).collect();
                answers.insert(id, (selected.lock_id, outpoints));
            }
            Err(VaultError::InsufficientBalance { .. }) => break,
            Err(error) => panic!("{id}: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    (answers, repeats)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_selection_is_there_or_not_when_the_database_goes_away() {
    let Some(mut server) = PostgresServer::start() else { return };
    let url = server.database().url();
    let world = FakeWorld::new(&url, &["alice"]).await;
    for number in 1..=OUTPUTS {
        world.add(outpoint(number), "alice", 1_000, Some(1)).await;
    }
    world.settle().await;
    let requesters: Vec<_> = (0..6).map(|number| tokio::spawn(take_all(world.vault.clone(), number))).collect();
    let is_over = Arc::new(AtomicBool::new(false));
    let stop = is_over.clone();
    let restarts = tokio::task::spawn_blocking(move || {
        let mut restarts = 0;
        while !stop.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(150));
            // Sessions end in the middle of their transactions.
            server.restart(if restarts % 2 == 0 { "kill" } else { "restart" });
            restarts += 1;
        }
        (server, restarts)
    });
    let (mut all, mut repeats) = (BTreeMap::new(), 0);
    for requester in requesters {
        let (answers, again) = requester.await.unwrap();
        all.extend(answers);
        repeats += again;
    }
    is_over.store(true, Relaxed);
    let (_server, restarts) = restarts.await.unwrap();
    assert!(restarts > 0 && repeats > 0, "{restarts} restarts, {repeats} repeats: no request met one");
    let mut outpoints: Vec<Outpoint> = all.values().flat_map(|(_, outpoints)| outpoints.clone()).collect();
    outpoints.sort_unstable();
    outpoints.dedup();
    assert_eq!(outpoints.len(), usize::from(OUTPUTS), "each output is handed out once");
    for (id, (lock_id, outpoints)) in all {
        let request =
            SelectionRequest { request_id: Some(id.parse().unwrap()), ..SelectionRequest::new(1, Fee::Fixed(0)) };
        let (again, _) = select(&world.vault, &request).await.unwrap();
        let found: Vec<Outpoint> = again.outputs.iter().map(|(output, _)| output.outpoint).collect();
        assert_eq!((again.lock_id, found), (lock_id, outpoints), "a repeat of {id}");
    }
}
