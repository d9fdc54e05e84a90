//! Compares `schemas/` with the code: tables come from the declarations, samples from [`samples`](super::samples).
//!
//! `UPDATE_SCHEMAS=1 cargo test --lib event::schema` writes tables and samples again after an intended change.

use std::{collections::BTreeSet, fs, path::PathBuf};

use strum::IntoEnumIterator;

use super::{samples, *};
use crate::{
    record::{Reason, SpendingData},
    tx::{Outpoint, Txid, UtxoHash},
};

/// Type of a field: the name in a table, and the width in bytes.
#[derive(Clone)]
pub struct Shape {
    name: String,
    width: Width,
}

#[derive(Clone)]
enum Width {
    Fixed(usize),
    Variable(&'static str),
}

impl Shape {
    fn fixed(name: &str, width: usize) -> Self {
        Shape { name: name.to_owned(), width: Width::Fixed(width) }
    }

    fn variable(name: impl Into<String>, width: &'static str) -> Self {
        Shape { name: name.into(), width: Width::Variable(width) }
    }

    pub fn structure<T: Structure>(name: &str) -> Self {
        let width = T::rows().iter().try_fold(0, |sum, row| match row.shape.width {
            Width::Fixed(width) => Some(sum + width),
            Width::Variable(_) => None,
        });
        let width = width.map_or(Width::Variable("varies"), Width::Fixed);
        Shape { name: format!("`{name}`"), width }
    }

    pub fn choice(name: &str) -> Self {
        Shape::variable(format!("`{name}`"), "4 + fields")
    }
}

/// Field of a structure or of a variant, as a row of a table.
pub struct TableRow {
    pub field: &'static str,
    pub shape: Shape,
    pub meaning: &'static str,
}

/// Variant of an enum, as rows of a table.
pub struct Variant {
    pub tag: u32,
    pub text: &'static str,
    pub meaning: &'static str,
    pub rows: Vec<TableRow>,
}

pub trait Described {
    fn shape() -> Shape;
}

pub trait Structure {
    fn rows() -> Vec<TableRow>;
}

pub trait Choice {
    fn variants() -> Vec<Variant>;
}

macro_rules! leaves {
    ($($type:ty: $shape:expr;)*) => {$(
        impl Described for $type {
            fn shape() -> Shape {
                $shape
            }
        }
    )*};
}
leaves! {
    bool: Shape::fixed("bool", 1);
    u32: Shape::fixed("u32", 4);
    u64: Shape::fixed("u64", 8);
    i32: Shape::fixed("i32", 4);
    i64: Shape::fixed("i64", 8);
    [u8; 16]: Shape::fixed("16 bytes", 16);
    [u8; 32]: Shape::fixed("block hash", 32);
    Txid: Shape::fixed("txid", 32);
    UtxoHash: Shape::fixed("UTXO hash", 32);
    ContentHash: Shape::fixed("BLAKE3", 32);
    Outpoint: Shape::fixed("outpoint", 36);
    &[u8]: Shape::variable("bytes", "8 + n");
    &str: Shape::variable("text", "8 + n");
    String: Shape::variable("text", "8 + n");
    SubtreeTransactions<'_>: Shape::choice("SubtreeTransactions");
    TxidList<'_>: Shape::variable("list of txid", "8 + elements");
}

impl<T: Described> Described for Vec<T> {
    fn shape() -> Shape {
        Shape::variable(format!("list of {}", T::shape().name), "8 + elements")
    }
}

impl<T: Described> Described for Option<T> {
    fn shape() -> Shape {
        match T::shape() {
            Shape { name, width: Width::Fixed(36) } => Shape::variable(format!("option of {name}"), "1 or 37"),
            Shape { name, .. } => Shape::variable(format!("option of {name}"), "1 + value"),
        }
    }
}

/// Written by hand, as the codec of the type. The golden samples check both.
impl Choice for SubtreeTransactions<'_> {
    fn variants() -> Vec<Variant> {
        let row = |field, shape, meaning| TableRow { field, shape, meaning };
        vec![
            Variant {
                tag: 0,
                text: "inline",
                meaning: "The ids are in the message. In JSON `inline` is itself the list of them.",
                rows: vec![row("txids", <&[u8]>::shape(), "`count` txids, 32 bytes each, nothing between.")],
            },
            Variant {
                tag: 1,
                text: "object",
                meaning: "The ids are in an object of the object store: `count` times 32 bytes.",
                rows: vec![
                    row("key", <&str>::shape(), "Key of the object."),
                    row("sha256", Shape::fixed("SHA-256", 32), "SHA-256 of its content."),
                ],
            },
        ]
    }
}

