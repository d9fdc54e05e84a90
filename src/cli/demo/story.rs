//! Stories of the demo: each chapter produces events and prints the state of every named transaction.

use std::{
    io::{self, Write},
    sync::Arc,
    time::Instant,
};

use indicatif::ProgressBar;

use super::{
    directory::DemoDirectory, kills::run_with_kills, log::DemoLog, progress::DemoGroups, rebuild, timeline::Timeline,
};
use crate::cli::output;
use crate::{
    broker::Broker,
    cli::{
        CliResult, Failure,
        generate::{EventSink, produce},
        inspect::transaction::TransactionView,
        opening,
    },
    client::history,
    config::Config,
    generate::Story,
    record::{SpendingData, Verdict},
    rng::SplitMix64,
    store::{
        StateStore,
        digest::survey,
        read::{FROZEN_SPENDER, TxMeta, TxReader},
    },
    tx::Txid,
};

/// A named transaction of the story and its state.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CastMember {
    name: &'static str,
    txid: Txid,
    /// State in words; `None`: the store does not have the transaction.
    state: Option<String>,
    outputs: Vec<String>,
}

/// Produces one chapter after the other and prints the state after each. With `inspects` each transaction that a
/// chapter has changed is printed as `inspect tx --history` does. At the end a rebuild from the log must have the same
/// digest.
///
/// # Errors
/// The digests differ, or a step failed.
pub async fn run_story(
    story: &Story,
    config: &Config,
    log: &DemoLog,
    directory: &DemoDirectory,
    inspects: bool,
) -> CliResult {
    let mut out = output::stdout();
    log.create_topics(config).await?;
    let broker = opening::open_broker(config).await?;
    let producer = broker.producer().await?;
    let groups = DemoGroups::new(broker.clone(), config);
    let mut before: Vec<CastMember> = Vec::new();
    let started = Instant::now();
    for (chapter, number) in story.chapters.iter().zip(1..) {
        let messages = chapter.messages.iter().cloned();
        let sink = EventSink { producer: producer.as_ref(), topics: &config.kafka.topics, bodies: None };
        produce(&sink, messages, &ProgressBar::hidden()).await?;
        run_with_kills(directory, 0, &groups, 0, SplitMix64::new(number), &Timeline::silent()).await?;
        let store = opening::open_store(config, &config.store.url, &Default::default()).await?;
        let after = read_cast(&store, story).await?;
        write_chapter(&mut out, number, chapter.text, &before, &after)?;
        if inspects {
            for changed in after.iter().filter(|member| member.has_changed(&before)) {
                inspect(&store, config, broker.as_ref(), changed.txid, &mut out).await?;
            }
        }
        store.engine.close().await?;
        before = after;
    }
    end_story(config, broker, directory, started, &mut out).await
}

/// Rebuilds the store from the log, compares the digests and prints the last line of a story.
///
/// # Errors
/// The digests differ, or a step failed.
pub async fn end_story(
    config: &Config,
    broker: Arc<dyn Broker>,
    directory: &DemoDirectory,
    started: Instant,
    out: &mut impl Write,
) -> CliResult {
    let rebuilt = opening::open_store(config, &directory.rebuilt(), &Default::default()).await?;
    Box::pin(rebuild(config, broker, &rebuilt, 0, &Timeline::silent())).await?;
    let live = opening::open_store(config, &config.store.url, &Default::default()).await?;
    let (digest, again) = (survey(&live, |_| {}).await?.digest, survey(&rebuilt, |_| {}).await?.digest);
    live.engine.close().await?;
    rebuilt.engine.close().await?;
    if digest != again {
        return Err(Failure::new(format!("the store has digest {digest}, and its rebuild {again}")));
    }
    writeln!(out, "A rebuild from the log has the same digest, {digest}. {:.1} s.", started.elapsed().as_secs_f64())?;
    Ok(())
}

impl CastMember {
    /// Returns true if the store has the transaction, and its state is not in `before`.
    fn has_changed(&self, before: &[CastMember]) -> bool {
        self.state.is_some() && before.iter().all(|earlier| earlier != self)
    }
}

async fn inspect(
    store: &StateStore,
    config: &Config,
    broker: &dyn Broker,
    txid: Txid,
    out: &mut impl Write,
) -> CliResult {
    let history = history::read_history(broker, &config.kafka.topics, txid).await?;
    TransactionView::read(store, txid, Some(history)).await?.write(out)?;
    writeln!(out)?;
    Ok(())
}

async fn read_cast(store: &StateStore, story: &Story) -> Result<Vec<CastMember>, Failure> {
    let mut cast = Vec::new();
    for (name, txid) in &story.transactions {
        let verdict = store.master(*txid).await?.and_then(|master| master.verdict());
        let meta = TxReader::of(store).get_meta(*txid).await?;
        cast.push(describe_member(name, *txid, verdict, meta.as_ref(), story));
    }
    Ok(cast)
}

fn describe_member(
    name: &'static str,
    txid: Txid,
    verdict: Option<Verdict>,
    meta: Option<&TxMeta>,
    story: &Story,
) -> CastMember {
    let Some(meta) = meta else { return CastMember { name, txid, state: None, outputs: Vec::new() } };
    let mut state = match verdict {
        Some(Verdict::Conflicting(reason)) => format!("conflicting ({})", reason),
        Some(Verdict::Pending) => "contested".to_owned(),
        Some(Verdict::Accepted) | None => meta.state.to_owned(),
    };
    if meta.state == "live" {
        state += match (meta.unmined_since, meta.block_heights.last()) {
            (Some(_), _) | (None, None) => ", unmined".to_owned(),
            (None, Some(height)) => format!(", mined at height {height}"),
        }
        .as_str();
    }
    // Outputs are listed for live transactions only: others have no spendable output.
    let outputs = meta.spending_data.iter().filter(|_| meta.state == "live").zip(0..);
    let outputs = outputs.map(|(spender, vout)| describe_output(*spender, vout, story)).collect();
    CastMember { name, txid, state: Some(replace_txids(state, story)), outputs }
}

fn describe_output(spender: Option<SpendingData>, vout: u32, story: &Story) -> String {
    match spender {
        None => format!("output {vout} is free"),
        Some(FROZEN_SPENDER) => format!("output {vout} is frozen"),
        Some(by) => {
            let name = story.find_name(&by.txid).map_or_else(|| by.txid.to_string(), ToOwned::to_owned);
            format!("output {vout} is spent by {name}")
        }
    }
}

/// Replaces the ids of transactions with their names in the story.
fn replace_txids(text: String, story: &Story) -> String {
    story.transactions.iter().fold(text, |text, (name, txid): &(_, Txid)| text.replace(&txid.to_string(), name))
}

fn write_chapter(
    out: &mut impl Write,
    number: u64,
    text: &str,
    before: &[CastMember],
    after: &[CastMember],
) -> io::Result<()> {
    writeln!(out, "{number}. {text}\n")?;
    for member in after.iter().filter(|member| member.state.is_some()) {
        let changed = member.has_changed(before);
        let state = member.state.as_deref().unwrap_or_default();
        writeln!(out, " {} {:<13}{state}", if changed { '*' } else { ' ' }, member.name)?;
        member.outputs.iter().try_for_each(|output| writeln!(out, "   {:<13}  {output}", ""))?;
    }
    writeln!(out)
}
