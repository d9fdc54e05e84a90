//! Secondary indexes match the records and respect order, range and limit.

use std::collections::BTreeSet;

use super::{EngineBench, fixtures::*, states::Model};
use crate::{
    engine::{Cursor, Index, Row, local::index_values},
    record::{Key, Operation, Page, Record, Sequenced},
};

impl Model {
    /// Checks that each index has exactly the records of the model with the indexed field, ascending.
    pub async fn check_indexes(&self, bench: &EngineBench) {
        for index in Index::ALL {
            let value =
                |key: &Key| self.records.get(key).and_then(|record| index_values(record.as_ref())[index as usize]);
            let found = bench.query(index, 0, u64::MAX, usize::MAX).await;
            let own: Vec<Key> = found.into_iter().filter(|key| self.records.contains_key(key)).collect();
            let values: Vec<Option<u64>> = own.iter().map(value).collect();
            assert!(values.is_sorted(), "{}: {index:?} is not ascending: {values:?}", bench.check);
            let distinct: BTreeSet<Key> = own.iter().copied().collect();
            assert_eq!(distinct.len(), own.len(), "{}: {index:?} names a record twice", bench.check);
            let expected: BTreeSet<Key> = self.records.keys().copied().filter(|key| value(key).is_some()).collect();
            assert_eq!(distinct, expected, "{}: {index:?}", bench.check);
        }
    }
}

pub(super) async fn order_range_and_limit(bench: EngineBench) {
    // The value is far from the times of other checks, whose entries are in the same index.
    const FIRST: u64 = 5_000_000_000_000;
    let key = |n| Key::master(bench.txid(n));
    let rows: Vec<Row> = (0..40).map(|n| create(creating_page(bench.txid(n), 1, FIRST + n / 2))).collect();
    bench.apply_as(&mut Model::default(), &rows).await;
    let query = |from, to, limit| bench.query(Index::CreatingAt, FIRST + from, FIRST + to, limit);
    let set = |numbers: std::ops::Range<u64>| numbers.map(key).collect::<BTreeSet<_>>();
    let found: Vec<Key> = query(3, 5, 100).await;
    assert_eq!(found.iter().copied().collect::<BTreeSet<_>>(), set(6..12), "a range includes both ends");
    assert_eq!(found[..2].iter().copied().collect::<BTreeSet<_>>(), set(6..8), "ascending");
    assert_eq!(query(0, 19, 10).await.into_iter().collect::<BTreeSet<_>>(), set(0..10), "the lowest values come first");
    assert_eq!(query(7, 7, 1).await.len(), 1);
    assert_eq!(query(0, 19, 0).await, []);
    assert_eq!(query(5, 4, 10).await, [], "an empty range");
    assert_eq!(bench.query(Index::CreatingAt, FIRST + 20, u64::MAX, 10).await, [], "past the last");
    let mut parts = bench.query_parts(Index::CreatingAt, FIRST + 3, FIRST + 5).await;
    parts.sort_unstable();
    assert_eq!(parts, set(6..12).into_iter().collect::<Vec<_>>(), "the parts are the whole");
    let range = (FIRST + 3, FIRST + 5);
    let from = async |cursor: Option<Cursor>| {
        bench.retry("query", || bench.engine.query_part(Index::CreatingAt, range, cursor.clone())).await
    };
    let whole = from(None).await;
    for (index, after) in whole.after.iter().enumerate() {
        assert_eq!(from(Some(after.clone())).await.keys, whole.keys[index + 1..], "after the key of a part");
    }
}

/// Compares the indexes after each operation of a page's life.
pub(super) async fn entries_follow_the_record(bench: EngineBench) {
    let (master, second) = (bench.txid(0), bench.txid(1));
    let on = |txid, operation| Row { key: Key::master(txid), operation };
    let mut mark = 0;
    let mut next = |operation: Sequenced| {
        mark += 1;
        sequenced_at(mark, operation)
    };
    let rows = [
        create(creating_page(master, 2, 77)),
        on(master, Operation::ClearCreating),
        on(master, next(Sequenced::SetMined { mined_in: mined_in(150), longest_chain: true })),
        on(master, next(Sequenced::UnsetMined { block_id: 150, height: 90 })),
        on(master, next(Sequenced::MarkConflicting { reason: crate::record::Reason::Command, height: 200 })),
        on(master, next(Sequenced::Preserve { until: 900 })),
        on(master, next(Sequenced::Accept)),
        on(master, next(Sequenced::Prune { height: 500, keep_until: None })),
        create(Page { creating_at: Some(78), ..second_page(second, 2) }),
        Row { key: Key::Page(second, 1), operation: Operation::ClearCreating },
        on(bench.txid(2), next(Sequenced::MarkConflicting { reason: crate::record::Reason::Found, height: 300 })),
    ];
    let mut model = Model::default();
    let mut seen = BTreeSet::new();
    for row in &rows {
        bench.apply_as(&mut model, std::slice::from_ref(row)).await;
        model.check_indexes(&bench).await;
        let record: Option<&Record> = model.records.get(&row.key).and_then(Option::as_ref);
        seen.extend(index_values(record).into_iter().enumerate().map(|(index, value)| (index, value.is_some())));
    }
    assert_eq!(seen.len(), 2 * Index::ALL.len(), "{}: some index never had an entry, or always: {seen:?}", bench.check);
}
