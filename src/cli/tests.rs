use clap::CommandFactory;

use super::*;

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

/// Characters of a line of help where the width of the terminal is unknown.
const HELP_WIDTH: usize = 100;

/// Asserts that each command without subcommands has an example in its help, and that no line of the text is broken.
fn check_help(command: &clap::Command, path: &str) {
    let path = format!("{path} {}", command.get_name());
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    for line in help.lines() {
        assert!(line.chars().count() <= HELP_WIDTH, "`{path}`: clap breaks the line {line:?}");
        assert!(line.rfind("Example:").is_none_or(|at| at == 0), "`{path}`: an example within the line {line:?}");
    }
    let examples = help.split("Example:").skip(1).flat_map(|text| text.split("\n\n").next());
    for (line, next) in examples.flat_map(|text| text.lines().zip(text.lines().skip(1).chain([""]))) {
        let is_continued = next.starts_with("    ");
        assert_eq!(line.ends_with('\\'), is_continued, "`{path}`: the example {line:?} is cut");
    }
    for argument in command.get_arguments() {
        assert!(argument.get_help().is_some(), "`{path}`: {} is not described", argument.get_id());
    }
    if command.has_subcommands() {
        command.get_subcommands().for_each(|sub| check_help(sub, &path));
    } else {
        assert!(help.contains("Example:"), "`{path}` has no example in its help");
    }
}

#[test]
fn every_command_has_an_example_and_lines_that_fit() {
    check_help(&Cli::command(), "");
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
