//! Tests of the whole module: on real blocks against the crate `bitcoin`, on the reference's records, and on generated
//! transactions.

mod hostile;
mod real_blocks;
mod reference;
mod streamed;
mod validity;

use std::path::Path;

use proptest::{collection::vec, option, prelude::*};

use super::{Outpoint, Output, TransactionBuilder, Txid};

pub(crate) fn data(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

prop_compose! {
    fn outpoint()(txid in any::<[u8; 32]>(), vout in any::<u32>()) -> Outpoint {
        Outpoint { txid: Txid(txid), vout }
    }
}

/// Strategy: scripts, of which some are long enough for a VarInt of three bytes.
fn script() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![8 => vec(any::<u8>(), 0..40), 1 => vec(any::<u8>(), 250..300)]
}

prop_compose! {
    fn transaction()(
        version in any::<u32>(),
        lock_time in any::<u32>(),
        inputs in vec((outpoint(), script(), any::<u32>(), option::of((any::<u64>(), script()))), 1..6),
        outputs in vec((any::<u64>(), script()), 0..6),
    ) -> TransactionBuilder {
        let mut builder = TransactionBuilder::default().version(version).lock_time(lock_time);
        for (outpoint, script, sequence, previous) in &inputs {
            let previous = previous.as_ref().map(|(satoshis, script)| Output { satoshis: *satoshis, script });
            builder = builder.input(*outpoint, script, *sequence, previous);
        }
        outputs.iter().fold(builder, |builder, (satoshis, script)| builder.output(*satoshis, script))
    }
}
