use clap::CommandFactory;

use super::*;

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

/// Asserts that each command without subcommands has an example in its help.
fn check_examples(command: &clap::Command, path: &str) {
    let path = format!("{path} {}", command.get_name());
    if command.has_subcommands() {
        command.get_subcommands().for_each(|sub| check_examples(sub, &path));
    } else {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(help.contains("Example:"), "`{path}` has no example in its help");
    }
}

#[test]
fn every_command_has_an_example() {
    check_examples(&Cli::command(), "");
}

#[test]
fn errors_of_the_configuration_name_its_file() {
    let args = ConfigArgs { config: Some("/nonexistent/x.toml".into()) };
    let errors = args.load().unwrap_err();
    assert!(errors.to_string().contains("/nonexistent/x.toml"), "{errors}");
}

#[test]
fn block_on_runs_a_future_to_its_end() {
    block_on(async {
        tokio::task::yield_now().await;
        Ok(())
    })
    .unwrap();
    assert_eq!(block_on(async { Err(Failure::new("no")) }).unwrap_err().to_string(), "error: no");
}
