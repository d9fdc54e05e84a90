//! Layouts: which bins a page has. `schemas/records.md` describes both.
//!
//! | layout | bins of a page |
//! |---|---|
//! | `compact` | `tx` holds what never changes; `utxos`, `unspent` and the indexed heights change; the rest is rare |
//! | `teranode` | the bins of the reference system |
//!
//! In `compact`, `flags` is absent while no mark bars a spend, so that the filter of a spend has one condition and one
//! comparison a slot. A store keeps the layout in which it was made.

use aerospike::{
    BatchOperation, BatchPolicy, BatchReadPolicy, Bin, Bins, Client, Error, ResultCode, Value,
    expressions::{Expression, cond, eq, int_and, int_bin, int_or, int_val, or},
    operations::{
        self, Operation as ServerOperation,
        exp::{ExpWriteFlags, write_exp},
    },
};

use super::{
    connection::OpenAerospikeError,
    errors::describe_error,
    keys::StoreLocation,
    names,
    settings::AerospikeSettings,
    template::{absent, prepack, unset},
};
use crate::record::Key;

/// The bins that pages have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, strum::EnumString, strum::IntoStaticStr, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Layout {
    /// Few bins, for speed.
    #[default]
    Compact,
    /// The bins of the reference system, which can go on with the records.
    Teranode,
}

/// A mark of a page. The number is its bit in `flags`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum PageMark {
    Creating = 1,
    Conflicting = 1 << 1,
    Locked = 1 << 2,
    Frozen = 1 << 3,
}

/// Bits of `flags` that stand for the presence of something.
pub mod flag {
    use super::PageMark;

    pub const CREATING: u16 = PageMark::Creating as u16;
    pub const CONFLICTING: u16 = PageMark::Conflicting as u16;
    pub const LOCKED: u16 = PageMark::Locked as u16;
    pub const FROZEN: u16 = PageMark::Frozen as u16;
    /// The page is a stub or a tombstone.
    pub const NO_SLOTS: u16 = 1 << 4;
    /// The page has a `spendingHeight`.
    pub const SPENDING_HEIGHT: u16 = 1 << 5;
    /// The page has contested slots.
    pub const CONTESTED: u16 = 1 << 6;
    /// Slots of the page have heights from which they are spendable.
    pub const SPENDABLE_IN: u16 = 1 << 7;
    /// The page has reassigned slots.
    pub const REASSIGNED: u16 = 1 << 8;
    /// The master has conflicting children.
    pub const CHILDREN: u16 = 1 << 9;
    /// The master has a due height and slots that are not spent, without `conflicting`: a due height from before a
    /// change of the retention.
    pub const EARLY_DUE: u16 = 1 << 10;
    /// All bits that this version knows.
    pub const ALL: u16 = (1 << 11) - 1;
}

impl PageMark {
    const fn bin(self) -> &'static str {
        match self {
            PageMark::Creating => names::CREATING,
            PageMark::Conflicting => names::CONFLICTING,
            PageMark::Locked => names::LOCKED,
            PageMark::Frozen => names::FROZEN,
        }
    }
}

impl Layout {
    /// Tests that the page has not the mark.
    pub fn unset(self, mark: PageMark) -> Expression {
        match self {
            Layout::Teranode => unset(mark.bin()),
            Layout::Compact => none_of(mark as u16),
        }
    }

    /// Sets a mark of the page.
    pub fn set(self, mark: PageMark) -> ServerOperation {
        match self {
            Layout::Teranode => operations::put(&Bin::new(mark.bin(), Value::Bool(true))),
            Layout::Compact => set_flag(mark as u16),
        }
    }

    /// Tests that every slot of the page is spent.
    pub fn all_spent(self) -> Expression {
        match self {
            Layout::Teranode => eq(int_bin(names::SPENT_UTXOS), int_bin(names::RECORD_UTXOS)),
            Layout::Compact => eq(int_bin(names::UNSPENT), int_val(0)),
        }
    }

    /// Counts slots that a transaction takes.
    pub fn count_spent(self, slots: usize) -> ServerOperation {
        let (bin, change) = match self {
            Layout::Teranode => (names::SPENT_UTXOS, slots as i64),
            Layout::Compact => (names::UNSPENT, -(slots as i64)),
        };
        operations::add(&Bin::new(bin, Value::Int(change)))
    }

