//! Coin selection: which outputs fund an amount and its fee. Pure functions over the crate `bdk_coin_select`, whose
//! branch and bound searches by the metrics of this module ([`LeastFee`], [`NoChange`]). The metrics of the crate
//! compute with approximate numbers and can panic.

use bdk_coin_select::{BnbMetric, Candidate, CoinSelector, DrainWeights, TargetOutputs, float::Ordf32};
use serde::{Deserialize, Serialize};
use strum::{EnumString, VariantNames};
use utoipa::ToSchema;

/// Steps of a search, at most. A search that ends without a result gives way to the largest outputs first.
const SEARCH_STEPS: usize = 2_000;
/// Weight of outpoint and sequence number of an input.
const OUTPOINT_AND_SEQUENCE_WEIGHT: u64 = 40 * UNITS_PER_BYTE;
/// Weight units of a byte outside of the witness.
const UNITS_PER_BYTE: u64 = 4;
/// Bytes of an output besides its script: amount, and length of a script below 253 bytes.
const OUTPUT_BYTES: u64 = 9;
/// Bytes that unlock a P2PKH script: a signature and a compressed key.
const P2PKH_UNLOCKING_BYTES: u32 = 107;
/// Bytes that unlock a script of an unknown kind, unless the request names a number: two of three signatures.
const DEFAULT_UNLOCKING_BYTES: u32 = 254;

/// Order in which outputs are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema, EnumString, VariantNames)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Strategy {
    /// The largest outputs first: few inputs.
    #[default]
    LargestFirst,
    /// The outputs with most confirmations first; unconfirmed outputs last.
    OldestFirst,
    /// The least fee, with the fee of spending the change later (branch and bound).
    LowestFee,
    /// Outputs whose sum needs no change (branch and bound); the least fee, where no such outputs are found.
    WithoutChange,
}

/// Fee that a transaction has to pay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fee {
    /// Fee of every size of transaction, satoshis.
    Fixed(u64),
    /// Satoshis for 1,000 virtual bytes.
    Rate(u64),
}

/// Amount, fee and shape of the transaction that a selection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Terms {
    /// Sum of the payments, satoshis.
    pub amount: u64,
    /// Fee of the transaction.
    pub fee: Fee,
    /// Number of payments, without the change.
    pub payments: u32,
    /// Bytes of the locking script of each payment.
    pub payment_script_bytes: u32,
    /// Bytes of the locking script of the change.
    pub change_script_bytes: u32,
    /// Least change, satoshis: less is left to the fee.
    pub least_change: u64,
    /// Most inputs of the transaction.
    pub most_inputs: u32,
    /// Order in which outputs are taken.
    pub strategy: Strategy,
}

/// An output that can be selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coin {
    /// Amount of the output.
    pub satoshis: u64,
    /// Height of the output's block; `None`: unconfirmed.
    pub height: Option<u32>,
    /// Size of an input that spends the output.
    pub input: InputSize,
}

/// Size of an input, without its outpoint and sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InputSize {
    weight: u64,
    is_segwit: bool,
}

impl InputSize {
    /// Returns the size of an input that spends an output of this script. `unlocking_bytes`: bytes of the unlocking
    /// script, where the kind of the locking script does not tell.
    pub fn of(script: &[u8], unlocking_bytes: Option<u32>) -> Self {
        let legacy = |bytes: u64| {
            let length = if bytes < 253 { 1 } else { 3 };
            InputSize { weight: (length + bytes) * UNITS_PER_BYTE, is_segwit: false }
        };
        match script {
            // P2PKH.
            [0x76, 0xa9, 20, .., 0x88, 0xac] if script.len() == 25 => legacy(P2PKH_UNLOCKING_BYTES.into()),
            // P2PK: a signature.
            [33, .., 0xac] if script.len() == 35 => legacy(73),
            [65, .., 0xac] if script.len() == 67 => legacy(73),
            // P2WPKH: an empty script; a signature and a key in the witness.
            [0, 20, ..] if script.len() == 22 => InputSize { weight: UNITS_PER_BYTE + 108, is_segwit: true },
            // P2TR: an empty script; a signature in the witness.
            [0x51, 32, ..] if script.len() == 34 => InputSize { weight: UNITS_PER_BYTE + 66, is_segwit: true },
            _ => legacy(u64::from(unlocking_bytes.unwrap_or(DEFAULT_UNLOCKING_BYTES))),
        }
    }
}

/// A selection with its fee and change: `sum = amount + fee + change`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoinChoice {
    /// Places of the selected coins in the list, ascending.
    pub coins: Vec<usize>,
    /// Sum of the selected coins.
    pub sum: u64,
    /// Fee of the transaction.
    pub fee: u64,
    /// Amount of the change; `None`: the transaction has no change.
    pub change: Option<u64>,
}

