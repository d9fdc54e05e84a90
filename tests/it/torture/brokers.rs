//! Losses of brokers at random: of a single broker, which is soon back; of three brokers one at a time, which is killed
//! or frozen and stays away for some seconds while instances are disturbed.

use std::{
    thread,
    time::{Duration, Instant},
};

use utxo_store::rng::SplitMix64;

use crate::{
    cluster_view::ClusterView,
    kafka_server::{ClusterSetup, KafkaServer, addresses},
    run::until,
};

/// Longest time of a single broker without its process.
const ALONE_MS: u64 = 5_000;
/// Longest time of one of several brokers without its process.
const KILLED_MS: u64 = 20_000;
/// Times of a frozen broker: shorter than the session with the controller (4 s), longer, and longer than the time after
/// which a copy is no longer in sync (5 s).
const FROZEN_SECONDS: [u64; 4] = [1, 3, 6, 14];

/// Starts a cluster of this many brokers; `None` as for [`KafkaServer::shared`].
pub fn start_brokers(brokers: usize) -> Option<Vec<KafkaServer>> {
    match brokers {
        1 => KafkaServer::own().map(|server| vec![server]),
        _ => KafkaServer::cluster(&ClusterSetup { brokers, ..ClusterSetup::default() }),
    }
}

/// A broker that is away.
struct LostBroker {
    index: usize,
    is_frozen: bool,
    until: Instant,
}

/// The brokers of a torture. At most one is away.
pub struct BrokerLosses<'k> {
    servers: &'k mut [KafkaServer],
    view: ClusterView,
    lost: Option<LostBroker>,
}

impl<'k> BrokerLosses<'k> {
    pub fn new(servers: &'k mut [KafkaServer]) -> Self {
        let view = ClusterView::new(&addresses(servers));
        BrokerLosses { servers, view, lost: None }
    }

    pub fn are_several(&self) -> bool {
        self.servers.len() > 1
    }

    /// Kills a broker; returns whether it did. A single broker is back when this returns.
    pub fn kill(&mut self, rng: &mut SplitMix64) -> bool {
        if let [server] = &mut *self.servers {
            server.kill();
            thread::sleep(Duration::from_millis(rng.below(ALONE_MS)));
            server.restart();
            return true;
        }
        let after = Duration::from_millis(rng.below(KILLED_MS));
        self.lose(rng, after, false)
    }

    /// Freezes a broker; returns whether it did.
    pub fn freeze(&mut self, rng: &mut SplitMix64) -> bool {
        let after = Duration::from_secs(*rng.pick(&FROZEN_SECONDS));
        self.lose(rng, after, true)
    }

    fn lose(&mut self, rng: &mut SplitMix64, after: Duration, is_frozen: bool) -> bool {
        let index = rng.below(self.servers.len() as u64) as usize;
        // One at a time: a broker that is back counts once it has every message.
        if self.lost.is_some() || !self.view.is_whole() {
            return false;
        }
        match is_frozen {
            true => self.servers[index].freeze(true),
            false => self.servers[index].kill(),
        }
        self.lost = Some(LostBroker { index, is_frozen, until: Instant::now() + after });
        true
    }

    /// Brings a lost broker back once its time is over.
    pub fn end_if_due(&mut self) {
        if let Some(LostBroker { index, is_frozen, .. }) = self.lost.take_if(|lost| lost.until <= Instant::now()) {
            match is_frozen {
                true => self.servers[index].freeze(false),
                false => self.servers[index].start_again(),
            }
        }
    }

    /// Brings a lost broker back, and waits until every copy is in sync.
    pub fn end(&mut self) {
        if let Some(lost) = &mut self.lost {
            lost.until = Instant::now();
        }
        self.end_if_due();
        until("every copy is in sync", || self.view.is_whole());
    }
}

impl Drop for BrokerLosses<'_> {
    /// A frozen process would outlive a test that failed.
    fn drop(&mut self) {
        if let Some(LostBroker { index, is_frozen: true, .. }) = self.lost {
            self.servers[index].freeze(false);
        }
    }
}
