//! A UTXO-set file of the reference with outputs of the usual size.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
};

use bytes::Bytes;
use utxo_store::{
    record::{StoredOutput, build::KnownOutput},
    tx::Txid,
    utxo_set::{SetTx, reference_format},
};

/// Height of the file's block.
const HEIGHT: u32 = 800_000;
const SATOSHIS: u64 = 12_345;

/// Writes a file with `outputs` outputs, two of each transaction. Returns its bytes.
pub fn write(path: &Path, outputs: u64) -> u64 {
    let mut file = BufWriter::new(File::create(path).expect("the folder belongs to the bench"));
    let mut bytes = Vec::new();
    let (mut transactions, mut length) = (0, 0);
    reference_format::write_header([7; 32], HEIGHT, [6; 32], &mut bytes);
    for number in 0..outputs.div_ceil(2) {
        let hash = blake3::hash(&number.to_le_bytes());
        let output =
            |vout: u32| KnownOutput { vout, output: StoredOutput { satoshis: SATOSHIS, script: script(&hash) } };
        let outputs = vec![output(0), output(1)];
        let height = HEIGHT - (number % 100_000) as u32;
        let tx = SetTx { txid: Txid(*hash.as_bytes()), height, coinbase: false, outputs };
        reference_format::write_tx(&tx, &mut bytes);
        transactions += 1;
        if bytes.len() > 1 << 20 {
            length += bytes.len();
            file.write_all(&bytes).expect("the disk has room");
            bytes.clear();
        }
    }
    reference_format::write_footer(transactions, transactions * 2, &mut bytes);
    file.write_all(&bytes).and_then(|()| file.flush()).expect("the disk has room");
    (length + bytes.len()) as u64
}

/// Returns a script that pays to the hash of a key.
fn script(hash: &blake3::Hash) -> Bytes {
    let mut script = vec![0x76, 0xa9, 0x14];
    script.extend(&hash.as_bytes()[..20]);
    script.extend([0x88, 0xac]);
    script.into()
}
