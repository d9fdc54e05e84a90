//! The order of the modules: `src/lib.rs` writes the order down, and no module imports from a later one.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// The modules in the order that the crate document gives, lowest first.
fn written_order() -> Vec<String> {
    let text = fs::read_to_string(root().join("lib.rs")).unwrap();
    let lines = text.lines().skip_while(|line| *line != "//! ```text").skip(1).take_while(|line| *line != "//! ```");
    let modules = lines.flat_map(|line| line.trim_start_matches("//!").split_once(':').unwrap().1.split_whitespace());
    modules.map(str::to_owned).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Adds the files below a directory that have this extension; `target` folders are left out.
pub fn find_files(directory: &Path, extension: &str, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if !path.ends_with("target") {
                find_files(&path, extension, files);
            }
        } else if path.extension().is_some_and(|found| found == extension) {
            files.push(path);
        }
    }
}

/// Returns whether the file holds tests, which may import from anywhere.
fn is_test(path: &Path) -> bool {
    let name = path.file_stem().unwrap().to_str().unwrap();
    let parents = path
        .parent()
        .unwrap()
        .components()
        .any(|part| part.as_os_str() == "tests" || part.as_os_str() == "conformance");
    parents || name.ends_with("tests") || ["conformance", "properties", "testing"].contains(&name)
}

/// Returns the top-level modules that a source names after `crate::`, in use trees and elsewhere.
fn imported(source: &str) -> Vec<String> {
    let product = source.split("\n#[cfg(test)]\n").next().unwrap();
    let code: String =
        product.lines().filter(|line| !line.trim_start().starts_with("//")).flat_map(|line| [line, "\n"]).collect();
    let mut modules = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        if code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == '$') {
            continue;
        }
        let after = &code[at + "crate::".len()..];
        if let Some(tree) = after.strip_prefix('{') {
            let (mut depth, mut is_first) = (0, true);
            let mut name = String::new();
            for character in tree.chars() {
                match character {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => {
                        modules.push(std::mem::take(&mut name));
                        is_first = true;
                    }
                    ':' if depth == 0 => is_first = false,
                    _ if depth == 0 && is_first && !character.is_whitespace() => name.push(character),
                    _ => {}
                }
            }
            modules.push(name);
        } else {
            modules.push(after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
        }
    }
    modules.retain(|name| !name.is_empty());
    modules
}

#[test]
fn no_module_imports_from_a_later_one() {
    let order = written_order();
    let place: BTreeMap<&str, usize> = order.iter().enumerate().map(|(place, name)| (name.as_str(), place)).collect();
    let (mut files, mut upwards, mut seen) = (Vec::new(), Vec::new(), BTreeMap::new());
    find_files(&root(), "rs", &mut files);
    for path in files {
        let relative = path.strip_prefix(root()).unwrap();
        let module = relative.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs").to_owned();
        if ["lib", "main"].contains(&module.as_str()) {
            continue;
        }
        *seen.entry(module.clone()).or_insert(0) += 1;
        if is_test(relative) {
            continue;
        }
        let own =
            *place.get(module.as_str()).unwrap_or_else(|| panic!("src/lib.rs does not place the module `{module}`"));
        for import in imported(&fs::read_to_string(&path).unwrap()) {
            // Macros are exported at the root of the crate.
            let Some(other) = place.get(import.as_str()) else { continue };
            if *other > own {
                upwards.push(format!("{}: imports `{import}`, which comes later", relative.display()));
            }
        }
    }
    assert_eq!(upwards, Vec::<String>::new());
    assert_eq!(seen.len(), order.len(), "src/lib.rs places modules that do not exist");
}

#[test]
fn imports_are_found_in_trees_and_paths() {
    let source = "use crate::{\n    alpha::{One, two::{Three, Four}},\n    beta,\n};\n\
                  fn f() { crate::gamma::call(); }\n\
                  // crate::comment\n#[cfg(test)]\nmod tests { use crate::delta; }\n";
    assert_eq!(imported(source), ["alpha", "beta", "gamma"]);
    assert_eq!(imported("use crate::one::Two;\nuse other_crate::three::Four;"), ["one"]);
}
