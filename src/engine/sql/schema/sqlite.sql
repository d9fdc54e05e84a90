CREATE TABLE store (
    one_row INTEGER PRIMARY KEY CHECK (one_row = 1),
    schema_version INTEGER NOT NULL,
    database_id BLOB NOT NULL,
    network TEXT NOT NULL,
    utxo_batch_size INTEGER NOT NULL
);

CREATE TABLE transactions (
    txid BLOB NOT NULL,
    page INTEGER NOT NULL,
    version INTEGER NOT NULL,
    lock_time INTEGER NOT NULL,
    fee INTEGER NOT NULL,
    size_in_bytes INTEGER NOT NULL,
    extended_size INTEGER NOT NULL,
    coinbase BOOLEAN NOT NULL,
    locked BOOLEAN NOT NULL,
    conflicting BOOLEAN NOT NULL,
    frozen BOOLEAN NOT NULL,
    creating_at INTEGER,
    spending_height INTEGER,
    delete_at_height INTEGER,
    pruned INTEGER,
    slots INTEGER,
    output_rows INTEGER,
    created_at INTEGER,
    unmined_since INTEGER,
    preserve_until INTEGER,
    verdict INTEGER,
    reason BLOB,
    inputs BLOB,
    rest BLOB NOT NULL,
    PRIMARY KEY (txid, page)
) WITHOUT ROWID;

CREATE TRIGGER transactions_have_output_rows BEFORE INSERT ON transactions
WHEN NEW.slots IS NOT NULL AND NEW.output_rows IS NULL
BEGIN
    SELECT raise(ABORT, 'output_rows is missing: an earlier version of utxo-store is still running; stop it');
END;

CREATE INDEX transactions_delete_at_height ON transactions (delete_at_height, txid, page)
    WHERE delete_at_height IS NOT NULL;

CREATE INDEX transactions_unmined_since ON transactions (unmined_since, txid, page)
    WHERE unmined_since IS NOT NULL;

CREATE INDEX transactions_creating_at ON transactions (creating_at, txid, page)
    WHERE creating_at IS NOT NULL;

CREATE INDEX transactions_verdict ON transactions (verdict, txid, page)
    WHERE verdict IS NOT NULL AND pruned IS NULL;

CREATE TABLE outputs (
    txid BLOB NOT NULL,
    vout INTEGER NOT NULL,
    utxo_hash BLOB,
    satoshis INTEGER,
    script BLOB,
    spender BLOB,
    spender_input INTEGER,
    frozen BOOLEAN NOT NULL,
    spendable_in INTEGER,
    owner_satoshis INTEGER,
    owner_script BLOB,
    PRIMARY KEY (txid, vout)
) WITHOUT ROWID;

CREATE TABLE mined_in (
    txid BLOB NOT NULL,
    position INTEGER NOT NULL,
    block_id INTEGER NOT NULL,
    height INTEGER NOT NULL,
    subtree INTEGER NOT NULL,
    PRIMARY KEY (txid, position)
) WITHOUT ROWID;

CREATE INDEX mined_in_block_id ON mined_in (block_id, txid);

CREATE TABLE blocks (
    block_id INTEGER PRIMARY KEY,
    hash BLOB NOT NULL,
    previous BLOB NOT NULL,
    height INTEGER NOT NULL,
    time INTEGER NOT NULL,
    longest_chain BOOLEAN NOT NULL,
    progress INTEGER NOT NULL,
    chain_offset INTEGER,
    chain_phase INTEGER
);

CREATE TABLE other_records (
    key BLOB NOT NULL PRIMARY KEY,
    record BLOB NOT NULL
) WITHOUT ROWID;

CREATE VIEW unspent_outputs AS
SELECT
    o.txid,
    o.vout,
    coalesce(o.owner_satoshis, o.satoshis) AS satoshis,
    coalesce(o.owner_script, o.script) AS script,
    o.utxo_hash,
    o.frozen OR t.frozen AS frozen,
    o.spendable_in,
    t.locked,
    t.spending_height,
    t.unmined_since
FROM outputs o
JOIN transactions t ON t.txid = o.txid AND t.page = 0
WHERE o.utxo_hash IS NOT NULL
    AND o.spender IS NULL
    AND t.slots IS NOT NULL
    AND t.creating_at IS NULL
    AND NOT t.conflicting;

CREATE VIEW balances_by_script AS
SELECT script, count(*) AS outputs, sum(satoshis) AS satoshis
FROM unspent_outputs
WHERE script IS NOT NULL
GROUP BY script;
