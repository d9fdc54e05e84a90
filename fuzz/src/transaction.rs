//! A transaction in standard format: this store and the oracle take the same bytes, and read the same from them.

use utxo_store::tx::{Output, ParseError, Transaction};

use super::{assert_one_line, oracle};

/// See the module.
pub fn check(data: &[u8]) {
    match (Transaction::parse_prefix(data), oracle::standard(data)) {
        (Ok((transaction, _)), None) if transaction.is_extended() => {}
        (Ok((transaction, len)), Some((oracle, oracle_len))) => {
            assert!(!transaction.is_extended());
            assert_eq!(len, oracle_len);
            assert_eq!(transaction.raw(), &data[..len]);
            oracle::assert_same(&transaction, &oracle);
            assert_eq!(transaction.check(), oracle::check(&oracle, None));
            extends_and_comes_back(&transaction);
            assert_whole(data, len);
        }
        (Err(error), None) => assert_refusal(data, &error),
        (ours, oracle) => panic!("ours: {ours:?}, the oracle's: {oracle:?}"),
    }
}

/// What [`Transaction::parse`] says of bytes at whose start stands a transaction of `len` bytes: it takes no more and no
/// less, and less is called cut short.
pub fn assert_whole(data: &[u8], len: usize) {
    assert_eq!(Transaction::parse(data).is_ok(), len == data.len());
    // One cut a run, wherever the bytes say: the fuzzer tries the others.
    let cut = usize::from(data[len - 1]) * len / 256;
    let error = Transaction::parse(&data[..cut]).expect_err("no transaction begins with a whole other one");
    assert!(error.is_truncation(), "{error}");
    assert_refusal(&data[..cut], &error);
}

/// A refusal points into the bytes, and can be shown.
pub fn assert_refusal(data: &[u8], error: &ParseError) {
    assert!(error.at <= data.len(), "{error}");
    assert_one_line(error);
}

/// With previous outputs added it is the same transaction in extended format; without them it cannot be one.
fn extends_and_comes_back(transaction: &Transaction<'_>) {
    let mut extended = vec![1];
    let unknown = transaction.write_extended(&mut extended, |_, _| None);
    assert_eq!(unknown.is_ok(), transaction.is_coinbase());
    if unknown.is_err() {
        assert_eq!(extended, [1], "left as it was");
    }
    extended.clear();
    let previous = |index: usize, _| Some(Output { satoshis: index as u64, script: &[0x51] });
    transaction.write_extended(&mut extended, previous).expect("every previous output is known");
    let again = Transaction::parse(&extended).expect("it was written in extended format");
    assert!(again.is_extended());
    assert_eq!((again.txid(), again.is_coinbase()), (transaction.txid(), transaction.is_coinbase()));
    let mut standard = Vec::new();
    again.write_standard(&mut standard);
    assert_eq!(standard, transaction.raw());
    if transaction.is_coinbase() {
        assert_eq!(extended.len(), transaction.extended_len());
    }
}
