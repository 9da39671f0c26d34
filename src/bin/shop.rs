//! The shop's entry point: parse, run, say what went wrong, exit code.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use postrider::shop::ShopError;
use postrider::shop::cli::Shop;

fn main() -> ExitCode {
    match Shop::parse().run(&mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to be done if stderr is closed too.
            let _ = explain(&error, &mut std::io::stderr().lock());
            ExitCode::from(error.exit_code())
        }
    }
}

fn explain(error: &ShopError, stderr: &mut dyn Write) -> std::io::Result<()> {
    writeln!(stderr, "error: {}", error.in_full())?;
    error.hint().map_or(Ok(()), |hint| writeln!(stderr, " help: {hint}"))
}
