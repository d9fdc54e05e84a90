#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| utxo_store_fuzz::run("utxo_set", data));
