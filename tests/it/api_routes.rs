//! Rules that hold for every route of the API. The routes are those of `schemas/openapi.json`.

use std::{fs, time::Duration};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use utxo_store::{event::CommandAction, store::StateStore};

use crate::{
    api::Api,
    harness::{World, WorldSettings, spend},
    health::failing_world,
    openapi::DESCRIPTION,
};

const READ: &str = "0123456789abcdef0123456789abcdef";
const SUBMIT: &str = "123456789abcdef0123456789abcdef0";
const COMMAND: &str = "23456789abcdef0123456789abcdef01";

/// A route of the description with values for its parameters.
pub struct Route {
    pub method: Method,
    /// Path, with the parameters that the route demands.
    pub path: String,
    /// Body of a `POST`.
    pub body: Option<Value>,
    /// Role that the route needs.
    pub role: String,
}

/// Routes of a server of the store.
fn routes() -> Vec<Route> {
    let routes = described_routes(|path| !path.starts_with("/v1/vault"));
    assert!(routes.len() >= 15, "{} routes", routes.len());
    routes
}

/// Routes of the description whose paths are selected.
pub fn described_routes(is_selected: impl Fn(&str) -> bool) -> Vec<Route> {
    let mut routes = Vec::new();
    for (template, operations) in DESCRIPTION["paths"].as_object().unwrap().iter().filter(|(path, _)| is_selected(path))
    {
        for (method, operation) in operations.as_object().unwrap() {
            let txid = "12".repeat(32);
            let values = [
                ("{txid}", &txid[..]),
                ("{vout}", "0"),
                ("{block}", "height:1"),
                ("{id}", &txid[..32]),
                ("{owner}", "alice"),
            ];
            let path = values.iter().fold(template.clone(), |path, (name, value)| path.replace(name, value));
            assert!(!path.contains('{'), "{path} has a parameter that this test does not know");
            let path = if path == "/v1/transactions" && method == "get" { path + "?unmined=true" } else { path };
            let schema = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].as_str();
            let field = schema.map(|schema| {
                let fields = &DESCRIPTION["components"]["schemas"][schema.rsplit('/').next().unwrap()]["properties"];
                fields.as_object().unwrap().keys().next().unwrap().clone()
            });
            let mut roles = operation["security"].as_array().unwrap().iter().filter_map(|one| one["token"][0].as_str());
            routes.push(Route {
                method: method.to_uppercase().parse().unwrap(),
                path,
                body: field.map(|field| json!({field: []})),
                role: roles.next().unwrap().to_owned(),
            });
        }
    }
    routes
}

impl Route {
    pub fn with_parameter(&self, parameter: &str) -> String {
        let joint = if self.path.contains('?') { '&' } else { '?' };
        format!("{}{joint}{parameter}", self.path)
    }

    /// Asks, and returns the status; of a problem also its document.
    pub async fn ask(&self, api: &Api, path: &str, token: Option<&str>, body: Option<&Value>) -> (StatusCode, Value) {
        let mut request = api.client.request(self.method.clone(), format!("http://{}{path}", api.address));
        if let Some(token) = token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if let Some(body) = body {
            request = request.header("Content-Type", "application/json").body(body.to_string());
        }
        let answer = request.send().await.unwrap();
        let status = answer.status();
        if status.as_u16() < 400 {
            // The outcomes are a stream without an end.
            return (status, Value::Null);
        }
        let media_type = answer.headers()["Content-Type"].to_str().unwrap().to_owned();
        assert_eq!(media_type, "application/problem+json", "{} {path}: {status}", self.method);
        (status, serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap())
    }
}

#[tokio::test]
async fn each_route_needs_a_token_of_its_role() {
    let world = World::new().await;
    let known = world.seed(1, 1).await;
    world.run_until_consumed().await;
    let directory = tempfile::tempdir().unwrap();
    let tokens = directory.path().join("tokens");
    fs::write(&tokens, format!("read {READ}\nsubmit {SUBMIT}\ncommand {COMMAND}\n")).unwrap();
    let api = Api::start(&world, &[("HTTP__TOKENS_FILE", tokens.to_str().unwrap())]).await;
    let unknown = "f".repeat(32);
    for route in routes() {
        let ask = async |token| route.ask(&api, &route.path, token, route.body.as_ref()).await;
        let what = format!("{} {}", route.method, route.path);
        let (without, wrong) = (ask(None).await, ask(Some(unknown.as_str())).await);
        assert_eq!((without.0.as_u16(), wrong.0.as_u16()), (401, 401), "{what}");
        let by_token = [("read", READ), ("submit", SUBMIT), ("command", COMMAND)];
        let needed = by_token.iter().position(|(role, _)| *role == route.role).unwrap();
        for (rank, (role, token)) in by_token.into_iter().enumerate() {
            let (status, problem) = ask(Some(token)).await;
            let is_refused = status == StatusCode::FORBIDDEN;
            assert_eq!(is_refused, rank < needed, "{what} with the role {role}: {status} {problem}");
            assert_ne!(status, StatusCode::UNAUTHORIZED, "{what} with the role {role}");
        }
        let of_known = route.path.replace(&"12".repeat(32), &known.txid.to_string());
        let of_known = route.ask(&api, &of_known, None, route.body.as_ref()).await;
        assert_eq!(of_known, without, "{what}: a refusal says nothing about a transaction");
    }
}

