//! Links between the documents: the file and the heading of each link exist, and each page of the book is in its table
//! of contents, `docs/README.md`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The book's table of contents; the decision records have one of their own.
const CONTENTS: &str = "docs/README.md";
const DECISIONS: &str = "docs/decisions/README.md";
/// Folders without documents, besides the hidden folders.
const SKIPPED: [&str; 4] = ["target", "dist", "corpus", "artifacts"];

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the Markdown files of the repository by their paths from the root, in order.
pub fn find_documents() -> Vec<PathBuf> {
    let mut documents = Vec::new();
    add_documents(root(), &mut documents);
    documents.sort();
    documents
}

fn add_documents(folder: &Path, documents: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if name.starts_with('.') || SKIPPED.contains(&name.as_str()) {
            continue;
        }
        if path.is_dir() {
            add_documents(&path, documents);
        } else if name.ends_with(".md") {
            documents.push(path.strip_prefix(root()).unwrap().to_owned());
        }
    }
}

fn read(document: &Path) -> String {
    fs::read_to_string(root().join(document)).unwrap()
}

/// Returns the text with empty lines for its code blocks.
fn remove_blocks(text: &str) -> String {
    let mut kept = String::new();
    let mut is_code = false;
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        if !is_fence && !is_code {
            kept += line;
        }
        kept.push('\n');
        is_code ^= is_fence;
    }
    kept
}

/// Returns the text without its code spans, and with the line ends inside them.
fn remove_spans(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('`') {
        let ticks = rest[at..].chars().take_while(|character| *character == '`').count();
        let after = &rest[at + ticks..];
        kept += &rest[..at];
        // A span ends within its paragraph.
        let paragraph = after.split("\n\n").next().unwrap_or_default();
        rest = match paragraph.find(&"`".repeat(ticks)) {
            Some(end) => {
                kept += &"\n".repeat(after[..end].matches('\n').count());
                &after[end + ticks..]
            }
            None => after,
        };
    }
    kept + rest
}

/// Returns the targets of the links within the repository, each with its line.
fn find_links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (index, line) in remove_spans(&remove_blocks(text)).lines().enumerate() {
        let inline = line.split("](").skip(1);
        // `[name]: target` defines the target of links `[text][name]`.
        let defined = line.strip_prefix('[').and_then(|line| line.split_once("]: ")).map(|(_, target)| target);
        for target in inline.chain(defined) {
            let target = target.split([')', ' ']).next().unwrap_or_default();
            if !target.contains("://") && !target.starts_with("mailto:") {
                links.push((index + 1, target.to_owned()));
            }
        }
    }
    links
}

/// Returns the anchor of a heading by the rules of GitHub: lower case, hyphens for spaces, no punctuation, and only the
/// text of links.
fn make_anchor(heading: &str) -> String {
    let mut text = String::new();
    let mut rest = heading.trim();
    while let Some((before, link)) = rest.split_once("](") {
        text += before;
        rest = link.split_once(')').map_or("", |(_, after)| after);
    }
    text += rest;
    let kept = text.to_lowercase().replace(' ', "-");
    kept.chars().filter(|character| character.is_alphanumeric() || ['-', '_'].contains(character)).collect()
}

/// Returns the anchors of the headings of a document. An anchor that repeats gets a number, beginning with `-1`.
fn find_anchors(text: &str) -> BTreeSet<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    for line in remove_blocks(text).lines() {
        let heading = line.trim_start_matches('#');
        let level = line.len() - heading.len();
        if !(1..=6).contains(&level) || !heading.starts_with(' ') {
            continue;
        }
        let anchor = make_anchor(heading);
        let count = counts.entry(anchor.clone()).or_insert(0);
        anchors.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
        *count += 1;
    }
    anchors
}

