ALTER TABLE transactions ADD COLUMN output_rows INTEGER;

UPDATE transactions SET output_rows = (
    SELECT count(*)
    FROM store s
    JOIN outputs o ON o.txid = transactions.txid
        AND o.vout BETWEEN transactions.page * s.utxo_batch_size AND (transactions.page + 1) * s.utxo_batch_size - 1
)
WHERE slots IS NOT NULL;

CREATE TRIGGER transactions_have_output_rows BEFORE INSERT ON transactions
WHEN NEW.slots IS NOT NULL AND NEW.output_rows IS NULL
BEGIN
    SELECT raise(ABORT, 'output_rows is missing: an earlier version of utxo-store is still running; stop it');
END;

UPDATE store SET schema_version = 2;
