//! The scenario `wallets`: two clerks of a shop share its outputs. An instance and a vault run as processes of their
//! own.

use std::{
    io::{self, Write},
    net::SocketAddr,
    time::{Duration, Instant},
};

use indicatif::ProgressBar;
use tokio_util::sync::CancellationToken;

use super::{child::ChildInstance, directory::DemoDirectory, log::DemoLog, story::end_story};
use crate::{
    broker::Producer,
    cli::{
        CliResult, Failure,
        generate::{EventSink, produce},
        opening, output, signals,
        stats::group_digits,
    },
    config::{Config, Topics},
    event::{Event, PartialOutput, PartialTxEvent, Topic, Validated},
    generate::{ANYONE_CAN_SPEND, Message, SyntheticBlock, compute_txid},
    tx::{Outpoint, Output, TransactionBuilder, Txid},
    vault::{
        ClientError, VaultClient, address_of,
        model::{BalanceView, OwnerOutput, ScriptName, SelectAnswer, SelectRequest},
    },
};

/// Height of the first block: after the Genesis upgrade of the main network.
const HEIGHT: u32 = 800_000;
/// Lease of the clerks' sessions: longer than a machine under load stands still.
const LEASE: Duration = Duration::from_secs(60);
/// Lease of the session that nobody extends: the wait of the story.
const LAST_LEASE: Duration = Duration::from_secs(3);
/// Longest wait for a chapter.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// Amount that each clerk pays.
const PAYMENT: u64 = 700_000;

/// Returns a P2PKH script of a name. No key is known that unlocks the script; the store verifies none.
fn script_of(name: &str) -> Vec<u8> {
    let hash = blake3::hash(name.as_bytes());
    [&[0x76, 0xa9, 20][..], &hash.as_bytes()[..20], &[0x88, 0xac]].concat()
}

/// A transaction of the story, with its outputs.
struct Paid {
    txid: Txid,
    extended: Vec<u8>,
}

impl Paid {
    /// Spends outputs. The name is the unlocking script, so that rivals have different txids.
    fn of(name: &str, spent: &[(Outpoint, u64, Vec<u8>)], outputs: &[(u64, Vec<u8>)]) -> Self {
        let mut builder = TransactionBuilder::default();
        for (outpoint, satoshis, script) in spent {
            let previous = Output { satoshis: *satoshis, script };
            builder = builder.input(*outpoint, name.as_bytes(), u32::MAX, Some(previous));
        }
        for (satoshis, script) in outputs {
            builder = builder.output(*satoshis, script);
        }
        let extended = builder.extended();
        Paid { txid: compute_txid(&extended), extended }
    }

    fn message(&self) -> Message {
        let payload = Validated { tx: &self.extended, height: HEIGHT, locked: false }.encode();
        Message { topic: Topic::ValidatedTxs, key: Some(self.txid), payload }
    }
}

/// Names a transaction from before the story, with outputs that anyone can spend.
fn funding(amounts: [u64; 2]) -> (Message, [(Outpoint, u64, Vec<u8>); 2]) {
    let txid = Txid(*blake3::hash(b"from before this store").as_bytes());
    let output = |(vout, satoshis)| PartialOutput { vout, satoshis, script: &ANYONE_CAN_SPEND };
    let outputs = (0..).zip(amounts).map(output).collect();
    let event = PartialTxEvent { txid, coinbase: false, height: HEIGHT - 1_000, outputs };
    let message = Message { topic: Topic::ValidatedTxs, key: Some(txid), payload: Event::Seeded(event).encode() };
    let mut vout = 0;
    let spent = amounts.map(|satoshis| {
        vout += 1;
        (Outpoint { txid, vout: vout - 1 }, satoshis, ANYONE_CAN_SPEND.to_vec())
    });
    (message, spent)
}

/// The processes of the story, and the clients of the clerks.
struct Scene<'a> {
    directory: &'a DemoDirectory,
    instance: ChildInstance,
    vault: ChildInstance,
    address: String,
    producer: std::sync::Arc<dyn Producer>,
    topics: &'a Topics,
    chapter: u32,
}

