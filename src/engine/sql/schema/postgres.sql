CREATE TABLE store (
    one_row BIGINT PRIMARY KEY CHECK (one_row = 1),
    schema_version BIGINT NOT NULL,
    database_id BYTEA NOT NULL,
    network TEXT NOT NULL,
    utxo_batch_size BIGINT NOT NULL
);

CREATE TABLE transactions (
    txid BYTEA NOT NULL,
    page BIGINT NOT NULL,
    version BIGINT NOT NULL,
    lock_time BIGINT NOT NULL,
    fee BIGINT NOT NULL,
    size_in_bytes BIGINT NOT NULL,
    extended_size BIGINT NOT NULL,
    coinbase BOOLEAN NOT NULL,
    locked BOOLEAN NOT NULL,
    conflicting BOOLEAN NOT NULL,
    frozen BOOLEAN NOT NULL,
    creating_at BIGINT,
    spending_height BIGINT,
    delete_at_height BIGINT,
    pruned BIGINT,
    slots BIGINT,
    output_rows BIGINT,
    created_at BIGINT,
    unmined_since BIGINT,
    preserve_until BIGINT,
    verdict BIGINT,
    reason BYTEA,
    inputs BYTEA,
    rest BYTEA NOT NULL,
    PRIMARY KEY (txid, page),
    CHECK (slots IS NULL OR output_rows IS NOT NULL)
);

CREATE INDEX transactions_delete_at_height ON transactions (delete_at_height, txid, page)
    WHERE delete_at_height IS NOT NULL;

CREATE INDEX transactions_unmined_since ON transactions (unmined_since, txid, page)
    WHERE unmined_since IS NOT NULL;

CREATE INDEX transactions_creating_at ON transactions (creating_at, txid, page)
    WHERE creating_at IS NOT NULL;

CREATE INDEX transactions_verdict ON transactions (verdict, txid, page)
    WHERE verdict IS NOT NULL AND pruned IS NULL;

CREATE TABLE outputs (
    txid BYTEA NOT NULL,
    vout BIGINT NOT NULL,
    utxo_hash BYTEA,
    satoshis BIGINT,
    script BYTEA,
    spender BYTEA,
    spender_input BIGINT,
    frozen BOOLEAN NOT NULL,
    spendable_in BIGINT,
    owner_satoshis BIGINT,
    owner_script BYTEA,
    PRIMARY KEY (txid, vout)
);

CREATE TABLE mined_in (
    txid BYTEA NOT NULL,
    position BIGINT NOT NULL,
    block_id BIGINT NOT NULL,
    height BIGINT NOT NULL,
    subtree BIGINT NOT NULL,
    PRIMARY KEY (txid, position)
);

CREATE INDEX mined_in_block_id ON mined_in (block_id, txid);

CREATE TABLE blocks (
    block_id BIGINT PRIMARY KEY,
    hash BYTEA NOT NULL,
    previous BYTEA NOT NULL,
    height BIGINT NOT NULL,
    time BIGINT NOT NULL,
    longest_chain BOOLEAN NOT NULL,
    progress BIGINT NOT NULL,
    chain_offset BIGINT,
    chain_phase BIGINT
);

CREATE TABLE other_records (
    key BYTEA NOT NULL PRIMARY KEY,
    record BYTEA NOT NULL
);

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
SELECT script, count(*) AS outputs, sum(satoshis)::BIGINT AS satoshis
FROM unspent_outputs
WHERE script IS NOT NULL
GROUP BY script;
