//! Tests with arbitrary text, options and values.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use postrider_secrets::is_secret_name;

const NAMES: [&str; 65] = [
    "connector.class",
    "plugin.name",
    "slot.name",
    "publication.name",
    "publication.autocreate.mode",
    "table.include.list",
    "table.whitelist",
    "schema.include.list",
    "message.prefix.include.list",
    "message.prefix.exclude.list",
    "skipped.operations",
    "snapshot.mode",
    "topic.prefix",
    "converters",
    "binary.handling.mode",
    "key.converter",
    "key.converter.schemas.enable",
    "value.converter",
    "value.converter.schemas.enable",
    "value.converter.delegate.converter.type",
    "value.converter.delegate.converter.type.schemas.enable",
    "header.converter",
    "transforms",
    "transforms.a.type",
    "transforms.b.type",
    "transforms.a.predicate",
    "transforms.a.negate",
    "transforms.b.fields.null.include",
    "predicates",
    "predicates.p.type",
    "predicates.p.pattern",
    "database.hostname",
    "database.port",
    "database.user",
    "database.dbname",
    "database.sslmode",
    "database.sslcert",
    "database.sslkey",
    "database.tcpKeepAlive",
    "database.targetServerType",
    "producer.override.bootstrap.servers",
    "producer.override.acks",
    "producer.override.linger.ms",
    "producer.override.max.request.size",
    "producer.override.buffer.memory",
    "producer.override.batch.size",
    "producer.override.compression.type",
    "producer.override.client.id",
    "producer.override.partitioner.class",
    "producer.override.security.protocol",
    "producer.override.sasl.mechanism",
    "producer.override.sasl.jaas.config",
    "producer.override.sasl.login.callback.handler.class",
    "producer.override.sasl.oauthbearer.scope",
    "producer.override.sasl.oauthbearer.token.endpoint.url",
    "producer.override.sasl.oauthbearer.client.credentials.client.id",
    "producer.override.ssl.truststore.location",
    "producer.override.ssl.keystore.location",
    "debezium.sink.type",
    "debezium.source.slot.name",
    "debezium.format.value",
    "debezium.transforms",
    "debezium.transforms.a.type",
    "decode.logical.messages",
    "tombstones.on.delete",
];

const VALUES: [&str; 43] = [
    "",
    "true",
    "false",
    "0",
    "1",
    "65536",
    "1048576",
    "a",
    "a,b",
    "b,a",
    "p",
    "outbox",
    "public.outbox",
    "public\\.outbox,A.b",
    ".*",
    "outbox.*",
    "json",
    "kafka",
    "pgoutput",
    "disabled",
    "require",
    "verify-full",
    "hex",
    "all",
    "gzip",
    "ssl",
    "PLAIN",
    "OAUTHBEARER",
    "AWS_MSK_IAM",
    "https://login.example/token",
    "a.b.OAuthBearerLoginCallbackHandler",
    "a.b.IAMOAuthBearerLoginCallbackHandler",
    "a.IAMLoginModule required awsProfileName=\"a\";",
    "a.OAuthBearerLoginModule required clientId=\"a\" scope=\"${env:X}\";",
    "h:1,[::1]:2",
    "${routedByValue}",
    "${env:X}",
    "type:header,id:envelope:x,p:partition",
    "io.debezium.connector.postgresql.PostgresConnector",
    "io.debezium.transforms.outbox.EventRouter",
    "io.debezium.connector.postgresql.transforms.DecodeLogicalDecodingMessageContent",
    "org.apache.kafka.connect.json.JsonConverter",
    "org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
];

fn names() -> impl Strategy<Value = String> {
    let router = select(names::ROUTER.to_vec());
    prop_oneof![
        4 => select(NAMES.to_vec()).prop_map(str::to_owned),
        3 => router.clone().prop_map(str::to_owned),
        3 => router.prop_map(|name| format!("transforms.a.{name}")),
        1 => "[a-z.]{1,20}",
        1 => ".{0,12}",
    ]
}

fn values() -> impl Strategy<Value = serde_json::Value> {
    prop_oneof![
        6 => select(VALUES.to_vec()).prop_map(serde_json::Value::from),
        2 => ".{0,20}".prop_map(serde_json::Value::from),
        1 => any::<i64>().prop_map(serde_json::Value::from),
        1 => any::<bool>().prop_map(serde_json::Value::from),
        1 => Just(serde_json::Value::Null),
        1 => Just(serde_json::json!(["x"])),
    ]
}

