//! The page for people: as HTML, and in a browser.

use std::{collections::BTreeSet, fs, path::Path};

use reqwest::Method;
use utxo_store::{
    status::registry::{HaltStatus, PartitionStatus, PipelineStatus},
    tx::{Outpoint, Txid},
};

use crate::{
    api::{Api, Scene, plant_undecided, scene},
    ask::KeptDemo,
    chromium::Browser,
    harness::{World, WorldSettings, spend},
};

/// Text that a browser would run, if the page did not escape the text.
const HOSTILE: &str = "<script>document.title='taken'</script><img src=http://198.51.100.7/x onerror=alert(1)>";
/// Folder of the pictures, in the checkout.
const PICTURES: &str = "docs/pictures";

impl Api {
    /// Publishes a halted partition whose reason is hostile.
    fn publish_halt(&self) {
        let halted = Some(HaltStatus { why: format!("a damaged event: {HOSTILE}"), since_ms: 1_700_000_000_000 });
        let partition = PartitionStatus { topic: "txs".to_owned(), partition: 3, halted, ..Default::default() };
        let pipeline = PipelineStatus { partitions: vec![partition], ..Default::default() };
        self.health.status_registry().publish_pipeline(pipeline);
    }
}

#[tokio::test]
async fn the_page_shows_transactions_outputs_and_blocks_as_links() {
    let Scene { world, running, parent, mined, child, loser } = scene().await;
    let api = Api::start(&world, &[]).await;
    let page = async |path: &str| {
        let (status, body) = api.send(Method::GET, path, None).await;
        (status.as_u16(), String::from_utf8(body.to_vec()).unwrap())
    };
    let (status, home) = page("/").await;
    assert!(status == 200 && home.contains("The chain") && home.contains("/blocks/"), "{home}");
    let (_, shown) = page(&format!("/transactions/{}", mined.txid)).await;
    let input = format!("/transactions/{}#output-0", parent.txid);
    let spender = format!("<a href=\"/transactions/{}\"", child.txid);
    assert!(shown.contains(&input) && shown.contains(&spender) && shown.contains("SPENT"), "{shown}");
    let (_, lost) = page(&format!("/transactions/{}", loser.txid)).await;
    assert!(lost.contains("conflicting") && lost.contains("Reason"), "{lost}");
    let (_, partial) = page(&format!("/transactions/{}", parent.txid)).await;
    assert!(partial.contains("only the outputs"), "{partial}");
    let (_, unmined) = page("/unmined").await;
    assert!(unmined.contains(&child.txid.to_string()) && !unmined.contains(&mined.txid.to_string()), "{unmined}");
    let (_, chain) = api.get("/v1/chain").await;
    for (q, words) in [
        (mined.txid.to_string(), "Inputs"),
        (format!("{}:0", parent.txid), "Outputs"),
        (format!("%20{}%20", chain["height"]), "Longest chain"),
        (chain["hash"].as_str().unwrap().to_owned(), "Longest chain"),
    ] {
        let (_, found) = page(&format!("/search?q={q}")).await;
        assert!(found.contains(words), "{q}: {found}");
    }
    let undecided = Txid([7; 32]);
    plant_undecided(&world.store, undecided).await;
    let (_, conflicting) = page("/conflicting").await;
    assert!(conflicting.contains("no verdict yet") && !conflicting.contains("Further"), "{conflicting}");
    for txid in [undecided, loser.txid, mined.txid] {
        assert!(conflicting.contains(&format!("<a href=\"/transactions/{txid}\">")), "{conflicting}");
    }
    let (_, history) = page(&format!("/transactions/{}/history", loser.txid)).await;
    assert!(
        history.contains("contested by") && history.contains(&format!("/transactions/{}", mined.txid)),
        "{history}"
    );
    let (_, none) = page(&format!("/transactions/{}/history", mined.txid)).await;
    assert!(none.contains("None in this part"), "{none}");
    let (_, docs) = page("/docs").await;
    for words in
        ["/v1/transactions:batch", "/v1/transactions?unmined=true", "$STORE/v1/chain", "id=\"schema-OutputView\""]
    {
        assert!(docs.contains(words), "{words}: {docs}");
    }
    for (path, status) in [
        ("/search?q=xyz", 400),
        ("/transactions/xyz", 400),
        ("/blocks/77", 404),
        ("/?x=1", 400),
        ("/conflicting?cursor=x", 400),
    ] {
        let (found, body) = page(path).await;
        assert!(found == status && body.contains("class=\"problem\""), "{path}: {found} {body}");
    }
    running.kill().await;
}