/// Reason why no selection exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// The coins do not fund the amount and its fee.
    Funds,
    /// The coins would, with more inputs than permitted.
    Inputs,
}

/// Selects coins for these terms.
///
/// # Errors
/// The coins do not suffice, or not with the permitted number of inputs.
pub fn choose(coins: &[Coin], terms: &Terms) -> Result<CoinChoice, Shortage> {
    let candidates: Vec<Candidate> = coins.iter().map(Coin::candidate).collect();
    let found = match terms.strategy {
        Strategy::LargestFirst | Strategy::OldestFirst => None,
        Strategy::LowestFee => search(&candidates, terms, LeastFee { terms }),
        Strategy::WithoutChange => search(&candidates, terms, NoChange { least_fee: LeastFee { terms } })
            .or_else(|| search(&candidates, terms, LeastFee { terms })),
    };
    match found {
        Some(choice) => Ok(choice),
        None => take_in_order(coins, &candidates, terms),
    }
}

/// Makes the selector of coins that pay for their own inputs: another coin only adds to the fee.
fn selector_of<'a>(candidates: &'a [Candidate], terms: &Terms) -> CoinSelector<'a> {
    let mut selector = CoinSelector::new(candidates);
    for (index, candidate) in candidates.iter().enumerate() {
        if candidate.value <= terms.input_fee(candidate.weight) {
            selector.ban(index);
        }
    }
    selector
}

/// Takes coins in the order of the strategy until they suffice.
fn take_in_order(coins: &[Coin], candidates: &[Candidate], terms: &Terms) -> Result<CoinChoice, Shortage> {
    let mut selector = selector_of(candidates, terms);
    let is_oldest_first = terms.strategy == Strategy::OldestFirst;
    selector.sort_candidates_by_key(|(index, _)| {
        let height = coins[index].height.unwrap_or(u32::MAX);
        (if is_oldest_first { height } else { 0 }, std::cmp::Reverse(coins[index].satoshis), index)
    });
    let most = terms.most_inputs as usize;
    while selector.selected_indices().len() < most {
        if !selector.select_next() {
            return Err(Shortage::Funds);
        }
        if let Some(choice) = complete(&selector, terms) {
            return Ok(choice);
        }
    }
    selector.select_all();
    Err(if complete(&selector, terms).is_some() { Shortage::Inputs } else { Shortage::Funds })
}

fn search<M: BnbMetric>(candidates: &[Candidate], terms: &Terms, metric: M) -> Option<CoinChoice> {
    let mut selector = selector_of(candidates, terms);
    selector.run_bnb(metric, SEARCH_STEPS).ok()?;
    complete(&selector, terms)
}

/// The fee of a transaction, with the fee of spending its change later.
struct LeastFee<'a> {
    terms: &'a Terms,
}

impl BnbMetric for LeastFee<'_> {
    fn score(&mut self, selector: &CoinSelector<'_>) -> Option<Ordf32> {
        let choice = complete(selector, self.terms)?;
        let later = choice.change.map_or(0, |_| self.terms.input_fee(self.terms.change_weights().spend_weight));
        Some(Ordf32((choice.fee + later) as f32))
    }

    /// More inputs never make the fee of the present ones smaller.
    fn bound(&mut self, selector: &CoinSelector<'_>) -> Option<Ordf32> {
        let rest: u64 = selector.unselected().map(|(_, candidate)| candidate.value).sum();
        let can_suffice = selector.selected_value() + rest >= self.terms.amount;
        let is_small = selector.selected_indices().len() <= self.terms.most_inputs as usize;
        (can_suffice && is_small).then(|| Ordf32(self.terms.fee_with(selector, DrainWeights::NONE) as f32))
    }

    fn requires_ordering_by_descending_value_pwu(&self) -> bool {
        true
    }
}

/// The fee of a transaction without change.
struct NoChange<'a> {
    least_fee: LeastFee<'a>,
}

impl BnbMetric for NoChange<'_> {
    fn score(&mut self, selector: &CoinSelector<'_>) -> Option<Ordf32> {
        let choice = complete(selector, self.least_fee.terms).filter(|choice| choice.change.is_none())?;
        Some(Ordf32(choice.fee as f32))
    }

    /// A selection with change keeps its change with more inputs, each of which pays more than its own fee.
    fn bound(&mut self, selector: &CoinSelector<'_>) -> Option<Ordf32> {
        let has_change = complete(selector, self.least_fee.terms).is_some_and(|choice| choice.change.is_some());
        if has_change { None } else { self.least_fee.bound(selector) }
    }

    fn requires_ordering_by_descending_value_pwu(&self) -> bool {
        true
    }
}

