//! Transactions in extended format: compared with the oracle's parts, and converted to standard format and back without
//! loss.

use bitcoin::consensus;
use utxo_store::tx::{Input, Output, Transaction};

use super::{
    oracle::{self, Extended},
    transaction::{assert_refusal, assert_whole},
};

/// Runs the target `extended`.
pub fn check(data: &[u8]) {
    match (Transaction::parse_prefix(data), oracle::extended(data)) {
        (Ok((transaction, _)), None) if !transaction.is_extended() => {}
        (Ok((transaction, len)), Some(oracle)) => {
            assert!(transaction.is_extended());
            assert_eq!(len, oracle.len);
            assert_eq!(transaction.raw(), &data[..len]);
            assert_eq!(oracle.encode(), transaction.raw());
            assert_eq!(transaction.extended_len(), len);
            oracle::assert_same(&transaction, &oracle.transaction);
            assert_same_previous(&transaction, &oracle);
            assert_eq!(transaction.check(), oracle::check(&oracle.transaction, Some(&oracle.previous)));
            returns_from_standard(&transaction);
            assert_whole(data, len);
        }
        (Err(error), None) => assert_refusal(data, &error),
        (ours, oracle) => panic!("ours: {ours:?}, the oracle's: {:?}", oracle.map(|oracle| oracle.transaction)),
    }
}

fn assert_same_previous(transaction: &Transaction<'_>, oracle: &Extended) {
    for ((input, txin), previous) in transaction.inputs().zip(&oracle.transaction.input).zip(&oracle.previous) {
        let expected = Output { satoshis: previous.value.to_sat(), script: previous.script_pubkey.as_bytes() };
        assert_eq!(input.previous, Some(expected));
        assert_eq!(input.raw(), [consensus::serialize(txin), consensus::serialize(previous)].concat());
        assert_eq!(input.raw_extended(), input.raw());
        assert_eq!(Input::parse_extended(input.raw()), Ok(input));
    }
}

/// Checks that standard format and the previous outputs give the same bytes; a coinbase has no previous output.
fn returns_from_standard(extended: &Transaction<'_>) {
    let mut standard = Vec::new();
    extended.write_standard(&mut standard);
    let standard = Transaction::parse(&standard).expect("write_standard writes standard format");
    let previous: Vec<_> = extended.inputs().map(|input| input.previous).collect();
    let mut bytes = Vec::new();
    standard.write_extended(&mut bytes, |input, _| previous[input]).expect("every previous output is known");
    if extended.is_coinbase() {
        let again = Transaction::parse(&bytes).expect("write_extended writes extended format");
        assert_eq!((again.txid(), again.check()), (extended.txid(), extended.check()));
    } else {
        assert_eq!(bytes, extended.raw());
    }
}