/// Plays the story and prints each chapter. `kept`: address at which the vault answers after the story, until a signal.
///
/// # Errors
/// A chapter does not come to its end, the store and its rebuild differ, or a process fails.
pub async fn run_wallets(
    config: &Config,
    log: &DemoLog,
    directory: &DemoDirectory,
    kept: Option<SocketAddr>,
) -> CliResult {
    let started = Instant::now();
    log.create_topics(config).await?;
    let broker = opening::open_broker(config).await?;
    let mut scene = Scene::start(directory, config, broker.producer().await?, kept).await?;
    scene.play().await?;
    if kept.is_some() {
        scene.wait_for_signal().await?;
    }
    let Scene { instance, vault, .. } = scene;
    vault.stop().await?;
    instance.stop().await?;
    end_story(config, broker, directory, started, &mut output::stdout()).await
}

impl<'a> Scene<'a> {
    async fn start(
        directory: &'a DemoDirectory,
        config: &'a Config,
        producer: std::sync::Arc<dyn Producer>,
        listen: Option<SocketAddr>,
    ) -> Result<Self, Failure> {
        let mut instance = ChildInstance::start(directory, "instance", &[("UTXO_STORE__HTTP__API", "true")])?;
        let answers = format!("http://{}", until_ready(&mut instance).await?);
        let database = directory.vault_url();
        let listen = listen.map_or_else(|| "127.0.0.1:0".to_owned(), |listen| listen.to_string());
        let settings = [
            ("UTXO_STORE__VAULT__URL", database.as_str()),
            ("UTXO_STORE__VAULT__ANSWERS_URL", answers.as_str()),
            ("UTXO_STORE__HTTP__LISTEN", listen.as_str()),
        ];
        let mut vault = ChildInstance::start_command(directory, ("vault", &["vault", "run"]), &settings)?;
        let address = until_ready(&mut vault).await?;
        Ok(Scene { directory, instance, vault, address, producer, topics: &config.kafka.topics, chapter: 0 })
    }

    fn client(&self) -> Result<VaultClient, Failure> {
        let owner = "shop".parse()?;
        Ok(VaultClient::open(&format!("http://{}", self.address), owner, None)?)
    }

    async fn produce(&self, messages: Vec<Message>) -> CliResult {
        let sink = EventSink { producer: self.producer.as_ref(), topics: self.topics, bodies: None };
        produce(&sink, messages.into_iter(), &ProgressBar::hidden()).await?;
        Ok(())
    }

    fn begin_chapter(&mut self, text: &str) -> io::Result<()> {
        self.chapter += 1;
        writeln!(output::stdout(), "{}. {text}\n", self.chapter)
    }

