//! PostgreSQL (Debian's package `postgresql`) in a temporary folder, on a Unix socket there, as a user of its own.
//!
//! One server is shared by all tests of the process, each with a database of its own. A keeper process stops the server
//! once its own standard input has ended, which happens when the test process ends, however that happens.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Port that names the socket of a server without TCP.
const PORT: u16 = 5432;

/// Makes a cluster in `$1` with the programs in `$2`, says `ready`, and stops the server at the end of its input. Each
/// line of the input starts the server again after it was killed. `initdb` refuses root. With another port than the
/// default as `$3` the server listens on loopback, too, with the certificate in `$1`.
const KEEPER: &str = r#"
folder=$1 programs=$2 port=$3
as= listen=-clisten_addresses=
if [ "$port" != 5432 ]; then
    listen="-clisten_addresses=127.0.0.1 -cssl=on -cssl_cert_file=$folder/server.pem -cssl_key_file=$folder/server.key"
fi
if [ "$(id -u)" = 0 ]; then
    chown -R nobody "$folder"
    as="setpriv --reuid=nobody --regid=nogroup --clear-groups"
fi
cd "$folder"
$as "$programs/initdb" -D "$folder/data" -U utxo --auth-local=trust --auth-host=scram-sha-256 \
    --no-sync -E UTF8 --locale=C >"$folder/initdb.log" 2>&1 || {
    cat "$folder/initdb.log" >&2
    exit 1
}
start() {
    $as "$programs/postgres" -D "$folder/data" $listen -c port="$port" -c unix_socket_directories="$folder" \
        -c max_connections=200 -c shared_buffers=64MB >>"$folder/server.log" 2>&1 &
    server=$!
    tries=600
    until "$programs/pg_isready" -q -h "$folder" -p "$port" || [ $((tries -= 1)) = 0 ]; do sleep 0.1; done
    echo ready
}
start
while read -r order; do
    case $order in
        kill) kill -QUIT $server; wait $server; start ;;
        restart) kill -INT $server; wait $server; start ;;
    esac
done
kill -INT $server
wait $server
rm -rf "$folder"
"#;

/// A running server.
pub struct PostgresServer {
    _keeper: Child,
    input: ChildStdin,
    answers: std::io::Lines<BufReader<std::process::ChildStdout>>,
    socket: PathBuf,
    port: u16,
}

/// A database on a server.
#[derive(Clone)]
pub struct PostgresDatabase {
    socket: PathBuf,
    port: u16,
    pub name: String,
}

impl PostgresServer {
    /// Starts a server of its own; `None`, with a line on standard error, where PostgreSQL is not installed.
    pub fn start() -> Option<Self> {
        Self::start_with(PORT, |_| {})
    }

    /// Starts a server that listens on this port of loopback, too, with a password for each login there and with this
    /// certificate and key; `None` as for [`start`](Self::start).
    pub fn start_on_tcp(port: u16, certificate: &Path, key: &Path) -> Option<Self> {
        Self::start_with(port, |folder| {
            for (from, name) in [(certificate, "server.pem"), (key, "server.key")] {
                std::fs::copy(from, folder.join(name)).unwrap();
            }
            let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(folder.join("server.key"), private).unwrap();
        })
    }

