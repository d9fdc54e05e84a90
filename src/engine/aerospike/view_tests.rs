//! Each rule of views and fences by its concrete history. Random histories are in `view_model_tests.rs`.

use std::collections::BTreeSet;

use super::view::*;

const BASE: &str = "utxo.store";

fn set(nodes: &str) -> BTreeSet<String> {
    nodes.chars().map(String::from).collect()
}

/// The name of the fence with this number around these nodes, as an instance would give it.
fn fenced(number: u64, nodes: &str) -> String {
    let members: Vec<(String, String)> = nodes.chars().map(|node| (node.into(), BASE.into())).collect();
    let record = FenceRecord { planned: number - 1, ..FenceRecord::default() };
    match next_step(&view_of(&members), &record, 2) {
        Ok(FenceStep::Plan(_, name)) => name.to_string(),
        step => panic!("{step:?}"),
    }
}

fn view_of(members: &[(String, String)]) -> View {
    let member = |(host, (node, name)): (usize, &(String, String))| {
        (node.clone(), Member { host, name: ClusterName::parse(name) })
    };
    View { key: "1A".into(), members: members.iter().enumerate().map(member).collect() }
}

/// A view whose members have one name.
fn view(nodes: &str, name: &str) -> View {
    mixed(&nodes.chars().map(|node| (node, name)).collect::<Vec<_>>())
}

/// A view whose members have these names.
fn mixed(members: &[(char, &str)]) -> View {
    view_of(&members.iter().map(|(node, name)| (node.to_string(), name.to_string())).collect::<Vec<_>>())
}

fn record(planned: u64, met: u64, members: &str, complete: &str) -> FenceRecord {
    FenceRecord { planned, met, members: set(members), complete: set(complete), ..FenceRecord::default() }
}

fn unproven(nodes: &str, record: FenceRecord) -> FenceRecord {
    FenceRecord { unproven: set(nodes), ..record }
}

/// A record in which these nodes have joined since the copies were complete.
fn joined(nodes: &str, record: FenceRecord) -> FenceRecord {
    FenceRecord { joined: set(nodes), ..record }
}

fn answer(host: usize, node: &str, name: &str, cluster: Option<(&str, Option<usize>)>) -> NodeAnswer {
    let cluster = cluster.map(|(key, size)| NodeCluster { key: key.into(), size });
    NodeAnswer { host, node: node.into(), name: ClusterName::parse(name), cluster }
}

#[test]
fn names_round_trip_also_with_dots_in_the_configured_name() {
    for name in ["utxo", "utxo.store", "utxo.7", "a.7.xyz", "a.b.9c3f0a21", "utxo.7.9c3f0a2", "", ".", ".."] {
        let parsed = ClusterName::parse(name);
        assert_eq!((parsed.base.as_str(), parsed.fence), (name, None), "{name}");
        assert_eq!(parsed.to_string(), name);
    }
    for (name, base, number) in [
        ("utxo.7.9c3f0a21", "utxo", 7),
        ("utxo.store.7.0000000a", "utxo.store", 7),
        ("utxo.7.9c3f0a21.8.9c3f0a21", "utxo.7.9c3f0a21", 8),
        (".1.00000000", "", 1),
        ("a.18446744073709551615.ffffffff", "a", u64::MAX),
    ] {
        let parsed = ClusterName::parse(name);
        assert_eq!((parsed.base.as_str(), parsed.fence.map(|fence| fence.number)), (base, Some(number)), "{name}");
        assert_eq!(parsed.to_string(), name);
    }
}

#[test]
fn a_name_that_no_instance_gives_is_a_configured_name() {
    // Two texts of one fence would be two clusters for the servers, and one name for the instances.
    for name in ["utxo.7.9C3F0A21", "utxo.07.9c3f0a21", "utxo.+7.9c3f0a21", "utxo.7.+c3f0a21"] {
        assert_eq!(ClusterName::parse(name).to_string(), name);
    }
}