    /// Waits until the balance of the shop is as expected, and prints the balance.
    async fn until(&self, client: &VaultClient, is_reached: impl Fn(&BalanceView) -> bool) -> CliResult {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let balance = client.balance().await?;
            if is_reached(&balance) {
                return Ok(show_balance(&balance)?);
            }
            if Instant::now() > deadline {
                return Err(Failure::new(format!("the balance of the shop does not come: {balance:?}")));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn play(&mut self) -> CliResult {
        let (alice, bob) = (self.client()?, self.client()?);
        let (shop, supplier) = (script_of("shop"), script_of("supplier"));
        let name = address_of(&shop, Default::default()).unwrap_or_default();
        let (seed, [first, second]) = funding([990_000, 400_000]);
        let sales =
            Paid::of("sales", &[first], &[(600_000, shop.clone()), (300_000, shop.clone()), (90_000, shop.clone())]);
        let block = SyntheticBlock::new(1, HEIGHT, [7; 32], sales.txid.0.to_vec());

        self.begin_chapter(&format!("The shop watches its address {name}. A block lists what customers have paid."))?;
        alice.watch(vec![ScriptName::Address(name)], None).await?;
        self.produce(vec![seed, sales.message(), block.mined(1)]).await?;
        self.until(&alice, |balance| balance.available.satoshis == 990_000).await?;

        self.begin_chapter("Alice and Bob work for the shop. Each pays 700,000 satoshis from its outputs, at once.")?;
        let sessions = (alice.open_session(Some(LEASE), None).await?, bob.open_session(Some(LEASE), None).await?);
        let request = |lock_id| SelectRequest { lock_id: Some(lock_id), ..SelectRequest::at_rate(PAYMENT, 1_000) };
        let requests = (request(sessions.0.lock_id), request(sessions.1.lock_id));
        let (of_alice, of_bob) =
            tokio::join!(alice.select(&requests.0, Duration::ZERO), bob.select(&requests.1, Duration::ZERO));
        let mut clerks = [("Alice", &alice, sessions.0.lock_id, of_alice), ("Bob", &bob, sessions.1.lock_id, of_bob)];
        if clerks[0].3.is_err() {
            clerks.swap(0, 1);
        }
        let [(winner, of_winner, won, selected), (loser, client, lock_id, refused)] = clerks;
        show_selected(winner, &selected?)?;
        show_refusal(loser, refused)?;

        of_winner.heartbeat(won, Some(LAST_LEASE)).await?;
        let text = format!("{winner}'s process dies. {loser} waits until the lease of the session is over.");
        self.begin_chapter(&text)?;
        let heartbeats = async {
            loop {
                tokio::time::sleep(LAST_LEASE / 4).await;
                client.heartbeat(lock_id, None).await?;
            }
        };
        let wanted = request(lock_id);
        let selected = tokio::select! {
            selected = client.select(&wanted, PATIENCE) => selected?,
            failed = heartbeats => {
                let never: Result<std::convert::Infallible, ClientError> = failed;
                return Err(never.err().map_or_else(|| Failure::new("a heartbeat"), Failure::from));
            }
        };
        show_selected(loser, &selected)?;
        writeln!(output::stdout())?;

        self.begin_chapter(&format!("{loser} publishes the payment. The change has the session's lock at once."))?;
        let change = selected.change.unwrap_or(0);
        let payment = Paid::of("payment", &spent(&selected.outputs)?, &[(PAYMENT, supplier), (change, shop)]);
        let published = client.spend(lock_id, &payment.extended, Duration::from_secs(30)).await?;
        let outcome = published.outcome.map(|outcome| format!("{outcome:?}").to_lowercase()).unwrap_or_default();
        writeln!(output::stdout(), "   transaction {}: {outcome}", payment.txid)?;
        self.until(client, |balance| balance.soft_locked.satoshis == change).await?;
        client.release(lock_id, None).await?;
        writeln!(output::stdout(), "   the session ends")?;
        self.until(client, |balance| balance.own_unconfirmed.satoshis == change).await?;

        self.play_double_spend(&alice, second, (block.hash, payment.txid)).await
    }

    /// A payment to the shop loses its output. The next block lists the rival
    /// and another transaction.
    async fn play_double_spend(
        &mut self,
        alice: &VaultClient,
        spent: (Outpoint, u64, Vec<u8>),
        (previous, listed): ([u8; 32], Txid),
    ) -> CliResult {
        self.begin_chapter("A customer pays 400,000 satoshis. No block lists the payment yet.")?;
        let sale = Paid::of("sale", std::slice::from_ref(&spent), &[(400_000, script_of("shop"))]);
        self.produce(vec![sale.message()]).await?;
        self.until(alice, |balance| balance.foreign_unconfirmed.satoshis == 400_000).await?;

        let text = "The customer has paid somebody else with the same output, and a block lists that payment. \
                    Alice asks for unconfirmed outputs, too.";
        self.begin_chapter(text)?;
        let rival = Paid::of("rival", &[spent], &[(399_000, script_of("somebody else"))]);
        let next = SyntheticBlock::new(2, HEIGHT + 1, previous, [rival.txid.0, listed.0].concat());
        self.produce(vec![rival.message(), next.mined(2)]).await?;
        let mut greedy = SelectRequest::at_rate(300_000, 1_000);
        (greedy.min_confirmations, greedy.foreign_unconfirmed) = (Some(0), Some(true));
        let deadline = Instant::now() + PATIENCE;
        let refused = loop {
            // Until the verdict the customer's payment is live, and may be handed out.
            match alice.select(&greedy, Duration::ZERO).await {
                Ok(selected) if Instant::now() < deadline => {
                    alice.release(selected.lock_id, None).await?;
                    tokio::time::sleep(POLL).await;
                }
                ended => break ended,
            }
        };
        show_refusal("Alice", refused)?;
        self.until(alice, |balance| balance.foreign_unconfirmed.outputs == 0 && balance.own_unconfirmed.outputs == 0)
            .await
    }

    async fn wait_for_signal(&mut self) -> CliResult {
        let shutdown = CancellationToken::new();
        signals::cancel_on_signals(shutdown.clone())?;
        let (address, mut out) = (&self.address, output::stdout());
        writeln!(out, "A vault answers until Ctrl-C. docs/operating/vault.md has more to ask.")?;
        writeln!(out, "  balance  curl http://{address}/v1/vault/shop/balance")?;
        writeln!(out, "  outputs  curl http://{address}/v1/vault/shop/outputs")?;
        writeln!(out, "  log      {}", self.directory.log_file("vault").display())?;
        out.flush()?;
        drop(out);
        while !shutdown.is_cancelled() {
            self.instance.check_running()?;
            self.vault.check_running()?;
            tokio::select! {
                () = tokio::time::sleep(POLL) => {}
                () = shutdown.cancelled() => {}
            }
        }
        Ok(())
    }
}

async fn until_ready(process: &mut ChildInstance) -> Result<String, Failure> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        process.check_running()?;
        if let Some(address) = process.find_ready_address().await {
            return Ok(address);
        }
        if Instant::now() > deadline {
            let reasons = process.readiness_reasons().await;
            return Err(Failure::new(format!("a process does not become ready: {reasons}")));
        }
        tokio::time::sleep(POLL).await;
    }
}

