//! The parser for pieces, compared with the parser for the whole transaction.

use proptest::{collection::vec, prelude::*};

use super::{data, transaction};
use crate::tx::{ParseError, StreamedTransaction, Transaction, TransactionStream};

/// Pushes `bytes` in pieces of the given sizes, which are repeated.
fn parse_in_pieces(bytes: &[u8], sizes: &[usize], wanted: &[u32]) -> Result<StreamedTransaction, ParseError> {
    let mut stream = TransactionStream::new(bytes.len() as u64, wanted.iter().copied());
    let (mut rest, mut sizes) = (bytes, sizes.iter().cycle());
    while !rest.is_empty() {
        let (piece, tail) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
        stream.push(piece)?;
        rest = tail;
    }
    stream.finish()
}

/// Checks that both parsers give the same result.
fn compare(bytes: &[u8], sizes: &[usize]) {
    let wanted = [0, 2, 4, 1_000_000];
    match (Transaction::parse(bytes), parse_in_pieces(bytes, sizes, &wanted)) {
        (Ok(whole), Ok(found)) => {
            assert_eq!((found.txid, found.extended), (whole.txid(), whole.is_extended()));
            assert_eq!(found.coinbase, whole.is_coinbase());
            let outputs = whole.outputs().zip(0..).filter(|(_, vout)| wanted.contains(vout));
            let outputs = outputs.map(|(output, vout)| (vout, (output.satoshis, output.script.to_vec())));
            assert_eq!(found.outputs, outputs.collect());
        }
        (Err(_), Err(error)) => assert!(error.at <= bytes.len(), "{error}"),
        (whole, found) => panic!("{whole:?} is not {found:?}"),
    }
}

proptest! {
    #[test]
    fn pieces_of_any_size_give_the_same_result(builder in transaction(), sizes in vec(1_usize..70, 1..8)) {
        for bytes in [builder.standard(), builder.extended()] {
            compare(&bytes, &sizes);
            compare(&bytes, &[1]);
            compare(&bytes, &[usize::MAX]);
        }
    }

    #[test]
    fn damage_is_refused_as_by_the_whole_parser(
        builder in transaction(),
        sizes in vec(1_usize..70, 1..8),
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
    ) {
        for mut bytes in [builder.standard(), builder.extended()] {
            compare(&bytes[..at.index(bytes.len())], &sizes);
            let at = at.index(bytes.len());
            bytes[at] = value;
            compare(&bytes, &sizes);
            bytes.push(0);
            compare(&bytes, &sizes);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in vec(any::<u8>(), 0..400), marked in any::<bool>(), sizes in vec(1_usize..70, 1..8),
    ) {
        let start: &[u8] = if marked { &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0xef] } else { &[] };
        compare(&[start, &bytes].concat(), &sizes);
    }
}

#[test]
fn a_real_transaction() {
    for name in ["tx-65cbf318.bin", "tx-65cbf318.extended.bin"] {
        compare(&data(name), &[7, 4_096]);
    }
}

#[test]
fn bytes_beyond_the_announced_length_are_refused() {
    let bytes = data("tx-65cbf318.bin");
    let mut stream = TransactionStream::new(bytes.len() as u64 / 2, []);
    let refused = stream.push(&bytes).is_err() || stream.finish().is_err();
    assert!(refused, "a count or a length that the announced bytes cannot hold");
}
