//! Translates logins with tokens to `[kafka.oauth]`: OAUTHBEARER with the token endpoint client of
//! Kafka or Strimzi, and AWS_MSK_IAM.
//!
//! Sources: Kafka's documentation, "Configuring OAuth" (4.1) and KIP-768; Strimzi's kafka-oauth,
//! "Configuring the Kafka client"; the README of aws-msk-iam-auth. An option is refused if a login
//! fails without it, or if it decides about trust.

use super::draft::{Draft, Taken, is_placeholder, list, text};
use super::jaas::{self, JaasLogin};

const METHOD: &str = "kafka.oauth.method";
const ENDPOINT: &str = "kafka.oauth.endpoint";
const CLIENT_ID: &str = "kafka.oauth.client_id";
const CLIENT_SECRET: &str = "kafka.oauth.client_secret";
const SCOPE: &str = "kafka.oauth.scope";
const COMMAND: &str = "kafka.oauth.command";
const CA_FILE: &str = "kafka.oauth.ca_file";

const HANDLER: &str = "sasl.login.callback.handler.class";
const TOKEN_ENDPOINT: &str = "sasl.oauthbearer.token.endpoint.url";

const SECRET_HELP: &str = "the client secret is stored unencrypted in kafka.oauth.client_secret, as in this file: remove it \
                           there and set POSTRIDER_KAFKA__OAUTH__CLIENT_SECRET_FILE";
const BY_COMMAND: &str = "remove the options of the login here, and set kafka.oauth.method = \"command\" with a program \
                          that prints a token";

#[derive(Clone, Copy)]
pub(super) enum TokenOrigin {
    /// AWS credentials sign the tokens.
    Aws,
    /// A token endpoint, or a file.
    Endpoint,
    /// A custom Java class, or the client itself.
    Java,
}

pub(super) fn origin(draft: &Draft) -> Option<TokenOrigin> {
    let said = |option: &str| {
        let key = format!("{}{option}", super::draft::PRODUCER);
        draft.peek(&key).filter(|value| !value.is_empty())
    };
    let of_handler = || match said(HANDLER).map(simple_class) {
        Some("IAMOAuthBearerLoginCallbackHandler") => TokenOrigin::Aws,
        Some("OAuthBearerLoginCallbackHandler" | "JaasClientOauthLoginCallbackHandler") => {
            TokenOrigin::Endpoint
        }
        None if said(TOKEN_ENDPOINT).is_some() => TokenOrigin::Endpoint,
        _ => TokenOrigin::Java,
    };
    match said("sasl.mechanism") {
        Some("AWS_MSK_IAM") => Some(TokenOrigin::Aws),
        Some("OAUTHBEARER") => Some(of_handler()),
        Some(_) => None,
        None => match said("sasl.jaas.config").and_then(jaas::parse)?.module.as_str() {
            "IAMLoginModule" => Some(TokenOrigin::Aws),
            "OAuthBearerLoginModule" => Some(of_handler()),
            _ => None,
        },
    }
}

fn simple_class(name: &str) -> &str {
    name.rsplit(['.', '$']).next().unwrap_or(name)
}

pub(super) fn map(draft: &mut Draft, origin: TokenOrigin) {
    match origin {
        TokenOrigin::Aws => method(draft, "aws_msk_iam"),
        TokenOrigin::Endpoint => method(draft, "oidc"),
        TokenOrigin::Java => return java(draft),
    }
    let login = draft.take_producers("sasl.jaas.config");
    match origin {
        TokenOrigin::Aws => aws(draft, login),
        TokenOrigin::Endpoint | TokenOrigin::Java => {
            if let Some(login) = login {
                client(draft, login);
            }
            endpoint(draft);
        }
    }
    for (option, note) in SEEN_TO {
        if let Some(taken) = draft.take_producers(option) {
            draft.not_needed(taken, note);
        }
    }
}