fn spent(outputs: &[OwnerOutput]) -> Result<Vec<(Outpoint, u64, Vec<u8>)>, Failure> {
    let spent = |output: &OwnerOutput| Ok((output.outpoint.parse()?, output.satoshis, hex::decode(&output.script)?));
    outputs.iter().map(spent).collect()
}

fn show_balance(balance: &BalanceView) -> io::Result<()> {
    let parts = [
        ("available", balance.available),
        ("soft-locked", balance.soft_locked),
        ("own unconfirmed", balance.own_unconfirmed),
        ("foreign unconfirmed", balance.foreign_unconfirmed),
    ];
    let mut out = output::stdout();
    for (name, sum) in parts.into_iter().filter(|(_, sum)| sum.outputs > 0) {
        writeln!(out, "   {name:<20} {:>9} satoshis in {} outputs", group_digits(sum.satoshis.into()), sum.outputs)?;
    }
    writeln!(out)
}

fn show_selected(name: &str, selected: &SelectAnswer) -> io::Result<()> {
    let (sum, fee) = (group_digits(selected.sum.into()), group_digits(selected.fee.into()));
    let change = selected.change.map_or_else(|| "none".to_owned(), |change| group_digits(change.into()));
    let count = selected.outputs.len();
    writeln!(output::stdout(), "   {name} gets {count} outputs: sum {sum}, fee {fee}, change {change}")
}

/// Prints why a selection was refused.
fn show_refusal(name: &str, refused: Result<SelectAnswer, ClientError>) -> CliResult {
    match refused {
        Err(error) if error.refused().is_some() => Ok(writeln!(output::stdout(), "   {name} is refused: {error}\n")?),
        Err(error) => Err(error.into()),
        Ok(selected) => Err(Failure::new(format!("{name} got outputs that are not free: {selected:?}"))),
    }
}
