use proptest::prelude::*;

use super::*;
use crate::{
    record::build::KnownOutput,
    tx::{Txid, block::FileNetwork},
    utxo_set::known_output,
};

const BLOCK: [u8; 32] = [0xb1; 32];
const HEIGHT: u32 = 500;

fn reference(set: &[SetTx]) -> Vec<u8> {
    let mut file = Vec::new();
    reference_format::write_header(BLOCK, HEIGHT, [0xb0; 32], &mut file);
    set.iter().for_each(|tx| reference_format::write_tx(tx, &mut file));
    reference_format::write_footer(set.len() as u64, count(set), &mut file);
    file
}

fn core(set: &[SetTx]) -> Vec<u8> {
    let mut file = Vec::new();
    core_format::write_header(FileNetwork::Regtest, BLOCK, count(set), &mut file);
    set.iter().for_each(|tx| core_format::write_tx(tx, &mut file));
    file
}

fn count(set: &[SetTx]) -> u64 {
    set.iter().map(|tx| tx.outputs.len() as u64).sum()
}

fn read(file: &[u8]) -> Result<(Vec<SetTx>, SetTotals), SetFileError> {
    let mut reader = SetReader::open(file, file.len() as u64, Network::Regtest)?;
    let mut set = Vec::new();
    while let Some(tx) = reader.next_tx()? {
        set.push(tx);
    }
    assert_eq!(reader.position(), file.len() as u64, "every byte was read");
    Ok((set, *reader.totals()))
}

fn tx(id: u8, height: u32, outputs: Vec<KnownOutput>) -> SetTx {
    SetTx { txid: Txid([id; 32]), height, coinbase: false, outputs }
}

