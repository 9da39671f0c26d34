//! `postrider version`: prints the version, the commit it was built from, and librdkafka's version and
//! features.
//!
//! Output: text or JSON on stdout; `build_info` has the same facts for `/metrics` and the start of the log.

use serde_json::json;

use super::context::Context;
use super::exit::ExitCode;
use super::failure::CommandFailure;
use postrider_relay::telemetry::BuildInfo;

/// The commit this was built from, where the build said so.
const GIT_SHA: Option<&str> = option_env!("POSTRIDER_GIT_SHA");

/// The facts for `/metrics` and the start of the log.
pub(crate) fn build_info(slot: &str) -> BuildInfo {
    BuildInfo {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        git: GIT_SHA.unwrap_or("unknown").to_owned(),
        librdkafka: postrider_kafka::client_version(),
        slot: slot.to_owned(),
    }
}

/// Runs it.
pub(crate) fn run(context: &Context) -> Result<ExitCode, CommandFailure> {
    let build = build_info("");
    let features = postrider_kafka::client_features();
    if context.json() {
        context.print_json(&json!({
            "version": build.version,
            "git": GIT_SHA,
            "librdkafka": build.librdkafka,
            "librdkafka_features": features,
        }))?;
    } else {
        let git = GIT_SHA.map_or_else(String::new, |sha| format!(" ({sha})"));
        context.print(&format!(
            "postrider {}{git}\nlibrdkafka {} ({})\n",
            build.version,
            build.librdkafka,
            features.join(", ")
        ))?;
    }
    Ok(ExitCode::Ok)
}
