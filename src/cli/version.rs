//! `postrider version`: prints the version, the commit it was built from, and librdkafka's version
//! and features.

use serde_json::json;

use super::context::Context;
use super::doctor::memory_limit;
use super::exit::ExitCode;
use super::failure::CommandFailure;
use postrider_config::{Config, Loaded};
use postrider_relay::telemetry::{BuildInfo, StreamEnds};

/// Commit of the build, if it was set.
const GIT_SHA: Option<&str> = option_env!("POSTRIDER_GIT_SHA");

pub(crate) fn build_info(slot: &str) -> BuildInfo {
    BuildInfo {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        git: GIT_SHA.unwrap_or("unknown").to_owned(),
        librdkafka: postrider_kafka::client_version(),
        slot: slot.to_owned(),
        ends: StreamEnds::default(),
    }
}

pub(crate) fn build_info_of(loaded: &Loaded) -> BuildInfo {
    let Config { source, kafka, .. } = &loaded.config;
    let ends = StreamEnds {
        stream: loaded.stream.clone(),
        database: source.connect.database.clone(),
        hosts: source.connect.endpoints.iter().map(ToString::to_string).collect(),
        brokers: kafka.brokers.clone(),
        in_flight_bytes_max: Some(kafka.in_flight_bytes_max),
        memory_bytes_max: memory_limit().filter(|limit| *limit != u64::MAX),
    };
    BuildInfo { ends, ..build_info(&source.slot) }
}

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
