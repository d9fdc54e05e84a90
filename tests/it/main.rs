//! Integration tests: the binary and the library from outside.

mod cli;