#[tokio::test]
async fn each_route_refuses_unknown_parameters_and_fields_by_name() {
    let world = World::new().await;
    world.run_until_consumed().await;
    let api = Api::start(&world, &[]).await;
    let is_named = |problem: &Value, name: &str| problem["detail"].as_str().is_some_and(|why| why.contains(name));
    for route in routes() {
        let what = format!("{} {}", route.method, route.path);
        let path = route.with_parameter("zz=1");
        let (status, problem) = route.ask(&api, &path, None, route.body.as_ref()).await;
        assert!(status == StatusCode::BAD_REQUEST && is_named(&problem, "zz"), "{what}: {status} {problem}");
        if let Some(mut body) = route.body.clone() {
            body["yy"] = json!(1);
            let (status, problem) = route.ask(&api, &route.path, None, Some(&body)).await;
            assert!(status == StatusCode::BAD_REQUEST && is_named(&problem, "yy"), "{what}: {status} {problem}");
        }
    }
}

/// Protects: the pages and the control endpoints need tokens, too, and a refusal says nothing about a transaction.
#[tokio::test]
async fn pages_and_controls_need_a_token_of_their_role() {
    let world = World::new().await;
    let known = world.seed(1, 1).await.txid.to_string();
    world.run_until_consumed().await;
    let directory = tempfile::tempdir().unwrap();
    let tokens = directory.path().join("tokens");
    fs::write(&tokens, format!("read {READ}\nsubmit {SUBMIT}\ncommand {COMMAND}\n")).unwrap();
    let settings = [("HTTP__TOKENS_FILE", tokens.to_str().unwrap()), ("HTTP__CONTROL", "true")];
    let api = Api::start(&world, &settings).await;
    let ask = async |path: &str, token: Option<&str>| {
        let request = api.client.get(format!("http://{}{path}", api.address));
        let answer = match token {
            // A browser sends the token as the password of any name.
            Some(token) => request.basic_auth("anybody", Some(token)),
            None => request,
        };
        let answer = answer.send().await.unwrap();
        let challenge = answer.headers().get("www-authenticate").map(|value| value.to_str().unwrap().to_owned());
        let policy = answer.headers().contains_key("content-security-policy");
        (answer.status().as_u16(), challenge.unwrap_or_default(), policy, answer.text().await.unwrap())
    };
    let (of_known, of_unknown) = (format!("/transactions/{known}"), format!("/transactions/{}", "12".repeat(32)));
    let refused = ask(&of_unknown, None).await;
    assert_eq!(ask(&of_known, None).await, refused, "a refusal says nothing about a transaction");
    for path in ["/", "/search?q=1", &of_known, "/blocks/height:1", "/unmined", "/conflicting", "/docs"] {
        let (status, challenge, has_policy, _) = ask(path, None).await;
        assert!(status == 401 && challenge.starts_with("Basic ") && has_policy, "{path}: {status} {challenge}");
        assert_eq!(ask(path, Some(&"f".repeat(32))).await.0, 401, "{path}");
        assert_ne!(ask(path, Some(READ)).await.0, 401, "{path}");
    }
    assert_eq!(ask(&of_known, Some(READ)).await.0, 200);
    for (token, status) in [(None, 401), (Some(READ), 403), (Some(SUBMIT), 403)] {
        let mut request = api.client.post(format!("http://{}/partitions/0/retry", api.address));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        assert_eq!(request.send().await.unwrap().status(), status, "{token:?}");
    }
}

/// Protects: without tokens no page in a browser on the machine can publish.
#[tokio::test]
async fn without_tokens_requests_of_web_pages_publish_nothing() {
    let world = World::new().await;
    world.run_until_consumed().await;
    let api = Api::start(&world, &[]).await;
    for route in routes().into_iter().filter(|route| route.role != "read") {
        let url = format!("http://{}{}", api.address, route.path);
        let request = api.client.request(route.method, url).header("Origin", "http://page.example");
        let body = route.body.unwrap_or_default().to_string();
        let answer = request.header("Content-Type", "application/json").body(body).send().await.unwrap();
        assert_eq!(answer.status(), 403, "{}", route.path);
    }
}

