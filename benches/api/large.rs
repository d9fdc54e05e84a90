//! A transaction of a million outputs: by reference through the log, in 50 records, spent, mined and read back.

use std::time::Instant;

use futures_util::StreamExt;
use reqwest::{Client, header::CONTENT_TYPE};
use utxo_store::{
    Event, EventPublisher, Validated,
    event::{Block, BlockMined, PartialOutput, PartialTxEvent, Subtree, SubtreeTransactions},
    tx::{Outpoint, Output, Transaction, TransactionBuilder, Txid},
};

use crate::{
    measure::env_number,
    memory::{open_publisher, wait_for_field, wait_until_live},
    process::{mib, peak},
    setup::BenchServers,
};

const HEIGHT: u32 = 800_000;
const SATOSHIS: u64 = 1_000;
/// Keys of a batch: the default limit of the setting.
const BATCH: usize = 10_000;

pub async fn measure(servers: &BenchServers) {
    let outputs = env_number("API_LARGE_OUTPUTS", 1_000_000) as u32;
    let deployment = servers.deploy();
    let instance = deployment.start_instance(&[]);
    let server = deployment.start_server(&[]);
    let publisher = open_publisher(&deployment).await;
    let parent = Txid([7; 32]);
    let parent_output = Output { satoshis: SATOSHIS * u64::from(outputs + 1), script: &[0x51] };
    let known = PartialOutput { vout: 0, satoshis: parent_output.satoshis, script: parent_output.script };
    let seeded = PartialTxEvent { txid: parent, coinbase: false, height: 1, outputs: vec![known] };
    publisher.publish(&Event::Seeded(seeded)).await.expect("the log takes the event");
    let mut builder =
        TransactionBuilder::default().input(Outpoint { txid: parent, vout: 0 }, &[0x51], u32::MAX, Some(parent_output));
    for vout in 0..outputs {
        builder = builder.output(SATOSHIS, &script(vout));
    }
    let (body, standard) = (builder.extended(), builder.standard());
    let large = Transaction::parse(&body).expect("the builder writes transactions").txid();
    println!("\nA transaction of {outputs} outputs, {:.1} MB", body.len() as f64 / 1e6);

    let begun = Instant::now();
    publish_validated(&publisher, &body).await;
    println!("published by reference        {:>8.2} s", begun.elapsed().as_secs_f64());
    wait_until_live(&server.address, large).await;
    println!("live                          {:>8.2} s", begun.elapsed().as_secs_f64());

    let spent: Vec<u32> = vec![0, outputs / 50 - 1, outputs / 2, outputs - 1];
    let begun = Instant::now();
    let mut builder = TransactionBuilder::default();
    for vout in &spent {
        let script = script(*vout);
        let previous = Some(Output { satoshis: SATOSHIS, script: &script });
        builder = builder.input(Outpoint { txid: large, vout: *vout }, &[0x51], u32::MAX, previous);
    }
    let child_body = builder.output(SATOSHIS, &[0x51]).extended();
    let child = Transaction::parse(&child_body).expect("the builder writes transactions").txid();
    publish_validated(&publisher, &child_body).await;
    wait_until_live(&server.address, child).await;
    println!("{} outputs spent               {:>8.2} s", spent.len(), begun.elapsed().as_secs_f64());

    let begun = Instant::now();
    publish_block(&publisher, &[large, child]).await;
    for txid in [large, child] {
        wait_for_field(&server.address, txid, "blockHeights", |heights| *heights == serde_json::json!([HEIGHT])).await;
    }
    println!("mined                         {:>8.2} s", begun.elapsed().as_secs_f64());

    let (client, begun) = (Client::new(), Instant::now());
    let mut found_spent = 0;
    for first in (0..outputs).step_by(BATCH) {
        let keys =
            (first..outputs.min(first + BATCH as u32)).flat_map(|vout| [&large.0[..], &vout.to_le_bytes()].concat());
        let url = format!("http://{}/v1/outputs:batch", server.address);
        let request = client.post(url).header(CONTENT_TYPE, "application/octet-stream").body(keys.collect::<Vec<u8>>());
        let answer = request.send().await.expect("the server answers");
        assert_eq!(answer.status(), 200);
        let answer = answer.bytes().await.expect("the whole answer");
        let mut rest = &answer[..];
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let (record, after) = after.split_at(u32::from_le_bytes(*length) as usize);
            found_spent += usize::from(record.first() == Some(&2));
            rest = after;
        }
    }
    assert_eq!(found_spent, spent.len(), "the spent outputs, and no other");
    println!("all states read, in batches   {:>8.2} s", begun.elapsed().as_secs_f64());

    let begun = Instant::now();
    let url = format!("http://{}/v1/transactions/{large}/raw?format=standard", server.address);
    let (mut pieces, mut read) = (client.get(url).send().await.expect("the server answers").bytes_stream(), Vec::new());
    while let Some(piece) = pieces.next().await {
        read.extend_from_slice(&piece.expect("the whole answer"));
    }
    assert!(read == standard, "the bytes are those of the transaction");
    println!("raw bytes read and compared   {:>8.2} s", begun.elapsed().as_secs_f64());
    println!(
        "peak memory: instance {:.0} MiB, server of the API {:.0} MiB",
        mib(peak(instance.child.id())),
        mib(peak(server.child.id()))
    );
}

async fn publish_validated(publisher: &EventPublisher, tx: &[u8]) {
    let event = Event::Validated(Validated { tx, height: HEIGHT, locked: false });
    publisher.publish(&event).await.expect("the log and the objects take the event");
}

async fn publish_block(publisher: &EventPublisher, txids: &[Txid]) {
    let nowhere = Outpoint { txid: Txid([0; 32]), vout: u32::MAX };
    let height_push = [&[3][..], &HEIGHT.to_le_bytes()[..3]].concat();
    let builder = TransactionBuilder::default().input(nowhere, &height_push, u32::MAX, None);
    let coinbase = builder.output(625_000_000, &[0x51]).standard();
    let ids = txids.iter().flat_map(|txid| txid.0).collect::<Vec<u8>>();
    let subtree = Subtree { count: txids.len() as u64, transactions: SubtreeTransactions::Inline(&ids) };
    let block = Block {
        block_id: 1,
        hash: [9; 32],
        previous: [8; 32],
        height: HEIGHT,
        time: 1_700_000_000,
        longest_chain: true,
        coinbase: &coinbase,
        subtrees: vec![subtree],
    };
    publisher.publish(&Event::BlockMined(BlockMined { sequence: 1, block })).await.expect("the log takes the event");
}

/// Returns the script of an output, as long as one that pays to the hash of a key.
fn script(vout: u32) -> [u8; 25] {
    let mut script = [0x76; 25];
    (script[1], script[2], script[23], script[24]) = (0xA9, 20, 0x88, 0xAC);
    script[3..7].copy_from_slice(&vout.to_le_bytes());
    script
}