#[test]
fn a_view_is_a_cluster_all_of_whose_members_answer() {
    let a = answer(0, "A", BASE, Some(("1A", Some(3))));
    let b = answer(1, "B", BASE, Some(("1A", Some(3))));
    let c = answer(2, "C", BASE, Some(("1A", Some(3))));
    let found = View::find(&[a.clone(), b.clone(), c.clone()], None).unwrap();
    assert_eq!((found.key.as_str(), found.nodes()), ("1A", set("ABC")));
    assert_eq!(View::find(&[a.clone(), b.clone()], None), None, "C is silent");
    assert_eq!(View::find(&[], None), None);
    // C left, and does not know yet; the others agreed on a new key.
    let left = [answer(0, "A", BASE, Some(("2B", Some(2)))), answer(1, "B", BASE, Some(("2B", Some(2)))), c.clone()];
    assert_eq!(View::find(&left, None).unwrap().nodes(), set("AB"));
    // The exchange is under way: A has the new key, B has the old one.
    assert_eq!(View::find(&[left[0].clone(), b.clone(), c.clone()], None), None);
    // A node without a cluster is no member.
    assert_eq!(View::find(&[a, b, answer(2, "C", BASE, None)], None), None);
}

#[test]
fn a_node_under_two_hosts_is_one_member() {
    let cluster = Some(("1A", Some(2)));
    let twice = [answer(0, "A", BASE, cluster), answer(1, "A", BASE, cluster)];
    assert_eq!(View::find(&twice, None), None);
    let found = View::find(&[&twice[..], &[answer(2, "B", BASE, cluster)]].concat(), None).unwrap();
    assert_eq!(found.nodes(), set("AB"));
}

#[test]
fn a_cluster_larger_than_the_hosts_is_no_view() {
    let cluster = Some(("1A", None));
    assert_eq!(View::find(&[answer(0, "A", BASE, cluster), answer(1, "B", BASE, cluster)], None), None);
}

#[test]
fn a_cluster_with_another_configured_name_is_passed_over() {
    let foreign = [answer(0, "X", "other", Some(("1", Some(1)))), answer(1, "A", BASE, Some(("2", Some(1))))];
    assert_eq!(View::find(&foreign, Some(BASE)).unwrap().nodes(), set("A"));
    assert_eq!(View::find(&foreign[..1], Some(BASE)), None);
    assert_eq!(View::find(&foreign[..1], None).unwrap().nodes(), set("X"));
}

#[test]
fn a_fence_is_one_name_that_belongs_to_exactly_the_members() {
    assert_eq!(view("ABC", BASE).fence(), None);
    assert_eq!(view("ABC", &fenced(4, "ABC")).fence(), Some(4));
    assert_eq!(view("BC", &fenced(4, "ABC")).fence(), None, "A left");
    assert_eq!(view("ABC", &fenced(4, "BC")).fence(), None, "A was admitted");
    let (three, four) = (fenced(3, "ABC"), fenced(4, "ABC"));
    assert_eq!(mixed(&[('A', &four), ('B', &four), ('C', &three)]).fence(), None, "C is not renamed yet");
    assert_eq!(mixed(&[('A', &four), ('B', &four), ('C', BASE)]).fence(), None);
    assert_eq!(view("", BASE).fence(), None);
}

fn name(text: &str) -> ClusterName {
    ClusterName::parse(text)
}

#[test]
fn the_first_instance_plans_and_meets_the_first_fence() {
    let first = next_step(&view("ABC", BASE), &FenceRecord::default(), 2);
    let planned = joined("ABC", unproven("ABC", record(1, 0, "", "")));
    assert_eq!(first, Ok(FenceStep::Plan(planned.clone(), name(&fenced(1, "ABC")))));
    let step = next_step(&view("ABC", &fenced(1, "ABC")), &planned, 2);
    assert_eq!(step, Ok(FenceStep::Meet(joined("ABC", unproven("ABC", record(1, 1, "ABC", "ABC"))))));
    let met = unproven("ABC", record(1, 1, "ABC", "ABC"));
    assert_eq!(next_step(&view("ABC", &fenced(1, "ABC")), &met, 2), Ok(FenceStep::Use));
    // The namespace may have records from before whose copies are not complete.
    let step = next_step(&view("BC", &fenced(1, "ABC")), &met, 2);
    assert_eq!(step, Err(UnsafeView::CopiesLost { lost: set("A") }));
}

#[test]
fn a_member_that_leaves_is_fenced_off_and_the_copies_stay_incomplete() {
    let stored = record(1, 1, "ABC", "ABC");
    let step = next_step(&view("BC", &fenced(1, "ABC")), &stored, 2);
    assert_eq!(step, Ok(FenceStep::Plan(record(2, 1, "ABC", "ABC"), name(&fenced(2, "BC")))));
    let step = next_step(&view("BC", &fenced(2, "BC")), &record(2, 1, "ABC", "ABC"), 2);
    assert_eq!(step, Ok(FenceStep::Meet(record(2, 2, "BC", "ABC"))));
}

