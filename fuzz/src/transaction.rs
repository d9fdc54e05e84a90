//! Transactions in standard format: this store and the oracle accept the same bytes and read the same values.

use utxo_store::tx::{Output, ParseError, Transaction};

use super::{assert_one_line, oracle};

/// Runs the target `transaction`.
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

/// Checks [`Transaction::parse`] on bytes that start with a transaction of `len` bytes: it accepts exactly these, and
/// reports fewer as truncated.
pub fn assert_whole(data: &[u8], len: usize) {
    assert_eq!(Transaction::parse(data).is_ok(), len == data.len());
    // One cut per run, at a place chosen by the bytes: the fuzzer tries the others.
    let cut = usize::from(data[len - 1]) * len / 256;
    let error = Transaction::parse(&data[..cut]).expect_err("no transaction begins with a whole other one");
    assert!(error.is_truncation(), "{error}");
    assert_refusal(&data[..cut], &error);
}

/// Checks that a refusal points into the bytes and is one line.
pub fn assert_refusal(data: &[u8], error: &ParseError) {
    assert!(error.at <= data.len(), "{error}");
    assert_one_line(error);
}

/// Checks that added previous outputs give the same transaction in extended format, and that missing ones are refused.
fn extends_and_comes_back(transaction: &Transaction<'_>) {
    let mut extended = vec![1];
    let unknown = transaction.write_extended(&mut extended, |_, _| None);
    assert_eq!(unknown.is_ok(), transaction.is_coinbase());
    if unknown.is_err() {
        assert_eq!(extended, [1], "a refused conversion must leave the buffer unchanged");
    }
    extended.clear();
    let previous = |index: usize, _| Some(Output { satoshis: index as u64, script: &[0x51] });
    transaction.write_extended(&mut extended, previous).expect("every previous output is known");
    let again = Transaction::parse(&extended).expect("write_extended writes extended format");
    assert!(again.is_extended());
    assert_eq!((again.txid(), again.is_coinbase()), (transaction.txid(), transaction.is_coinbase()));
    let mut standard = Vec::new();
    again.write_standard(&mut standard);
    assert_eq!(standard, transaction.raw());
    if transaction.is_coinbase() {
        assert_eq!(extended.len(), transaction.extended_len());
    }
}