/// Sends commands in one request, and returns their results.
async fn run_commands<'a>(api: &Api, actions: impl IntoIterator<Item = CommandAction<'a>>) -> Vec<String> {
    let commands = actions.into_iter().map(|action| json!({"action": serde_json::to_value(action).unwrap()}));
    let commands = json!({"commands": commands.collect::<Vec<_>>()});
    let (status, answer) = api.post_json("/v1/commands?timeout_ms=60000", commands).await;
    assert_eq!(status, 200, "{answer}");
    let results = answer["commands"].as_array().unwrap().iter();
    results.map(|one| one["result"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()).collect()
}

#[tokio::test]
async fn each_bulk_form_of_the_commands_takes_many() {
    let world = World::with_settings(WorldSettings::calm()).await;
    let running = world.start();
    let parent = world.seed(1, 20).await;
    let locked: Vec<_> = (0..10).map(|vout| spend(&[parent.coin(vout)], 1, 1)).collect();
    for made in &locked {
        world.validate_locked(made).await;
    }
    world.until_consumed().await;
    let api = Api::start(&world, &[]).await;
    let coins = || (10..20).map(|vout| parent.coin(vout));
    let freeze = || coins().map(|coin| CommandAction::Freeze { outpoint: coin.outpoint });
    let script: Vec<u8> = vec![0x53];
    let requests: [(&str, Vec<CommandAction<'_>>); 5] = [
        ("unlock", locked.iter().map(|made| CommandAction::Unlock { txid: made.txid }).collect()),
        ("freeze", freeze().collect()),
        ("unfreeze", coins().map(|coin| CommandAction::Unfreeze { outpoint: coin.outpoint }).collect()),
        ("freeze again", freeze().collect()),
        (
            "reassign",
            coins()
                .map(|coin| CommandAction::Reassign {
                    outpoint: coin.outpoint,
                    utxo_hash: coin.utxo_hash(),
                    new_script: &script,
                    satoshis: coin.satoshis,
                    height: 100,
                    spendable_after: 1_000,
                })
                .collect(),
        ),
    ];
    for (name, actions) in requests {
        assert_eq!(run_commands(&api, actions).await, vec!["applied"; 10], "{name}");
    }
    for made in &locked {
        assert!(!world.page(made).await.unwrap().locked, "{} is unlocked", made.txid);
    }
    running.kill().await;
}

/// A sender that does not say how long its body is.
#[tokio::test]
async fn a_body_in_chunks_over_the_limit_is_a_413() {
    let world = World::new().await;
    let api = Api::start(&world, &[("HTTP__MAX_BODY_BYTES", "1024")]).await;
    let mut sender = TcpStream::connect(api.address).await.unwrap();
    let head = "POST /v1/outputs:batch HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\n\
                Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
    let chunk = [b"400\r\n".as_slice(), &[0; 1_024], b"\r\n"].concat();
    sender.write_all(&[head.as_bytes(), &chunk, &chunk].concat()).await.unwrap();
    let mut answer = String::new();
    sender.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("http.max_body_bytes"), "{answer}");
}

/// The first request waits for a store that does not answer.
#[tokio::test]
async fn a_request_beyond_the_greatest_number_is_a_429() {
    let (world, engine) = failing_world().await;
    engine.fail_reads(|_| true);
    let hanging = StateStore { engine, ..world.store.clone() };
    let settings = [("HTTP__MAX_REQUESTS", "1"), ("HTTP__TIMEOUT_MS", "5000")];
    let api = std::sync::Arc::new(Api::over(hanging, None, &settings).await);
    let path = format!("/v1/transactions/{}", "12".repeat(32));
    let first = tokio::spawn({
        let (api, path) = (api.clone(), path.clone());
        async move { api.get(&path).await.0 }
    });
    let mut refused = (0, Value::Null);
    while refused.0 != 429 && !first.is_finished() {
        // The routes of the API are limited, and this one asks no store.
        refused = tokio::time::timeout(Duration::from_secs(10), api.get("/v1/blocks/height:x")).await.unwrap();
    }
    assert!(refused.0 == 429 && refused.1["detail"].as_str().unwrap().contains("http.max_requests"), "{refused:?}");
    assert_eq!(first.await.unwrap(), 503, "the first request ends within its time limit");
}

/// Protects: an open stream takes a place of `http.max_streams`, whatever streams, and gives the place back.
#[tokio::test]
async fn an_open_stream_takes_a_place_and_gives_it_back() {
    let world = World::new().await;
    world.seed(1, 1).await;
    world.run_until_consumed().await;
    let api = Api::start(&world, &[("HTTP__MAX_STREAMS", "1")]).await;
    let open = async || api.client.get(format!("http://{}/v1/outcomes", api.address)).send().await.unwrap();
    let stream = open().await;
    assert_eq!((stream.status(), open().await.status()), (StatusCode::OK, StatusCode::TOO_MANY_REQUESTS));
    drop(stream);
    let begun = std::time::Instant::now();
    while open().await.status() != 200 {
        assert!(begun.elapsed() < Duration::from_secs(60), "the place does not come back");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
