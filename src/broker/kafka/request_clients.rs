//! [`RequestClients`]: the clients of a cluster for requests, none of which is a member of a group.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use rdkafka::{admin::AdminClient, client::DefaultClientContext, consumer::Consumer as _};

use super::{
    connection_errors::{ConnectionErrors, QueryClient},
    consumer::run_blocking,
    errors::translate,
    settings::KafkaSettings,
};
use crate::broker::{BrokerError, BrokerErrorKind};

/// Timeout of one request to a cluster that has never answered.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Timeout of one poll for the reason why a request failed.
const ERROR_POLL_TIMEOUT: Duration = Duration::from_millis(20);
/// Time to find the reason of a failed first request behind the queued log lines.
const REASON_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for the log lines behind the reason.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Log lines that are written after a request at most.
const MAX_LOG_LINES: usize = 10_000;

type Admin = AdminClient<DefaultClientContext>;

/// Clients for metadata, administration and committed offsets. Clones share the clients.
#[derive(Clone)]
pub(super) struct RequestClients {
    pub(super) settings: Arc<KafkaSettings>,
    /// Client for metadata requests.
    metadata: Arc<QueryClient>,
    /// Client for requests that only the controller or a partition's leader can serve. Created at the first use.
    admin: Arc<Mutex<Option<Arc<Admin>>>>,
    /// Clients for the committed offsets of each group. Reused, since each client has several threads and connections.
    groups: Arc<Mutex<HashMap<String, Arc<QueryClient>>>>,
}

impl RequestClients {
    /// Checks the settings and creates the client for metadata. The client connects in the background and reconnects.
    pub(super) fn new(settings: KafkaSettings) -> Result<Self, BrokerError> {
        settings.check()?;
        let metadata = settings
            .client_config()
            .set("allow.auto.create.topics", "false")
            .create_with_context(ConnectionErrors::default())
            .map_err(|error| translate("connect", &settings.brokers, &error))?;
        Ok(RequestClients {
            settings: Arc::new(settings),
            metadata: Arc::new(metadata),
            admin: Arc::default(),
            groups: Arc::default(),
        })
    }

    /// Runs a blocking request of the metadata client.
    pub(super) async fn query<T: Send + 'static>(
        &self,
        operation: &'static str,
        request: impl Fn(&QueryClient, Duration) -> Result<T, BrokerError> + Send + 'static,
    ) -> Result<T, BrokerError> {
        let (metadata, bound) = (self.metadata.clone(), self.settings.request_timeout);
        // librdkafka keeps the bound itself and names the cause, so the outer timeout is longer.
        run_blocking(operation, bound + Duration::from_secs(1), move || {
            let until = Instant::now() + bound;
            loop {
                let left = until.saturating_duration_since(Instant::now());
                // librdkafka reports why a cluster refuses a client only between two requests.
                let known = metadata.context().has_answered();
                let answer = request(&metadata, if known { left } else { left.min(FIRST_REQUEST_TIMEOUT) });
                match answer.is_ok() {
                    true => serve_log(&metadata),
                    false if known => serve_errors(&metadata, Instant::now()),
                    false => serve_errors(&metadata, until.min(Instant::now() + REASON_TIMEOUT)),
                }
                match metadata.context().explain(answer) {
                    Err(error) if error.kind == BrokerErrorKind::Retryable && !known && Instant::now() < until => {}
                    answer => return answer,
                }
            }
        })
        .await
    }

    /// Returns the client for administration.
    pub(super) fn admin(&self, operation: &'static str) -> Result<Arc<Admin>, BrokerError> {
        // No panic can leave the option half changed.
        let mut created = self.admin.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(admin) = created.as_ref() {
            return Ok(admin.clone());
        }
        let admin = self.settings.client_config().create();
        let admin: Admin = admin.map_err(|error| translate(operation, &self.settings.brokers, &error))?;
        Ok(created.insert(Arc::new(admin)).clone())
    }

    /// Returns the client for the committed offsets of a group.
    pub(super) fn group_client(&self, group: &str) -> Result<Arc<QueryClient>, BrokerError> {
        // No panic can leave the map half changed.
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = groups.get(group) {
            return Ok(client.clone());
        }
        let client = self.settings.consumer_config(group, 1).create_with_context(ConnectionErrors::default());
        let client: QueryClient = client.map_err(|error| translate("look up committed offsets", group, &error))?;
        let client = Arc::new(client);
        groups.insert(group.to_owned(), client.clone());
        Ok(client)
    }
}

/// Writes the queued log lines of a client that no loop polls: at most [`MAX_LOG_LINES`], since librdkafka may log
/// faster than the lines are written.
pub(super) fn serve_log(client: &QueryClient) {
    for _ in 0..MAX_LOG_LINES {
        if client.poll(Duration::ZERO).is_none() {
            return;
        }
    }
}

/// Serves the log lines and errors of a failed request until librdkafka has reported a reason, at most until `until`.
///
/// Log lines precede the error in the queue. Under `debug` a loaded machine logs faster than one poll serves.
fn serve_errors(client: &QueryClient, until: Instant) {
    let poll = || client.poll(ERROR_POLL_TIMEOUT).is_some();
    serve_until_reason(poll, || client.context().has_reason(), Instant::now, until);
}

/// Polls until there is a reason or the time is `until`, and then until no line is left, for [`DRAIN_TIMEOUT`] at most:
/// a queue that is never empty ends no wait. `poll` returns whether it has served a line.
fn serve_until_reason(
    mut poll: impl FnMut() -> bool,
    has_reason: impl Fn() -> bool,
    mut now: impl FnMut() -> Instant,
    until: Instant,
) {
    let mut drained_by = None;
    loop {
        let has_served = poll();
        let now = now();
        if (has_reason() || now >= until) && (!has_served || now >= *drained_by.get_or_insert(now + DRAIN_TIMEOUT)) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Serves a log whose reason is line `reason`; a poll takes 1 ms. Returns the number of lines served.
    fn serve(lines: u64, reason: u64, wait: Duration) -> u64 {
        let (begun, served) = (Instant::now(), Cell::new(0));
        let poll = || {
            served.set(served.get() + 1);
            served.get() <= lines
        };
        let now = || begun + Duration::from_millis(served.get());
        serve_until_reason(poll, || served.get() >= reason, now, begun + wait);
        served.get()
    }

    /// Protects: a log that is fuller than one poll, or never empty, neither hides the reason nor holds the request.
    #[test]
    fn a_full_log_is_served_until_the_reason_is_found() {
        let drain = DRAIN_TIMEOUT.as_millis() as u64;
        assert_eq!(serve(500, 400, REASON_TIMEOUT), 501, "the reason, and the lines behind it");
        assert_eq!(serve(u64::MAX, 400, REASON_TIMEOUT), 400 + drain, "a log that is never empty");
        assert_eq!(serve(u64::MAX, u64::MAX, REASON_TIMEOUT), 3_000 + drain, "no reason");
        assert_eq!(serve(10, u64::MAX, REASON_TIMEOUT), 3_000, "the reason may still come");
        assert_eq!(serve(10, u64::MAX, Duration::ZERO), 11, "the lines of a cluster that was known before");
    }
}