#[test]
fn a_fence_that_another_instance_began_is_finished() {
    let (one, two) = (fenced(1, "ABC"), fenced(2, "BC"));
    let begun = mixed(&[('B', &one), ('C', &two)]);
    assert_eq!(next_step(&begun, &record(2, 1, "ABC", "ABC"), 2), Ok(FenceStep::Finish(name(&two))));
    // The fence that was begun belongs to other members: the next number is chosen.
    let begun = mixed(&[('A', &two), ('B', &one), ('C', &one)]);
    let step = next_step(&begun, &record(2, 1, "ABC", "ABC"), 2);
    assert_eq!(step, Ok(FenceStep::Plan(record(3, 1, "ABC", "ABC"), name(&fenced(3, "ABC")))));
}

#[test]
fn a_number_is_above_every_planned_and_every_present_one() {
    // An instance wrote the plan of fence 5, and stopped before the first rename.
    let step = next_step(&view("BC", &fenced(1, "ABC")), &record(5, 1, "ABC", "ABC"), 2);
    assert_eq!(step, Ok(FenceStep::Plan(record(6, 1, "ABC", "ABC"), name(&fenced(6, "BC")))));
}

#[test]
fn an_admitted_node_gets_a_fence_and_the_complete_copies_stay_as_they_were() {
    let stored = record(2, 2, "BC", "BC");
    let step = next_step(&view("ABC", &fenced(2, "BC")), &stored, 2);
    assert_eq!(step, Ok(FenceStep::Plan(joined("A", record(3, 2, "BC", "BC")), name(&fenced(3, "ABC")))));
    let step = next_step(&view("ABC", &fenced(3, "ABC")), &joined("A", record(3, 2, "BC", "BC")), 2);
    assert_eq!(step, Ok(FenceStep::Meet(joined("A", record(3, 3, "ABC", "BC")))));
}

#[test]
fn a_met_fence_is_used_and_met_again_with_other_members() {
    let stands = view("BC", &fenced(2, "BC"));
    assert_eq!(next_step(&stands, &record(2, 2, "BC", "ABC"), 2), Ok(FenceStep::Use));
    // The tag has 32 bits: equal numbers alone do not make equal members.
    let step = next_step(&stands, &record(2, 2, "ABC", "ABC"), 2);
    assert_eq!(step, Ok(FenceStep::Meet(record(2, 2, "BC", "ABC"))));
}

#[test]
fn a_node_that_was_left_out_and_started_again_is_not_admitted() {
    // A was left out by fence 2; a power cut; all three start with their records and find each other.
    let step = next_step(&view("ABC", BASE), &record(2, 2, "BC", "BC"), 2);
    assert_eq!(step, Err(UnsafeView::NotAdmitted { node: "A".into(), met: 2 }));
    // With a fence's name it came by an instance.
    assert!(next_step(&view("ABC", &fenced(2, "BC")), &record(2, 2, "BC", "BC"), 2).is_ok());
}

#[test]
fn members_that_all_started_again_are_fenced_anew_and_their_copies_are_unknown() {
    let planned = unproven("ABC", record(3, 2, "ABC", "ABC"));
    let step = next_step(&view("ABC", BASE), &record(2, 2, "ABC", "ABC"), 2);
    assert_eq!(step, Ok(FenceStep::Plan(planned.clone(), name(&fenced(3, "ABC")))));
    let met = unproven("ABC", record(3, 3, "ABC", "ABC"));
    assert_eq!(next_step(&view("ABC", &fenced(3, "ABC")), &planned, 2), Ok(FenceStep::Meet(met.clone())));
    // One of the three may have lost its files, so that no other node can be lost before the copies are complete.
    for stored in [planned, met] {
        let step = next_step(&view("BC", &fenced(3, "ABC")), &stored, 2);
        assert_eq!(step, Err(UnsafeView::CopiesLost { lost: set("A") }));
    }
    // One member did not come back: its copies are elsewhere.
    let step = next_step(&view("AC", BASE), &record(2, 2, "ABC", "ABC"), 2);
    assert_eq!(step, Ok(FenceStep::Plan(unproven("AC", record(3, 2, "ABC", "ABC")), name(&fenced(3, "AC")))));
    // A later plan keeps the mark.
    let stored = unproven("AC", record(3, 2, "ABC", "ABC"));
    let step = next_step(&view("ABC", &fenced(3, "AC")), &stored, 2);
    assert_eq!(step, Ok(FenceStep::Plan(unproven("AC", record(4, 2, "ABC", "ABC")), name(&fenced(4, "ABC")))));
}