/// Returns the file or folder that a link in a document names, by its path from the root.
///
/// # Errors
/// The file does not exist in the repository, or the document has no heading of the anchor.
fn resolve(document: &Path, link: &str) -> Result<PathBuf, &'static str> {
    let (file, anchor) = match link.split_once('#') {
        Some((file, anchor)) => (file, Some(anchor)),
        None => (link, None),
    };
    let from = root().join(document);
    let target = if file.is_empty() { from } else { from.parent().unwrap().join(file) };
    let target = target.canonicalize().map_err(|_| "no such file")?;
    let whole = root().canonicalize().unwrap();
    let target = target.strip_prefix(whole).map_err(|_| "outside of the repository")?.to_owned();
    if let Some(anchor) = anchor {
        let is_document = target.extension().is_some_and(|extension| extension == "md");
        if !is_document || !find_anchors(&read(&target)).contains(anchor) {
            return Err("no such heading");
        }
    }
    Ok(target)
}

/// Returns the broken links of a document.
fn find_broken(document: &Path, text: &str) -> Vec<String> {
    let mut broken = Vec::new();
    for (line, link) in find_links(text) {
        if let Err(problem) = resolve(document, &link) {
            broken.push(format!("{}:{line}: {link}: {problem}", document.display()));
        }
    }
    broken
}

/// Returns the files that a document names. A link to a folder names the folder's `README.md`.
fn find_targets(document: &Path) -> BTreeSet<PathBuf> {
    let links = find_links(&read(document));
    let targets = links.iter().filter_map(|(_, link)| resolve(document, link).ok());
    targets.map(|target| if root().join(&target).is_dir() { target.join("README.md") } else { target }).collect()
}

#[test]
fn every_link_between_documents_has_its_file_and_heading() {
    let documents = find_documents();
    let broken: Vec<String> = documents.iter().flat_map(|document| find_broken(document, &read(document))).collect();
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn every_page_of_the_book_is_in_its_table_of_contents() {
    let (contents, decisions) = (find_targets(Path::new(CONTENTS)), find_targets(Path::new(DECISIONS)));
    let mut missing = Vec::new();
    for page in find_documents() {
        let is_record = page.starts_with("docs/decisions") && page != Path::new(DECISIONS);
        let (listed, table) = if is_record { (&decisions, DECISIONS) } else { (&contents, CONTENTS) };
        if page.starts_with("docs") && page != Path::new(CONTENTS) && !listed.contains(&page) {
            missing.push(format!("{table} has no link to {}", page.display()));
        }
    }
    assert!(missing.is_empty(), "pages without a link:\n{}", missing.join("\n"));
}

#[test]
fn a_link_to_an_absent_file_or_heading_is_found() {
    let text = "# Links\n\n[a](tutorial.md) [b](../README.md#two-commands) [c](#chain) [d](https://a.org/none.md#x)\n\
                `[e](none.md)` and `[f](none.md)\n[g](none.md)`\n```text\n[h](none.md)\n```\n\
                [i](none.md) [j](tutorial.md#none) [k](#none)\n\
                [l](../..) [m](../Cargo.toml#package)\n[n]: none.md\n";
    let expected = [
        "docs/glossary.md:9: none.md: no such file",
        "docs/glossary.md:9: tutorial.md#none: no such heading",
        "docs/glossary.md:9: #none: no such heading",
        "docs/glossary.md:10: ../..: outside of the repository",
        "docs/glossary.md:10: ../Cargo.toml#package: no such heading",
        "docs/glossary.md:11: none.md: no such file",
    ];
    assert_eq!(find_broken(Path::new("docs/glossary.md"), text), expected);
}

#[test]
fn anchors_follow_the_rules_of_github() {
    let text = "# `make test`, and why\n## Two commands\n### Two commands\n```sh\n# no heading\n```\n\
                #### A [link](x.md#y) of `a_b` – c\n#no heading\n";
    let expected = ["make-test-and-why", "two-commands", "two-commands-1", "a-link-of-a_b--c"];
    assert_eq!(find_anchors(text), BTreeSet::from(expected.map(str::to_owned)));
}
