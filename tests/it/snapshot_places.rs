//! Snapshots at the places that an operator names: a bucket of S3, and a directory on a full disk.

use std::{sync::Arc, time::Duration};

use utxo_store::{
    blob::{BlobAccess, BlobOptions, Intent, open_snapshots},
    snapshot::{Shelf, verify},
    store::digest::survey,
};

#[cfg(feature = "aws")]
use crate::s3_server::{Conditions, S3Server};
use crate::{
    harness::World,
    small_disk::SmallDisk,
    snapshots::{create_snapshot, empty_beside, produce_history, restore_into},
};

async fn open_shelf(url: &str, intent: Intent) -> Shelf {
    let access = BlobAccess { login: Some(("test".into(), "test".into())), retries: 2 };
    Shelf::new(open_snapshots(&url.parse().unwrap(), intent, &access, &BlobOptions::default()).await.unwrap())
}

/// Protects: a snapshot in a bucket is created, listed, verified, restored and deleted, as one in a directory.
#[cfg(feature = "aws")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_in_a_bucket_is_restored_and_deleted() {
    let Some(server) = S3Server::start(Conditions::Honoured) else { return };
    let url = format!("s3://bucket/snapshots?region=us-east-1&endpoint={}", server.endpoint());
    let world = World::new().await;
    produce_history(&world, 10, 1).await;
    world.run_until_consumed().await;
    let shelf = open_shelf(&url, Intent::Write).await;
    let mut names = Vec::new();
    for _ in 0..2 {
        names.push(create_snapshot(&world, &shelf).await.unwrap().name);
    }
    let reader = open_shelf(&url, Intent::Read).await;
    let found: Vec<String> = reader.list().await.unwrap().into_iter().map(|found| found.name).collect();
    assert_eq!(found.len(), 2);
    assert!(names.iter().all(|name| found.contains(name)), "{found:?}");
    assert!(verify(&reader, &names[1], &|_| {}).await.unwrap().chunks > 1);
    let other = empty_beside(&world);
    restore_into(&other, &reader, &names[1]).await.unwrap();
    other.run_until_consumed().await;
    let [restored, live] = [&other.store, &world.store].map(|store| survey(store, |_| {}));
    assert_eq!(restored.await.unwrap().digest, live.await.unwrap().digest);
    assert_eq!(shelf.delete_old(1).await.unwrap(), names[..1]);
    assert_eq!(reader.list().await.unwrap().len(), 1);
}

/// Protects: a full place leaves no snapshot that passes for whole. The creation waits or is repeated, and succeeds
/// once there is space.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_creation_into_a_full_place_goes_on_once_there_is_space() {
    let Some(disk) = SmallDisk::mount(4) else { return };
    let world = World::new().await;
    produce_history(&world, 10, 1).await;
    world.run_until_consumed().await;
    let shelf = Arc::new(open_shelf(&format!("file://{}", disk.path().display()), Intent::Write).await);
    disk.fill();
    let creating = {
        let (world, shelf) = (world.clone(), shelf.clone());
        tokio::spawn(async move { create_snapshot(&world, &shelf).await })
    };
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(shelf.newest().await.is_err(), "no snapshot is complete");
    disk.free();
    let report = match creating.await.unwrap() {
        Ok(report) => report,
        Err(error) => {
            assert!(error.to_string().contains("space"), "{error}");
            create_snapshot(&world, &shelf).await.unwrap()
        }
    };
    assert_eq!(verify(&shelf, &report.name, &|_| {}).await.unwrap().totals, report.totals);
}
