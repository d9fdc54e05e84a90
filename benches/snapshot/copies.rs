//! Import, export, creation, restore and migration on one engine.

use std::fs;

use crate::{
    aerospike_server::AerospikeServer,
    file,
    kafka_server::KafkaServer,
    measured::{self, Measured},
    postgres_server::PostgresServer,
    process::mib,
    program::Bench,
    setup::start_database,
};

/// The places of three empty stores on one engine: the imported store, the restored one and the migrated one.
pub enum Place {
    Aerospike([AerospikeServer; 2]),
    Postgres(PostgresServer),
    /// The scheme of an engine whose stores are folders or files.
    Local(&'static str),
}

impl Place {
    /// Starts the servers of an engine; `None`: a server cannot be had.
    pub fn open(engine: &str) -> Option<Self> {
        Some(match engine {
            "aerospike" => Place::Aerospike([start_database()?, start_database()?]),
            "postgres" => Place::Postgres(PostgresServer::start()?),
            "sqlite" => Place::Local("sqlite"),
            _ => Place::Local("fjall"),
        })
    }

    fn name(&self) -> &'static str {
        match self {
            Place::Aerospike(_) => "aerospike",
            Place::Postgres(_) => "postgres",
            Place::Local(scheme) => scheme,
        }
    }

    /// Returns the URLs. The migrated store of Aerospike has the other layout.
    fn urls(&self, program: &Bench) -> [String; 3] {
        match self {
            Place::Aerospike([first, second]) => {
                [first.url(), second.url(), format!("{}&layout=teranode", second.url())]
            }
            Place::Postgres(server) => [(); 3].map(|()| server.database().url()),
            Place::Local(scheme) => {
                ["imported", "restored", "migrated"].map(|name| format!("{scheme}://{}", program.path(name).display()))
            }
        }
    }
}

/// Imports a file of this many outputs, exports the store as a file, creates a snapshot of the store, restores the
/// snapshot, and migrates the store. Both copies must have the digest of their source.
pub fn measure(kafka: &KafkaServer, place: &Place, outputs: u64) {
    let program = Bench::on(kafka.bootstrap_servers());
    program.create_topics();
    let [imported, restored, migrated] = place.urls(&program);
    let path = |name: &str| program.path(name).display().to_string();
    let [file, exported, blobs, other_blobs, shelf] =
        ["utxos.dat", "exported.dat", "blobs", "blobs-restored", "snapshots"].map(path);
    let [blobs, other_blobs, shelf] = [blobs, other_blobs, shelf].map(|path| format!("file://{path}"));
    let bytes = file::write(&program.path("utxos.dat"), outputs);

    let import = ["utxo-set", "import", "--from", &file, "--store", &imported, "--blobs", &blobs];
    print(place, "import", &measured::run(&program, &import, &[]), outputs, bytes);
    let variables = [("UTXO_STORE__STORE__URL", imported.as_str()), ("UTXO_STORE__STORE__BLOBS__URL", blobs.as_str())];
    // A snapshot is that of a group. The first start of an imported store catches up, the second one has caught up.
    for _ in 0..2 {
        let mut instance = program.start_with(&variables);
        instance.signal("TERM");
        assert!(instance.wait().success(), "the instance ends");
    }
    let export = ["utxo-set", "export", "--store", &imported, "--blobs", &blobs, "--to", &exported];
    print(place, "export", &measured::run(&program, &export, &variables), outputs, bytes);
    let create = measured::run(&program, &["snapshot", "create", "--to", &shelf], &variables);
    let chunks = create.report["bytes"].as_u64().expect("the report has the bytes");
    print(place, "create", &create, outputs, chunks);
    let restore = ["snapshot", "restore", "--from", &shelf, "--store", &restored, "--blobs", &other_blobs];
    print(place, "restore", &measured::run(&program, &restore, &variables), outputs, chunks);
    let migrate = measured::run(&program, &["migrate", "--from", &imported, "--to", &migrated], &variables);
    print(place, "migrate", &migrate, outputs, chunks);
    let stats = |store: &str, blobs: &str| {
        measured::run(&program, &["stats", "--store", store, "--blobs", blobs], &[]).report["digest"].clone()
    };
    let source = stats(&imported, &blobs);
    let copies = [stats(&restored, &other_blobs), stats(&migrated, &blobs)];
    assert!(source.is_string() && copies.iter().all(|copy| *copy == source), "digests of {source}: {copies:?}");
    println!("{:<10} digest of the source, the restored and the migrated store: {source}", place.name());
    fs::remove_dir_all(program.directory.path()).ok();
}

fn print(place: &Place, command: &str, measured: &Measured, outputs: u64, bytes: u64) {
    let seconds = measured.time.as_secs_f64();
    println!(
        "{:<10} {command:<8} {:>12.0} {:>8.1} {:>12.2} {:>10.0}",
        place.name(),
        outputs as f64 / seconds,
        bytes as f64 / 1e6 / seconds,
        measured.cpu.as_secs_f64() * 1e6 / outputs as f64,
        mib(measured.peak),
    );
}
