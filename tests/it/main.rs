//! The one integration binary. A test that needs a server which cannot be had is skipped, loudly: a line that starts with
//! `SKIPPED:` on standard error.

// The lint's exemption for tests does not reach the helpers beside them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod aerospike;
mod aerospike_server;
mod applied_again;
mod bad_input;
mod blobs;
mod bodies;
mod certificates;
mod cli;
mod commands;
mod commits;
mod compare;
mod coordinators;
mod dead_letters;
mod demo;
mod differential;
mod fenced;
mod forgetting;
mod group_store;
mod halts;
mod health;
mod heights;
mod kafka;
mod kafka_server;
mod kept_log;
mod large;
mod lost_chances;
mod made_blocks;
mod model;
mod module_order;
mod pipeline;
mod planted_secrets;
mod preflight;
mod pruning;
mod read_again;
mod real_blocks;
mod real_kafka;
mod rebuild;
mod recreated;
mod recreated_kafka;
mod reference;
mod regressions;
mod rejected;
mod reorgs;
mod resumed;
mod run;
#[cfg(feature = "aws")]
#[allow(dead_code, reason = "the tests of blobs need more of it")]
#[path = "../blobs/s3_server.rs"]
mod s3_server;
mod security;
mod seeded_twice;
mod sequencing;
mod several_pages;
mod sim;
mod state_page;
mod torture;
mod transactional;
mod troubled_broker;
mod waits;
mod watchdog;
mod watched_replay;
mod world;