/// Returns a row for each field. A field begins at a number, or at a distance from the end of the last field without a
/// fixed width.
fn field_rows(rows: &[TableRow], start: usize, prefix: &str) -> String {
    let (mut after, mut offset) = (None, start);
    let mut table = String::new();
    for TableRow { field, shape, meaning } in rows {
        let begins = match (after, offset) {
            (None, offset) => offset.to_string(),
            (Some(field), 0) => format!("end of `{field}`"),
            (Some(field), offset) => format!("end of `{field}` + {offset}"),
        };
        let width = match &shape.width {
            Width::Fixed(width) => width.to_string(),
            Width::Variable(width) => (*width).to_owned(),
        };
        let meaning = without_links(meaning);
        table += &format!("| {prefix}{begins} | {width} | `{field}` | {} | {meaning} |\n", shape.name);
        match shape.width {
            Width::Fixed(width) => offset += width,
            Width::Variable(_) => (after, offset) = (Some(field), 0),
        }
    }
    table
}

fn without_links(meaning: &str) -> String {
    meaning.replace("[`", "`").replace("`]", "`")
}

fn structure<T: Structure>() -> String {
    let head = "| offset | width | field | type | meaning |\n|---|---|---|---|---|\n";
    head.to_owned() + &field_rows(&T::rows(), 0, "")
}

fn choice<T: Choice>() -> String {
    let mut table =
        "| tag | name | offset | width | field | type | meaning |\n|---|---|---|---|---|---|---|\n".to_owned();
    for (index, Variant { tag, text, meaning, rows }) in T::variants().into_iter().enumerate() {
        assert_eq!(tag as usize, index, "the codec numbers the variants from 0: {text}");
        table += &format!("| {tag} | `{text}` | | | | | {} |\n", without_links(meaning));
        table += &field_rows(&rows, 4, "| | ");
    }
    table
}

fn kinds() -> String {
    let mut table = "| kind | name | document | topics |\n|---|---|---|---|\n".to_owned();
    for kind in Kind::ALL {
        let topics = Topic::all().filter(|topic| *topic != Topic::DeadLetters && topic.kinds().contains(&kind));
        let topics: Vec<_> = topics.map(|topic| format!("`{}`", topic.default_name())).collect();
        let name = kind.name();
        table += &format!("| {} | `{name}` | [{name}.md]({name}.md) | {} |\n", kind as u8, topics.join(", "));
    }
    table
}

fn headers() -> String {
    let mut table = "| header | field in JSON | type | meaning |\n|---|---|---|---|\n".to_owned();
    let written = samples::dead_letters()[0].to_headers();
    let rows = DeadLetter::rows();
    assert_eq!(written.len(), rows.len());
    for (TableRow { field, shape, meaning }, (header, _)) in rows.iter().zip(written) {
        assert!(header.ends_with(&field.replace('_', "-")), "{header} is not {field}");
        table += &format!("| `{header}` | `{field}` | {} | {meaning} |\n", shape.name);
    }
    table
}

fn classes() -> String {
    let mut table = "| class | meaning |\n|---|---|\n".to_owned();
    for (variant, class) in DeadLetterClass::variants().into_iter().zip(DeadLetterClass::iter()) {
        assert_eq!(variant.text, class.name());
        table += &format!("| `{}` | {} |\n", variant.text, variant.meaning);
    }
    table
}

