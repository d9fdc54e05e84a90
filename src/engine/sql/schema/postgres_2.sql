SET LOCAL statement_timeout = 0;

ALTER TABLE transactions ADD COLUMN output_rows BIGINT;

UPDATE transactions SET output_rows = (
    SELECT count(*)
    FROM store s
    JOIN outputs o ON o.txid = transactions.txid
        AND o.vout BETWEEN transactions.page * s.utxo_batch_size AND (transactions.page + 1) * s.utxo_batch_size - 1
)
WHERE slots IS NOT NULL;

ALTER TABLE transactions ADD CHECK (slots IS NULL OR output_rows IS NOT NULL);

UPDATE store SET schema_version = 2;