    /// Starts a server in a folder that `prepare` has filled.
    fn start_with(port: u16, prepare: impl FnOnce(&Path)) -> Option<Self> {
        let Some(programs) = find_programs() else {
            eprintln!("SKIPPED: tests on PostgreSQL: `initdb` is not installed");
            return None;
        };
        // The keeper removes the folder.
        let folder = tempfile::Builder::new().prefix("utxo-postgres").tempdir().unwrap().keep();
        prepare(&folder);
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "sh"])
            .args([&folder, &programs])
            .arg(port.to_string())
            // A signal to the group of the test would end the keeper before it stops the server.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = keeper.stdin.take().unwrap();
        let answers = BufReader::new(keeper.stdout.take().unwrap()).lines();
        let mut server = PostgresServer { _keeper: keeper, input, answers, socket: folder, port };
        server.wait_until_ready();
        Some(server)
    }

    fn wait_until_ready(&mut self) {
        let answer = self.answers.next().expect("PostgreSQL did not start").unwrap();
        assert_eq!(answer, "ready");
    }

    /// Stops the server (`restart`) or kills it (`kill`), and starts it again.
    pub fn restart(&mut self, order: &str) {
        use std::io::Write;
        writeln!(self.input, "{order}").unwrap();
        self.wait_until_ready();
    }

    /// Makes a new database.
    pub fn database(&self) -> PostgresDatabase {
        create_database(&self.socket, self.port)
    }
}

/// Makes a new database on the server that all tests share; `None`: PostgreSQL is not installed.
pub fn shared_database() -> Option<PostgresDatabase> {
    static SERVER: OnceLock<Option<std::sync::Mutex<PostgresServer>>> = OnceLock::new();
    let server = SERVER.get_or_init(|| PostgresServer::start().map(std::sync::Mutex::new));
    if server.is_none() {
        eprintln!("SKIPPED: tests on PostgreSQL: `initdb` is not installed");
    }
    Some(create_database(&server.as_ref()?.lock().unwrap().socket, PORT))
}

fn create_database(socket: &Path, port: u16) -> PostgresDatabase {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = format!("store_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let database = PostgresDatabase { socket: socket.to_owned(), port, name: "postgres".to_owned() };
    database.sql(&format!("CREATE DATABASE {name}"));
    PostgresDatabase { name, ..database }
}

impl PostgresDatabase {
    /// Returns the URL of the database.
    pub fn url(&self) -> String {
        format!("postgres://utxo:secret@/{}?host={}", self.name, self.socket.display())
    }

    /// Runs statements, and returns the rows: columns separated by `|`.
    pub fn sql(&self, statements: &str) -> String {
        let port = self.port.to_string();
        let place = ["-U", "utxo", "-d", &self.name, "-p", &port, "-h"].map(OsStr::new);
        psql(&[&place[..], &[self.socket.as_os_str()]].concat(), statements)
    }

    /// Ends every other session of the database, until at least one was there.
    pub fn end_sessions(&self) {
        let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() \
                   AND pid <> pg_backend_pid()";
        let until = Instant::now() + Duration::from_secs(60);
        while self.sql(end) == "0" {
            assert!(Instant::now() < until, "no session");
        }
    }
}

/// Runs statements in the database that arguments of `psql` name, and returns the rows: columns separated by `|`.
fn psql(database: &[&OsStr], statements: &str) -> String {
    let mut command = Command::new("psql");
    command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", statements]).args(database);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{statements}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// Waits until no session of a database works or has a transaction open. The server ends the work of a client that is
/// gone in its own time. URLs of other engines have no such sessions.
pub fn until_idle(url: &str) {
    if !url.starts_with("postgres://") {
        return;
    }
    let busy = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() \
                AND backend_type = 'client backend' AND state <> 'idle'";
    // The server ends a session that is idle in a transaction after a minute.
    let until = Instant::now() + Duration::from_secs(40);
    let mut quiet = 0;
    // A session that is about to read its next statement looks idle: one look more.
    while quiet < 2 {
        assert!(Instant::now() < until, "a session of {url} works, or has a transaction open, for over 40 s");
        quiet = if psql(&[OsStr::new(url)], busy) == "0" { quiet + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Finds the folder with `initdb`: of the path, or of Debian's package.
fn find_programs() -> Option<PathBuf> {
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = debian.map(|entry| entry.path().join("bin")).collect();
    folders.sort();
    folders.reverse();
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    folders.into_iter().find(|folder| folder.join("initdb").exists() && folder.join("pg_isready").exists())
}
