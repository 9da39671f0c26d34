//! Translates the Java producer's login `sasl.*`. A login that cannot be translated is refused.

use super::draft::{Draft, text};
use super::tls::{SECRET_HELP, property};
use super::{jaas, tokens};

pub(super) fn map(draft: &mut Draft) {
    match tokens::origin(draft) {
        Some(origin) => tokens::map(draft, origin),
        None => passwords(draft),
    }
}

fn passwords(draft: &mut Draft) {
    if let Some(taken) = draft.take_producers("sasl.mechanism") {
        match taken.text() {
            "PLAIN" | "SCRAM-SHA-256" | "SCRAM-SHA-512" => {
                let value = taken.text().to_owned();
                property(draft, taken, "sasl.mechanism", &value);
            }
            _ => draft.refuse(
                taken,
                "is a way to log in that is not carried over",
                "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER and AWS_MSK_IAM are; with another one remove \
                 it here and set librdkafka's sasl.* in [kafka.properties]",
            ),
        }
    }
    let Some(taken) = draft.take_producers("sasl.jaas.config") else { return };
    let user_help = "set POSTRIDER_KAFKA__PROPERTIES__SASL_USERNAME and _SASL_PASSWORD";
    let Some(login) = jaas::parse(taken.text()) else {
        if taken.is_placeholder(draft.flavour) {
            let note = "is a placeholder, which is not resolved: left out";
            return draft.changed(taken, note, Some(user_help));
        }
        let help = "write `...LoginModule required username=\"..\" password=\"..\";`";
        return draft.refuse(taken, "is not a JAAS configuration", help);
    };
    if !["PlainLoginModule", "ScramLoginModule"].contains(&login.module.as_str()) {
        let help = "PlainLoginModule and ScramLoginModule can be; remove it here and set librdkafka's \
                    sasl.* in [kafka.properties] otherwise";
        return draft.refuse(taken, "is a login that is not carried over", help);
    }
    let flavour = draft.flavour;
    let mut left_out = false;
    for (option, name) in [("username", "sasl.username"), ("password", "sasl.password")] {
        match login.option(option) {
            Some(value) if !super::draft::is_placeholder(value, flavour) => {
                draft.set_from(&format!("kafka.properties.{name}"), text(value), "", &[&taken]);
            }
            _ => left_out = true,
        }
    }
    if left_out {
        draft.changed(taken, "user or password are not in it: left out", Some(user_help));
    } else {
        let settings = "kafka.properties.sasl.username, kafka.properties.sasl.password";
        draft.mapped_with(taken, settings, SECRET_HELP);
    }
}