/// Returns every table: the document, the name of the table there, and the lines.
fn tables() -> Vec<(&'static str, &'static str, String)> {
    vec![
        ("envelope", "kinds", kinds()),
        ("validated", "Validated", structure::<Validated>()),
        ("seeded", "PartialTxEvent", structure::<PartialTxEvent>()),
        ("seeded", "PartialOutput", structure::<PartialOutput>()),
        ("validated-reference", "ValidatedReference", structure::<ValidatedReference>()),
        ("validated-reference", "BodyReference", structure::<BodyReference>()),
        ("seeded-reference", "PartialTxReference", structure::<PartialTxReference>()),
        ("block-mined", "BlockMined", structure::<BlockMined>()),
        ("block-mined", "Block", structure::<Block>()),
        ("block-mined", "Subtree", structure::<Subtree>()),
        ("block-mined", "SubtreeTransactions", choice::<SubtreeTransactions>()),
        ("reorg", "Reorg", structure::<Reorg>()),
        ("contest", "Contest", structure::<Contest>()),
        ("contest", "EventPosition", structure::<EventPosition>()),
        ("reasons", "Reason", choice::<Reason>()),
        ("command", "Command", structure::<Command>()),
        ("command", "CommandAction", choice::<CommandAction>()),
        ("decision", "Decision", structure::<Decision>()),
        ("decision-group", "DecisionGroup", structure::<DecisionGroup>()),
        ("decision-group", "DecidedEvent", structure::<DecidedEvent>()),
        ("decision-run", "DecisionRun", structure::<DecisionRun>()),
        ("decision", "DecisionBody", choice::<DecisionBody>()),
        ("decision", "DecidedInput", structure::<DecidedInput>()),
        ("decision", "SpendingData", structure::<SpendingData>()),
        ("decision", "Descendant", structure::<Descendant>()),
        ("decision", "LiftedOutput", structure::<LiftedOutput>()),
        ("decision", "CommandResult", choice::<CommandResult>()),
        ("outcome", "OutcomeEvent", structure::<OutcomeEvent>()),
        ("outcome", "OutcomeSource", choice::<OutcomeSource>()),
        ("outcome", "OutcomeKind", choice::<OutcomeKind>()),
        ("outcome-batch", "OutcomeBatch", structure::<OutcomeBatch>()),
        ("outcome-batch", "OutcomeChange", choice::<OutcomeChange>()),
        ("dead-letter", "headers", headers()),
        ("dead-letter", "DeadLetterClass", classes()),
    ]
}

fn path_of(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("schemas").join(file)
}

/// Compares a file with the expected content, or writes the file.
fn compare_or_write(file: &str, wanted: &str) {
    let path = path_of(file);
    if std::env::var_os("UPDATE_SCHEMAS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, wanted).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    for (line, (found, wanted)) in found.lines().zip(wanted.lines()).enumerate() {
        assert_eq!(found, wanted, "schemas/{file}:{} differs from the code", line + 1);
    }
    assert_eq!(found, wanted, "schemas/{file} has more or fewer lines than the code gives");
}

#[test]
fn field_tables_are_those_of_the_code() {
    let tables = tables();
    let documents: BTreeSet<_> = tables.iter().map(|(document, ..)| *document).collect();
    for document in documents {
        let file = format!("{document}.md");
        let mut text = fs::read_to_string(path_of(&file)).unwrap_or_else(|error| panic!("schemas/{file}: {error}"));
        for (_, name, table) in tables.iter().filter(|(of, ..)| *of == document) {
            let (begin, end) = (format!("<!-- table: {name} -->\n"), "<!-- end -->");
            let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("schemas/{file} lacks `{name}`"));
            let (_, after) = rest.split_once(end).unwrap_or_else(|| panic!("schemas/{file}: `{name}` has no end"));
            text = format!("{before}{begin}{table}{end}{after}");
        }
        assert_eq!(text.matches("<!-- table: ").count(), tables.iter().filter(|(of, ..)| *of == document).count());
        compare_or_write(&file, &text);
    }
}

#[test]
fn every_type_that_a_table_names_has_a_table() {
    let tables = tables();
    let names: BTreeSet<_> = tables.iter().map(|(_, name, _)| format!("`{name}`")).collect();
    for (document, name, table) in &tables {
        for line in table.lines().filter(|line| line.contains('`')) {
            let types = line.split(" | ").filter_map(|cell| cell.split_whitespace().last());
            for cell in types.filter(|cell| cell.starts_with('`') && cell[1..].starts_with(char::is_uppercase)) {
                assert!(names.contains(cell), "{document}.md, {name}: {cell} is nowhere described");
            }
        }
    }
}

