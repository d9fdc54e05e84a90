//! Kafka messages of the reference system, as far as the bridge reads them (protobuf 3, package `kafkamessage`).
//! Unknown fields are skipped.

use bytes::Bytes;

/// `KafkaTxValidationTopicMessage`: a transaction for the validator.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TxValidation {
    /// The transaction in extended format.
    #[prost(bytes = "bytes", tag = "1")]
    pub tx: Bytes,
    /// Height of the block that the transaction may first be in.
    #[prost(uint32, tag = "2")]
    pub height: u32,
    /// Options of the validation.
    #[prost(message, optional, tag = "3")]
    pub options: Option<TxValidationOptions>,
}

/// Options of a [`TxValidation`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct TxValidationOptions {
    /// The transaction creates no outputs in the store.
    #[prost(bool, tag = "1")]
    pub skip_utxo_creation: bool,
    /// The transaction goes to block assembly.
    #[prost(bool, tag = "2")]
    pub add_tx_to_block_assembly: bool,
    /// No rules of policy are checked.
    #[prost(bool, tag = "3")]
    pub skip_policy_checks: bool,
    /// The transaction is stored although it double-spends.
    #[prost(bool, tag = "4")]
    pub create_conflicting: bool,
}

/// `KafkaBlocksFinalTopicMessage`: a final block.
#[derive(Clone, PartialEq, prost::Message)]
pub struct BlocksFinal {
    /// The block header, 80 bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub header: Bytes,
    /// Number of transactions of the block.
    #[prost(uint64, tag = "2")]
    pub transaction_count: u64,
    /// Size of the block, bytes.
    #[prost(uint64, tag = "3")]
    pub size_in_bytes: u64,
    /// Hashes of the subtrees, 32 bytes each, in the order of the block.
    #[prost(bytes = "bytes", repeated, tag = "4")]
    pub subtree_hashes: Vec<Bytes>,
    /// The coinbase transaction in standard format.
    #[prost(bytes = "bytes", tag = "5")]
    pub coinbase_tx: Bytes,
    /// Height of the block.
    #[prost(uint32, tag = "6")]
    pub height: u32,
}
