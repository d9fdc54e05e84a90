//! UTXO-set files of both formats: refused in one line, or read to their end; each transaction comes back from the
//! bytes that are written of it.

use utxo_store::{
    tx::Network,
    utxo_set::{SetFormat, SetReader, SetTx, core_format, reference_format},
};

use super::assert_one_line;

/// Runs the target `utxo_set`.
pub fn check(data: &[u8]) {
    let mut reader = match SetReader::open(data, data.len() as u64, Network::Regtest) {
        Ok(reader) => reader,
        Err(error) => return assert_one_line(&error),
    };
    let (format, mut transactions, mut outputs) = (reader.header().format, 0, 0);
    loop {
        let begin = reader.position() as usize;
        match reader.next_tx() {
            Ok(Some(tx)) => {
                transactions += 1;
                outputs += tx.outputs.len() as u64;
                check_written(&tx, format, &data[begin..reader.position() as usize]);
            }
            Ok(None) => break,
            Err(error) => return assert_one_line(&error),
        }
    }
    assert_eq!(reader.position(), data.len() as u64, "a whole file is read to its last byte");
    let totals = reader.totals();
    assert_eq!((totals.transactions, totals.outputs), (transactions, outputs));
}

/// Checks the bytes that are written of a transaction that was read from `read`.
fn check_written(tx: &SetTx, format: SetFormat, read: &[u8]) {
    let mut written = Vec::new();
    match format {
        SetFormat::Reference => {
            reference_format::write_tx(tx, &mut written);
            assert_eq!(written, read, "the format has one form of each transaction");
        }
        // A script can be written in full although it has a short form.
        SetFormat::Core => {
            core_format::write_tx(tx, &mut written);
            assert!(written.len() <= read.len());
        }
    }
}
