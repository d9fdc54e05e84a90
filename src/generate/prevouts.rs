//! The list of previous outputs outside the block files, grouped by transaction.

use std::collections::{BTreeMap, btree_map::Entry};

use crate::{
    event::{PartialOutput, PartialTxEvent, Topic},
    generate::Message,
    record::build::PARTIAL_OUTPUT_LIMIT,
    tx::{Outpoint, Output, Txid},
};

const COLUMNS: [&str; 6] = ["txid", "vout", "satoshis", "height", "coinbase", "locking_script_hex"];

/// Error of one line of the list of previous outputs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: line {line}: {problem}")]
pub struct PrevoutsError {
    /// Name of the file.
    pub file: String,
    /// Number of the line, from 1.
    pub line: u64,
    /// Problem of the line, with the field.
    pub problem: String,
}

/// Transaction outside the files, with the outputs that are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    /// Height of the transaction's block.
    pub height: u32,
    /// `true` for a coinbase.
    pub coinbase: bool,
    /// Satoshis and locking script by output index.
    pub outputs: BTreeMap<u32, (u64, Vec<u8>)>,
}

/// Transactions outside the files whose outputs the blocks spend, by txid.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parents(pub BTreeMap<Txid, Parent>);

impl Parents {
    /// Reads lines of `txid,vout,satoshis,height,coinbase,locking_script_hex` after a line with these names. The field
    /// coinbase is 0 or 1. Errors name the list by `file`.
    ///
    /// # Errors
    /// The first wrong line, with the field.
    pub fn from_csv(file: &str, bytes: &[u8]) -> Result<Self, PrevoutsError> {
        let wrong = |line, problem| PrevoutsError { file: file.to_owned(), line, problem };
        let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(bytes);
        let unreadable = |error: csv::Error| {
            let line = error.position().map_or(1, csv::Position::line);
            wrong(line, format!("cannot be read: {error}"))
        };
        let header = reader.headers().map_err(unreadable)?;
        if header.iter().ne(COLUMNS) {
            return Err(wrong(1, format!("must name the columns {}", COLUMNS.join(","))));
        }
        let mut parents = Parents::default();
        for record in reader.records() {
            let record = record.map_err(unreadable)?;
            let line = record.position().map_or(0, csv::Position::line);
            parents.add(&record).map_err(|problem| wrong(line, problem))?;
        }
        Ok(parents)
    }

    fn add(&mut self, record: &csv::StringRecord) -> Result<(), String> {
        if record.len() != COLUMNS.len() {
            return Err(format!("has {} fields instead of {}", record.len(), COLUMNS.len()));
        }
        let txid: Txid = record[0].parse().map_err(|error| format!("txid: {error}"))?;
        let vout: u32 = parse_number(&record[1]).map_err(|problem| format!("vout: {problem}"))?;
        let satoshis: u64 = parse_number(&record[2]).map_err(|problem| format!("satoshis: {problem}"))?;
        let height: u32 = parse_number(&record[3]).map_err(|problem| format!("height: {problem}"))?;
        let coinbase = match &record[4] {
            "0" => false,
            "1" => true,
            other => return Err(format!("coinbase: `{other}` is not 0 or 1")),
        };
        let script = hex::decode(&record[5]).map_err(|error| format!("locking_script_hex: {error}"))?;
        if vout >= PARTIAL_OUTPUT_LIMIT {
            return Err(format!("vout: {vout} is not below {PARTIAL_OUTPUT_LIMIT}"));
        }
        let parent = self.0.entry(txid).or_insert(Parent { height, coinbase, outputs: BTreeMap::new() });
        if (parent.height, parent.coinbase) != (height, coinbase) {
            return Err(format!("contradicts an earlier line about {txid}: height {height}, coinbase {coinbase}"));
        }
        match parent.outputs.entry(vout) {
            Entry::Vacant(entry) => {
                entry.insert((satoshis, script));
                Ok(())
            }
            Entry::Occupied(_) => Err(format!("{txid}:{vout} is listed twice")),
        }
    }

    /// Returns the output that an outpoint names, if the list has the output.
    pub fn output(&self, outpoint: &Outpoint) -> Option<Output<'_>> {
        let (satoshis, script) = self.0.get(&outpoint.txid)?.outputs.get(&outpoint.vout)?;
        Some(Output { satoshis: *satoshis, script })
    }

    /// Returns the event of each partial transaction, ascending by txid.
    pub fn messages(&self) -> impl Iterator<Item = Message> {
        self.0.iter().map(|(txid, parent)| {
            let outputs = parent.outputs.iter().map(|(vout, (satoshis, script))| PartialOutput {
                vout: *vout,
                satoshis: *satoshis,
                script,
            });
            let (coinbase, height) = (parent.coinbase, parent.height);
            let event = PartialTxEvent { txid: *txid, coinbase, height, outputs: outputs.collect() };
            Message { topic: Topic::ValidatedTxs, key: Some(*txid), payload: event.encode() }
        })
    }
}

fn parse_number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is no number in range"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "txid,vout,satoshis,height,coinbase,locking_script_hex\n";
    const TXID: &str = "0437cd7f8525ceed2324359c2d0ba26006d92d856a9c20fa0241106ee5a597c9";

    fn read(lines: &str) -> Result<Parents, String> {
        Parents::from_csv("p.csv", format!("{HEADER}{lines}").as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn outputs_of_one_transaction_become_one_event() {
        let parents = read(&format!("{TXID},3,7,9,1,51\n{TXID},0,5000000000,9,1,\n")).unwrap();
        let outpoint = |vout| Outpoint { txid: TXID.parse().unwrap(), vout };
        assert_eq!(parents.output(&outpoint(3)), Some(Output { satoshis: 7, script: &[0x51] }));
        assert_eq!(parents.output(&outpoint(0)), Some(Output { satoshis: 5_000_000_000, script: &[] }));
        assert_eq!(parents.output(&outpoint(1)), None);
        assert_eq!(parents.messages().count(), 1);
    }

    #[test]
    fn a_wrong_line_is_refused_with_number_and_field() {
        let good = format!("{TXID},0,1,9,0,51\n");
        for (line, says) in [
            ("zz,0,1,9,0,51".to_owned(), "txid: `zz` is not"),
            (format!("{TXID},-1,1,9,0,51"), "vout: `-1` is no number in range"),
            (format!("{TXID},1048576,1,9,0,51"), "vout: 1048576 is not below"),
            (format!("{TXID},1,1.5,9,0,51"), "satoshis: `1.5`"),
            (format!("{TXID},1,1,,0,51"), "height: ``"),
            (format!("{TXID},1,1,9,true,51"), "coinbase: `true` is not 0 or 1"),
            (format!("{TXID},1,1,9,0,5"), "locking_script_hex: Odd"),
            (format!("{TXID},1,1,9,0"), "has 5 fields instead of 6"),
            (format!("{TXID},0,1,9,0,51"), "is listed twice"),
            (format!("{TXID},1,1,8,0,51"), "contradicts an earlier line"),
        ] {
            let error = read(&format!("{good}{line}\n")).unwrap_err();
            assert!(error.starts_with("p.csv: line 3: ") && error.contains(says), "{line}: {error}");
        }
        let error = Parents::from_csv("p.csv", b"a,b\n").unwrap_err().to_string();
        assert!(error.starts_with("p.csv: line 1: must name the columns txid,vout"), "{error}");
        assert!(Parents::from_csv("p.csv", b"").is_err());
        assert!(Parents::from_csv("p.csv", b"\xff\n").is_err());
    }
}