/// Returns true if the text was imported.
fn check(text: &str, names: &[&String]) -> bool {
    let (report, toml) = match import(text) {
        Ok(Imported { toml, report, .. }) => (report, Some(toml)),
        Err(ImportError::Refused { report }) => (report, None),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return false;
        }
    };
    let refused = report.iter().any(|finding| finding.outcome == ImportOutcome::Refused);
    assert_eq!(refused, toml.is_none());
    for name in names {
        let count = report.iter().filter(|finding| finding.option == **name).count();
        assert_eq!(count, 1, "{name} in {text}: {report:?}");
    }
    toml.is_some_and(|toml| {
        let _ = loaded(&toml);
        true
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_options_are_imported_or_refused(
        options in prop::collection::btree_map(names(), values(), 0..12),
    ) {
        let text = serde_json::to_string(&options).unwrap();
        let names: Vec<&String> = options.keys().collect();
        let foreign = options.contains_key("apiVersion") || options.contains_key("config");
        check(&text, if foreign { &[] } else { &names });
    }

    /// A chain with a router makes most drawn files importable.
    #[test]
    fn what_is_imported_loads(
        options in prop::collection::btree_map(names(), values(), 0..4),
    ) {
        let mut options = options;
        options.retain(|name, _| !name.starts_with("debezium."));
        options.insert("transforms".to_owned(), "a".into());
        options.insert("transforms.a.type".to_owned(), "io.debezium.transforms.outbox.EventRouter".into());
        let text = serde_json::to_string(&options).unwrap();
        check(&text, &options.keys().collect::<Vec<_>>());
    }

    #[test]
    fn any_text_is_imported_or_refused(text in "(?s)[{\\[]?.{0,80}") {
        check(&text, &[]);
    }

    /// Plants secrets in every option that has a name.
    #[test]
    fn secrets_are_in_no_output(
        secret in "Z[A-Za-z0-9/@:;=%&+]{8,16}Z",
        name in secret_places(),
        form in select(FORMS.to_vec()),
        refusal in any::<bool>(),
    ) {
        let jaas = form_of("jaas", &secret);
        let mut options = serde_json::json!({
            "transforms": "a",
            "transforms.a.type": "io.debezium.transforms.outbox.EventRouter",
            "database.hostname": "db",
            "database.user": "relay",
            "database.password": secret,
            "producer.override.sasl.jaas.config": jaas,
            "signal.kafka.consumer.url": form_of("url", &secret),
        });
        options[&name] = form_of(if is_secret_name(&name) { "alone" } else { form }, &secret).into();
        if refusal {
            options["plugin.name"] = "decoderbufs".into();
        }
        let said = match import(&options.to_string()) {
            Ok(imported) => {
                let report = serde_json::to_string(&imported.report).unwrap();
                let _ = loaded(&imported.toml_without_secrets);
                format!("{imported:?}{report}{}", imported.toml_without_secrets)
            }
            Err(error) => format!("{error} {error:?} {:?}", error.hint()),
        };
        prop_assert!(!said.contains(&secret), "{} = {}: {}", name, form, said);
    }
}

/// `alone` is for options whose names mark them as secret.
const FORMS: [&str; 8] =
    ["url", "token_url", "query", "pair", "jaas", "json", "header", "private_key"];

fn form_of(form: &str, secret: &str) -> String {
    match form {
        "url" => format!("http://u:{secret}@host/"),
        "token_url" => format!("https://{}@host/", secret.replace(['/', ':', '@'], "-")),
        "query" => format!("jdbc:postgresql://db/x?user=u&password={}", secret.replace('&', "-")),
        "pair" => format!("user=u password={secret}"),
        "jaas" => format!("x.PlainLoginModule required username=\"u\" password=\"{secret}\";"),
        "json" => format!("{{\"user\": \"u\", \"api.key\": \"{secret}\"}}"),
        "header" => format!("Authorization: Basic {secret}"),
        "private_key" => {
            format!("-----BEGIN PRIVATE KEY-----\n{secret}\n-----END PRIVATE KEY-----")
        }
        _ => secret.to_owned(),
    }
}

fn secret_places() -> impl Strategy<Value = String> {
    let side = select(vec!["key", "value", "header"]);
    let registry = select(vec![
        "basic.auth.user.info",
        "schema.registry.basic.auth.user.info",
        "bearer.auth.token",
        "schema.registry.ssl.key.password",
        "schema.registry.url",
        "apicurio.auth.password",
        "some.option",
    ]);
    let sealed = select(vec![
        "database.password",
        "database.sslpassword",
        "producer.override.ssl.truststore.password",
        "producer.override.ssl.keystore.password",
        "producer.override.ssl.key.password",
        "producer.override.ssl.keystore.key",
        "producer.override.sasl.jaas.config",
        "producer.override.sasl.oauthbearer.token.endpoint.url",
        "schema.history.internal.producer.sasl.password",
        "signal.consumer.sasl.jaas.config",
        "sink.redis.password",
        "sink.pulsar.client.authParams",
        "sink.http.url",
        "transforms.a.regex",
        "some.token",
        "databse.pasword",
    ]);
    prop_oneof![
        select(NAMES.to_vec()).prop_map(str::to_owned),
        select(names::ROUTER.to_vec()).prop_map(|name| format!("transforms.a.{name}")),
        (side, registry).prop_map(|(side, option)| format!("{side}.converter.{option}")),
        sealed.clone().prop_map(str::to_owned),
        sealed.prop_map(str::to_owned),
        "[a-z]{3,8}\\.[a-z]{3,8}",
    ]
}
