//! Load of the API that outlives its servers: transactions and commands that are submitted over HTTP, a client that
//! follows the outcomes from server to server, and the check that no answer was lost.

use std::{
    collections::BTreeMap,
    mem, slice,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle};
use utxo_store::tx::Txid;

use crate::harness::{Made, spend};

/// Greatest number of transactions or commands in one request of the last check.
const AT_ONCE: usize = 100;
/// Longest wait of the last check until the followed outcomes are complete.
const COMPLETE_WITHIN: Duration = Duration::from_secs(60);
/// Time without an event after which a stream counts as read to its end.
const QUIET: Duration = Duration::from_secs(1);

/// Answers to the load.
#[derive(Default)]
struct Answers {
    /// Transactions that a server published, each with the status of its outcome.
    transactions: Vec<(Txid, String)>,
    /// Commands by id, each with its result.
    commands: Vec<(String, String)>,
}

/// Transactions and commands that are submitted over HTTP, and the answers.
pub struct ApiLoad {
    client: Client,
    coins: Made,
    next: u32,
    made: Vec<Made>,
    commands: Vec<Value>,
    requests: Vec<JoinHandle<()>>,
    answers: Arc<Mutex<Answers>>,
    follower: Follower,
}

impl ApiLoad {
    /// Number of outputs of `coins` that one submission uses.
    pub const COINS: u32 = 3;

    /// Begins to follow the outcomes at the server of this address.
    pub fn start(coins: Made, address: &str) -> Self {
        // The second client of a process finds a provider.
        drop(rustls::crypto::ring::default_provider().install_default());
        let client = Client::new();
        let follower = Follower::start(client.clone(), address);
        let (made, commands, requests) = Default::default();
        ApiLoad { client, coins, next: 0, made, commands, requests, answers: Arc::default(), follower }
    }

    /// Submits a payment, a child of the payment, two rivals in two requests, and the commands that freeze and unfreeze
    /// an output. A request ends without an answer when its server is killed.
    pub fn submit(&mut self, address: &str) {
        self.follower.address.send_replace(address.to_owned());
        let [coin, contested, frozen] = [0, 1, 2].map(|more| self.coins.coin(self.next + more));
        let id = |more: u32| format!("{:032x}", self.next + more);
        let commands = [(id(1), "freeze"), (id(2), "unfreeze")]
            .map(|(id, action)| json!({"id": id, "action": {action: {"outpoint": frozen.outpoint.to_string()}}}));
        self.next += Self::COINS;
        let payment = spend(&[coin], 1, 1);
        let child = spend(&[payment.coin(0)], 1, 2);
        let [first, second] = [3, 4].map(|tag| spend(slice::from_ref(&contested), 1, tag));
        for request in [vec![payment, child, first], vec![second]] {
            let (client, address, answers) = (self.client.clone(), address.to_owned(), self.answers.clone());
            let submitted = request.clone();
            self.requests.push(tokio::spawn(async move {
                let Some(statuses) = submit_transactions(&client, &address, &submitted, 20_000).await else { return };
                answers.lock().unwrap().transactions.extend(submitted.iter().map(|made| made.txid).zip(statuses));
            }));
            self.made.extend(request);
        }
        let (client, address, answers) = (self.client.clone(), address.to_owned(), self.answers.clone());
        self.commands.extend(commands.clone());
        self.requests.push(tokio::spawn(async move {
            let Some(results) = submit_commands(&client, &address, &commands, 20_000).await else { return };
            answers.lock().unwrap().commands.extend(results);
        }));
    }

    /// Waits until every request has ended.
    pub async fn finish(&mut self) {
        for request in mem::take(&mut self.requests) {
            request.await.unwrap();
        }
    }

