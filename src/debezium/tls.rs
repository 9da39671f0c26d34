//! Translates the Java producer's `security.*` and `ssl.*` to librdkafka's properties.
//!
//! Invariant: a trust store or key that cannot be translated is refused. Authorities must be PEM;
//! the client's certificate may be PEM or PKCS#12.

use super::draft::{Draft, Taken, text};
use super::sasl;

pub(super) const SECRET_HELP: &str = "it is stored unencrypted in [kafka.properties], as in this file: remove it there \
                           and set the variable POSTRIDER_KAFKA__PROPERTIES__...";

pub(super) fn map(draft: &mut Draft) {
    if let Some(taken) = draft.take_producers("security.protocol") {
        let word = taken.text().to_ascii_lowercase();
        property(draft, taken, "security.protocol", &word);
    }
    sasl::map(draft);
    trust(draft);
    identity(draft);
    if let Some(taken) = draft.take_producers("ssl.endpoint.identification.algorithm") {
        let word = match taken.text() {
            "" => "none".to_owned(),
            word => word.to_ascii_lowercase(),
        };
        property(draft, taken, "ssl.endpoint.identification.algorithm", &word);
    }
    for option in ["ssl.enabled.protocols", "ssl.protocol", "ssl.provider", "ssl.cipher.suites"] {
        if let Some(taken) = draft.take_producers(option) {
            let help = "OpenSSL's own names go into [kafka.properties] as ssl.cipher.suites";
            draft.changed(taken, "is Java's: OpenSSL's default is used", Some(help));
        }
    }
}

pub(super) fn property(draft: &mut Draft, taken: Taken, name: &str, value: &str) {
    let setting = format!("kafka.properties.{name}");
    if taken.is_placeholder(draft.flavour) {
        let variable = name.to_ascii_uppercase().replace('.', "_");
        let help = format!("set POSTRIDER_KAFKA__PROPERTIES__{variable}");
        return draft.changed(
            taken,
            "is a placeholder, which is not resolved: left out",
            Some(&help),
        );
    }
    draft.set_from(&setting, text(value), "", &[&taken]);
    if name.contains("password") || name.ends_with("pem") {
        draft.mapped_with(taken, &setting, SECRET_HELP);
    } else {
        draft.mapped(taken, &setting);
    }
}

fn trust(draft: &mut Draft) {
    let kind = draft.take_producers("ssl.truststore.type");
    let is_pem = kind.as_ref().is_some_and(|kind| kind.text().eq_ignore_ascii_case("PEM"));
    if let Some(taken) = draft.take_producers("ssl.truststore.certificates") {
        let value = taken.text().to_owned();
        property(draft, taken, "ssl.ca.pem", &value);
    }
    if let Some(taken) = draft.take_producers("ssl.truststore.location") {
        if is_pem || has_end(&taken, &[".pem", ".crt"]) {
            let value = taken.text().to_owned();
            property(draft, taken, "ssl.ca.location", &value);
        } else {
            let help = "`keytool -list -rfc -keystore STORE > ca.pem`; then set \
                        ssl.truststore.type=PEM and ssl.truststore.location=ca.pem";
            draft.refuse(taken, "is a Java key store, and OpenSSL reads PEM", help);
        }
    }
    if let Some(taken) = draft.take_producers("ssl.truststore.password") {
        draft.not_needed(taken, "certificates in PEM have no password");
    }
    if let Some(kind) = kind {
        draft.not_needed(kind, "the file's own form is told by OpenSSL");
    }
}

fn identity(draft: &mut Draft) {
    let kind = draft.take_producers("ssl.keystore.type");
    let said = kind.as_ref().map_or("", Taken::text).to_ascii_uppercase();
    for (option, name) in [
        ("ssl.keystore.certificate.chain", "ssl.certificate.pem"),
        ("ssl.keystore.key", "ssl.key.pem"),
        ("ssl.key.password", "ssl.key.password"),
    ] {
        if let Some(taken) = draft.take_producers(option) {
            let value = taken.verbatim().to_owned();
            property(draft, taken, name, &value);
        }
    }
    if let Some(taken) = draft.take_producers("ssl.keystore.location") {
        let value = taken.text().to_owned();
        if said == "PEM" || said.is_empty() && has_end(&taken, &[".pem"]) {
            let key = "kafka.properties.ssl.key.location";
            draft.set_from(key, text(&value), "", &[&taken]);
            property(draft, taken, "ssl.certificate.location", &value);
        } else if said == "PKCS12" || said.is_empty() && has_end(&taken, &[".p12", ".pfx"]) {
            property(draft, taken, "ssl.keystore.location", &value);
        } else {
            let help = "`keytool -importkeystore -srckeystore STORE -destkeystore STORE.p12 \
                        -deststoretype PKCS12`; then set ssl.keystore.type=PKCS12";
            draft.refuse(taken, "is a Java key store, which OpenSSL does not read", help);
        }
    }
    if let Some(taken) = draft.take_producers("ssl.keystore.password") {
        if draft.setting("kafka.properties.ssl.keystore.location").is_some() {
            let value = taken.verbatim().to_owned();
            property(draft, taken, "ssl.keystore.password", &value);
        } else {
            draft.not_needed(taken, "there is no store to open");
        }
    }
    if let Some(kind) = kind {
        draft.not_needed(kind, "the form is told by which property names the file");
    }
}

fn has_end(taken: &Taken, ends: &[&str]) -> bool {
    let value = taken.text().to_ascii_lowercase();
    ends.iter().any(|end| value.ends_with(end))
}
