use super::*;
use crate::{record::Operation, store::testing};

#[tokio::test]
async fn a_part_of_a_batch_leaves_while_few_batches_are_in_flight() {
    let settings = DispatchSettings { batch_size: 16, batch_age: Duration::from_secs(3_600), in_flight_batches: 8 };
    let (messages, _outcomes) = mpsc::unbounded_channel();
    let mut dispatcher = Dispatcher::new(testing::store(1), settings, messages);
    let mut gathered = |rows| {
        for _ in 0..rows {
            let row = Row { key: Key::master(Txid::default()), operation: Operation::ClearCreating };
            dispatcher.push(Token::Create(FlightId { index: 0, generation: 0 }), row);
        }
        dispatcher.flush();
        (dispatcher.in_flight, dispatcher.rows.len())
    };
    assert_eq!(gathered(1), (1, 0), "no batch was in flight");
    assert_eq!(gathered(3), (1, 3));
    assert_eq!([gathered(1), gathered(4), gathered(4)], [(2, 0), (3, 0), (4, 0)]);
    assert_eq!(gathered(15), (4, 15), "enough batches are in flight");
    assert_eq!(gathered(1), (5, 0), "full");
}

#[tokio::test]
async fn rows_of_woken_transactions_leave_before_a_backlog() {
    let settings = DispatchSettings { batch_size: 16, batch_age: Duration::from_secs(3_600), in_flight_batches: 1 };
    let (messages, mut outcomes) = mpsc::unbounded_channel();
    let mut dispatcher = Dispatcher::new(testing::store(1), settings, messages);
    let row = || Row { key: Key::master(Txid::default()), operation: Operation::ClearCreating };
    let token = |index| Token::Create(FlightId { index, generation: 0 });
    (0..40).for_each(|index| dispatcher.push(token(index), row()));
    dispatcher.push_woken(token(99), row());
    dispatcher.flush();
    assert_eq!((dispatcher.in_flight, dispatcher.rows.len()), (2, 24), "the backlog waits for its one batch");
    let mut answered = Vec::new();
    for _ in 0..2 {
        let Some(TaskMessage::Rows { outcomes, last: true }) = outcomes.recv().await else { panic!() };
        answered.push(outcomes.len());
    }
    answered.sort_unstable();
    assert_eq!(answered, [1, 16]);
}