const SEEN_TO: [(&str, &str); 13] = [
    ("sasl.login.class", "tokens are fetched ahead of their expiry"),
    ("sasl.login.connect.timeout.ms", "a token endpoint may take 15 s"),
    ("sasl.login.read.timeout.ms", "a token endpoint may take 15 s"),
    ("sasl.login.retry.backoff.ms", "a token endpoint is asked until it answers"),
    ("sasl.login.retry.backoff.max.ms", "a token endpoint is asked until it answers"),
    ("sasl.login.refresh.window.factor", "tokens are fetched ahead of their expiry"),
    ("sasl.login.refresh.window.jitter", "tokens are fetched ahead of their expiry"),
    ("sasl.login.refresh.min.period.seconds", "tokens are fetched ahead of their expiry"),
    ("sasl.login.refresh.buffer.seconds", "tokens are fetched ahead of their expiry"),
    ("sasl.oauthbearer.scope.claim.name", "the brokers look into tokens, the relay does not"),
    ("sasl.oauthbearer.sub.claim.name", "the brokers look into tokens, the relay does not"),
    ("sasl.oauthbearer.jwt.validator.class", "the brokers look into tokens, the relay does not"),
    ("sasl.oauthbearer.header.urlencode", "client id and secret are encoded as RFC 6749 says"),
];

fn method(draft: &mut Draft, word: &str) {
    let mechanism = draft.take_producers("sasl.mechanism");
    let handlers = [HANDLER, "sasl.client.callback.handler.class"];
    let handlers: Vec<Taken> =
        handlers.into_iter().filter_map(|option| draft.take_producers(option)).collect();
    let from: Vec<&Taken> = mechanism.iter().chain(&handlers).collect();
    draft.set_from(METHOD, text(word), "", &from);
    for taken in mechanism.into_iter().chain(handlers) {
        draft.mapped(taken, METHOD);
    }
}

fn java(draft: &mut Draft) {
    if let Some(taken) = draft.take_producers(HANDLER) {
        draft.refuse(taken, "is a Java class that fetches tokens", BY_COMMAND);
    }
    let help = "set `sasl.login.callback.handler.class` and `sasl.oauthbearer.token.endpoint.url` as Kafka's \
                documentation says, or remove the options of the login here and set [kafka.oauth]";
    for option in ["sasl.mechanism", "sasl.jaas.config"] {
        if let Some(taken) = draft.take_producers(option) {
            draft.refuse(taken, "is a login by tokens that come from no known place", help);
        }
    }
}

/// Location of the credentials of an AWS IAM login.
const AWS_PROFILE: &str = "awsProfileName";
const AWS_ROLE: [&str; 7] = [
    "awsRoleArn",
    "awsRoleSessionName",
    "awsRoleExternalId",
    "awsRoleAccessKeyId",
    "awsRoleSecretAccessKey",
    "awsRoleSessionToken",
    "awsStsRegion",
];
const AWS_OTHERS: [&str; 3] = ["awsDebugCreds", "awsMaxRetries", "awsMaxBackOffTimeMs"];

fn aws(draft: &mut Draft, login: Option<Taken>) {
    let Some(taken) = login else { return };
    let Some(parsed) = jaas::parse(taken.text()) else {
        let help = "set AWS_PROFILE for the relay, if it names a profile; write \
                    `software.amazon.msk.auth.iam.IAMLoginModule required;`";
        if taken.is_placeholder(draft.flavour) {
            return draft.changed(taken, "is a placeholder, which is not resolved", Some(help));
        }
        return draft.refuse(taken, "is not a JAAS configuration", help);
    };
    let has = |name: &str| parsed.option(name).is_some();
    let mut names: Vec<&str> = [AWS_PROFILE].into_iter().chain(AWS_ROLE).collect();
    names.retain(|name| has(name));
    let is_known =
        |name: &str| name == AWS_PROFILE || AWS_ROLE.contains(&name) || AWS_OTHERS.contains(&name);
    let mut told = names.join(", ");
    if parsed.options().any(|(name, _)| !is_known(name)) {
        let separator = if told.is_empty() { "" } else { ", " };
        told = format!("{told}{separator}options of other names");
    }
    if told.is_empty() {
        return draft.mapped(taken, METHOD);
    }
    let help = match (names.as_slice(), has(AWS_PROFILE)) {
        ([], _) => None,
        ([_], true) => Some("set AWS_PROFILE for the relay to that profile"),
        _ => Some(
            "assume the role in a profile, set AWS_PROFILE for the relay to another one whose credential_process is \
             `aws configure export-credentials --profile THAT --format process`",
        ),
    };
    draft.changed(taken, &format!("has no equivalent in [kafka.oauth]: {told}"), help);
}