#[test]
fn names_of_a_fence_before_the_last_met_one_are_refused() {
    let step = next_step(&view("ABC", &fenced(1, "ABC")), &record(2, 2, "BC", "ABC"), 2);
    assert_eq!(step, Err(UnsafeView::WentBack { found: 1, met: 2 }));
}

#[test]
fn two_nodes_that_left_before_the_copies_were_complete_are_lost() {
    // Of five: A left, B left; the copies of A's records were not complete.
    let stored = record(3, 3, "BCDE", "ABCDE");
    let step = next_step(&view("CDE", &fenced(3, "BCDE")), &stored, 2);
    assert_eq!(step, Err(UnsafeView::CopiesLost { lost: set("AB") }));
    let step = next_step(&view("CDE", &fenced(3, "BCDE")), &record(3, 3, "BCDE", "BCDE"), 2);
    assert!(matches!(step, Ok(FenceStep::Plan(..))), "{step:?}");
    // With three copies two lost nodes are survived.
    assert!(next_step(&view("CDE", &fenced(3, "BCDE")), &stored, 3).is_ok());
}

/// Five nodes, of which A was admitted: migrations may have brought the only copies of a record to A and B.
#[test]
fn an_admitted_node_and_a_member_are_lost_together() {
    let stored = joined("A", record(3, 2, "BCDE", "BCDE"));
    let step = next_step(&view("CDE", &fenced(3, "ABCDE")), &stored, 2);
    assert_eq!(step, Err(UnsafeView::CopiesLost { lost: set("AB") }));
    assert!(next_step(&view("BCDE", &fenced(3, "ABCDE")), &stored, 2).is_ok());
}

#[test]
fn missing_members_that_wait_outside_get_the_name_of_the_view() {
    let (one, two) = (fenced(1, "ABC"), fenced(2, "ABC"));
    let stored = unproven("ABC", record(2, 1, "ABC", "ABC"));
    let waiting = [answer(2, "C", BASE, None), answer(3, "D", BASE, None)];
    assert_eq!(bring_back(&view("AB", &two), &stored, &waiting), Some((name(&two), vec![2])));
    // The name comes from the member that has the greatest one.
    let names = mixed(&[('A', &one), ('B', &two)]);
    assert_eq!(bring_back(&names, &stored, &waiting), Some((name(&two), vec![0, 2])));
    // The name belongs to exactly the nodes that get it: a member that the fence leaves out does not get it.
    let (four, stored) = (fenced(4, "BCDE"), record(4, 3, "ABCDE", "ABCDE"));
    let waiting = [answer(0, "A", &fenced(3, "ABCDE"), None), answer(4, "E", &fenced(3, "ABCDE"), None)];
    let present = mixed(&[('B', &four), ('C', &four), ('D', &four)]);
    assert_eq!(bring_back(&present, &stored, &waiting), Some((name(&four), vec![4])));
    assert_eq!(bring_back(&present, &stored, &waiting[..1]), None);
    let stored = unproven("ABC", record(2, 1, "ABC", "ABC"));
    // C joins another cluster, or joins this view already.
    let elsewhere = [answer(2, "C", BASE, Some(("2B", Some(2))))];
    assert_eq!(bring_back(&view("AB", &two), &stored, &elsewhere), None);
    assert_eq!(bring_back(&view("AB", &two), &stored, &[answer(2, "C", &two, None)]), Some((name(&two), vec![])));
}

#[test]
fn a_view_gets_the_name_of_the_fence_that_was_begun_at_a_missing_member() {
    let two = fenced(2, "ABC");
    let stored = unproven("ABC", record(2, 1, "ABC", "ABC"));
    let waiting = [answer(2, "C", &two, None)];
    assert_eq!(bring_back(&view("AB", BASE), &stored, &waiting), Some((name(&two), vec![0, 1])));
    // Before the first fence the record names no members.
    let first = unproven("ABC", record(2, 0, "", ""));
    assert_eq!(bring_back(&view("AB", BASE), &first, &waiting), Some((name(&two), vec![0, 1])));
    // A later fence was planned, or C was left out, or C was started again.
    let later = FenceRecord { planned: 3, ..stored.clone() };
    assert_eq!(bring_back(&view("AB", BASE), &later, &waiting), None);
    assert_eq!(bring_back(&view("AB", BASE), &record(2, 1, "AB", "AB"), &waiting), None);
    assert_eq!(bring_back(&view("AB", BASE), &stored, &[answer(2, "C", BASE, None)]), None);
}

