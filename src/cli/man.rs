//! `postrider man`: prints the manual page of the program or of one command, or writes all of them
//! into a folder.

use std::path::PathBuf;

use clap::Args;
use clap_mangen::Man;

use super::codes::ErrorCode;
use super::context::Context;
use super::exit::ExitCode;
use super::failure::CommandFailure;

/// `man [COMMAND ..] [--into FOLDER]`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  postrider man | man -l -\n  postrider man dead-letters retry | man -l -\n  postrider man --into /usr/local/share/man/man1"
)]
pub struct ManArgs {
    /// Command, for example `run` or `dead-letters retry` [default: the program itself]
    #[arg(value_name = "COMMAND")]
    words: Vec<String>,
    /// Write all pages into this folder instead
    #[arg(long, value_name = "FOLDER", conflicts_with = "words")]
    into: Option<PathBuf>,
}

pub(crate) fn run(
    args: &ManArgs,
    tree: clap::Command,
    context: &Context,
) -> Result<ExitCode, CommandFailure> {
    let mut tree = tree.disable_help_subcommand(true);
    tree.build();
    if let Some(folder) = &args.into {
        clap_mangen::generate_to(tree, folder).map_err(|error| {
            let what = format!("cannot write manual pages into {}: {error}", folder.display());
            CommandFailure::new(ExitCode::CheckFailed, ErrorCode::X015, what)
        })?;
        return Ok(ExitCode::Ok);
    }
    let page = args.words.iter().try_fold(&tree, |command, word| command.find_subcommand(word));
    let page = page.ok_or_else(|| {
        let what = format!("there is no command `{}`", args.words.join(" "));
        CommandFailure::new(ExitCode::Usage, ErrorCode::USAGE, what)
            .help("`postrider --help` lists the commands")
    })?;
    let mut text = Vec::new();
    let _ = Man::new(page.clone()).render(&mut text);
    context.print_bytes(&text)?;
    Ok(ExitCode::Ok)
}
