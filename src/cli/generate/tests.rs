//! Tests of the options, and of producing to brokers in memory.

use clap::Parser;

use super::*;
use crate::{
    broker::{
        TopicPartition,
        memory::{MemoryBroker, MemorySettings},
    },
    clock::Clock,
    config::Config,
};

#[derive(Debug, Parser)]
struct Program {
    #[command(flatten)]
    generate: GenerateArgs,
}

fn parsed(args: &[&str]) -> Result<GenerateArgs, String> {
    let args = [&["generate"], args].concat();
    Program::try_parse_from(args).map(|program| program.generate).map_err(|error| error.to_string())
}

fn data(name: &str) -> String {
    format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn options_that_exclude_each_other_are_refused() {
    for args in [
        &[][..],
        &["--blocks", "a", "--events", "b"],
        &["--blocks", "a", "--prevouts", "b", "--synthesize-prevouts"],
        &["--events", "a", "--prevouts", "b"],
        &["--events", "a", "--first-height", "7"],
        &["--blocks", "a", "--partitions", "0"],
        &["--blocks", "a", "--brokers", "nowhere"],
    ] {
        assert!(parsed(args).is_err(), "{args:?}");
    }
    let several = parsed(&["--blocks", "a", "b", "--synthesize-prevouts", "--brokers", "h:1"]).unwrap();
    assert_eq!(several.source.blocks.len(), 2);
}

#[test]
fn unreadable_sources_are_named_in_one_line_with_the_place() {
    let directory = tempfile::tempdir().unwrap();
    let written = |name: &str, bytes: &[u8]| {
        let path = directory.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.display().to_string()
    };
    let bare = std::fs::read(data("mainnet-277647.block")).unwrap();
    let cut = written("cut.block", &bare[..1_000]);
    let csv = written("bad.csv", b"txid,vout,satoshis,height,coinbase,locking_script_hex\nzz,0,1,2,0,51\n");
    let events = written("bad.jsonl", b"\n{\"event\":\"none\"}\n");
    let block = data("mainnet-277647.block");
    for (args, says) in [
        (vec!["--blocks", "/nowhere/a.blk"], "/nowhere/a.blk: No such file"),
        (vec!["--blocks", &cut], "cut in half at byte 1000"),
        (vec!["--blocks", &block, "--prevouts", &csv], "bad.csv: line 2: txid"),
        (vec!["--blocks", &block], "--synthesize-prevouts"),
        (vec!["--events", &events], "bad.jsonl: line 2: event"),
    ] {
        let source = parsed(&args).unwrap().source;
        let failure = source.load().and_then(|loaded| Ok(loaded.event_source().map(drop)?)).unwrap_err().to_string();
        assert!(failure.contains(says) && !failure.contains('\n'), "{args:?}: {failure}");
    }
}

#[tokio::test]
async fn all_events_arrive_once_and_in_order() {
    let config = Config::default();
    let broker = MemoryBroker::new(MemorySettings::new(Clock::System));
    let topics = new_topics(&config.kafka.topics, NewTopicSettings::with_partitions(3));
    create_missing(&broker, &topics).await.unwrap();
    create_missing(&broker, &new_topics(&config.kafka.topics, NewTopicSettings::with_partitions(5))).await.unwrap();

    let loaded = parsed(&["--blocks", &data("mainnet-0-4312.blk")]).unwrap().source.load().unwrap();
    let event_source = loaded.event_source().unwrap();
    let same = async |messages| check_same_chain(&broker, &config.kafka.topics, messages).await;
    same(event_source.messages()).await.expect("no blocks are there");
    let producer = broker.producer().await.unwrap();
    let bar = indicatif::ProgressBar::hidden();
    let sink = EventSink { producer: producer.as_ref(), topics: &config.kafka.topics, bodies: None };
    let produced = produce(&sink, event_source.messages(), &bar).await.unwrap();
    let bytes = event_source.messages().map(|message| message.payload.len() as u64).sum();
    assert_eq!(produced, ProducedTotals { events: 58 + 4_313, bytes, by_reference: 0 });
    assert_eq!(bar.position(), produced.events);

    let mut validated = 0;
    for partition in 0..3 {
        let at = TopicPartition { topic: "utxo.validated-txs".into(), partition };
        validated += broker.watermarks(&at).await.unwrap().1;
    }
    assert_eq!(validated, 58);
    let mined = TopicPartition { topic: "utxo.block-mined".into(), partition: 0 };
    assert_eq!(broker.watermarks(&mined).await.unwrap(), (0, 4_313));
    let mut reader = broker.read(&mined, 0).await.unwrap();
    let first = reader.next(std::time::Duration::from_secs(5)).await.unwrap().remove(0);
    let expected = event_source.messages().find(|message| message.topic == Topic::BlockMined).unwrap();
    assert_eq!(first.payload, expected.payload);

    same(event_source.messages()).await.expect("these blocks are there");
    let other = ["--blocks", &data("mainnet-384188.block"), "--synthesize-prevouts"];
    let loaded = parsed(&other).unwrap().source.load().unwrap();
    let refused = same(loaded.event_source().unwrap().messages()).await.unwrap_err().to_string();
    assert!(refused.contains("utxo.block-mined holds the blocks of another chain"), "{refused}");
}

#[test]
fn events_are_printed_without_counts_of_blocks() {
    let produced = ProducedTotals { events: 2, bytes: 30, by_reference: 0 };
    assert_eq!(GenerateSummary { counts: None, produced, left_out: None, seed: None }.line(), "2 events, 30 bytes");
    let by_reference = ProducedTotals { by_reference: 1, ..produced };
    let summary = GenerateSummary { counts: None, produced: by_reference, left_out: None, seed: None };
    assert_eq!(summary.line(), "2 events, 30 bytes, 1 bodies in objects");
    let counts = Some(ChainCounts { blocks: 1, seeded: 4, ..ChainCounts::default() });
    let line = GenerateSummary { counts, produced, left_out: None, seed: None }.line();
    assert_eq!(line, "2 events, 30 bytes: 1 blocks with 0 transactions, 4 partial parents");
}

#[test]
fn the_options_of_a_flood_belong_to_the_flood() {
    let flood = parsed(&["--scenario", "flood", "--coins", "7", "--rivals", "9", "--seed", "1"]).unwrap();
    assert_eq!(flood.flood.flood(), Flood { coins: 7, rivals: 9, seed: 1 });
    let unknown = parsed(&["--scenario", "deluge"]).unwrap_err();
    assert!(unknown.contains("double-spend, reorg, coinbase-reorg, freeze, flood"), "{unknown}");
    assert!(parsed(&["--scenario", "flood", "--coins", "0"]).is_err());
    let story = parsed(&["--scenario", "freeze", "--rivals", "9"]).unwrap().run().unwrap_err();
    assert!(story.to_string().contains("--rivals is an option of --scenario flood"), "{story}");
}
