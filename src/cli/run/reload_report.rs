//! The report of a reload, combined from the reports of the streams, and its log lines.
//!
//! Invariant: the whole is refused if the file is wrong for one stream. A stream whose database
//! could not be asked is listed separately. Secrets are masked.

use super::super::failure::{CommandFailure, Diagnostic};
use postrider_relay::admin::{ReloadError, ReloadReport};
use postrider_relay::telemetry::ReloadOutcome;
use postrider_secrets::mask::mask_sentence;

pub(super) fn in_file(name: &str) -> String {
    format!("stream.{name}")
}

/// Adds the report of one stream, whose name precedes options and mistakes.
pub(super) fn add(whole: &mut ReloadReport, report: ReloadReport, stream: Option<&str>) {
    let named = |key: String| match stream {
        Some(name) if !key.starts_with("stream.") => format!("{}.{key}", in_file(name)),
        _ => key,
    };
    let ReloadReport { outcome, changed, takes_restart, errors, not_asked } = report;
    whole.outcome = match (whole.outcome, outcome) {
        (ReloadOutcome::Refused, _) | (_, ReloadOutcome::Refused) => ReloadOutcome::Refused,
        (ReloadOutcome::Applied, _) | (_, ReloadOutcome::Applied) => ReloadOutcome::Applied,
        (ReloadOutcome::Unchanged, ReloadOutcome::Unchanged) => ReloadOutcome::Unchanged,
    };
    whole.changed.extend(changed.into_iter().map(named));
    whole.takes_restart.extend(takes_restart.into_iter().map(named));
    let told = |error: ReloadError| match stream {
        Some(name) => ReloadError { what: format!("stream `{name}`: {}", error.what), ..error },
        None => error,
    };
    whole.errors.extend(errors.into_iter().map(told));
    whole.not_asked.extend(not_asked.into_iter().map(told));
}

pub(super) fn refused(failure: &CommandFailure, trigger: &str) -> ReloadReport {
    for finding in &failure.findings {
        let (place, what) = (place_of(finding), &finding.what);
        let (why, help) = (finding.why.as_deref(), finding.help.as_deref());
        tracing::error!(
            trigger,
            code = finding.code.as_str(),
            place = place.as_deref(),
            why,
            help,
            "the configuration is refused, and the one before stays: {what}"
        );
    }
    let outcome = ReloadOutcome::Refused;
    ReloadReport { outcome, errors: errors(failure), ..ReloadReport::unchanged() }
}

fn place_of(finding: &Diagnostic) -> Option<String> {
    let place = finding.excerpt.as_ref()?;
    Some(format!("{}:{}:{}", place.path.display(), place.line, place.column))
}

/// Errors for a report, with secrets masked as in the log.
pub(super) fn errors(failure: &CommandFailure) -> Vec<ReloadError> {
    let masked = |text: &str| mask_sentence(text).into_owned();
    let error = |finding: &Diagnostic| {
        let Diagnostic { code, what, why, help, .. } = finding;
        let what =
            why.as_ref().map_or_else(|| masked(what), |why| masked(&format!("{what}: {why}")));
        let help = help.as_deref().map(masked);
        ReloadError { code: code.as_str(), what, place: place_of(finding), help }
    };
    failure.findings.iter().map(error).collect()
}
