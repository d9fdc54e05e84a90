//! `schemas/openapi.json` as others read the description: a public validator, and a client from a public generator.

use std::{path::Path, process::Command, sync::LazyLock};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    api::{Api, Scene, scene},
    harness::spend,
    python,
};

/// Versions that the test was written with.
const VALIDATOR: &str = "openapi-spec-validator==0.9.0";
const GENERATOR: &str = "openapi-python-client==0.29.1";
const FOLDER: &str = ".openapi/0.9.0-0.29.1";
/// Program that asks with the generated client.
const QUESTIONS: &str = include_str!("ten_questions.py");

pub static DESCRIPTION: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("../../schemas/openapi.json")).unwrap());

/// Asserts that the description has the status for the operation. A path or a method without an operation passes.
pub fn assert_described(method: &Method, path: &str, status: StatusCode) {
    let path = path.split('?').next().unwrap_or(path);
    let is_route = |route: &str| {
        let (asked, route): (Vec<&str>, Vec<&str>) = (path.split('/').collect(), route.split('/').collect());
        asked.len() == route.len()
            && asked.iter().zip(&route).all(|(asked, part)| part.starts_with('{') || asked == part)
    };
    let routes = DESCRIPTION["paths"].as_object().unwrap();
    // A route without parameters in its path comes first.
    let route = routes.get_key_value(path).or_else(|| routes.iter().find(|(route, _)| is_route(route)));
    let Some((route, methods)) = route else { return };
    let responses = &methods[method.as_str().to_ascii_lowercase()]["responses"];
    if responses.is_object() {
        assert!(!responses[status.as_str()].is_null(), "the description of {method} {route} lacks {status}");
    }
}

/// Returns the Python interpreter with validator and generator. Prints a line `SKIPPED: …` where they cannot be
/// installed.
fn open_python() -> Option<std::path::PathBuf> {
    let python = python::install(FOLDER, &[VALIDATOR, GENERATOR]);
    python.inspect_err(|problem| eprintln!("SKIPPED: tests of the description: {problem}")).ok()
}

#[test]
fn a_public_validator_accepts_the_description() {
    let Some(python) = open_python() else { return };
    let directory = tempfile::tempdir().unwrap();
    let validate = |name: &str, document: &Value| {
        let path = directory.path().join(name);
        std::fs::write(&path, document.to_string()).unwrap();
        let output = Command::new(&python).args(["-m", "openapi_spec_validator"]).arg(path).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    assert_eq!(DESCRIPTION["openapi"], "3.1.0");
    let (is_valid, messages) = validate("described.json", &DESCRIPTION);
    assert!(is_valid, "{messages}");
    for (pointer, wrong) in [("/info/title", json!(7)), ("/paths/~1v1~1chain/get/responses/200", json!({}))] {
        let mut damaged = DESCRIPTION.clone();
        *damaged.pointer_mut(pointer).unwrap() = wrong;
        assert!(!validate("damaged.json", &damaged).0, "the validator passes a damaged {pointer}");
    }
}

#[tokio::test]
async fn a_generated_client_asks_ten_questions() {
    let Some(python) = open_python() else { return };
    let Scene { world, running, parent, mined, child, loser } = scene().await;
    let directory = tempfile::tempdir().unwrap();
    let token = "0123456789abcdef0123456789abcdef";
    let tokens = directory.path().join("tokens");
    std::fs::write(&tokens, format!("command {token}\n")).unwrap();
    let api = Api::start(&world, &[("HTTP__TOKENS_FILE", tokens.to_str().unwrap())]).await;

    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas/openapi.json");
    let mut generate = Command::new(&python);
    generate.args(["-m", "openapi_python_client", "generate", "--meta", "none", "--path"]).arg(document);
    let generated = generate.arg("--output-path").arg(directory.path().join("generated")).output().unwrap();
    let messages = String::from_utf8_lossy(&[generated.stdout, generated.stderr].concat()).into_owned();
    assert!(generated.status.success(), "{messages}");

    let free = spend(&[parent.coin(1)], 1, 9);
    let known = json!({
        "url": format!("http://{}", api.address),
        "token": token,
        "parent": parent.txid.to_string(),
        "mined": mined.txid.to_string(),
        "child": child.txid.to_string(),
        "loser": loser.txid.to_string(),
        "raw": hex::encode(&child.extended),
        "submit": hex::encode(&free.extended),
        "submitted": free.txid.to_string(),
    });
    let mut ask = Command::new(&python);
    ask.args(["-c", QUESTIONS, &known.to_string()]).current_dir(directory.path());
    let asked = tokio::task::spawn_blocking(move || ask.output().unwrap()).await.unwrap();
    let answers = String::from_utf8_lossy(&asked.stdout).into_owned();
    assert!(asked.status.success(), "{answers}\n{}", String::from_utf8_lossy(&asked.stderr));
    assert!(answers.lines().count() >= 10, "{answers}");
    running.kill().await;
}
