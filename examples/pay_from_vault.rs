//! Pays from a vault: selects outputs, builds and signs a transaction with the crate `bitcoin`, publishes it, and waits
//! until the store has it live.
//!
//! `cargo run --features vault --example pay_from_vault -- URL OWNER KEY ADDRESS SATOSHIS [TOKEN_FILE]` pays to an
//! address from the outputs of the P2PKH address of a key in WIF. The key is one for tests: a wallet keeps its keys
//! elsewhere. An operator watches the address before: `utxo-store vault watch --owner OWNER ADDRESS --rescan log`.
//!
//! Without arguments the example prints the address of a key.

use std::{env, error::Error, path::PathBuf, process::ExitCode, time::Duration};

use bitcoin::{
    Address, Amount, EcdsaSighashType, Network, NetworkKind, OutPoint, PrivateKey, ScriptBuf, Sequence, Transaction,
    TxIn, TxOut, Witness,
    absolute::LockTime,
    consensus::serialize,
    secp256k1::{Message, Secp256k1},
    sighash::SighashCache,
    transaction::Version,
};
use utxo_store::{
    PreviousOutput, Transaction as StoreTransaction, TransactionBuilder,
    vault::{
        LockId, VaultClient,
        model::{OwnerOutput, SelectRequest},
    },
};

/// Fee rate, satoshis for 1,000 virtual bytes.
const FEE_RATE: u64 = 1_000;
/// Key of the example without arguments.
const TEST_KEY: &str = "cMahea7zqjxrtgAbB7LSGbcQUr1uX1ojuat9jZodMN87JcbXMTcA";

#[tokio::main]
async fn main() -> ExitCode {
    // A refusal is one line for a reader.
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (url, owner, key, address, satoshis, token_file) = match &arguments[..] {
        [] => {
            println!("address: {}", address_of(&PrivateKey::from_wif(TEST_KEY)?));
            return Ok(());
        }
        [url, owner, key, address, satoshis, rest @ ..] if rest.len() < 2 => {
            (url, owner, key, address, satoshis, rest.first().map(PathBuf::from))
        }
        _ => return Err("give URL OWNER KEY ADDRESS SATOSHIS [TOKEN_FILE], or nothing".into()),
    };
    let key = PrivateKey::from_wif(key)?;
    let payment = script_of(address, key.network)?;
    let client = VaultClient::open(url, owner.parse()?, token_file)?;
    // Earlier outputs are found in the log, and asked of the store.
    while !client.rescans().await?.rescans.is_empty() || client.balance().await?.pending.outputs > 0 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    // The session frees the outputs if this process dies before the transaction is published.
    let session = client.open_session(Some(Duration::from_secs(60)), None).await?;
    let paid = pay(&client, session.lock_id, &key, &payment, satoshis.parse()?).await;
    client.release(session.lock_id, None).await?;
    paid
}

fn address_of(key: &PrivateKey) -> Address {
    Address::p2pkh(key.public_key(&Secp256k1::new()), key.network)
}

/// Returns the script of an address of the key's kind of network.
fn script_of(address: &str, kind: NetworkKind) -> Result<ScriptBuf, Box<dyn Error>> {
    let networks: &[Network] = match kind {
        NetworkKind::Main => &[Network::Bitcoin],
        NetworkKind::Test => &[Network::Testnet, Network::Regtest],
    };
    let address: Address<_> = address.parse()?;
    match networks.iter().any(|network| address.is_valid_for_network(*network)) {
        true => Ok(address.assume_checked().script_pubkey()),
        false => Err("the address is of another network than the key".into()),
    }
}

async fn pay(
    client: &VaultClient,
    lock_id: LockId,
    key: &PrivateKey,
    payment: &ScriptBuf,
    satoshis: u64,
) -> Result<(), Box<dyn Error>> {
    let request = SelectRequest {
        lock_id: Some(lock_id),
        payment_script_bytes: Some(u32::try_from(payment.len())?),
        // A payment to this wallet that no block lists yet counts, too.
        min_confirmations: Some(0),
        foreign_unconfirmed: Some(true),
        ..SelectRequest::at_rate(satoshis, FEE_RATE)
    };
    let selected = client.select(&request, Duration::from_secs(10)).await?;
    println!("selected: {} outputs, {} satoshis, fee {}", selected.outputs.len(), selected.sum, selected.fee);
    let mut outputs = vec![TxOut { value: Amount::from_sat(satoshis), script_pubkey: payment.clone() }];
    if let Some(change) = selected.change {
        let script_pubkey = address_of(key).script_pubkey();
        outputs.push(TxOut { value: Amount::from_sat(change), script_pubkey });
    }
    let extended = sign(&selected.outputs, outputs, key)?;
    let spent = client.spend(lock_id, &extended, Duration::from_secs(30)).await?;
    let outcome = spent.outcome.map(|outcome| format!("{outcome:?}").to_lowercase()).unwrap_or_default();
    println!("transaction {}: {outcome}", spent.txid);
    Ok(())
}

/// Builds a transaction, signs each input, and returns the transaction in extended format.
fn sign(spent: &[OwnerOutput], outputs: Vec<TxOut>, key: &PrivateKey) -> Result<Vec<u8>, Box<dyn Error>> {
    let input = |output: &OwnerOutput| -> Result<TxIn, Box<dyn Error>> {
        Ok(TxIn {
            previous_output: output.outpoint.parse::<OutPoint>()?,
            script_sig: ScriptBuf::new(),
            sequence: Sequence::MAX,
            witness: Witness::new(),
        })
    };
    let inputs = spent.iter().map(input).collect::<Result<Vec<_>, _>>()?;
    let mut transaction =
        Transaction { version: Version::TWO, lock_time: LockTime::ZERO, input: inputs, output: outputs };
    let secp = Secp256k1::new();
    let script = address_of(key).script_pubkey();
    let mut unlocking = Vec::new();
    for index in 0..transaction.input.len() {
        let cache = SighashCache::new(&transaction);
        let hash = cache.legacy_signature_hash(index, &script, EcdsaSighashType::All.to_u32())?;
        let signature = bitcoin::ecdsa::Signature {
            signature: secp.sign_ecdsa(&Message::from(hash), &key.inner),
            sighash_type: EcdsaSighashType::All,
        };
        let pushed = bitcoin::script::Builder::new().push_slice(signature.serialize());
        unlocking.push(pushed.push_key(&key.public_key(&secp)).into_script());
    }
    for (input, script) in transaction.input.iter_mut().zip(unlocking) {
        input.script_sig = script;
    }
    extend(&serialize(&transaction), spent)
}

/// Adds the previous outputs to a transaction: the extended format.
fn extend(standard: &[u8], spent: &[OwnerOutput]) -> Result<Vec<u8>, Box<dyn Error>> {
    let transaction = StoreTransaction::parse(standard)?;
    let mut builder = TransactionBuilder::default().version(transaction.version()).lock_time(transaction.lock_time());
    for (input, output) in transaction.inputs().zip(spent) {
        let script = hex::decode(&output.script)?;
        let previous = PreviousOutput { satoshis: output.satoshis, script: &script };
        builder = builder.input(input.outpoint, input.script, input.sequence, Some(previous));
    }
    for output in transaction.outputs() {
        builder = builder.output(output.satoshis, output.script);
    }
    Ok(builder.extended())
}
