use super::*;
use crate::broker::conformance;

fn broker(change: impl FnOnce(&mut MemorySettings)) -> MemoryBroker {
    let mut settings = MemorySettings::new(Clock::simulated(1_700_000_000_000));
    change(&mut settings);
    MemoryBroker::new(settings)
}

#[tokio::test(start_paused = true)]
async fn memory_conforms() {
    conformance::run(Arc::new(broker(|_| {})), "").await;
}

#[tokio::test(start_paused = true)]
async fn memory_conforms_with_slow_funerals_and_round_robin() {
    let slow = broker(|settings| {
        settings.assignment = Assignment::RoundRobin;
        settings.session_timeout = Duration::from_secs(10);
        settings.batch_messages = 7;
    });
    conformance::run(Arc::new(slow), "").await;
}
