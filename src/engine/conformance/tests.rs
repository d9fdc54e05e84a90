use super::*;
use crate::engine::{
    fjall::{FjallEngine, FjallOptions},
    memory::MemoryEngine,
};

async fn run_each_check_on(open: impl Fn() -> Arc<dyn RecordEngine>) {
    for check in CHECKS {
        check.run(open()).await;
    }
    run(open()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_memory_engine_conforms() {
    run_each_check_on(|| Arc::new(MemoryEngine::new(RULES))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_fjall_engine_conforms() {
    let directory = tempfile::tempdir().unwrap();
    let number = std::cell::Cell::new(0);
    run_each_check_on(|| {
        number.set(number.get() + 1);
        let directory = directory.path().join(number.get().to_string());
        Arc::new(FjallEngine::open(&directory, RULES, FjallOptions { cache_bytes: 1 << 20 }).unwrap())
    })
    .await;
}

/// Protects the names of the states: a state that its operations do not reach would be checked under a wrong name.
#[test]
fn the_operations_of_each_state_reach_it() {
    states::check_histories();
}
