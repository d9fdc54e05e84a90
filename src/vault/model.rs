//! Requests to the vault over HTTP, and their answers, in JSON: the server and the client have the same types.

mod answers;
mod requests;

pub use answers::{
    BalanceView, LockList, LockView, MissingFunds, OwnerOutput, OwnerOutputs, ReleaseAnswer, RescanList, RescanView,
    ReserveAnswer, ScriptList, ScriptView, SelectAnswer, SessionView, SpendAnswer, UnavailableOutput,
    UnavailableOutputs, UnwatchAnswer, WatchAnswer,
};
pub use requests::{
    ReleaseRequest, RescanRequest, RescanSource, ReserveRequest, ScriptName, SelectRequest, SessionRequest,
    SpendRequest, UnwatchRequest, WatchRequest,
};