#[tokio::test]
async fn a_long_list_is_shown_in_pages() {
    let world = World::new().await;
    let api = Api::start(&world, &[]).await;
    let mut missing: BTreeSet<String> = BTreeSet::new();
    for number in 1..=450_u32 {
        let txid = Txid(std::array::from_fn(|byte| number.to_be_bytes()[byte % 4]));
        plant_undecided(&world.store, txid).await;
        missing.insert(txid.to_string());
    }
    let mut path = "/conflicting".to_owned();
    for shown in [200, 200, 50] {
        let (_, body) = api.send(Method::GET, &path, None).await;
        let body = String::from_utf8(body.to_vec()).unwrap();
        let before = missing.len();
        missing.retain(|txid| !body.contains(&format!("/transactions/{txid}\"")));
        assert_eq!(before - missing.len(), shown, "{path}");
        match body.split_once("/conflicting?cursor=") {
            Some((_, rest)) => path = format!("/conflicting?cursor={}", rest.split('"').next().unwrap()),
            None => assert!(missing.is_empty(), "the list ends too early: {missing:?}"),
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
}

/// Protects: each output of a large transaction is on one of its pages, and the links lead from page to page.
#[tokio::test]
async fn the_outputs_of_a_large_transaction_are_shown_in_pages() {
    let world = World::with_settings(WorldSettings::calm()).await;
    let running = world.start();
    let parent = world.seed(1, 1).await;
    let large = spend(&[parent.coin(0)], 450, 1);
    world.validate(&large).await;
    world.until_consumed().await;
    running.kill().await;
    let api = Api::start(&world, &[]).await;
    let mut path = format!("/transactions/{}", large.txid);
    for (first, shown) in [(0, 200), (200, 200), (400, 50)] {
        let (status, body) = api.send(Method::GET, &path, None).await;
        let body = String::from_utf8(body.to_vec()).unwrap();
        assert_eq!(status, 200, "{path}");
        let rows = (0..450).filter(|vout| body.contains(&format!("id=\"output-{vout}\"")));
        assert!(rows.eq(first..first + shown), "{path}");
        assert_eq!(body.contains("Earlier"), first > 0, "{path}");
        match first + shown {
            450 => assert!(!body.contains("Further"), "{path}"),
            next => path = format!("/transactions/{}?outputs={next}", large.txid),
        }
        assert!(body.contains(&path) || first == 400, "the page links to {path}");
    }
}

/// Runs a test of the page in a browser, beside the server.
async fn in_browser(work: impl FnOnce(&mut Browser) + Send + 'static) {
    let browse = move || {
        if let Some(mut browser) = Browser::start() {
            work(&mut browser);
        }
    };
    tokio::task::spawn_blocking(browse).await.unwrap();
}

/// Asserts that the loaded page has asked its own host only, and that nothing was refused or run.
fn check_page(browser: &mut Browser, home: &str) {
    let page = browser.evaluate("location.href + ' at ' + innerWidth");
    let complaints = browser.complaints();
    assert!(complaints.is_empty(), "{page}: {complaints:?}");
    for address in browser.addresses() {
        assert!(address.starts_with(home) || address == "data:,", "{address}");
    }
    assert_eq!(browser.evaluate("document.querySelectorAll('script, img, iframe, link[href^=http]').length"), 0);
    let wide = browser.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth");
    assert!(wide.as_i64() <= Some(0), "{page}: {wide} px wider than the window");
}

#[tokio::test]
async fn a_reader_without_scripts_finds_everything_by_links_and_the_search() {
    let Scene { world, running, parent, mined, child, loser } = scene().await;
    let api = Api::start(&world, &[]).await;
    api.publish_halt();
    let home = format!("http://{}/", api.address);
    in_browser(move |browser| {
        browser.call("Emulation.setScriptExecutionDisabled", serde_json::json!({"value": true}));
        for (width, height) in [(1_100, 800), (390, 844)] {
            browser.resize(width, height);
            browser.open(&home);
            check_page(browser, &home);
            assert!(browser.text().contains("a damaged event"), "{}", browser.text());
            let search = |browser: &mut Browser, text: &str| {
                browser.evaluate(&format!("document.querySelector('input[name=q]').value = '{text}'"));
                browser.follow("form button");
                check_page(browser, &home);
            };
            search(browser, &Outpoint { txid: parent.txid, vout: 0 }.to_string());
            assert_eq!(browser.evaluate("document.querySelector(':target').id"), "output-0");
            let follow = |browser: &mut Browser, path: &str| {
                browser.follow(&format!("main a[href^='{path}']"));
                check_page(browser, &home);
            };
            let transaction = |txid: Txid| format!("/transactions/{txid}");
            follow(browser, &transaction(mined.txid));
            assert!(browser.text().contains("Block") && browser.text().contains("SPENT"), "{}", browser.text());
            follow(browser, &transaction(child.txid));
            follow(browser, &transaction(mined.txid));
            follow(browser, "/blocks/");
            assert!(browser.text().contains("Longest chain"), "{}", browser.text());
            browser.follow("nav a[href='/conflicting']");
            check_page(browser, &home);
            follow(browser, &transaction(loser.txid));
            follow(browser, &format!("{}/history", transaction(loser.txid)));
            assert!(browser.text().contains("contested by"), "{}", browser.text());
            follow(browser, &transaction(mined.txid));
            browser.follow("nav a[href='/unmined']");
            follow(browser, &transaction(child.txid));
            browser.follow("nav a[href='/docs']");
            check_page(browser, &home);
            assert!(browser.text().contains("/v1/outputs:batch"), "{}", browser.text());
        }
    })
    .await;
    running.kill().await;
}

#[tokio::test]
async fn a_hostile_text_is_shown_as_text() {
    let Scene { world, running, .. } = scene().await;
    let api = Api::start(&world, &[]).await;
    api.publish_halt();
    let home = format!("http://{}/", api.address);
    let policy = api.client.get(&home).send().await.unwrap().headers()["content-security-policy"].clone();
    assert!(policy.to_str().unwrap().starts_with("default-src 'none'; "), "{policy:?}");
    in_browser(move |browser| {
        let encoded: String = HOSTILE.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let paths = ["", "conflicting?cursor=", "unmined?cursor=", "?"];
        for (path, given) in paths.into_iter().zip(["", &encoded, &encoded, &encoded]) {
            browser.open(&format!("{home}{path}{given}"));
            assert!(browser.text().contains("<script>document.title"), "{path}: {}", browser.text());
            assert_ne!(browser.evaluate("document.title"), "taken", "{path}");
            assert_eq!(browser.evaluate("document.querySelectorAll('script, img').length"), 0, "{path}");
            assert!(browser.addresses().iter().all(|address| address.starts_with(&home) || *address == "data:,"));
        }
    })
    .await;
    running.kill().await;
}

/// `make pictures`: takes the pictures of the page on the store of the demo.
#[test]
#[ignore = "writes docs/pictures: make pictures"]
fn take_the_pictures_of_the_documents() {
    let (mut demo, address) = KeptDemo::start();
    let mut browser = Browser::start().expect("Chromium");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(PICTURES);
    fs::create_dir_all(&folder).unwrap();
    browser.call(
        "Emulation.setEmulatedMedia",
        serde_json::json!({"features": [
            {"name": "prefers-color-scheme", "value": "light"},
        ]}),
    );
    let parent = "828ef3b079f9c23829c56fe86e85b4a69d9e06e5b54ea597eef5fb3ffef509fe";
    browser.resize(1_000, 640);
    for (name, path) in [
        ("home", "/".to_owned()),
        ("transaction", format!("/transactions/{parent}")),
        ("conflicting", "/conflicting".to_owned()),
        ("docs", "/docs#get_output".to_owned()),
    ] {
        browser.open(&format!("http://{address}{path}"));
        fs::write(folder.join(format!("{name}.png")), browser.picture()).unwrap();
    }
    browser.follow("nav a[href='/conflicting']");
    browser.follow("main a[href^='/transactions/']");
    browser.follow("main a[href$='/history']");
    fs::write(folder.join("history.png"), browser.picture()).unwrap();
    browser.resize(390, 700);
    browser.open(&format!("http://{address}/transactions/{parent}"));
    fs::write(folder.join("phone.png"), browser.picture()).unwrap();
    drop(browser);
    assert!(demo.stop(), "the demo stops at SIGINT");
}
