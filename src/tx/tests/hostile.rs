//! Malformed, truncated and damaged transactions and blocks.

use proptest::{collection::vec, prelude::*};

use super::{data, transaction};
use crate::tx::{
    ParseError, ParseErrorKind, Transaction, TransactionBuilder,
    block::{BlockFile, BlockFileError, ObfuscationKey, RawBlock, Scan},
};

fn kind(bytes: &[u8]) -> ParseErrorKind {
    Transaction::parse(bytes).unwrap_err().kind
}

proptest! {
    #[test]
    fn both_formats_round_trip(builder in transaction()) {
        let (standard, extended) = (builder.standard(), builder.extended());
        let from_standard = Transaction::parse(&standard).unwrap();
        let from_extended = Transaction::parse(&extended).unwrap();
        prop_assert!(!from_standard.is_extended() && from_extended.is_extended());
        prop_assert_eq!(from_standard.txid(), from_extended.txid());
        for transaction in [from_standard, from_extended] {
            prop_assert_eq!(transaction.standard_len(), standard.len());
            let mut written = Vec::new();
            transaction.write_standard(&mut written);
            prop_assert_eq!(&written, &standard);
        }
        prop_assert_eq!(from_extended.extended_len(), extended.len());

        let previous: Vec<_> = from_extended.inputs().map(|input| input.previous).collect();
        let mut written = b"before".to_vec();
        from_standard.write_extended(&mut written, |input, _| previous[input]).unwrap();
        prop_assert_eq!(&written[6..], &extended[..]);
        written.clear();
        from_extended.write_extended(&mut written, |_, _| None).unwrap();
        prop_assert_eq!(&written, &extended);
    }

    #[test]
    fn iterators_cover_every_byte(builder in transaction()) {
        let extended = builder.extended();
        let transaction = Transaction::parse(&extended).unwrap();
        let mut rebuilt = extended[..11].to_vec();
        transaction.inputs().for_each(|input| rebuilt.extend_from_slice(input.raw()));
        rebuilt.push(transaction.output_count() as u8);
        transaction.raw_outputs().for_each(|output| rebuilt.extend_from_slice(output));
        rebuilt.extend_from_slice(&transaction.lock_time().to_le_bytes());
        prop_assert_eq!(rebuilt, extended.clone());
        for (output, raw) in transaction.outputs().zip(transaction.raw_outputs()) {
            prop_assert_eq!(crate::tx::Output::parse(raw).unwrap(), output);
        }
        for input in transaction.inputs() {
            prop_assert_eq!(crate::tx::Input::parse_extended(input.raw()).unwrap(), input);
        }
    }

    #[test]
    fn truncation_at_every_byte_is_refused(builder in transaction()) {
        for bytes in [builder.standard(), builder.extended()] {
            for cut in 0..bytes.len() {
                let error = Transaction::parse(&bytes[..cut]).unwrap_err();
                prop_assert!(error.is_truncation(), "cut at {}: {}", cut, error);
                prop_assert!(error.at <= cut);
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..400), extended in any::<bool>()) {
        let mut marked = vec![1, 0, 0, 0];
        marked.extend_from_slice(if extended { &[0, 0, 0, 0, 0, 0xef] } else { &[] });
        marked.extend_from_slice(&bytes);
        for bytes in [&bytes, &marked] {
            exercise(bytes);
        }
    }

    /// Random bytes seldom pass the first count; a damaged transaction reaches every field.
    #[test]
    fn damaged_transactions_never_panic(
        builder in transaction(), damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        for mut bytes in [builder.standard(), builder.extended()] {
            for (index, byte) in &damage {
                let index = index.index(bytes.len());
                bytes[index] = *byte;
            }
            exercise(&bytes);
        }
    }
}

fn exercise(bytes: &[u8]) {
    let _ = RawBlock::parse(bytes);
    if let Ok(file) = BlockFile::new(bytes) {
        assert!(file.blocks().count() <= bytes.len());
    }
    if let Ok(scan) = Scan::new(bytes) {
        assert!(scan.count() <= bytes.len());
    }
    ObfuscationKey([1, 0, 2, 0xff, 3, 0, 4, 5]).reveal(&mut bytes.to_vec());
    if let Ok((transaction, len)) = Transaction::parse_prefix(bytes) {
        assert_eq!(transaction.raw(), &bytes[..len]);
        assert_eq!(transaction.inputs().count(), transaction.input_count());
        assert_eq!(transaction.outputs().count(), transaction.output_count());
        let mut standard = Vec::new();
        transaction.write_standard(&mut standard);
        assert_eq!(standard.len(), transaction.standard_len());
        let _ = transaction.check();
    }
}

fn simple() -> TransactionBuilder {
    let outpoint = crate::tx::Outpoint { txid: crate::tx::Txid([7; 32]), vout: 1 };
    TransactionBuilder::default().input(outpoint, &[1, 2], 9, None).output(5, &[0x51])
}

#[test]
fn each_error_names_the_problem_and_the_byte() {
    let standard = simple().standard();
    assert!(Transaction::parse(&standard).is_ok());

    let trailing = [&standard[..], &[0]].concat();
    assert_eq!(
        Transaction::parse(&trailing),
        Err(ParseError { at: standard.len(), kind: ParseErrorKind::TrailingBytes(1) })
    );
    assert_eq!(Transaction::parse_prefix(&trailing).unwrap().1, standard.len());

    let segwit = [&standard[..4], &[0, 1], &standard[4..]].concat();
    assert_eq!(kind(&segwit), ParseErrorKind::SegwitMarker);
    assert!(Transaction::parse(&segwit).unwrap_err().to_string().contains("segwit marker"));

    let long_varint = [&standard[..4], &[0xfd, 1, 0], &standard[5..]].concat();
    assert_eq!(kind(&long_varint), ParseErrorKind::NonMinimal { field: "input count" });

    let script_len_at = 4 + 1 + 36;
    let long_script = [&standard[..script_len_at], &[0xfe, 2, 0, 0, 0], &standard[script_len_at + 1..]].concat();
    assert_eq!(
        Transaction::parse(&long_script),
        Err(ParseError { at: script_len_at, kind: ParseErrorKind::NonMinimal { field: "unlocking script" } })
    );

    let no_inputs = TransactionBuilder::default().extended();
    assert_eq!(Transaction::parse(&no_inputs), Err(ParseError { at: 10, kind: ParseErrorKind::NoInputs }));
}

#[test]
fn impossible_counts_are_refused_at_the_count() {
    let standard = simple().standard();
    let huge = [&standard[..4], &[0xff; 9], &standard[5..]].concat();
    let left = huge.len() - 13;
    let field = "input count";
    assert_eq!(kind(&huge), ParseErrorKind::CountBeyondBytes { field, count: u64::MAX, left });

    // Two inputs of at least 41 bytes do not fit into 41 + 41 - 1.
    let mut two = vec![1, 0, 0, 0, 2];
    two.extend_from_slice(&[0; 81]);
    assert_eq!(kind(&two), ParseErrorKind::CountBeyondBytes { field, count: 2, left: 81 });
    let mut two_extended = vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 0xef, 2];
    two_extended.extend_from_slice(&[0; 99]);
    assert_eq!(kind(&two_extended), ParseErrorKind::CountBeyondBytes { field, count: 2, left: 99 });

    let output_count_at = standard.len() - 4 - 10 - 1;
    let outputs = [&standard[..output_count_at], &[2], &standard[output_count_at + 1..]].concat();
    assert_eq!(kind(&outputs), ParseErrorKind::CountBeyondBytes { field: "output count", count: 2, left: 14 });
}

