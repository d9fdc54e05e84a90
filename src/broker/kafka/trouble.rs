//! Why brokers and a client do not come together: librdkafka tells it beside its answers, which only say that nobody was there.
//!
//! A cluster that has never answered and turns the client away refuses it: no repeat mends that. One that has is away, whatever it says
//! now: a broker that comes back knows its users late, and one with a wrong certificate gets a right one.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use rdkafka::{
    ClientContext,
    consumer::{BaseConsumer, ConsumerContext},
    error::{KafkaError, RDKafkaErrorCode as Code},
};
use tracing::{debug, error};

use crate::{
    broker::{BrokerError, BrokerErrorKind},
    text::one_line,
};

/// A client that is asked things, and is a member of no group.
pub(super) type Asked = BaseConsumer<Trouble>;

/// Remembers why the last connection came to nothing, until something is answered.
#[derive(Default)]
pub(super) struct Trouble {
    last: Mutex<Option<Told>>,
    answered: AtomicBool,
}

/// What librdkafka said, and what to do about it.
#[derive(Clone)]
struct Told {
    reason: String,
    remedy: Option<&'static str>,
}

const LOGIN: &str = "check kafka.security.mechanism, username and password";
const AUTHORITY: &str =
    "check kafka.security.ca_file, and that the broker's certificate is for the host by which it is connected to";
const CERTIFICATE: &str =
    "check kafka.security.certificate_file and key_file: the broker asks for a certificate that it believes";
const PROTOCOL: &str = "check kafka.security.protocol and the port: that listener speaks no TLS";

impl ClientContext for Trouble {
    fn error(&self, error: KafkaError, reason: &str) {
        if error.rdkafka_error_code() == Some(Code::PartitionEOF) {
            return;
        }
        // It says less than why one of them is down, and says it many times a second for as long as they are.
        if error.rdkafka_error_code() == Some(Code::AllBrokersDown) {
            debug!(%error, reason, "librdkafka");
            return;
        }
        error!(%error, reason, "librdkafka");
        let remedy = error.rdkafka_error_code().and_then(|code| remedy(code, reason));
        *self.last() = Some(Told { reason: one_line(reason).into_owned(), remedy });
    }
}

impl ConsumerContext for Trouble {}

/// Alerts of TLS by which a broker refuses our certificate, or that there is none.
const ALERTS: &[&str] = &[
    "alert certificate",
    "alert bad certificate",
    "alert unsupported certificate",
    "alert unknown ca",
    "alert access denied",
    "alert decrypt error",
    "alert handshake failure",
];

/// What an operator has to mend, where a repeat does not. A connection that only breaks, in the middle of a handshake too, is none of that.
fn remedy(code: Code, reason: &str) -> Option<&'static str> {
    let says = |words: &[&str]| words.iter().any(|word| reason.contains(word));
    match code {
        Code::Authentication | Code::SaslAuthenticationFailed => Some(LOGIN),
        // What a broker makes of our certificate, or of its absence, may come behind the handshake.
        Code::SSL | Code::BrokerTransportFailure if says(ALERTS) => Some(CERTIFICATE),
        Code::SSL if says(&["wrong version number", "packet length too long"]) => Some(PROTOCOL),
        Code::SSL if says(&["certificate verify failed"]) => Some(AUTHORITY),
        _ => None,
    }
}

impl Trouble {
    fn last(&self) -> std::sync::MutexGuard<'_, Option<Told>> {
        // A single value: a panic elsewhere does not spoil it.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True once librdkafka has reported why no connection came to be.
    pub(super) fn has_reason(&self) -> bool {
        self.last().is_some()
    }

    /// Whether the cluster has ever answered.
    pub(super) fn is_known(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    /// An answer, with why there is none: refused only by a cluster that has never answered.
    pub(super) fn explained<T>(&self, answer: Result<T, BrokerError>) -> Result<T, BrokerError> {
        match answer {
            Err(error) if error.kind == BrokerErrorKind::Retryable => Err(match self.last().as_ref() {
                Some(Told { reason, remedy: Some(remedy) }) => {
                    let kind = if self.is_known() { error.kind } else { BrokerErrorKind::Refused };
                    BrokerError::new(kind, error.operation, format!("{remedy} ({reason})"))
                }
                Some(Told { reason, remedy: None }) => {
                    BrokerError::new(error.kind, error.operation, format!("{} ({reason})", error.message))
                }
                None => error,
            }),
            Err(error) => Err(error),
            Ok(answer) => {
                self.answered.store(true, Ordering::Relaxed);
                *self.last() = None;
                Ok(answer)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: &str = "nobody is there";

    fn explained(trouble: &Trouble) -> BrokerError {
        let away = BrokerError::new(BrokerErrorKind::Retryable, "look up topic", NOBODY);
        trouble.explained(Err::<(), _>(away)).unwrap_err()
    }

    #[test]
    fn what_no_repeat_mends_is_refused_with_its_remedy_until_there_has_been_an_answer() {
        for (code, reason, remedy) in [
            (Code::Authentication, "SASL authentication error: invalid credentials", LOGIN),
            (Code::SSL, "SSL handshake failed: certificate verify failed", AUTHORITY),
            (Code::SSL, "SSL handshake failed: wrong version number", PROTOCOL),
            (Code::BrokerTransportFailure, "Receive failed: tlsv13 alert certificate required", CERTIFICATE),
        ] {
            let trouble = Trouble::default();
            let turns_away = || {
                trouble.error(KafkaError::Global(code), reason);
                trouble.error(KafkaError::Global(Code::AllBrokersDown), "1/1 brokers are down");
                explained(&trouble)
            };
            let error = turns_away();
            assert_eq!(error.kind, BrokerErrorKind::Refused, "{error}");
            assert!(error.message.starts_with(remedy) && error.message.contains(reason), "{error}");
            trouble.explained(Ok(())).unwrap();
            assert_eq!(explained(&trouble).message, NOBODY);

            let error = turns_away();
            assert_eq!(error.kind, BrokerErrorKind::Retryable, "who was let in is not ended for it: {error}");
            assert!(error.message.starts_with(remedy) && error.message.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_broker_that_is_away_is_asked_again_and_its_reason_told() {
        for (code, reason) in [
            (Code::BrokerTransportFailure, "Connect failed: Connection refused"),
            (
                Code::BrokerTransportFailure,
                "SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener?",
            ),
            (Code::SSL, "SSL handshake failed: unexpected eof while reading"),
            (Code::SSL, "SSL handshake failed: tlsv1 alert internal error"),
        ] {
            let trouble = Trouble::default();
            trouble.error(KafkaError::Global(code), reason);
            let error = explained(&trouble);
            assert_eq!(error.kind, BrokerErrorKind::Retryable);
            assert_eq!(error.message, format!("{NOBODY} ({reason})"));
        }
    }
}
