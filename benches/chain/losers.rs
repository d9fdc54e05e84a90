//! A block that lists transactions which have lost, beside the same block without them.

use utxo_store::{telemetry::Completion, tx::Txid};

use crate::{
    MESSAGES_PER_CALL, Measured, create_coins, create_unrelated,
    events::{HEIGHT, MadeBlock, MadeTx},
    instance::{BLOCKS, Instance, TXS},
    measure::env_number,
};

/// Handles two blocks of equal length. The second lists losers: each wins against a live transaction.
pub async fn run_losers(name: &str, instance: &Instance) {
    let (length, losers) = (env_number("CHAIN_BLOCK", 50_000), env_number("CHAIN_LOSERS", 1_000));
    let others = create_unrelated(instance, 0..2 * length - losers).await;
    let (first, rest) = others.split_at(length as usize);
    let listed = [rest, &store_losers(instance, losers).await].concat();
    let contests = instance.chain_length().await;
    let block = MadeBlock::new(1, HEIGHT, None, first);
    let next = MadeBlock::new(2, HEIGHT + 1, Some(&block), &listed);
    let handle = async |name: &str, block: &MadeBlock, number: u64| {
        let measured = Measured::begin();
        instance.publish(BLOCKS, vec![block.mined(number)]).await;
        instance.wait_until_handled(contests + number).await;
        measured.print(name, length);
    };
    handle(name, &block, 1).await;
    handle("  with losers", &next, 2).await;
}

/// Publishes live transactions and their rivals, and returns the rivals, which have lost.
async fn store_losers(instance: &Instance, count: u64) -> Vec<Txid> {
    let coins = create_coins(instance, 1 << 50, count).await;
    let mut lost = Vec::new();
    for (tag, completion) in [(0, Completion::Live), (1, Completion::Contested)] {
        let made: Vec<MadeTx> = coins.iter().map(|coin| MadeTx::spending(*coin, 2, tag)).collect();
        for made in made.chunks(MESSAGES_PER_CALL) {
            instance.publish(TXS, made.iter().map(MadeTx::event).collect()).await;
        }
        instance.wait_until_completed(completion, count).await;
        lost = made.iter().map(|made| made.txid).collect();
    }
    instance.wait_until_handled(count).await;
    lost
}