#[test]
fn a_bare_block_cut_anywhere_is_refused() {
    let bytes = data("mainnet-277647.block");
    for cut in (0..bytes.len()).step_by(97).chain([0, 79, 80, 81, bytes.len() - 1]) {
        let error = RawBlock::parse(&bytes[..cut]).unwrap_err();
        assert!(error.is_truncation(), "cut at {cut}: {error}");
    }
    let half = &bytes[..bytes.len() / 2];
    let error = BlockFile::new(half).unwrap().blocks().next().unwrap().unwrap_err();
    assert!(matches!(error, BlockFileError::CutInHalf { at, block_at: 0, .. } if at == half.len()));
    assert!(error.to_string().starts_with(&format!("block file cut in half at byte {}: ", half.len())), "{error}");
}

#[test]
fn a_transaction_in_extended_format_is_not_part_of_a_block() {
    let bytes = |transaction: &[u8]| [&[0; 80][..], &[1], transaction].concat();
    assert!(RawBlock::parse(&bytes(&simple().standard())).is_ok());
    let error = RawBlock::parse(&bytes(&simple().extended())).unwrap_err();
    assert_eq!(error, ParseError { at: 81, kind: ParseErrorKind::ExtendedInBlock });
}

#[test]
fn a_framed_file_gives_the_blocks_before_the_cut_then_one_error() {
    let bytes = data("mainnet-0-4312.blk");
    let second_at = 8 + 285;
    for cut in [3, 7, 8, 200, second_at - 1] {
        let blocks: Vec<_> = BlockFile::new(&bytes[..cut]).unwrap().blocks().collect();
        assert_eq!(blocks.len(), 1, "cut at {cut}");
        assert!(blocks[0].is_err(), "cut at {cut}");
    }
    for cut in [second_at + 1, second_at + 5, second_at + 8, second_at + 100] {
        let blocks: Vec<_> = BlockFile::new(&bytes[..cut]).unwrap().blocks().collect();
        assert_eq!(blocks.len(), 2, "cut at {cut}");
        assert!(blocks[0].is_ok());
        assert!(matches!(blocks[1], Err(BlockFileError::CutInHalf { at, .. }) if at == cut), "{:?}", blocks[1]);
    }
    assert_eq!(BlockFile::new(&bytes[..second_at]).unwrap().blocks().filter(Result::is_ok).count(), 1);
}

#[test]
fn damage_in_a_framed_file_names_its_place() {
    let bytes = data("mainnet-0-4312.blk");
    let second_at = 8 + 285;

    let reserved = [&bytes[..second_at], &[0; 1000]].concat();
    assert_eq!(BlockFile::new(&reserved).unwrap().blocks().map(Result::unwrap).count(), 1);

    let mut no_magic = bytes.clone();
    no_magic[second_at] ^= 1;
    let error = BlockFile::new(&no_magic).unwrap().blocks().nth(1).unwrap().unwrap_err();
    assert!(matches!(error, BlockFileError::NoMagic { at, .. } if at == second_at), "{error}");

    let mut short_frame = bytes.clone();
    short_frame[4] -= 1;
    let error = BlockFile::new(&short_frame).unwrap().blocks().next().unwrap().unwrap_err();
    assert!(matches!(error, BlockFileError::Damaged { block_at: 8, .. }), "{error}");

    assert_eq!(BlockFile::new(&[]).unwrap_err(), BlockFileError::Empty);
}