    /// Waits until each published transaction has an outcome, and compares the store with the answers. Then submits
    /// everything again, which changes nothing. Fails unless
    ///
    /// - each transaction has an outcome, and each answered outcome is kept: the outcome is the answered one, or, where
    ///   the store `has_lost_writes`, a later verdict that the stream has;
    /// - each command has one result, whenever a server is asked;
    /// - the followed outcomes are those of a stream that is read at once, and have each outcome.
    pub async fn check(&mut self, address: &str, has_lost_writes: bool) {
        self.follower.address.send_replace(address.to_owned());
        self.finish().await;
        self.wait_for_outcomes().await;
        self.compare_store(address, has_lost_writes).await;
        let outcomes = self.submit_transactions_again(address).await;
        let results = self.submit_commands_again(address).await;
        let followed = self.follower.read_all(&self.client).await;
        let answers = self.answers.lock().unwrap();
        let known: Vec<_> = answers.transactions.iter().filter(|(_, status)| status != "pending").collect();
        println!(
            "{} of {} transactions were published, {} outcomes answered; {} of {} commands; {} outcomes followed",
            answers.transactions.len(),
            self.made.len(),
            known.len(),
            answers.commands.len(),
            self.commands.len(),
            followed.len()
        );
        assert!(!known.is_empty() && !answers.commands.is_empty(), "nothing was answered");
        for (id, answer) in answers.commands.iter().filter(|(_, answer)| answer != "unanswered") {
            assert_eq!(results[id], *answer, "command {id}");
        }
        let by_key = OutcomesByKey::new(&followed);
        for (txid, answer) in known {
            let outcome = &outcomes[txid];
            let is_kept = outcome == answer || (has_lost_writes && by_key.has_verdict(txid, outcome));
            assert!(is_kept, "{txid}: {answer}, then {outcome}");
        }
        for (txid, status) in &outcomes {
            let kinds = by_key.kinds.get(&txid.to_string()).cloned().unwrap_or_default();
            let has_outcome = kinds.iter().any(|kind| kind == status || (kind == "accepted" && status == "live"));
            assert!(has_outcome, "{txid} is {status}, and the stream has {kinds:?}");
        }
        for (id, result) in &results {
            assert_eq!(by_key.results.get(id).map(Vec::as_slice), Some([result.clone()].as_slice()), "command {id}");
        }
    }

