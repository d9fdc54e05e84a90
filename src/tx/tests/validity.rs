//! Fees, and well-formed transactions that break a rule.

use proptest::prelude::*;

use super::outpoint;
use crate::tx::{InvalidTransaction, MAX_MONEY, Outpoint, Output, Transaction, TransactionBuilder, Txid};

fn numbered(vout: u32) -> Outpoint {
    Outpoint { txid: Txid([9; 32]), vout }
}

fn paying(inputs: &[u64], outputs: &[u64]) -> TransactionBuilder {
    let builder = (0..).zip(inputs).fold(TransactionBuilder::default(), |builder, (vout, satoshis)| {
        builder.input(numbered(vout), &[], 0, Some(Output { satoshis: *satoshis, script: &[] }))
    });
    outputs.iter().fold(builder, |builder, satoshis| builder.output(*satoshis, &[]))
}

fn check(builder: &TransactionBuilder) -> Result<u64, InvalidTransaction> {
    Transaction::parse(&builder.extended()).unwrap().check()
}

fn spending(outpoints: &[Outpoint]) -> Result<u64, InvalidTransaction> {
    let none = Output { satoshis: 0, script: &[] };
    let builder = TransactionBuilder::default().output(0, &[]);
    check(&outpoints.iter().fold(builder, |builder, outpoint| builder.input(*outpoint, &[], 0, Some(none))))
}

#[test]
fn the_fee_is_inputs_minus_outputs() {
    assert_eq!(check(&paying(&[10, 20], &[5, 7])), Ok(18));
    assert_eq!(check(&paying(&[10], &[10])), Ok(0));
    assert_eq!(check(&paying(&[0], &[0])), Ok(0));
    assert_eq!(check(&paying(&[MAX_MONEY], &[MAX_MONEY])), Ok(0));
}

#[test]
fn invalid_sums_are_refused_by_field() {
    assert_eq!(check(&paying(&[1], &[])), Err(InvalidTransaction::NoOutputs));
    assert_eq!(check(&paying(&[9], &[5, 5])), Err(InvalidTransaction::Overspend { inputs: 9, outputs: 10 }));
    let too_much = InvalidTransaction::TooMuchMoney { satoshis: MAX_MONEY + 1 };
    assert_eq!(check(&paying(&[u64::MAX], &[MAX_MONEY, 1])), Err(too_much));
    assert_eq!(check(&paying(&[u64::MAX, 1], &[1])), Err(InvalidTransaction::InputSumOverflow { input: 1 }));
    assert_eq!(check(&paying(&[1], &[1, u64::MAX])), Err(InvalidTransaction::OutputSumOverflow { vout: 1 }));
}

#[test]
fn only_a_coinbase_may_lack_previous_outputs() {
    let standard = paying(&[5], &[5]).standard();
    let missing = InvalidTransaction::MissingPreviousOutput { input: 0, outpoint: numbered(0) };
    assert_eq!(Transaction::parse(&standard).unwrap().check(), Err(missing));

    let coinbase = TransactionBuilder::default().input(Outpoint::NULL, &[1, 1], 0, None).output(50, &[]);
    for bytes in [coinbase.standard(), coinbase.extended()] {
        let transaction = Transaction::parse(&bytes).unwrap();
        assert!(transaction.is_coinbase());
        assert_eq!(transaction.check(), Ok(0));
        assert_eq!(transaction.extended_len(), coinbase.extended().len());
        let inputs: Vec<_> = transaction.inputs().map(|input| input.raw_extended().len()).collect();
        assert_eq!(inputs, [36 + 1 + 2 + 4 + 9]);
    }
    let too_much = coinbase.clone().output(MAX_MONEY - 49, &[]);
    assert_eq!(check(&too_much), Err(InvalidTransaction::TooMuchMoney { satoshis: MAX_MONEY + 1 }));
    let overflowing = coinbase.output(u64::MAX, &[]);
    assert_eq!(check(&overflowing), Err(InvalidTransaction::OutputSumOverflow { vout: 1 }));
}

#[test]
fn two_inputs_or_a_named_output_are_no_coinbase() {
    let builder = TransactionBuilder::default().input(numbered(0), &[], 0, None).input(Outpoint::NULL, &[], 0, None);
    assert!(!Transaction::parse(&builder.standard()).unwrap().is_coinbase());
    let almost = Outpoint { vout: 0, ..Outpoint::NULL };
    let builder = TransactionBuilder::default().input(almost, &[], 0, None);
    assert!(!Transaction::parse(&builder.standard()).unwrap().is_coinbase());
}

#[test]
fn a_repeated_outpoint_is_found_among_many() {
    let mut outpoints: Vec<Outpoint> = (0..100_000).rev().map(numbered).collect();
    assert_eq!(spending(&outpoints), Ok(0));
    outpoints.push(numbered(7));
    let expected = InvalidTransaction::DuplicateOutpoint { input: 100_000, outpoint: numbered(7) };
    assert_eq!(spending(&outpoints), Err(expected.clone()));
    assert!(expected.to_string().starts_with("outpoint of input 100000: "));
}

proptest! {
    /// The counts are on both sides of the limit between the two methods.
    #[test]
    fn the_first_repetition_is_named(
        outpoint in outpoint(),
        count in 2_u32..40,
        a in any::<prop::sample::Index>(),
        b in any::<prop::sample::Index>(),
    ) {
        let mut outpoints: Vec<Outpoint> =
            (0..count).map(|i| Outpoint { vout: outpoint.vout.wrapping_add(i), ..outpoint }).collect();
        let (a, b) = (a.index(outpoints.len()), b.index(outpoints.len()));
        outpoints[a.max(b)] = outpoints[a.min(b)];
        let expected = if a == b { Ok(0) } else {
            Err(InvalidTransaction::DuplicateOutpoint { input: a.max(b), outpoint: outpoints[a.min(b)] })
        };
        prop_assert_eq!(spending(&outpoints), expected);
    }
}
