//! `postrider completions`: a script for the shell to complete our command line.

use clap::Args;
use clap_complete::Shell;

use super::arguments::command;
use super::context::Context;
use super::exit::ExitCode;
use super::failure::Failure;

/// `completions SHELL`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  postrider completions bash > /etc/bash_completion.d/postrider\n  postrider completions zsh > ~/.zfunc/_postrider"
)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs it.
pub fn run(args: &CompletionsArgs, context: &Context) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "postrider", &mut script);
    context.print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::Ok)
}