fn sets() -> impl Strategy<Value = Vec<SetTx>> {
    let output = (0..1_000_000_000_u64, prop::collection::vec(any::<u8>(), 0..40));
    let outputs = prop::collection::btree_map(0..400_u32, output, 1..4);
    let tx = (any::<[u8; 32]>(), 0..=HEIGHT, any::<bool>(), outputs).prop_map(|(txid, height, coinbase, outputs)| {
        let outputs = outputs.into_iter().map(|(vout, (satoshis, script))| known_output(vout, satoshis, script));
        SetTx { txid: Txid(txid), height, coinbase, outputs: outputs.collect() }
    });
    prop::collection::vec(tx, 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Protects: each format gives back its transactions, and no part of a file passes for a whole one.
    #[test]
    fn files_come_back_and_no_cut_is_a_file(set in sets()) {
        for file in [reference(&set), core(&set)] {
            let (found, totals) = read(&file).unwrap();
            prop_assert_eq!(&found, &set);
            prop_assert_eq!((totals.transactions, totals.outputs), (set.len() as u64, count(&set)));
            let sum = |tx: &SetTx| tx.outputs.iter().map(|output| output.output.satoshis).sum::<u64>();
            prop_assert_eq!(totals.satoshis, set.iter().map(sum).sum::<u64>());
            for end in 0..file.len() {
                let error = read(&file[..end]).expect_err("a part of a file is no file").to_string();
                prop_assert!(!error.contains('\n'));
            }
            let longer = [&file[..], &[0]].concat();
            prop_assert!(read(&longer).is_err());
        }
    }

    #[test]
    fn any_bytes_are_refused_as_values(mut file in prop::collection::vec(any::<u8>(), 0..200), start in 0..3) {
        let magic: &[u8] = match start {
            0 => &reference_format::MAGIC,
            1 => b"utxo\xff\x02\x00\xfa\xbf\xb5\xda",
            _ => b"",
        };
        drop(file.splice(0..0, magic.iter().copied()));
        if let Err(error) = read(&file) {
            prop_assert!(!error.to_string().contains(char::is_control));
        }
    }
}

#[test]
fn a_file_of_an_earlier_version_of_the_reference_has_a_mark_before_its_counts() {
    let set = [tx(1, 3, vec![known_output(0, 5, vec![0x51])])];
    let file = reference(&set);
    let (body, counts) = file.split_at(file.len() - FOOTER_BYTES as usize);
    assert_eq!(read(&[body, &[0; 32], counts].concat()).unwrap().0, set);
    assert!(matches!(read(&[body, &[1; 32], counts].concat()), Err(SetFileError::Cut { .. })));
}

#[test]
fn each_fault_of_a_file_is_named() {
    let output = |vout| known_output(vout, 5, vec![0x51]);
    let both = |set: &[SetTx]| [reference(set), core(set)].map(|file| read(&file).unwrap_err().to_string());
    for (set, words) in [
        (vec![tx(1, 3, vec![output(4), output(4)])], "output 4 of"),
        (vec![tx(1, 3, vec![output(1 << 20)])], "is not below 1048576"),
        (vec![tx(1, 3, vec![known_output(0, MAX_MONEY + 1, vec![])])], "more than 21 million"),
        (
            vec![
                tx(1, 3, vec![known_output(0, MAX_MONEY, vec![])]),
                tx(2, 3, vec![known_output(0, MAX_MONEY, vec![])]),
            ],
            "more than 21 million",
        ),
    ] {
        for error in both(&set) {
            assert!(error.contains(words), "{error}");
        }
    }
    let error = read(&reference(&[tx(1, HEIGHT + 1, vec![output(0)])])).unwrap_err().to_string();
    assert!(error.contains("above that of the file's block"), "{error}");
    let set = [tx(1, 3, vec![output(0)])];
    let mut wrong_count = reference(&set);
    let at = wrong_count.len() - 16;
    wrong_count[at] = 2;
    let error = read(&wrong_count).unwrap_err().to_string();
    assert!(error.contains("1 transactions with 1 outputs, and says that it has 2"), "{error}");
    for (change, words) in [
        ((4, 0x00), "it begins with"),
        ((5, 1), "of version 1, this program reads version 2"),
        ((7, 0), "which no known network has"),
        ((43, 0), "follow the last output"),
        ((43, 2), "ends at byte"),
    ] {
        let mut file = core(&set);
        file[change.0] = change.1;
        let error = read(&file).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let mixed = [tx(1, 3, vec![output(0), output(1)])];
    let mut file = core(&mixed);
    let last = file.len() - 4;
    assert_eq!(file[last], 6, "height 3, doubled");
    file[last] = 8;
    let error = read(&file).unwrap_err().to_string();
    assert!(error.contains("different heights"), "{error}");
}

#[test]
fn outputs_without_a_slot_are_counted_apart() {
    let set = [tx(1, 3, vec![known_output(0, 5, vec![0x51]), known_output(1, 7, vec![0x6a, 1])])];
    let totals = read(&core(&set)).unwrap().1;
    assert_eq!((totals.outputs, totals.satoshis), (2, 12));
    assert_eq!((totals.outputs_without_slot, totals.satoshis_without_slot), (1, 7));
}

/// Protects: a damaged length reads, and keeps in memory, no more than the file has.
#[test]
fn a_length_beyond_the_end_of_the_file_reads_nothing() {
    struct Counted<'a>(std::io::Chain<&'a [u8], std::io::Repeat>, u64);
    impl Read for Counted<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let read = self.0.read(buffer)?;
            self.1 += read as u64;
            Ok(read)
        }
    }
    let set = [tx(1, 9, vec![known_output(0, 5, vec![0x51; 4])])];
    let mut file = reference(&set);
    let at = file.windows(8).position(|bytes| bytes == [4, 0, 0, 0, 0x51, 0x51, 0x51, 0x51]).unwrap();
    file[at..at + 4].copy_from_slice(&0x1000_0000_u32.to_le_bytes());
    let source = Counted((&file[..]).chain(std::io::repeat(0x51)), 0);
    let mut reader = SetReader::open(source, file.len() as u64, Network::Regtest).unwrap();
    let error = reader.next_tx().unwrap_err();
    assert!(matches!(error, SetFileError::Cut { at: found } if found == at as u64 + 4), "{error}");
    assert_eq!(reader.source_mut().1, at as u64 + 4);
}
