//! The program `postrider`: parses the command line, runs the command, prints why it failed, and returns its
//! exit code.

use std::process::ExitCode;

use postrider::cli::{self, Context};

fn main() -> ExitCode {
    postrider::kafka::keep_openssl_until_exit();
    let arguments = match cli::parse(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(exit) => return exit.into(),
    };
    let context = Context::new(arguments.globals);
    match cli::dispatch(&arguments.command, &context) {
        Ok(exit) => {
            cli::logs::end("");
            exit.into()
        }
        Err(failure) => {
            failure.print(context.failure_form());
            failure.exit.into()
        }
    }
}
