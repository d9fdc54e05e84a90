//! The servers of the bench, and the processes of the program on them.

use std::{fs::File, process::Stdio, sync::Arc};

use utxo_store::{
    broker::Message,
    engine::{
        RecordEngine, Row, StoreUrl,
        aerospike::{AerospikeEngine, AerospikeSettings},
    },
    prepare::{PrepareSettings, PreparedEvent, prepare},
    record::{Key, Operation, Outcome, Page, Rules, build::InlineBodies},
    tx::Network,
};

use crate::{
    aerospike_server::{AerospikeServer, FIT, Setup},
    kafka_server::KafkaServer,
    program::{Bench, Instance, until},
};

pub const RULES: Rules = Rules::main(288);
const PREPARE: PrepareSettings =
    PrepareSettings { network: Network::Main, utxo_batch_size: 20_000, inline: InlineBodies::All };
/// Rows of one call while a store is filled.
const FILL_BATCH: usize = 2_000;

/// The broker of the bench, a process of its own.
pub struct BenchServers {
    pub kafka: KafkaServer,
}

/// Topics, a database and directories of one case.
pub struct Deployment {
    pub program: Bench,
    /// A server for each case: the records of several cases do not fit the memory of one.
    aerospike: AerospikeServer,
    store_url: String,
}

/// Starts a database; `None`: none can be had, and the reason is printed.
pub fn start_database() -> Option<AerospikeServer> {
    AerospikeServer::start_own(Setup { durable: false, namespace: FIT })
}

impl BenchServers {
    /// Creates the topics of a case, and names an empty store.
    pub fn deploy(&self) -> Deployment {
        let program = Bench::on(self.kafka.bootstrap_servers());
        // A reader of objects refuses a directory that does not exist.
        std::fs::create_dir(program.path("objects")).expect("the directory belongs to the bench");
        tokio::task::block_in_place(|| program.create_topics());
        let aerospike = tokio::task::block_in_place(start_database).expect("the bench has started one before");
        let store_url = aerospike.url();
        Deployment { program, aerospike, store_url }
    }
}

impl Deployment {
    /// Returns the process id of the database.
    pub fn database(&self) -> u32 {
        self.aerospike.process_id().expect("the server is a process of the bench")
    }

    /// Starts `utxo-store run`, and waits until it is ready.
    pub fn start_instance(&self, variables: &[(&str, &str)]) -> Instance {
        let own = self.variables();
        let own = own.iter().map(|(name, value)| (*name, value.as_str()));
        let all: Vec<(&str, &str)> = own.chain(variables.iter().copied()).collect();
        tokio::task::block_in_place(|| self.program.start_with(&all))
    }

    /// Starts `utxo-store serve`, and waits until it is ready. The store exists: an instance has run.
    pub fn start_server(&self, variables: &[(&str, &str)]) -> Instance {
        let file = self.program.path("serve-address");
        std::fs::remove_file(&file).ok();
        let own = self.variables();
        let own = own.iter().map(|(name, value)| (*name, value.as_str()));
        let all: Vec<(&str, &str)> = own.chain(variables.iter().copied()).collect();
        let arguments = ["serve", "--http-address-file", file.to_str().expect("a path of the bench is text")];
        let log = File::create(self.program.path("serve.log")).expect("the directory belongs to the bench");
        let mut command = self.program.command(&arguments, &all);
        let child = command.stdin(Stdio::null()).stderr(log).spawn().expect("the program was built");
        let mut server = Instance { child, address: String::new() };
        tokio::task::block_in_place(|| {
            until("the address is known", || file.exists());
            server.address = std::fs::read_to_string(&file).expect("the server wrote it").trim().to_owned();
            until("the server is ready", || server.get("/health/ready").starts_with("HTTP/1.1 200"));
        });
        server
    }

    /// Opens the store of the case.
    pub async fn open_engine(&self) -> Arc<AerospikeEngine> {
        Arc::new(AerospikeEngine::open(&self.settings(), RULES).await.expect("the server was set up for it"))
    }

    pub fn settings(&self) -> AerospikeSettings {
        match self.store_url.parse() {
            Ok(StoreUrl::Aerospike(settings)) => settings,
            other => panic!("the bench writes URLs of Aerospike: {other:?}"),
        }
    }

    /// Returns the directory of the objects to which events refer.
    pub fn objects_url(&self) -> String {
        format!("file://{}", self.program.path("objects").display())
    }

    /// Returns the settings of the case as environment variables.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        vec![
            ("UTXO_STORE__STORE__URL", self.store_url.clone()),
            ("UTXO_STORE__STORE__BLOBS__URL", format!("file://{}", self.program.path("blobs").display())),
            ("UTXO_STORE__OBJECTS__URL", self.objects_url()),
            ("UTXO_STORE__HTTP__API", "true".to_owned()),
        ]
    }
}

/// Creates the masters of these messages in the store.
pub async fn create(engine: &dyn RecordEngine, messages: &[Message]) {
    let row = |page: Arc<Page>| Row { key: Key::master(page.txid), operation: Operation::Create(page) };
    let rows: Vec<Row> = messages.iter().map(page_of).map(row).collect();
    for rows in rows.chunks(FILL_BATCH) {
        for answer in engine.apply(rows).await {
            assert!(matches!(answer, Ok(Outcome::Applied(_))), "{answer:?}");
        }
    }
}

fn page_of(message: &Message) -> Arc<Page> {
    match prepare(&PREPARE, message) {
        Ok(PreparedEvent::Validated(tx)) => tx.page.clone(),
        other => panic!("the generator makes valid transactions only: {other:?}"),
    }
}
