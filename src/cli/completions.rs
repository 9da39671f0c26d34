//! `postrider completions`: prints shell completions of the command line.

use clap::Args;
use clap_complete::Shell;

use super::context::Context;
use super::exit::ExitCode;
use super::failure::CommandFailure;

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

/// Runs it, for the command line that `tree` is.
pub(crate) fn run(
    args: &CompletionsArgs,
    mut tree: clap::Command,
    context: &Context,
) -> Result<ExitCode, CommandFailure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut tree, "postrider", &mut script);
    context.print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::Ok)
}
