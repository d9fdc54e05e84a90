//! Balances: each output of an owner counts in one part. Pure functions.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::types::{Standing, WatchedOutput};

/// Part of a balance in which an output counts: the first that applies, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BalancePart {
    /// The output is spent, conflicting or absent, and counts nowhere.
    None,
    /// The store does not know the transaction yet.
    Pending,
    /// The output or its transaction is frozen or locked by a command.
    Frozen,
    /// The next block cannot list a spender.
    Immature,
    /// A soft lock has the output.
    SoftLocked,
    /// No block of the longest chain lists the transaction, whose inputs are all the owner's.
    OwnUnconfirmed,
    /// No block of the longest chain lists the transaction, which spends outputs of others.
    ForeignUnconfirmed,
    /// The output is confirmed and free.
    Available,
}

/// Number of outputs, and their sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Sum {
    /// Number of the outputs in the part.
    pub outputs: u64,
    /// Sum of their amounts.
    pub satoshis: u64,
}

/// Balance of an owner, in parts that add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Balance {
    /// Confirmed outputs that are free.
    pub available: Sum,
    /// Outputs that a soft lock has.
    pub soft_locked: Sum,
    /// Outputs that the next block cannot spend: young coinbases, and outputs that are frozen until a height.
    pub immature: Sum,
    /// Outputs of unconfirmed transactions whose inputs are all the owner's.
    pub own_unconfirmed: Sum,
    /// Outputs of other unconfirmed transactions.
    pub foreign_unconfirmed: Sum,
    /// Outputs that a command has frozen, or whose transaction is locked.
    pub frozen: Sum,
    /// Outputs of transactions that the store does not know yet.
    pub pending: Sum,
}

/// Properties of an output that decide about its part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputProperties {
    /// State of the output.
    pub standing: Standing,
    /// A block of the longest chain lists the transaction.
    pub confirmed: bool,
    /// The next block can list a spender.
    pub mature: bool,
    /// A lock that is in force has the output.
    pub locked: bool,
    /// All inputs of the transaction are the owner's.
    pub own_change: bool,
}

impl OutputProperties {
    /// Returns the properties of an output under a tip. `locked`: a lock that is in force has the output.
    pub fn of(output: &WatchedOutput, tip: u32, locked: bool) -> Self {
        OutputProperties {
            standing: output.facts.standing,
            confirmed: output.facts.height.is_some(),
            mature: output.is_mature(tip),
            locked,
            own_change: output.own_change,
        }
    }

    /// Returns the part of the balance in which the output counts.
    pub fn part(self) -> BalancePart {
        match self.standing {
            Standing::Spent | Standing::Conflicting | Standing::Absent => BalancePart::None,
            Standing::Unknown => BalancePart::Pending,
            Standing::Frozen => BalancePart::Frozen,
            Standing::Unspent if !self.mature => BalancePart::Immature,
            Standing::Unspent if self.locked => BalancePart::SoftLocked,
            Standing::Unspent if self.confirmed => BalancePart::Available,
            Standing::Unspent if self.own_change => BalancePart::OwnUnconfirmed,
            Standing::Unspent => BalancePart::ForeignUnconfirmed,
        }
    }
}

impl Balance {
    /// Adds outputs with the same properties.
    pub fn add(&mut self, properties: OutputProperties, sum: Sum) {
        let part = match properties.part() {
            BalancePart::None => return,
            BalancePart::Pending => &mut self.pending,
            BalancePart::Frozen => &mut self.frozen,
            BalancePart::Immature => &mut self.immature,
            BalancePart::SoftLocked => &mut self.soft_locked,
            BalancePart::OwnUnconfirmed => &mut self.own_unconfirmed,
            BalancePart::ForeignUnconfirmed => &mut self.foreign_unconfirmed,
            BalancePart::Available => &mut self.available,
        };
        part.outputs = part.outputs.saturating_add(sum.outputs);
        part.satoshis = part.satoshis.saturating_add(sum.satoshis);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_output_counts_in_the_first_part_that_applies() {
        let free = OutputProperties {
            standing: Standing::Unspent,
            confirmed: true,
            mature: true,
            locked: false,
            own_change: false,
        };
        for (properties, part) in [
            (free, BalancePart::Available),
            (OutputProperties { locked: true, ..free }, BalancePart::SoftLocked),
            (OutputProperties { locked: true, confirmed: false, ..free }, BalancePart::SoftLocked),
            (OutputProperties { mature: false, locked: true, ..free }, BalancePart::Immature),
            (OutputProperties { confirmed: false, ..free }, BalancePart::ForeignUnconfirmed),
            (OutputProperties { confirmed: false, own_change: true, ..free }, BalancePart::OwnUnconfirmed),
            (OutputProperties { standing: Standing::Frozen, mature: false, ..free }, BalancePart::Frozen),
            (OutputProperties { standing: Standing::Unknown, confirmed: false, ..free }, BalancePart::Pending),
            (OutputProperties { standing: Standing::Spent, ..free }, BalancePart::None),
            (OutputProperties { standing: Standing::Conflicting, ..free }, BalancePart::None),
            (OutputProperties { standing: Standing::Absent, ..free }, BalancePart::None),
        ] {
            assert_eq!(properties.part(), part, "{properties:?}");
        }
    }
}
