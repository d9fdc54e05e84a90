//! The document of the schema, the URLs, and the plans of the statements.

use crate::engine::StoreUrl;

#[test]
fn the_document_has_the_statements_of_the_code() {
    let document = include_str!("../../../schemas/sql.md");
    let schemas = [include_str!("schema/sqlite.sql"), include_str!("schema/postgres.sql")];
    let blocks: Vec<&str> = document.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(blocks, schemas);
}

#[test]
fn urls_parse_and_reveal_round_trips() {
    for (url, shown) in [
        ("sqlite:///data/utxo.sqlite?expiration=24h", "sqlite:///data/utxo.sqlite?expiration=24h"),
        ("sqlitememory:///utxo?logging=true", "sqlitememory:///utxo?logging=true"),
        (
            "postgres://miner1:mi%40ner/1@host.dev:5433/teranode-store?expiration=7d",
            "postgres://miner1:***@host.dev:5433/teranode-store?expiration=7d",
        ),
        ("postgresql://host/db", "postgres://host:5432/db"),
        ("postgres://me@[::1]/db?sslmode=verify-full", "postgres://me@[::1]:5432/db?sslmode=verify-full"),
        ("postgres:///db?host=/run/postgresql", "postgres://:5432/db?host=/run/postgresql"),
        (
            "postgres://me:a%20b@/db?host=/run/postgresql&PostgresMaxOpenConns=20&PostgresMaxIdleConns=0",
            "postgres://me:***@:5432/db?host=/run/postgresql&PostgresMaxOpenConns=20&PostgresMaxIdleConns=0",
        ),
        ("sqlite:///a%20b/%3F?externalStore=file:///x%26y", "sqlite:///a b/%3F?externalStore=file:///x%26y"),
    ] {
        let parsed: StoreUrl = url.parse().unwrap_or_else(|error| panic!("{url}: {error}"));
        assert_eq!(parsed.to_string(), shown);
        assert_eq!(parsed.reveal().parse::<StoreUrl>().unwrap(), parsed, "{}", parsed.reveal());
        let debug = format!("{parsed:?}");
        assert!(!debug.contains("ner/1") && !debug.contains("a b@"), "{debug}");
    }
}

#[test]
fn invalid_urls_are_refused_without_the_password() {
    for (url, says) in [
        ("sqlite://data/utxo", "needs an absolute path"),
        ("sqlite:///", "needs an absolute path"),
        ("sqlite:///a?cache=3", "no parameter `cache`"),
        ("sqlite:///a?PostgresMaxOpenConns=3", "no parameter `PostgresMaxOpenConns`"),
        ("sqlite:///a?logging=yes", "must be true or false"),
        ("sqlite:///a?expiration=soon", "a duration such as 24h or 7d"),
        ("sqlite:///a?expiration=24", "a duration such as 24h or 7d"),
        ("sqlitememory://", "needs a name"),
        ("sqlitememory:///a/b", "needs a name"),
        ("postgres://me:secret@host:5432", "needs a host and a database"),
        ("postgres://me:secret@host/a/b", "needs a host and a database"),
        ("postgres://me:secret@/db", "needs a host and a database"),
        ("postgres://me:secret@host:70000/db", "port"),
        ("postgres://me:secret@/db?host=folder", "absolute path of the folder"),
        ("postgres://me:secret@host/db?sslmode=maybe", "must be disable, prefer"),
        ("postgres://me:secret@host/db?PostgresMaxOpenConns=1", "at least 2"),
        ("postgres://me:secret@host/db?ConnectionQueueSize=1", "`store.sql.max_open_connections` bounds"),
        ("sqlite:///a?LimitConnectionsToQueueSize=true", "a file has no connections"),
        ("postgres://me:secret@host/db?set=txmeta", "a database holds one store"),
        ("postgres://me:12?secret@host/db", "write `%3F`"),
        ("postgres://me:12/3?secret@host/db", "write `%3F`"),
    ] {
        let error = url.parse::<StoreUrl>().unwrap_err().to_string();
        assert!(error.contains(says) && !error.contains("secret") && !error.contains('\n'), "{url}: {error}");
    }
}

#[test]
fn parameters_of_the_reference_name_the_settings_for_which_they_stand() {
    for (url, says) in [
        ("sqlite:///a?expiration=24h", "store.block_height_retention"),
        ("postgres://h/db?PostgresMaxOpenConns=7", "store.sql.max_open_connections"),
        ("postgres://h/db?PostgresMaxIdleConns=7", "store.sql.max_idle_connections"),
        ("aerospike://h/ns?ConnectionQueueSize=7&LimitConnectionsToQueueSize=true", "store.aerospike.connections"),
        ("memory://localhost:8080/splitbyhash", "no effect"),
        ("memory://localhost:8080/all", "no effect"),
    ] {
        let parsed: StoreUrl = url.parse().unwrap();
        let notices = parsed.notices();
        assert!(notices.len() == 1 && notices[0].contains(says), "{url}: {notices:?}");
        assert_eq!(parsed.to_string().parse::<StoreUrl>().unwrap(), parsed, "{url}");
    }
    let refused = "aerospike://h/ns?LimitConnectionsToQueueSize=false".parse::<StoreUrl>().unwrap_err().to_string();
    assert!(refused.contains("never exceed store.aerospike.connections"), "{refused}");
    for url in ["memory://", "null:///", "sqlite:///a", "postgres://h/db", "aerospike://h/ns"] {
        assert_eq!(url.parse::<StoreUrl>().unwrap().notices(), [""; 0], "{url}");
    }
}
