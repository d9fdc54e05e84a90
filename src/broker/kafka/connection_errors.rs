//! Reasons why a client has no connection: librdkafka reports them beside its answers, which say only that no broker is
//! available.
//!
//! A refusal by a cluster that has never answered is an error that no retry heals. A cluster that has answered before
//! counts as unavailable, whatever the reason: a restarted broker may learn its users late, and a wrong certificate may
//! be replaced.

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

/// A client for requests, a member of no group.
pub(super) type QueryClient = BaseConsumer<ConnectionErrors>;

/// Keeps the reason of the last failed connection until the cluster answers.
#[derive(Default)]
pub(super) struct ConnectionErrors {
    last: Mutex<Option<LastError>>,
    answered: AtomicBool,
}

/// Reason that librdkafka reported, and the operator's remedy, if a retry cannot heal it.
#[derive(Clone)]
struct LastError {
    reason: String,
    remedy: Option<&'static str>,
}

const LOGIN: &str = "check kafka.security.mechanism, username and password";
const AUTHORITY: &str =
    "check kafka.security.ca_file, and that the broker's certificate is for the host by which it is connected to";
const CERTIFICATE: &str =
    "check kafka.security.certificate_file and key_file: the broker asks for a certificate that it believes";
const PROTOCOL: &str = "check kafka.security.protocol and the port: that listener speaks no TLS";

impl ClientContext for ConnectionErrors {
    fn error(&self, error: KafkaError, reason: &str) {
        if error.rdkafka_error_code() == Some(Code::PartitionEOF) {
            return;
        }
        // The error repeats many times a second and says less than the reason of a single broker.
        if error.rdkafka_error_code() == Some(Code::AllBrokersDown) {
            debug!(%error, reason, "librdkafka");
            return;
        }
        error!(%error, reason, "librdkafka");
        let remedy = error.rdkafka_error_code().and_then(|code| remedy(code, reason));
        *self.last_error() = Some(LastError { reason: one_line(reason).into_owned(), remedy });
    }
}

impl ConsumerContext for ConnectionErrors {}

/// TLS alerts by which a broker refuses the client's certificate, or a missing one.
const ALERTS: &[&str] = &[
    "alert certificate",
    "alert bad certificate",
    "alert unsupported certificate",
    "alert unknown ca",
    "alert access denied",
    "alert decrypt error",
    "alert handshake failure",
];

/// Remedy for an error that no retry heals. A connection that breaks, even during a handshake, has no remedy: a retry
/// heals it.
fn remedy(code: Code, reason: &str) -> Option<&'static str> {
    let contains_any = |words: &[&str]| words.iter().any(|word| reason.contains(word));
    match code {
        Code::Authentication | Code::SaslAuthenticationFailed => Some(LOGIN),
        // A broker may refuse the client's certificate, or a missing one, after the handshake.
        Code::SSL | Code::BrokerTransportFailure if contains_any(ALERTS) => Some(CERTIFICATE),
        Code::SSL if contains_any(&["wrong version number", "packet length too long"]) => Some(PROTOCOL),
        Code::SSL if contains_any(&["certificate verify failed"]) => Some(AUTHORITY),
        _ => None,
    }
}

impl ConnectionErrors {
    fn last_error(&self) -> std::sync::MutexGuard<'_, Option<LastError>> {
        // No panic can leave the value half written.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True where librdkafka has reported a reason since the last answer.
    pub(super) fn has_reason(&self) -> bool {
        self.last_error().is_some()
    }

    /// True once the cluster has answered.
    pub(super) fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    /// Adds the reason, and the remedy if any, to an error. A retryable error with a remedy becomes
    /// [`BrokerErrorKind::Refused`] where the cluster has never answered.
    pub(super) fn explain<T>(&self, answer: Result<T, BrokerError>) -> Result<T, BrokerError> {
        match answer {
            Err(error) if error.kind == BrokerErrorKind::Retryable => Err(match self.last_error().as_ref() {
                Some(LastError { reason, remedy: Some(remedy) }) => {
                    let kind = if self.has_answered() { error.kind } else { BrokerErrorKind::Refused };
                    BrokerError::new(kind, error.operation, format!("{remedy} ({reason})"))
                }
                Some(LastError { reason, remedy: None }) => {
                    BrokerError::new(error.kind, error.operation, format!("{} ({reason})", error.message))
                }
                None => error,
            }),
            Err(error) => Err(error),
            Ok(answer) => {
                self.answered.store(true, Ordering::Relaxed);
                *self.last_error() = None;
                Ok(answer)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_BROKER: &str = "no broker is available";

    fn explain_unavailable(errors: &ConnectionErrors) -> BrokerError {
        let away = BrokerError::new(BrokerErrorKind::Retryable, "look up topic", NO_BROKER);
        errors.explain(Err::<(), _>(away)).unwrap_err()
    }

    #[test]
    fn a_refused_client_gets_the_remedy_until_the_cluster_has_answered() {
        for (code, reason, remedy) in [
            (Code::Authentication, "SASL authentication error: invalid credentials", LOGIN),
            (Code::SSL, "SSL handshake failed: certificate verify failed", AUTHORITY),
            (Code::SSL, "SSL handshake failed: wrong version number", PROTOCOL),
            (Code::BrokerTransportFailure, "Receive failed: tlsv13 alert certificate required", CERTIFICATE),
        ] {
            let errors = ConnectionErrors::default();
            let refuse_connection = || {
                errors.error(KafkaError::Global(code), reason);
                errors.error(KafkaError::Global(Code::AllBrokersDown), "1/1 brokers are down");
                explain_unavailable(&errors)
            };
            let error = refuse_connection();
            assert_eq!(error.kind, BrokerErrorKind::Refused, "{error}");
            assert!(error.message.starts_with(remedy) && error.message.contains(reason), "{error}");
            errors.explain(Ok(())).unwrap();
            assert_eq!(explain_unavailable(&errors).message, NO_BROKER);

            let error = refuse_connection();
            assert_eq!(error.kind, BrokerErrorKind::Retryable, "a client that was accepted before is retried: {error}");
            assert!(error.message.starts_with(remedy) && error.message.contains(reason), "{error}");
        }
    }

    #[test]
    fn an_unreachable_broker_is_retryable_and_its_reason_is_reported() {
        for (code, reason) in [
            (Code::BrokerTransportFailure, "Connect failed: Connection refused"),
            (
                Code::BrokerTransportFailure,
                "SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener?",
            ),
            (Code::SSL, "SSL handshake failed: unexpected eof while reading"),
            (Code::SSL, "SSL handshake failed: tlsv1 alert internal error"),
        ] {
            let errors = ConnectionErrors::default();
            errors.error(KafkaError::Global(code), reason);
            let error = explain_unavailable(&errors);
            assert_eq!(error.kind, BrokerErrorKind::Retryable);
            assert_eq!(error.message, format!("{NO_BROKER} ({reason})"));
        }
    }
}