    /// Returns the pieces of a slot before the spender: in `compact` the size of the output's amount comes first, so
    /// that one comparison covers script and amount.
    pub fn slot_head<'a>(self, amount_size: &'a [u8; 1], hash: &'a [u8; 32]) -> [&'a [u8]; 2] {
        match self {
            Layout::Teranode => [&[], hash],
            Layout::Compact => [amount_size, hash],
        }
    }

    /// Returns the bytes of a slot. `spender`: empty in a free slot.
    pub fn slot(self, amount_size: u8, hash: &[u8; 32], spender: &[u8]) -> Vec<u8> {
        let size = [amount_size];
        let [size, hash] = self.slot_head(&size, hash);
        [size, hash, spender].concat()
    }

    /// Returns the number to add to the version of the store in the bin `layoutVersion`. A program from before
    /// `compact` knows no bin `layout`, and refuses the store by this number.
    pub const fn version_offset(self) -> u32 {
        match self {
            Layout::Teranode => 0,
            Layout::Compact => 1,
        }
    }

    /// Returns the layout that the bin `layout` of a meta record names.
    ///
    /// # Errors
    /// The name, which this version does not know.
    pub fn stored(bin: Option<&Value>) -> Result<Self, String> {
        match bin {
            None | Some(Value::Nil) => Ok(Layout::Teranode),
            Some(Value::String(name)) => name.parse().map_err(|_| name.clone()),
            Some(_) => Err("of no name".to_owned()),
        }
    }
}

/// Tests that no bit of these is set in `flags`, and none that this version does not know.
pub fn none_of(bits: u16) -> Expression {
    let refused = i64::from(bits) | !i64::from(flag::ALL);
    let common = int_and(vec![int_bin(names::FLAGS), int_val(refused)]);
    or(vec![absent(names::FLAGS), eq(common, int_val(0))])
}

/// Sets bits of `flags`.
pub fn set_flag(bits: u16) -> ServerOperation {
    let bits = || int_val(bits.into());
    let value = cond(vec![absent(names::FLAGS), bits(), int_or(vec![int_bin(names::FLAGS), bits()])]);
    write_exp(names::FLAGS, prepack(&value), ExpWriteFlags::DEFAULT)
}

/// Returns the layout of the store, from its meta record; without a meta record, the wanted layout, or the default.
/// Another process can then make the store in the other layout. [`crate::store::StoreMeta::open`] reads or creates the
/// meta record before any page is written, and `bins::decode` refuses a record of the other layout.
///
/// # Errors
/// The store has another layout than the wanted one, or one that this version does not know, or no node answers.
pub async fn read_layout(
    client: &Client,
    settings: &AerospikeSettings,
    policy: &BatchPolicy,
    location: &StoreLocation,
) -> Result<Layout, OpenAerospikeError> {
    let unreachable = |problem| OpenAerospikeError::Unreachable { hosts: settings.hosts.clone(), problem };
    let key = location.server_key(&Key::Meta);
    let bins = Bins::Some(vec![names::meta::STORE_ID.into(), names::meta::LAYOUT.into()]);
    let mut read = [BatchOperation::read(&BatchReadPolicy::default(), key, bins)];
    let failed = Box::pin(client.batch(policy, &mut read)).await.err();
    let record = read[0].take_record();
    let Some(record) = record else {
        let error = read[0].batch_record().error().or(failed.as_ref());
        return match error.and_then(Error::server_result_code) {
            Some(ResultCode::KeyNotFoundError) => Ok(settings.layout.unwrap_or_default()),
            _ => Err(unreachable(error.map_or_else(|| "no node answered".to_owned(), describe_error))),
        };
    };
    let unfit = |problem: String, remedy: &str| OpenAerospikeError::Unfit { problem, remedy: remedy.into() };
    let layout = Layout::stored(record.bins.get(names::meta::LAYOUT)).map_err(|name| {
        let problem = format!("the store has the layout `{name}`, which this version does not know");
        unfit(problem, "use the program that wrote the store")
    })?;
    match settings.layout {
        Some(wanted) if wanted != layout => Err(unfit(
            format!("the store has the layout `{layout}`, and the URL of the store says `{wanted}`"),
            "leave `layout` out of the URL, or name another set: a store keeps the layout in which it was made",
        )),
        _ => Ok(layout),
    }
}
