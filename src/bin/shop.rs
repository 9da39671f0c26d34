//! The program `shop`: parses its arguments, runs the command, and prints errors without passwords.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use postrider::cli::mask_arguments::{
    clap_error_without_secrets, typed_words, without_typed_secrets,
};
use postrider::shop::ShopError;
use postrider::shop::cli::Shop;

fn main() -> ExitCode {
    postrider::kafka::keep_openssl_until_exit();
    let shop = match Shop::try_parse() {
        Ok(shop) => shop,
        Err(error) => {
            // A URL in a wrong place is not repeated with its password.
            let _ = match clap_error_without_secrets(&error, typed_words()) {
                Some(fit) => std::io::stderr().write_all(fit.as_bytes()),
                None => error.print(),
            };
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    match shop.run(&mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = explain(&error, &mut std::io::stderr().lock());
            ExitCode::from(error.exit_code())
        }
    }
}

fn explain(error: &ShopError, stderr: &mut dyn Write) -> std::io::Result<()> {
    let what = without_typed_secrets(&error.with_causes(), typed_words());
    writeln!(stderr, "error: {what}")?;
    error.hint().map_or(Ok(()), |hint| writeln!(stderr, " help: {hint}"))
}