/// A setting, the producer's option for it, and the options in the login's configuration.
type Place = (&'static str, &'static str, [&'static str; 2]);

const PLACES: [Place; 4] = [
    (ENDPOINT, TOKEN_ENDPOINT, ["oauth.token.endpoint.uri", ""]),
    (CLIENT_ID, "sasl.oauthbearer.client.credentials.client.id", ["clientId", "oauth.client.id"]),
    (
        CLIENT_SECRET,
        "sasl.oauthbearer.client.credentials.client.secret",
        ["clientSecret", "oauth.client.secret"],
    ),
    (SCOPE, "sasl.oauthbearer.scope", ["scope", "oauth.scope"]),
];

/// Leaves a setting to the environment, and returns the variable.
fn leave_out(draft: &mut Draft, setting: &'static str) -> String {
    if setting == ENDPOINT || setting == CLIENT_ID {
        draft.set_elsewhere(setting, "https://elsewhere");
    }
    postrider_config::env_name(setting)
}

/// The producer's own options take precedence over the login's configuration.
fn endpoint(draft: &mut Draft) {
    for (setting, option, _) in PLACES {
        let Some(taken) = draft.take_producers(option) else { continue };
        if taken.is_placeholder(draft.flavour) {
            let help = format!("set {}", leave_out(draft, setting));
            let note = "is a placeholder, which is not resolved: left out";
            draft.changed(taken, note, Some(&help));
        } else if let Some(path) = taken.text().strip_prefix("file://") {
            prints_file(draft, &taken, path);
            draft.mapped(taken, COMMAND);
        } else {
            let value =
                text(if setting == CLIENT_SECRET { taken.verbatim() } else { taken.text() });
            draft.set_from(setting, value, "", &[&taken]);
            if setting == CLIENT_SECRET {
                draft.mapped_with(taken, setting, SECRET_HELP);
            } else {
                draft.mapped(taken, setting);
            }
        }
    }
    if let Some(taken) = draft.take_producers("sasl.oauthbearer.jwt.retriever.class") {
        match simple_class(taken.text()) {
            "" | "DefaultJwtRetriever" | "ClientCredentialsJwtRetriever" | "FileJwtRetriever" => {
                draft.not_needed(taken, "told by the token endpoint's URL");
            }
            _ => draft.refuse(taken, "is a Java class that fetches tokens", BY_COMMAND),
        }
    }
    for taken in draft.take_all("producer.override.sasl.oauthbearer.assertion.") {
        draft.refuse(taken.known(), "is of a login by a signed assertion", BY_COMMAND);
    }
}

fn prints_file(draft: &mut Draft, from: &Taken, path: &str) {
    draft.set_from(METHOD, text("command"), "a token from a file", &[from]);
    draft.set_from(COMMAND, list(["cat", path]), "", &[from]);
}

/// Trust in the token endpoint: Kafka's and Strimzi's options.
const TRUST: [(&str, &str); 2] = [
    ("ssl.truststore.location", "ssl.truststore.type"),
    ("oauth.ssl.truststore.location", "oauth.ssl.truststore.type"),
];
const NOT_NEEDED: [&str; 13] = [
    "oauth.access.token.is.jwt",
    "oauth.connect.timeout.",
    "oauth.read.timeout.",
    "oauth.http.",
    "oauth.max.token.expiry.",
    "oauth.enable.metrics",
    "oauth.include.accept.header",
    "oauth.username.",
    "oauth.fallback.username.",
    "oauth.ssl.truststore.type",
    "oauth.ssl.truststore.password",
    "ssl.truststore.type",
    "ssl.truststore.password",
];
/// Prefixes of refused options, with the recommended action.
const IMPOSSIBLE: [(&str, &str); 9] = [
    ("extension_", BY_EXTENSION),
    ("oauth.sasl.extension.", BY_EXTENSION),
    ("oauth.access.token", BY_COMMAND),
    ("oauth.refresh.token", BY_COMMAND),
    ("oauth.password.grant.", BY_COMMAND),
    ("oauth.client.assertion", BY_COMMAND),
    ("oauth.ssl.truststore.certificates", BY_PEM),
    ("oauth.ssl.", BY_PEM),
    ("ssl.", BY_PEM),
];
const BY_EXTENSION: &str =
    "the relay sends tokens without extensions: use a user with a password for it";
const BY_PEM: &str = "remove it here, and set kafka.oauth.ca_file to a PEM file of the authorities";

fn client(draft: &mut Draft, taken: Taken) {
    let flavour = draft.flavour;
    let Some(login) = jaas::parse(taken.text()) else {
        if taken.is_placeholder(flavour) {
            let variables = [CLIENT_ID, CLIENT_SECRET].map(|setting| leave_out(draft, setting));
            let help = format!("set {}", variables.join(" and "));
            let note = "is a placeholder, which is not resolved: left out";
            return draft.changed(taken, note, Some(&help));
        }
        let help =
            "write `...OAuthBearerLoginModule required clientId=\"..\" clientSecret=\"..\";`";
        return draft.refuse(taken, "is not a JAAS configuration", help);
    };
    let mut left_out = Vec::new();
    let mut is_unknown = false;
    for (name, value) in login.options() {
        let place = PLACES.iter().find(|(_, _, names)| names.contains(&name));
        if let Some((setting, ..)) = place {
            if is_placeholder(value, flavour) {
                left_out.push(leave_out(draft, setting));
            } else {
                draft.set_from(setting, text(value), name, &[&taken]);
            }
        } else if name == "oauth.audience" {
            let value = list([format!("audience={value}").as_str()]);
            draft.set_from("kafka.oauth.parameters", value, name, &[&taken]);
        } else if name == "oauth.access.token.location" {
            prints_file(draft, &taken, value);
        } else if is_pem(&login, name, value) {
            draft.set_from(CA_FILE, text(value), name, &[&taken]);
        } else if !NOT_NEEDED.iter().any(|known| name.starts_with(known)) {
            let impossible = IMPOSSIBLE.iter().find(|(known, _)| name.starts_with(known));
            let Some((known, help)) = impossible else {
                is_unknown = true;
                continue;
            };
            let known = known.trim_end_matches(['.', '_']);
            return draft.refuse(taken, &format!("has {known}, which is not carried over"), help);
        }
    }
    let help = draft.setting(CLIENT_SECRET).is_some().then_some(SECRET_HELP);
    if !left_out.is_empty() {
        let help = format!("set {}", left_out.join(" and "));
        draft.changed(taken, "has placeholders, which are not resolved: left out", Some(&help));
    } else if is_unknown {
        draft.changed(taken, "has options that are not known here, and ignored", help);
    } else if let Some(help) = help {
        draft.mapped_with(taken, "[kafka.oauth]", help);
    } else {
        draft.mapped(taken, "[kafka.oauth]");
    }
}

fn is_pem(login: &JaasLogin, name: &str, value: &str) -> bool {
    let Some((_, kind)) = TRUST.iter().find(|(location, _)| *location == name) else {
        return false;
    };
    let value = value.to_ascii_lowercase();
    login.option(kind).is_some_and(|kind| kind.eq_ignore_ascii_case("PEM"))
        || [".pem", ".crt"].iter().any(|end| value.ends_with(end))
}
