//! [`HttpStore`]: the store as another process answers for it, over the API (`docs/reference/api.md`).

use std::{path::PathBuf, time::Duration};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{
    http::{ClientError, JsonServer},
    source::{OUTPUTS_AT_A_TIME, OutputSource, SourceError, SourceTip},
};
use crate::{
    record::{SpendingData, StoredOutput, Verdict},
    store::{outputs::OutputState, spend_status::SpendStatus},
    tx::{Outpoint, Txid, UtxoHash},
};

/// A store that `utxo-store serve`, or an instance with `http.api = true`, answers for.
pub struct HttpStore(JsonServer);

#[derive(Serialize)]
struct OutpointList {
    outpoints: Vec<String>,
}

#[derive(Deserialize)]
struct StateList {
    outputs: Vec<StateOrError>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum StateOrError {
    Failed { error: KeyProblem },
    State(Box<AnsweredState>),
}

#[derive(Deserialize)]
struct KeyProblem {
    detail: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnsweredState {
    code: String,
    spender: Option<AnsweredSpender>,
    height: Option<u32>,
    utxo_hash: Option<String>,
    satoshis: Option<u64>,
    script: Option<String>,
    mined_height: Option<u32>,
}

#[derive(Deserialize)]
struct AnsweredSpender {
    txid: String,
    input: u32,
}

#[derive(Deserialize)]
struct AnsweredChain {
    height: u32,
    hash: Option<String>,
}

#[derive(Deserialize)]
struct AnsweredBlocks {
    blocks: Vec<AnsweredBlock>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnsweredBlock {
    hash: String,
    longest_chain: bool,
}

impl HttpStore {
    /// Names the server by its URL (`http://host:port`). `token_file`: file with a token of the role `read`.
    ///
    /// # Errors
    /// The URL is none, or the file cannot be read.
    pub fn open(url: &str, token_file: Option<PathBuf>) -> Result<Self, ClientError> {
        JsonServer::open(url, token_file).map(HttpStore)
    }

    /// Asks about outputs; `None`: the answer would be too large.
    async fn ask_part(&self, outpoints: &[Outpoint], height: u32) -> Option<Vec<Result<OutputState, SourceError>>> {
        let list = OutpointList { outpoints: outpoints.iter().map(ToString::to_string).collect() };
        let path = format!("/v1/outputs:batch?height={height}&output=true&mined=true");
        let answer = self.0.post::<StateList>(&path, &list, Duration::ZERO).await;
        let failed = |error: String| vec![Err(SourceError(error)); outpoints.len()];
        Some(match answer {
            Ok(StateList { outputs }) if outputs.len() == outpoints.len() => {
                outpoints.iter().zip(outputs).map(|(outpoint, answer)| answer.read(*outpoint)).collect()
            }
            Ok(_) => failed("the answer has not one state for each output".to_owned()),
            Err(ClientError::Refused(refused)) if refused.status == 413 && outpoints.len() > 1 => return None,
            Err(error) => failed(error.to_string()),
        })
    }
}

#[async_trait]
impl OutputSource for HttpStore {
    async fn ask(&self, outpoints: &[Outpoint], height: u32) -> Vec<Result<OutputState, SourceError>> {
        let mut states = Vec::with_capacity(outpoints.len());
        let mut parts: Vec<&[Outpoint]> = outpoints.chunks(OUTPUTS_AT_A_TIME).rev().collect();
        while let Some(part) = parts.pop() {
            match self.ask_part(part, height).await {
                Some(answers) => states.extend(answers),
                None => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
            }
        }
        states
    }

    async fn tip(&self) -> Result<SourceTip, SourceError> {
        let chain = self.0.get::<AnsweredChain>("/v1/chain").await.map_err(|error| SourceError(error.to_string()))?;
        let hash = chain.hash.map(|hash| read_hash(&hash)).transpose()?;
        Ok(SourceTip { height: chain.height, hash })
    }

    async fn block_at(&self, height: u32) -> Result<Option<[u8; 32]>, SourceError> {
        match self.0.get::<AnsweredBlocks>(&format!("/v1/blocks/height:{height}")).await {
            Ok(AnsweredBlocks { blocks }) => {
                let found = blocks.into_iter().find(|block| block.longest_chain);
                found.map(|block| read_hash(&block.hash)).transpose()
            }
            Err(ClientError::Refused(refused)) if refused.status == 404 => Ok(None),
            Err(error) => Err(SourceError(error.to_string())),
        }
    }
}

fn read_hash(text: &str) -> Result<[u8; 32], SourceError> {
    let txid: Txid = text.parse().map_err(|_| malformed("a hash of a block"))?;
    Ok(txid.0)
}

fn malformed(what: &str) -> SourceError {
    SourceError(format!("the answer has {what} that is none"))
}

impl StateOrError {
    fn read(self, outpoint: Outpoint) -> Result<OutputState, SourceError> {
        match self {
            StateOrError::State(state) => state.read(outpoint),
            StateOrError::Failed { error } => Err(SourceError(error.detail)),
        }
    }
}

impl AnsweredState {
    fn read(self, outpoint: Outpoint) -> Result<OutputState, SourceError> {
        let spender = match self.spender {
            Some(AnsweredSpender { txid, input }) => {
                Some(SpendingData { txid: txid.parse().map_err(|_| malformed("a txid"))?, input })
            }
            None => None,
        };
        let height = || self.height.ok_or_else(|| malformed("a height"));
        let hash = self.utxo_hash.map(|text| text.parse::<UtxoHash>()).transpose();
        let hash = hash.map_err(|_| malformed("a hash of an output"))?;
        let status = match self.code.as_str() {
            "UNSPENT" => SpendStatus::Unspent,
            "TX_NOT_FOUND" => SpendStatus::NotFound,
            "UTXO_NOT_FOUND" => SpendStatus::NoSuchOutput,
            "CREATING" => SpendStatus::Creating,
            "CONFLICTING" => SpendStatus::Conflicting(Verdict::Pending),
            "LOCKED" => SpendStatus::Locked,
            "FROZEN" => SpendStatus::Frozen,
            "SPENT" => SpendStatus::Spent(spender.ok_or_else(|| malformed("a spender"))?),
            "PRUNED" => SpendStatus::Pruned(height()?),
            "COINBASE_IMMATURE" => SpendStatus::Immature(height()?),
            "FROZEN_UNTIL" => SpendStatus::NotYetSpendable(height()?),
            "UTXO_HASH_MISMATCH" => SpendStatus::HashMismatch(hash.ok_or_else(|| malformed("a hash"))?),
            code => return Err(SourceError(format!("the answer has the unknown code `{code}`"))),
        };
        let output = match self.satoshis.zip(self.script) {
            Some((satoshis, script)) => {
                let script = hex::decode(script).map_err(|_| malformed("a script"))?;
                Some(StoredOutput { satoshis, script: script.into() })
            }
            None => None,
        };
        Ok(OutputState { outpoint, status, spender, utxo_hash: hash, output, mined_height: self.mined_height })
    }
}
