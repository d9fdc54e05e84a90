//! Logins of PostgreSQL over TCP: a password (SCRAM), and TLS with a verified certificate.

use utxo_store::engine::{
    self, OpenOptions,
    conformance::{self, RULES},
    sql::SqlAccess,
};

use crate::{certificates::Certificates, ports::free_port, postgres_server::PostgresServer};

const PASSWORD: &str = "planted-password-81d0";

fn options(password: Option<&str>) -> OpenOptions {
    let sql = SqlAccess { password: password.map(str::to_owned), ..SqlAccess::default() };
    OpenOptions { sql, ..OpenOptions::new(RULES) }
}

/// Protects: an operator's usual login works as documented. A wrong password, or a server with a certificate of another
/// authority, is an error that shows no password.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_and_a_certificate_are_checked() {
    let Some(certificates) = Certificates::make() else { return };
    let (port, certificate, key) = (free_port(), certificates.path("server.crt"), certificates.path("server.key"));
    let Some(server) = PostgresServer::start_on_tcp(port, &certificate, &key) else { return };
    let database = server.database();
    database.sql(&format!("ALTER USER utxo PASSWORD '{PASSWORD}'"));
    let url = |login: &str, authority: &str| {
        let root = certificates.path(authority);
        let name = &database.name;
        format!("postgres://{login}@localhost:{port}/{name}?sslmode=verify-full&sslrootcert={}", root.display())
    };
    let engine = engine::open(&url("utxo", "ca.pem"), &options(Some(PASSWORD))).await.unwrap();
    conformance::CHECKS[0].run(engine.clone()).await;
    let sessions = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                    WHERE datname = current_database() AND client_addr IS NOT NULL AND ssl";
    assert_ne!(database.sql(sessions), "0", "the session is encrypted");
    engine.close().await.unwrap();
    let in_url = url(&format!("utxo:{PASSWORD}"), "ca.pem");
    engine::open(&in_url, &options(None)).await.unwrap().close().await.unwrap();

    for (url, password, words) in [
        (url("utxo", "ca.pem"), Some("planted-wrong"), "password authentication failed"),
        (url("utxo:planted-wrong", "ca.pem"), None, "password authentication failed"),
        (url("utxo", "stranger.pem"), Some(PASSWORD), "certificate"),
        (url("utxo", "ca.pem").replace("localhost", "127.0.0.1"), Some(PASSWORD), "certificate"),
    ] {
        let error = engine::open(&url, &options(password)).await.err().expect("opened").to_string();
        assert!(error.contains(words) && !error.contains("planted") && !error.contains('\n'), "{error}");
    }
}