/// Computes fee and change of a selection exactly; `None`: the selection does not suffice.
fn complete(selector: &CoinSelector<'_>, terms: &Terms) -> Option<CoinChoice> {
    let sum = selector.selected_value();
    let left = sum.checked_sub(terms.amount)?;
    left.checked_sub(terms.fee_with(selector, DrainWeights::NONE))?;
    let with_change = terms.fee_with(selector, terms.change_weights());
    let change = left.checked_sub(with_change).filter(|change| *change > 0 && *change >= terms.least_change);
    let coins = selector.selected_indices().iter().copied().collect();
    Some(CoinChoice { coins, sum, fee: left - change.unwrap_or(0), change })
}

impl Terms {
    /// Returns the fee of a transaction of this weight.
    fn fee_of(&self, weight: u64) -> u64 {
        match self.fee {
            Fee::Fixed(fee) => fee,
            Fee::Rate(rate) => (weight.div_ceil(UNITS_PER_BYTE) * rate).div_ceil(1_000),
        }
    }

    /// Returns the part of the fee that an input of this weight adds.
    fn input_fee(&self, weight: u64) -> u64 {
        match self.fee {
            Fee::Fixed(_) => 0,
            Fee::Rate(_) => self.fee_of(weight),
        }
    }

    /// Returns the fee of a transaction with the selected inputs, and with this change.
    fn fee_with(&self, selector: &CoinSelector<'_>, change: DrainWeights) -> u64 {
        let (payments, value_sum) = (self.payments as usize, self.amount);
        let weight_sum = output_weight(self.payment_script_bytes) * u64::from(self.payments);
        self.fee_of(selector.weight(TargetOutputs { value_sum, weight_sum, n_outputs: payments }, change))
    }

    fn change_weights(&self) -> DrainWeights {
        let input = InputSize::of(&[], Some(P2PKH_UNLOCKING_BYTES));
        let spend_weight = OUTPOINT_AND_SEQUENCE_WEIGHT + input.weight;
        DrainWeights { output_weight: output_weight(self.change_script_bytes), spend_weight, n_outputs: 1 }
    }
}

impl Coin {
    fn candidate(&self) -> Candidate {
        Candidate {
            value: self.satoshis,
            weight: OUTPOINT_AND_SEQUENCE_WEIGHT + self.input.weight,
            input_count: 1,
            is_segwit: self.input.is_segwit,
        }
    }
}