#[test]
fn golden_samples_are_those_of_the_code_in_both_directions() {
    for kind in Kind::ALL {
        let events: Vec<_> = samples::events().into_iter().filter(|event| event.kind() == kind).collect();
        assert!(!events.is_empty(), "no sample of {}", kind.name());
        let lines = |form: &dyn Fn(&Event<'_>) -> String| events.iter().map(|event| form(event) + "\n").collect();
        let (binary, json): (String, String) = (lines(&|event| hex::encode(event.encode())), lines(&to_json));
        compare_or_write(&format!("golden/{}.hex", kind.name()), &binary);
        compare_or_write(&format!("golden/{}.jsonl", kind.name()), &json);
        for ((binary, json), event) in binary.lines().zip(json.lines()).zip(&events) {
            assert_eq!(hex::encode(from_json(json).unwrap()), binary);
            assert_eq!(&Event::decode(&hex::decode(binary).unwrap()).unwrap(), event);
        }
    }
}

#[test]
fn golden_dead_letters_are_those_of_the_code_in_both_directions() {
    let letters = samples::dead_letters();
    let json: String = letters.iter().map(|letter| letter.to_json() + "\n").collect();
    let headers = letters.iter().map(|letter| {
        let headers = letter.to_headers();
        headers.iter().map(|(name, value)| format!("{name} {}", hex::encode(value))).collect::<Vec<_>>().join("\n")
            + "\n"
    });
    compare_or_write("golden/dead-letter.jsonl", &json);
    compare_or_write("golden/dead-letter.hex", &headers.collect::<Vec<_>>().join("\n"));
    for (json, letter) in json.lines().zip(&letters) {
        assert_eq!(&DeadLetter::from_json(json).unwrap(), letter);
        assert_eq!(&DeadLetter::from_headers(&letter.to_headers()).unwrap(), letter);
    }
}

/// Checks the widths in the tables, and the least sizes that bound lists, against the encoding.
#[test]
fn widths_and_least_sizes_are_those_of_the_encoding() {
    fn check<'a, T: Wire<'a> + Described>(least: T) {
        let mut sink = BodyWriter::new(Vec::new());
        least.encode(&mut sink);
        let written = sink.into_bytes().len();
        let Shape { name, width } = T::shape();
        assert_eq!(T::LEAST, written, "{name}");
        match width {
            Width::Fixed(width) => assert_eq!(width, written, "{name}"),
            Width::Variable(_) => assert!(written >= 1, "{name}"),
        }
    }
    let (txid, outpoint) = (Txid([0; 32]), Outpoint { txid: Txid([0; 32]), vout: 0 });
    let subtree = || Subtree { count: 0, transactions: SubtreeTransactions::Inline(&[]) };
    let block = || Block {
        block_id: 0,
        hash: [0; 32],
        previous: [0; 32],
        height: 0,
        time: 0,
        longest_chain: false,
        coinbase: &[],
        subtrees: vec![],
    };
    check(false);
    check(0_u32);
    check(0_u64);
    check(0_i32);
    check(0_i64);
    check([0_u8; 16]);
    check([0_u8; 32]);
    check(txid);
    check(UtxoHash([0; 32]));
    check(ContentHash([0; 32]));
    check(outpoint);
    check::<&[u8]>(&[]);
    check("");
    check(String::new());
    check(None::<SpendingData>);
    check(Vec::<Txid>::new());
    check(SpendingData { txid, input: 0 });
    check(PartialOutput { vout: 0, satoshis: 0, script: &[] });
    check(subtree());
    check(block());
    check(DecidedInput { input: 0, outpoint, holder: None });
    check(Descendant { txid, parent: txid, live: true });
    check(LiftedOutput { outpoint, owner: None });
    check(Reason::Found);
    check(CommandResult::Applied);
    check(DecisionBody::Closed);
    check(CommandAction::Unlock { txid });
    check(OutcomeSource::Chain { offset: 0 });
    check(OutcomeChange::Live);
    check(TxidList::default());
}

/// Checks that the memory allocated for a list before its elements are read is in proportion to the message.
#[test]
fn lists_take_little_more_memory_than_their_messages() {
    fn growth<'a, T: Wire<'a>>() -> usize {
        size_of::<T>().div_ceil(T::LEAST)
    }
    let growths = [
        growth::<Txid>(),
        growth::<PartialOutput>(),
        growth::<Block>(),
        growth::<Subtree>(),
        growth::<DecidedInput>(),
        growth::<Descendant>(),
        growth::<LiftedOutput>(),
    ];
    assert!(growths.iter().all(|growth| *growth <= 4), "{growths:?}");
}