#[test]
fn an_interrupted_fence_is_finished_where_members_lost_each_other() {
    let (one, two) = (fenced(1, "ABC"), fenced(2, "BC"));
    // An instance renamed C, and stopped; A is the node that the fence leaves out.
    let answers = [answer(0, "A", &one, None), answer(1, "B", &one, None), answer(2, "C", &two, None)];
    assert_eq!(interrupted_fence(&answers, &set("ABC"), Some(1)), Some((name(&two), vec![1])));
    assert_eq!(interrupted_fence(&answers, &set("ABC"), None), Some((name(&two), vec![1])));
    // B is silent: the members of the fence are not found.
    let without = [answers[0].clone(), answers[2].clone()];
    assert_eq!(interrupted_fence(&without, &set("ABC"), Some(1)), None);
    // B has lost its records.
    assert_eq!(interrupted_fence(&answers, &set("AC"), Some(1)), None);
    // A cluster stands somewhere: its view counts.
    let cluster = answer(0, "A", &one, Some(("1A", Some(2))));
    assert_eq!(interrupted_fence(&[cluster, answers[1].clone(), answers[2].clone()], &set("ABC"), Some(1)), None);
    // Nothing is lacking.
    let whole = [answer(1, "B", &two, None), answer(2, "C", &two, None)];
    assert_eq!(interrupted_fence(&whole, &set("BC"), Some(2)), Some((name(&two), vec![])));
}

#[test]
fn a_restarted_member_is_brought_back_alone_behind_the_last_met_fence_only() {
    let (one, two) = (fenced(1, "ABC"), fenced(2, "BC"));
    // C was started again within the fence of B and C.
    let answers = [answer(1, "B", &two, None), answer(2, "C", BASE, None)];
    assert_eq!(interrupted_fence(&answers, &set("BC"), Some(2)), Some((name(&two), vec![2])));
    assert_eq!(interrupted_fence(&answers, &set("BC"), None), None, "a fresh process cannot know the last fence");
    // A, which was left out by fence 2, has the greatest name: B and C were started again.
    let answers = [answer(0, "A", &one, None), answer(1, "B", BASE, None), answer(2, "C", BASE, None)];
    assert_eq!(interrupted_fence(&answers, &set("ABC"), Some(2)), None);
    assert_eq!(interrupted_fence(&answers, &set("ABC"), None), None);
    // A process that has met fence 1 only brings back one such node: B and C may have met fence 2 without A.
    assert_eq!(interrupted_fence(&answers, &set("ABC"), Some(1)), None);
    let answers = [answer(0, "A", &one, None), answer(1, "B", &one, None), answer(2, "C", BASE, None)];
    assert_eq!(interrupted_fence(&answers, &set("ABC"), Some(1)), Some((name(&one), vec![2])));
}

#[test]
fn an_interrupted_fence_needs_a_fence_one_configured_name_and_few_nodes() {
    let plain = [answer(0, "A", BASE, None), answer(1, "B", BASE, None)];
    assert_eq!(interrupted_fence(&plain, &set("AB"), Some(1)), None);
    assert_eq!(interrupted_fence(&[], &set(""), Some(1)), None);
    let foreign = [answer(0, "A", &fenced(1, "AB"), None), answer(1, "B", "other", None)];
    assert_eq!(interrupted_fence(&foreign, &set("AB"), Some(1)), None);
    let nodes = "ABCDEFGHIJKLM";
    let many: Vec<NodeAnswer> = nodes
        .chars()
        .enumerate()
        .map(|(host, node)| answer(host, &node.to_string(), &fenced(1, nodes), None))
        .collect();
    assert_eq!(interrupted_fence(&many, &set(nodes), Some(1)), None);
    assert!(interrupted_fence(&many[..12], &set("ABCDEFGHIJKL"), Some(1)).is_none(), "M does not answer");
}

#[test]
fn the_reason_for_no_view_names_every_node() {
    let answers = [
        answer(0, "A", BASE, Some(("1A", Some(3)))),
        answer(1, "B", BASE, Some(("1A", None))),
        answer(2, "C", "other", None),
    ];
    let text = describe_no_view(&answers, &["10.0.0.4:3000".into()]);
    for part in ["node A (utxo.store) is in cluster 1A of 3", "name every node", "node C (other) is in no cluster"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(text.ends_with("10.0.0.4:3000 does not answer"), "{text}");
}