fn output_weight(script_bytes: u32) -> u64 {
    let length = if script_bytes < 253 { 0 } else { 2 };
    (OUTPUT_BYTES + length + u64::from(script_bytes)) * UNITS_PER_BYTE
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Strategy, *};

    const P2PKH: [u8; 25] = {
        let mut script = [7; 25];
        (script[0], script[1], script[2], script[23], script[24]) = (0x76, 0xa9, 20, 0x88, 0xac);
        script
    };

    fn coin(satoshis: u64) -> Coin {
        Coin { satoshis, height: Some(1), input: InputSize::of(&P2PKH, None) }
    }

    fn terms(amount: u64, strategy: Strategy) -> Terms {
        Terms {
            amount,
            fee: Fee::Rate(1_000),
            payments: 1,
            payment_script_bytes: 25,
            change_script_bytes: 25,
            least_change: 100,
            most_inputs: 100,
            strategy,
        }
    }

    #[test]
    fn a_payment_of_one_input_and_two_outputs_has_226_bytes() {
        let choice = choose(&[coin(1_000_000)], &terms(500_000, Strategy::LargestFirst)).unwrap();
        assert_eq!((choice.fee, choice.change), (226, Some(499_774)));
    }

    #[test]
    fn change_below_the_least_is_left_to_the_fee() {
        let choice = choose(&[coin(500_300)], &terms(500_000, Strategy::LargestFirst)).unwrap();
        assert_eq!((choice.fee, choice.change), (300, None));
    }

    #[test]
    fn each_strategy_has_its_order() {
        let old = Coin { height: Some(1), ..coin(300_000) };
        let young = Coin { height: Some(9), ..coin(900_000) };
        let unconfirmed = Coin { height: None, ..coin(800_000) };
        let coins = [unconfirmed, young, old, coin(500_192)];
        let chosen = |amount, strategy| choose(&coins, &terms(amount, strategy)).unwrap().coins;
        assert_eq!(chosen(250_000, Strategy::LargestFirst), [1]);
        assert_eq!(chosen(250_000, Strategy::OldestFirst), [3]);
        assert_eq!(chosen(700_000, Strategy::OldestFirst), [2, 3]);
        assert_eq!(chosen(500_000, Strategy::WithoutChange), [3], "500,000 and a fee of 192");
        assert!(choose(&coins, &terms(500_000, Strategy::LowestFee)).unwrap().fee <= 192);
        assert_eq!(choose(&coins, &terms(2_600_000, Strategy::LowestFee)), Err(Shortage::Funds));
    }

    #[test]
    fn too_many_inputs_are_told_from_too_little_money() {
        let coins = [coin(100_000); 10];
        let limited = |amount| Terms { most_inputs: 3, ..terms(amount, Strategy::LargestFirst) };
        assert_eq!(choose(&coins, &limited(400_000)), Err(Shortage::Inputs));
        assert_eq!(choose(&coins, &limited(1_000_000)), Err(Shortage::Funds));
        assert_eq!(choose(&coins, &limited(290_000)).unwrap().coins.len(), 3);
    }

    #[test]
    fn coins_that_do_not_pay_for_their_inputs_are_not_taken() {
        let dust = [coin(100); 50];
        assert_eq!(choose(&dust, &terms(1, Strategy::LargestFirst)), Err(Shortage::Funds));
        let free = Terms { fee: Fee::Fixed(0), ..terms(4_950, Strategy::LargestFirst) };
        assert_eq!(choose(&dust, &free).unwrap().coins.len(), 50);
    }

    #[test]
    fn inputs_have_the_size_of_their_scripts_kind() {
        let bytes = |script: &[u8], given| InputSize::of(script, given).weight.div_ceil(4);
        assert_eq!(bytes(&P2PKH, None), 108);
        let p2pk = [&[33][..], &[2; 33], &[0xac]].concat();
        assert_eq!(bytes(&p2pk, None), 74);
        assert!(InputSize::of(&[&[0, 20][..], &[1; 20]].concat(), None).is_segwit);
        assert!(InputSize::of(&[&[0x51, 32][..], &[1; 32]].concat(), None).is_segwit);
        assert_eq!((bytes(&[0x51], None), bytes(&[0x51], Some(5))), (257, 6));
    }

    fn strategies() -> impl proptest::strategy::Strategy<Value = Strategy> {
        use super::Strategy::{LargestFirst, LowestFee, OldestFirst, WithoutChange};
        prop_oneof![Just(LargestFirst), Just(OldestFirst), Just(LowestFee), Just(WithoutChange)]
    }

    proptest! {
        /// Every selection pays the amount and its fee exactly, and none exists only if all coins together do not pay.
        #[test]
        fn selections_add_up(
            values in prop::collection::vec(1_u64..3_000_000, 0..40),
            amount in 1_u64..20_000_000,
            rate in 0_u64..20_000,
            fixed in prop::option::of(0_u64..5_000),
            least_change in 0_u64..1_000,
            most_inputs in 1_u32..60,
            strategy in strategies(),
        ) {
            let coins: Vec<Coin> = values.iter().map(|value| coin(*value)).collect();
            let fee = fixed.map_or(Fee::Rate(rate), Fee::Fixed);
            let terms = Terms { fee, least_change, most_inputs, ..terms(amount, strategy) };
            match choose(&coins, &terms) {
                Ok(choice) => {
                    let sum: u64 = choice.coins.iter().map(|index| coins[*index].satoshis).sum();
                    prop_assert_eq!(sum, choice.sum);
                    prop_assert_eq!(sum, amount + choice.fee + choice.change.unwrap_or(0));
                    prop_assert!(choice.coins.len() <= most_inputs as usize);
                    prop_assert!(choice.change.is_none_or(|change| change >= least_change));
                    let outputs = if choice.change.is_some() { 2 } else { 1 };
                    let bytes = 10 + 148 * choice.coins.len() as u64 + 34 * outputs;
                    let least = match fee { Fee::Fixed(fee) => fee, Fee::Rate(rate) => bytes * rate / 1_000 };
                    prop_assert!(choice.fee >= least, "{choice:?}: at least {least}");
                }
                Err(Shortage::Inputs) => prop_assert!(values.len() > most_inputs as usize),
                Err(Shortage::Funds) => {
                    // Each coin counts without the fee of its own input.
                    let worth = |value: &u64| match fee {
                        Fee::Fixed(_) => *value,
                        Fee::Rate(rate) => value.saturating_sub((148 * rate).div_ceil(1_000)),
                    };
                    let worth: u64 = values.iter().map(worth).sum();
                    let base = match fee { Fee::Fixed(fee) => fee, Fee::Rate(rate) => 44 * rate / 1_000 };
                    prop_assert!(worth < amount + base + 40, "{worth} of {amount}");
                }
            }
        }
    }
}
