//! The list of previous outputs that lie outside the block files: the transactions that they belong to.

use std::collections::{BTreeMap, btree_map::Entry};

use crate::{
    event::{SEEDED_OUTPUT_LIMIT, Seeded, SeededOutput, Topic},
    generate::Message,
    tx::{Outpoint, Output, Txid},
};

const COLUMNS: [&str; 6] = ["txid", "vout", "satoshis", "height", "coinbase", "locking_script_hex"];

/// What is wrong with the list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: line {line}: {problem}")]
pub struct PrevoutsError {
    /// Its name.
    pub file: String,
    /// Line, from 1.
    pub line: u64,
    /// What is wrong there.
    pub problem: String,
}

/// A transaction of which some outputs are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    /// Height of its block.
    pub height: u32,
    /// Whether it is a coinbase.
    pub coinbase: bool,
    /// Satoshis and locking script by index.
    pub outputs: BTreeMap<u32, (u64, Vec<u8>)>,
}

/// Parents outside the files, by txid.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parents(pub BTreeMap<Txid, Parent>);

impl Parents {
    /// Reads lines of `txid,vout,satoshis,height,coinbase,locking_script_hex` below a line with these names; coinbase is
    /// 0 or 1. `file` names them in errors.
    ///
    /// # Errors
    /// The first line that is wrong, with the field.
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
        let vout: u32 = number(&record[1]).map_err(|problem| format!("vout: {problem}"))?;
        let satoshis: u64 = number(&record[2]).map_err(|problem| format!("satoshis: {problem}"))?;
        let height: u32 = number(&record[3]).map_err(|problem| format!("height: {problem}"))?;
        let coinbase = match &record[4] {
            "0" => false,
            "1" => true,
            other => return Err(format!("coinbase: `{other}` is not 0 or 1")),
        };
        let script = hex::decode(&record[5]).map_err(|error| format!("locking_script_hex: {error}"))?;
        if vout >= SEEDED_OUTPUT_LIMIT {
            return Err(format!("vout: {vout} is not below {SEEDED_OUTPUT_LIMIT}"));
        }
        let parent = self.0.entry(txid).or_insert(Parent { height, coinbase, outputs: BTreeMap::new() });
        if (parent.height, parent.coinbase) != (height, coinbase) {
            return Err(format!("says otherwise about {txid} than an earlier line: height {height}, {coinbase}"));
        }
        match parent.outputs.entry(vout) {
            Entry::Vacant(entry) => {
                entry.insert((satoshis, script));
                Ok(())
            }
            Entry::Occupied(_) => Err(format!("{txid}:{vout} is there twice")),
        }
    }

    /// The output, where it is known.
    pub fn output(&self, outpoint: &Outpoint) -> Option<Output<'_>> {
        let (satoshis, script) = self.0.get(&outpoint.txid)?.outputs.get(&outpoint.vout)?;
        Some(Output { satoshis: *satoshis, script })
    }

    /// A `Seeded` event for each of them, ascending by txid.
    pub fn messages(&self) -> impl Iterator<Item = Message> {
        self.0.iter().map(|(txid, parent)| {
            let outputs = parent.outputs.iter().map(|(vout, (satoshis, script))| SeededOutput {
                vout: *vout,
                satoshis: *satoshis,
                script,
            });
            let seeded =
                Seeded { txid: *txid, coinbase: parent.coinbase, height: parent.height, outputs: outputs.collect() };
            Message { topic: Topic::ValidatedTxs, key: Some(*txid), payload: seeded.encode() }
        })
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is no such number"))
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
    fn outputs_of_one_transaction_come_together() {
        let parents = read(&format!("{TXID},3,7,9,1,51\n{TXID},0,5000000000,9,1,\n")).unwrap();
        let outpoint = |vout| Outpoint { txid: TXID.parse().unwrap(), vout };
        assert_eq!(parents.output(&outpoint(3)), Some(Output { satoshis: 7, script: &[0x51] }));
        assert_eq!(parents.output(&outpoint(0)), Some(Output { satoshis: 5_000_000_000, script: &[] }));
        assert_eq!(parents.output(&outpoint(1)), None);
        assert_eq!(parents.messages().count(), 1);
    }

    #[test]
    fn a_bad_line_is_named_with_its_field() {
        let good = format!("{TXID},0,1,9,0,51\n");
        for (line, says) in [
            ("zz,0,1,9,0,51".to_owned(), "txid: `zz` is not"),
            (format!("{TXID},-1,1,9,0,51"), "vout: `-1` is no such number"),
            (format!("{TXID},1048576,1,9,0,51"), "vout: 1048576 is not below"),
            (format!("{TXID},1,1.5,9,0,51"), "satoshis: `1.5`"),
            (format!("{TXID},1,1,,0,51"), "height: ``"),
            (format!("{TXID},1,1,9,true,51"), "coinbase: `true` is not 0 or 1"),
            (format!("{TXID},1,1,9,0,5"), "locking_script_hex: Odd"),
            (format!("{TXID},1,1,9,0"), "has 5 fields instead of 6"),
            (format!("{TXID},0,1,9,0,51"), "is there twice"),
            (format!("{TXID},1,1,8,0,51"), "says otherwise"),
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
