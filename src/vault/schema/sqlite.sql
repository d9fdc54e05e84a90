CREATE TABLE vault (
    one_row INTEGER PRIMARY KEY CHECK (one_row = 1),
    schema_version INTEGER NOT NULL,
    database_id BLOB NOT NULL,
    network TEXT NOT NULL,
    watch_version INTEGER NOT NULL
);

CREATE TABLE owners (
    owner_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
);

CREATE TABLE scripts (
    script_id INTEGER PRIMARY KEY,
    owner_id INTEGER NOT NULL,
    script_hash BLOB NOT NULL UNIQUE,
    script BLOB NOT NULL,
    address TEXT,
    watched_at INTEGER NOT NULL,
    watch_version INTEGER NOT NULL
);

CREATE INDEX scripts_owner ON scripts (owner_id, script_id);

CREATE INDEX scripts_watch_version ON scripts (watch_version);

CREATE TABLE outputs (
    txid BLOB NOT NULL,
    vout INTEGER NOT NULL,
    owner_id INTEGER NOT NULL,
    script_id INTEGER NOT NULL,
    satoshis INTEGER NOT NULL,
    own_change BOOLEAN NOT NULL,
    standing INTEGER NOT NULL,
    was_live BOOLEAN NOT NULL,
    height INTEGER,
    spendable_from INTEGER,
    spender BLOB,
    spender_input INTEGER,
    seen_at INTEGER NOT NULL,
    asked_at INTEGER,
    ask_at INTEGER,
    asks INTEGER NOT NULL,
    changes INTEGER NOT NULL,
    lock_id BLOB,
    PRIMARY KEY (txid, vout)
) WITHOUT ROWID;

CREATE INDEX outputs_free ON outputs (owner_id, satoshis) WHERE standing = 1 AND lock_id IS NULL;

CREATE INDEX outputs_locked ON outputs (owner_id) WHERE standing = 1 AND lock_id IS NOT NULL;

CREATE INDEX outputs_free_by_height ON outputs (owner_id, height) WHERE standing = 1 AND lock_id IS NULL;

CREATE INDEX outputs_unconfirmed ON outputs (standing) WHERE height IS NULL;

CREATE INDEX outputs_height ON outputs (height) WHERE height IS NOT NULL;

CREATE INDEX outputs_owner ON outputs (owner_id, txid, vout);

CREATE INDEX outputs_script ON outputs (script_id);

CREATE INDEX outputs_lock ON outputs (lock_id) WHERE lock_id IS NOT NULL;

CREATE INDEX outputs_ask_at ON outputs (ask_at) WHERE ask_at IS NOT NULL;

CREATE INDEX outputs_asked_at ON outputs (asked_at) WHERE standing IN (1, 3) AND ask_at IS NULL;

CREATE INDEX outputs_gone ON outputs (asked_at) WHERE standing IN (2, 5);

CREATE INDEX outputs_open ON outputs (seen_at) WHERE standing IN (0, 4) AND NOT was_live;

CREATE TABLE claims (
    spender BLOB NOT NULL,
    txid BLOB NOT NULL,
    vout INTEGER NOT NULL,
    is_out BOOLEAN NOT NULL,
    bars_until INTEGER NOT NULL,
    PRIMARY KEY (spender, txid, vout)
) WITHOUT ROWID;

CREATE INDEX claims_output ON claims (txid, vout);

CREATE TABLE locks (
    lock_id BLOB PRIMARY KEY,
    owner_id INTEGER NOT NULL,
    session BOOLEAN NOT NULL,
    opened_at INTEGER NOT NULL,
    lease_ms INTEGER,
    expires_at INTEGER,
    ended_at INTEGER
) WITHOUT ROWID;

CREATE INDEX locks_owner ON locks (owner_id, lock_id);

CREATE INDEX locks_expires_at ON locks (expires_at) WHERE expires_at IS NOT NULL AND ended_at IS NULL;

CREATE INDEX locks_ended_at ON locks (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE requests (
    owner_id INTEGER NOT NULL,
    request_id TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    answer TEXT NOT NULL,
    requested_at INTEGER NOT NULL,
    PRIMARY KEY (owner_id, request_id)
) WITHOUT ROWID;

CREATE INDEX requests_requested_at ON requests (requested_at);

CREATE TABLE positions (
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    topic_id BLOB,
    next_offset INTEGER NOT NULL,
    PRIMARY KEY (topic, partition)
) WITHOUT ROWID;

CREATE TABLE rescans (
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    above_version INTEGER NOT NULL,
    up_to_version INTEGER NOT NULL,
    next_offset INTEGER NOT NULL,
    end_offset INTEGER NOT NULL,
    PRIMARY KEY (topic, partition, up_to_version, above_version)
) WITHOUT ROWID;

CREATE TABLE tips (
    height INTEGER PRIMARY KEY,
    hash BLOB NOT NULL
);

CREATE TABLE workers (
    name TEXT PRIMARY KEY,
    holder BLOB NOT NULL,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;