    /// Waits until the followed stream has an outcome of each transaction that a server published.
    async fn wait_for_outcomes(&self) {
        let started = Instant::now();
        loop {
            let by_key = OutcomesByKey::new(&self.follower.followed.lock().unwrap());
            let published: Vec<Txid> =
                self.answers.lock().unwrap().transactions.iter().map(|(txid, _)| *txid).collect();
            let is_open = |txid: &Txid| !by_key.kinds.contains_key(&txid.to_string());
            let open: Vec<Txid> = published.into_iter().filter(is_open).collect();
            if open.is_empty() {
                return;
            }
            assert!(started.elapsed() < COMPLETE_WITHIN, "published and without an outcome: {open:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Compares the store with each answered outcome, before a repeated event could make up for a lost one.
    async fn compare_store(&self, address: &str, has_lost_writes: bool) {
        let answers = self.answers.lock().unwrap().transactions.clone();
        for (txid, answer) in answers.iter().filter(|(_, status)| status != "pending") {
            let started = Instant::now();
            loop {
                let stored = self.stored_outcome(address, txid).await;
                let by_key = OutcomesByKey::new(&self.follower.followed.lock().unwrap());
                let is_later = |stored: &String| has_lost_writes && by_key.has_verdict(txid, stored);
                if stored.as_ref().is_some_and(|stored| stored == answer || is_later(stored)) {
                    break;
                }
                // Lost writes are repeated after the restart of the nodes.
                let may_come = has_lost_writes && started.elapsed() < COMPLETE_WITHIN;
                assert!(may_come, "{txid} was answered as {answer}, and the store has {stored:?}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }

    /// Returns the outcome that the store shows; `None`: none.
    async fn stored_outcome(&self, address: &str, txid: &Txid) -> Option<String> {
        let url = format!("http://{address}/v1/transactions/{txid}?fields=state,reason");
        let answer = self.client.get(url).send().await.ok()?;
        let shown: Value = serde_json::from_slice(&answer.bytes().await.ok()?).unwrap();
        match shown["state"].as_str()? {
            _ if !shown["reason"].is_null() => Some("conflicting".to_owned()),
            "live" | "pruned" => Some("live".to_owned()),
            _ => None,
        }
    }

    async fn submit_transactions_again(&self, address: &str) -> BTreeMap<Txid, String> {
        let mut outcomes = BTreeMap::new();
        for request in self.made.chunks(AT_ONCE) {
            let statuses = submit_transactions(&self.client, address, request, 60_000).await.expect("an answer");
            outcomes.extend(request.iter().map(|made| made.txid).zip(statuses));
        }
        for (txid, status) in &outcomes {
            assert!(["live", "conflicting"].contains(&status.as_str()), "{txid} is {status}");
        }
        outcomes
    }

    async fn submit_commands_again(&self, address: &str) -> BTreeMap<String, String> {
        let mut results = BTreeMap::new();
        for request in self.commands.chunks(AT_ONCE) {
            results.extend(submit_commands(&self.client, address, request, 60_000).await.expect("an answer"));
        }
        for (id, result) in &results {
            let read = self.client.get(format!("http://{address}/v1/commands/{id}")).send().await.unwrap();
            let read: Value = serde_json::from_slice(&read.bytes().await.unwrap()).unwrap();
            assert_eq!((result.as_str(), &read["result"]), ("applied", &json!("applied")), "command {id}");
        }
        results
    }
}

/// Outcomes of a stream by transaction and by command.
#[derive(Default)]
struct OutcomesByKey {
    /// Kinds by txid.
    kinds: BTreeMap<String, Vec<String>>,
    /// Distinct results by id of the command.
    results: BTreeMap<String, Vec<String>>,
}

impl OutcomesByKey {
    /// Returns whether a verdict has given a transaction this outcome.
    fn has_verdict(&self, txid: &Txid, outcome: &str) -> bool {
        let verdict = if outcome == "live" { "accepted" } else { outcome };
        self.kinds.get(&txid.to_string()).is_some_and(|kinds| kinds.iter().any(|kind| kind == verdict))
    }

    fn new(followed: &[(String, String)]) -> Self {
        let mut by_key = OutcomesByKey::default();
        for (kind, data) in followed {
            let shown: Value = serde_json::from_str(data).unwrap();
            if kind == "command" {
                let command = &shown["kind"]["command"];
                let results = by_key.results.entry(command["id"].as_str().unwrap().to_owned()).or_default();
                let result = command["result"].as_str().map_or_else(|| command["result"].to_string(), str::to_owned);
                if !results.contains(&result) {
                    results.push(result);
                }
                continue;
            }
            let of_batch = shown["txids"].as_array().into_iter().flatten();
            for txid in of_batch.chain(shown.get("txid")).filter_map(Value::as_str) {
                by_key.kinds.entry(txid.to_owned()).or_default().push(kind.clone());
            }
        }
        by_key
    }
}

/// Kind and data of each event that a stream has brought.
type Followed = Arc<Mutex<Vec<(String, String)>>>;

/// Client that follows the outcomes from the beginning. When its server is killed, the client goes on at the present
/// address after the last event.
struct Follower {
    address: watch::Sender<String>,
    followed: Followed,
    task: JoinHandle<()>,
}

impl Follower {
    fn start(client: Client, address: &str) -> Self {
        let (address, present) = watch::channel(address.to_owned());
        let followed = Followed::default();
        let task = tokio::spawn(follow(client, present, followed.clone()));
        Follower { address, followed, task }
    }

    /// Waits until the followed outcomes are those of a stream that is read at once, and returns the outcomes.
    async fn read_all(&self, client: &Client) -> Vec<(String, String)> {
        let started = Instant::now();
        loop {
            assert!(!self.task.is_finished(), "the client that follows the outcomes has failed");
            let (mut last, at_once) = (None, Followed::default());
            let request = outcomes_after(client, &self.address.borrow(), None);
            let answer = request.send().await.unwrap();
            assert_eq!(answer.status(), 200);
            read_stream(answer, &mut last, &at_once, QUIET).await;
            let [mut followed, mut at_once] = [&self.followed, &at_once].map(|of| of.lock().unwrap().clone());
            followed.sort_unstable();
            at_once.sort_unstable();
            if followed == at_once {
                return followed;
            }
            if started.elapsed() > COMPLETE_WITHIN {
                let missed: Vec<_> = at_once.iter().filter(|event| !followed.contains(event)).collect();
                panic!("followed {} of {} outcomes; missed: {missed:#?}", followed.len(), at_once.len());
            }
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn outcomes_after(client: &Client, address: &str, last: Option<&str>) -> RequestBuilder {
    let request = client.get(format!("http://{address}/v1/outcomes?from=earliest"));
    match last {
        Some(id) => request.header("Last-Event-ID", id),
        None => request,
    }
}

async fn follow(client: Client, present: watch::Receiver<String>, followed: Followed) {
    let mut last = None;
    loop {
        let address = present.borrow().clone();
        if let Ok(answer) = outcomes_after(&client, &address, last.as_deref()).send().await {
            match answer.status().as_u16() {
                200 => read_stream(answer, &mut last, &followed, Duration::MAX).await,
                status => assert_eq!(status, 503, "after {last:?}"),
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Reads events until the stream ends or has brought nothing for the time `quiet`.
async fn read_stream(mut answer: Response, last: &mut Option<String>, followed: &Followed, quiet: Duration) {
    let mut text = String::new();
    while let Ok(Ok(Some(piece))) = tokio::time::timeout(quiet, answer.chunk()).await {
        text.push_str(std::str::from_utf8(&piece).unwrap());
        while let Some((event, rest)) = text.split_once("\n\n") {
            let field =
                |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(|text| text.trim().to_owned());
            if let (Some(kind), Some(data)) = (field("event:"), field("data:")) {
                followed.lock().unwrap().push((kind, data));
            }
            if let Some(id) = field("id:") {
                *last = Some(id);
            }
            text = rest.to_owned();
        }
    }
}

/// Posts JSON, and returns the JSON of the answer; `None`: the server has ended, or says that store or log are away.
async fn post(client: &Client, url: String, body: Value) -> Option<Value> {
    let request = client.post(url).header("Content-Type", "application/json").body(body.to_string());
    let answer = request.send().await.ok()?;
    let status = answer.status().as_u16();
    let shown: Value = serde_json::from_slice(&answer.bytes().await.ok()?).unwrap();
    assert!([200, 202, 503].contains(&status), "{status}: {shown}");
    (status != 503).then_some(shown)
}

/// Submits transactions, and returns the status of each outcome.
async fn submit_transactions(client: &Client, address: &str, made: &[Made], timeout_ms: u32) -> Option<Vec<String>> {
    let hex: Vec<String> = made.iter().map(|made| hex::encode(&made.extended)).collect();
    let url = format!("http://{address}/v1/transactions?wait=live&timeout_ms={timeout_ms}");
    let shown = post(client, url, json!({"transactions": hex})).await?;
    let status = |shown: &Value| shown["outcome"]["status"].as_str().unwrap().to_owned();
    Some(shown["transactions"].as_array().unwrap().iter().map(status).collect())
}

/// Submits commands, and returns the result of each id.
async fn submit_commands(
    client: &Client,
    address: &str,
    commands: &[Value],
    timeout_ms: u32,
) -> Option<Vec<(String, String)>> {
    let url = format!("http://{address}/v1/commands?timeout_ms={timeout_ms}");
    let shown = post(client, url, json!({"commands": commands})).await?;
    let text = |shown: &Value, field: &str| shown[field].as_str().unwrap().to_owned();
    let result = |shown: &Value| (text(shown, "id"), text(shown, "result"));
    Some(shown["commands"].as_array().unwrap().iter().map(result).collect())
}
