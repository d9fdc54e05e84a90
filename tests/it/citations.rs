//! The documents cite tests and files by name: each cited name exists, so that a rename takes its citations along.

use std::{collections::BTreeSet, fs};

use crate::{
    links::{find_documents, root},
    module_order::find_files,
};

/// Folders whose files the documents cite by their path from the root.
const FOLDERS: [&str; 8] = ["src/", "tests/", "benches/", "docs/", "deploy/", "scripts/", "schemas/", "fuzz/"];

/// Names of all functions and modules of the sources.
fn names() -> BTreeSet<String> {
    let mut sources = Vec::new();
    ["src", "tests", "benches", "fuzz"].iter().for_each(|folder| find_files(&root().join(folder), "rs", &mut sources));
    let mut names = BTreeSet::new();
    for path in sources {
        let text = fs::read_to_string(path).unwrap();
        for keyword in ["fn ", "mod "] {
            for (at, _) in text.match_indices(keyword) {
                let name = text[at + keyword.len()..].split(|end: char| !end.is_alphanumeric() && end != '_').next();
                names.insert(name.unwrap_or_default().to_owned());
            }
        }
    }
    names
}

/// Whether this is the name of a test or of a module: `module::a_plain_statement`, `module::*`.
fn is_test_path(text: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || b"_0123456789*".contains(&byte))
    };
    text.contains("::")
        && text.split("::").all(is_name)
        && text.rsplit("::").next().is_some_and(|last| last == "*" || last.matches('_').count() > 1)
}

/// Returns what one document cites and the tree does not have.
fn missing(document: &str, names: &BTreeSet<String>) -> Vec<String> {
    let is_pattern = |text: &str| text.contains(['*', '…', '{', '<', ' ']) || text.contains("NAME");
    let code = document.split('`').skip(1).step_by(2);
    code.filter(|text| {
        if is_test_path(text) {
            // `module::` is the example of a citation in the documents themselves.
            !text.starts_with("module::")
                && text.split("::").any(|name| name != "*" && !names.contains(name) && name != "tests")
        } else {
            FOLDERS.iter().any(|folder| text.starts_with(folder)) && !is_pattern(text) && !root().join(text).exists()
        }
    })
    .map(str::to_owned)
    .collect()
}

#[test]
fn every_cited_test_and_file_exists() {
    let names = names();
    let missing: Vec<String> = find_documents()
        .iter()
        .flat_map(|document| {
            let text = fs::read_to_string(root().join(document)).unwrap();
            missing(&text, &names).into_iter().map(move |name| format!("{}: {name}", document.display()))
        })
        .collect();
    assert!(missing.is_empty(), "cited and not there:\n{}", missing.join("\n"));
}

#[test]
fn a_citation_of_an_absent_test_or_file_is_found() {
    let names = ["halts", "a_halt_stays_until_a_start", "tests"].map(str::to_owned).into();
    let document = "`halts::a_halt_stays_until_a_start` `halts::*` `src/lib.rs` `rdkafka::mocking` `src/*/x.rs`, and \
                    `halts::a_halt_ends_by_itself` `gone::*` `src/none.rs`";
    assert_eq!(missing(document, &names), ["halts::a_halt_ends_by_itself", "gone::*", "src/none.rs"]);
}
