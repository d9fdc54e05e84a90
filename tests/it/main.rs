//! The one integration binary. A test without the server that it needs is skipped with a line on standard error that
//! starts with `SKIPPED:`.

// The lint's exemption for tests does not reach the helpers beside them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod aerospike;
mod aerospike_cluster;
mod aerospike_layouts;
mod aerospike_server;
mod alerts;
mod api;
mod api_aerospike;
mod api_away;
mod api_connections;
mod api_faults;
mod api_kafka;
mod api_kills;
mod api_load;
mod api_log;
mod api_routes;
mod api_statuses;
mod api_tls;
mod ask;
mod bad_input;
mod blobs;
mod block_runs;

mod bodies;
mod bridge;
mod by_reference;
mod certificates;
mod chromium;
mod citations;
mod cli;
mod cluster_fences;
mod cluster_view;
mod commands;
mod commits;
mod compare;
mod compose;
mod coordinators;
mod cut_network;
mod dead_letters;
mod demo;
mod demo_directory;
mod differential;
mod doctor;
mod duplicate_instance_id;
mod embed;
mod exits;
mod failing_broker;
mod group_store;
mod halts;
mod harness;
mod health;
mod heights;
mod kafka;
mod kafka_server;
mod kubernetes;
mod large_decisions;
mod lifted_bars;
mod links;
mod lost_commits;
mod made_blocks;
mod many_instances;
mod migrations;
mod model;
mod module_order;
mod node_restarts;
mod openapi;
mod page;
mod partial_and_whole;
mod pipeline;
mod planted_secrets;
mod ports;
#[cfg(feature = "sql")]
mod postgres_server;
mod preflight;
mod preflight_snapshots;
mod pruning;
mod published_outcomes;
#[path = "../blobs/python.rs"]
mod python;
mod read_again;
mod real_blocks;
mod real_kafka;
mod reapplied_decisions;
mod rebuild;
mod recreated_kafka_topics;
mod recreated_topics;
mod reference;
mod regressions;
mod rejecting_topics;
mod reorgs;
mod replay_from_offsets;
mod resumed_rebuilds;
mod run;
#[cfg(feature = "aws")]
#[allow(dead_code, reason = "the tests of blobs need more of it")]
#[path = "../blobs/s3_server.rs"]
mod s3_server;
mod second_chances;
mod security;
mod sequencing;
mod several_pages;
mod sim;
mod small_disk;
mod snapshot_places;
mod snapshots;
#[cfg(feature = "sql")]
mod sql;
#[cfg(feature = "sql")]
mod sql_kills;
#[cfg(feature = "sql")]
mod sql_logins;
mod state_page;
mod torture;
mod transactional;
mod upgrades;
mod utxo_set;
mod utxo_set_process;
#[cfg(feature = "vault")]
mod vault;
mod waiting_events;
mod watchdog;
mod watched_replay;
mod windows;
mod woken_children;
