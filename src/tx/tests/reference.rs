//! Transactions, hashes and bins that the reference wrote, compared with those of this crate.

use std::collections::BTreeMap;

use serde_json::Value;

use super::data;
use crate::tx::{Transaction, Txid, utxo_hash};

fn records() -> Value {
    serde_json::from_slice(&data("reference-records.json")).unwrap()
}

fn bytes(value: &Value) -> Vec<u8> {
    hex::decode(value.as_str().unwrap()).unwrap()
}

fn blobs(list: &Value) -> Vec<Vec<u8>> {
    list["list"].as_array().unwrap().iter().map(|item| bytes(&item["blob"])).collect()
}

#[test]
fn transactions_of_the_reference_in_both_formats() {
    let records = records();
    let transactions = records["transactions"].as_object().unwrap();
    assert_eq!(transactions.len(), 11);
    for (name, forms) in transactions {
        let (standard, extended) = (bytes(&forms["standard"]), bytes(&forms["extended"]));
        let txid: Txid = forms["txid"].as_str().unwrap().parse().unwrap();
        let from_standard = Transaction::parse(&standard).unwrap();
        let from_extended = Transaction::parse(&extended).unwrap();
        assert_eq!(from_extended.txid(), txid, "{name}");
        assert_eq!(from_standard.txid(), txid, "{name}");
        let mut written = Vec::new();
        from_extended.write_standard(&mut written);
        assert_eq!(written, standard, "{name}");
        // The reference leaves a coinbase in standard format.
        assert_eq!(from_extended.is_extended(), name != "coinbase", "{name}");
        let previous: Vec<_> = from_extended.inputs().map(|input| input.previous).collect();
        written.clear();
        from_standard.write_extended(&mut written, |input, _| previous[input]).unwrap();
        if name != "coinbase" {
            assert_eq!(written, extended, "{name}");
        }
        assert_eq!(Transaction::parse(&written).unwrap().txid(), txid, "{name}");
        assert_eq!(written.len(), from_extended.extended_len(), "{name}");
    }
}

#[test]
fn utxo_hashes_of_the_reference() {
    let records = records();
    let hashes = records["utxo_hashes"].as_array().unwrap();
    assert_eq!(hashes.len(), 27);
    for hash in hashes {
        let name = hash["tx"].as_str().unwrap();
        let raw = bytes(&records["transactions"][name]["extended"]);
        let transaction = Transaction::parse(&raw).unwrap();
        let vout = hash["vout"].as_u64().unwrap() as u32;
        let output = transaction.outputs().nth(vout as usize).unwrap();
        let found = utxo_hash(&transaction.txid(), vout, output.script, output.satoshis);
        assert_eq!(found.to_string(), hash["utxo_hash_internal_order"].as_str().unwrap(), "{name}:{vout}");
    }
}

/// Compares sizes, fee, inputs and outputs of each master record that the reference wrote.
#[test]
fn bins_of_the_reference() {
    let records = records();
    let mut seen = BTreeMap::new();
    for step in records["steps"].as_array().unwrap() {
        for record in step["records"].as_array().into_iter().flatten() {
            let bins = &record["bins"];
            let Some(name) = record["tx"].as_str().filter(|_| bins["inputs"].is_object()) else { continue };
            let raw = bytes(&records["transactions"][name]["extended"]);
            let transaction = Transaction::parse(&raw).unwrap();
            let number = |bin: &str| bins[bin]["int"].as_u64().unwrap();
            assert_eq!(number("sizeInBytes"), transaction.standard_len() as u64, "{name}");
            assert_eq!(number("extendedSize"), transaction.extended_len() as u64, "{name}");
            assert_eq!(number("version"), u64::from(transaction.version()), "{name}");
            assert_eq!(number("locktime"), u64::from(transaction.lock_time()), "{name}");
            assert_eq!(number("fee"), transaction.check().unwrap(), "{name}");
            assert_eq!(bins["isCoinbase"]["bool"].as_bool().unwrap(), transaction.is_coinbase(), "{name}");
            let inputs: Vec<_> = transaction.inputs().map(|input| input.raw_extended().into_owned()).collect();
            assert_eq!(inputs, blobs(&bins["inputs"]), "{name}");
            let outputs: Vec<_> = transaction.raw_outputs().map(<[u8]>::to_vec).collect();
            assert_eq!(outputs, blobs(&bins["outputs"]), "{name}");
            seen.insert(name.to_owned(), transaction.is_coinbase());
        }
    }
    assert!(seen.len() >= 5 && seen.values().any(|coinbase| *coinbase), "{seen:?}");
}

#[test]
fn a_large_transaction_in_both_formats() {
    let (standard, extended) = (data("tx-65cbf318.bin"), data("tx-65cbf318.extended.bin"));
    let from_standard = Transaction::parse(&standard).unwrap();
    let from_extended = Transaction::parse(&extended).unwrap();
    assert!(from_extended.txid().to_string().starts_with("65cbf318"));
    assert_eq!(from_standard.txid(), from_extended.txid());
    assert_eq!((from_extended.standard_len(), from_extended.extended_len()), (standard.len(), extended.len()));
    let mut written = Vec::new();
    from_extended.write_standard(&mut written);
    assert_eq!(written, standard);
    assert!(from_extended.check().is_ok());
}
