//! Why brokers and a client do not come together: librdkafka tells it beside its answers, which only say that nobody was there.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use rdkafka::{
    ClientContext,
    consumer::{BaseConsumer, ConsumerContext},
    error::{KafkaError, RDKafkaErrorCode as Code},
};
use tracing::error;

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
        error!(%error, reason, "librdkafka");
        let remedy = error.rdkafka_error_code().and_then(|code| remedy(code, reason));
        let mut last = self.last();
        // That all brokers are down says less than why one of them is.
        if remedy.is_some() || error.rdkafka_error_code() != Some(Code::AllBrokersDown) {
            *last = Some(Told { reason: one_line(reason).into_owned(), remedy });
        }
    }
}

impl ConsumerContext for Trouble {}

/// What an operator has to mend, where a repeat does not.
fn remedy(code: Code, reason: &str) -> Option<&'static str> {
    let says = |words: &[&str]| words.iter().any(|word| reason.contains(word));
    match code {
        Code::Authentication | Code::SaslAuthenticationFailed => Some(LOGIN),
        // What a broker makes of our certificate, or of its absence, may come behind the handshake.
        Code::SSL | Code::BrokerTransportFailure if says(&["alert"]) => Some(CERTIFICATE),
        Code::SSL if says(&["wrong version number", "packet length too long"]) => Some(PROTOCOL),
        Code::SSL => Some(AUTHORITY),
        _ => None,
    }
}

impl Trouble {
    fn last(&self) -> std::sync::MutexGuard<'_, Option<Told>> {
        // A single value: a panic elsewhere does not spoil it.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the cluster has ever answered.
    pub(super) fn is_known(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    /// An answer, with why there is none.
    pub(super) fn explained<T>(&self, answer: Result<T, BrokerError>) -> Result<T, BrokerError> {
        match answer {
            Err(error) if error.kind == BrokerErrorKind::Retryable => Err(match self.last().as_ref() {
                Some(Told { reason, remedy: Some(remedy) }) => {
                    BrokerError::new(BrokerErrorKind::Refused, error.operation, format!("{remedy} ({reason})"))
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
    fn what_no_repeat_mends_is_refused_with_its_remedy_until_there_is_an_answer() {
        for (code, reason, remedy) in [
            (Code::Authentication, "SASL authentication error: invalid credentials", LOGIN),
            (Code::SSL, "SSL handshake failed: certificate verify failed", AUTHORITY),
            (Code::SSL, "SSL handshake failed: wrong version number", PROTOCOL),
            (Code::BrokerTransportFailure, "Receive failed: tlsv13 alert certificate required", CERTIFICATE),
        ] {
            let trouble = Trouble::default();
            trouble.error(KafkaError::Global(code), reason);
            trouble.error(KafkaError::Global(Code::AllBrokersDown), "1/1 brokers are down");
            let error = explained(&trouble);
            assert_eq!(error.kind, BrokerErrorKind::Refused, "{error}");
            assert!(error.message.starts_with(remedy) && error.message.contains(reason), "{error}");
            trouble.explained(Ok(())).unwrap();
            assert_eq!(explained(&trouble).message, NOBODY);
        }
    }

    #[test]
    fn a_broker_that_is_away_is_asked_again_and_its_reason_told() {
        let trouble = Trouble::default();
        trouble.error(KafkaError::Global(Code::BrokerTransportFailure), "Connect failed: Connection refused");
        let error = explained(&trouble);
        assert_eq!(error.kind, BrokerErrorKind::Retryable);
        assert_eq!(error.message, format!("{NOBODY} (Connect failed: Connection refused)"));
    }
}
