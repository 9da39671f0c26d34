//! Tests of converters, transformations and producer options, in short files.

use super::*;

fn setting(toml: &str, key: &str) -> Option<String> {
    let (section, name) = key.rsplit_once('.').unwrap();
    let (_, rest) = toml.split_once(&format!("\n[{section}]\n"))?;
    let rest = rest.split("\n[").next()?;
    let line = rest.lines().find_map(|line| line.strip_prefix(&format!("{name} = ")))?;
    Some(line.trim_matches('"').to_owned())
}

const CHAIN: &str =
    "transforms=outbox\ntransforms.outbox.type=io.debezium.transforms.outbox.EventRouter\n";

#[test]
fn converters_become_forms() {
    let json = "org.apache.kafka.connect.json.JsonConverter";
    let string = "org.apache.kafka.connect.storage.StringConverter";
    let binary = "io.debezium.converters.BinaryDataConverter";
    let delegate = "converter.delegate.converter.type";
    for (lines, key, value, bytea) in [
        (String::new(), "raw", "raw", "encoded"),
        (format!("key.converter={string}\nvalue.converter={string}"), "raw", "string", "encoded"),
        (
            format!("key.converter={json}\nvalue.converter={json}"),
            "json_schema",
            "json_schema",
            "encoded",
        ),
        (
            format!("value.converter={json}\nvalue.converter.schemas.enable=False"),
            "raw",
            "json",
            "encoded",
        ),
        (format!("value.converter={binary}"), "raw", "raw", "encoded"),
        (
            format!(
                "value.converter={binary}\nvalue.{delegate}={json}\nvalue.{delegate}.schemas.enable=false"
            ),
            "raw",
            "json",
            "raw",
        ),
        (format!("value.converter={binary}\nvalue.{delegate}={string}"), "raw", "string", "raw"),
        ("binary.handling.mode=base64-url-safe".to_owned(), "raw", "raw", "base64url"),
        // The worker's converter, inferred from its options or from the only possible choice.
        ("value.converter.schemas.enable=false".to_owned(), "raw", "json", "encoded"),
        ("transforms.outbox.table.expand.json.payload=true".to_owned(), "raw", "json", "encoded"),
        (
            "transforms.outbox.table.fields.additional.placement=a:envelope".to_owned(),
            "raw",
            "json",
            "encoded",
        ),
    ] {
        let toml = import(&format!("{CHAIN}{lines}")).unwrap().toml;
        let found =
            ["format.key", "format.value", "format.bytea"].map(|key| setting(&toml, key).unwrap());
        assert_eq!(found, [key, value, bytea], "{lines}");
    }
}

#[test]
fn debezium_servers_formats_are_its_own() {
    for (lines, key, value) in [
        ("", "json_schema", "json_schema"),
        ("debezium.format.schemas.enable=false", "json", "json"),
        (
            "debezium.format.value=jsonbytearray\ndebezium.format.value.schemas.enable=false",
            "json_schema",
            "json",
        ),
        ("debezium.format.key=simplestring\ndebezium.format.value=binary", "raw", "raw"),
        (
            "debezium.format.key.class=org.apache.kafka.connect.storage.StringConverter\n\
             value.converter=StringConverter",
            "raw",
            "json_schema",
        ),
    ] {
        let chain = CHAIN.replace("transforms", "debezium.transforms");
        let chain = chain.replace("io.debezium.debezium.", "io.debezium.");
        let text = format!("{chain}{lines}\n");
        let toml = import(&text).unwrap().toml;
        let found = ["format.key", "format.value"].map(|key| setting(&toml, key).unwrap());
        assert_eq!(found, [key, value], "{text}");
    }
}

#[test]
fn transformations_are_understood_or_refused() {
    let decoder = "io.debezium.connector.postgresql.transforms.DecodeLogicalDecodingMessageContent";
    let matches = "predicates.p.type=TopicNameMatches\ntransforms.outbox.predicate=p\n";
    let tables = "topic.prefix=shop\ntable.include.list=public.outbox\n";
    for (lines, option) in [
        (format!("{CHAIN}transforms=outbox,x\ntransforms.x.type={decoder}"), "transforms.x.type"),
        (format!("{CHAIN}transforms=x,outbox\ntransforms.x.type=a.b.Filter"), "transforms.x.type"),
        (format!("{CHAIN}transforms=outbox,y"), "transforms.y.type"),
        (
            format!("{CHAIN}{tables}{matches}predicates.p.pattern=shop.public.other"),
            "transforms.outbox.predicate",
        ),
        (
            format!(
                "{CHAIN}{tables}{matches}predicates.p.pattern=.*outbox\ntransforms.outbox.negate=true"
            ),
            "transforms.outbox.predicate",
        ),
        ("transforms=\nslot.name=a".to_owned(), "transforms"),
        ("slot.name=a".to_owned(), "transforms"),
    ] {
        assert!(refused(&lines).iter().any(|(name, _)| name == option), "{lines}");
    }
    for lines in [
        format!("{CHAIN}{tables}{matches}predicates.p.pattern=shop\\\\.public\\\\.outbox"),
        format!(
            "{CHAIN}predicates.p.type=RecordIsTombstone\ntransforms.outbox.predicate=p\n\
             transforms.outbox.negate=true"
        ),
        format!("{CHAIN}transforms=x,outbox\ntransforms.x.type={decoder}"),
    ] {
        assert!(import(&lines).is_ok(), "{lines}");
    }
}

#[test]
fn unwrapping_is_taken_where_the_outboxs_rows_pass_unchanged() {
    let tables = "topic.prefix=shop\ntable.include.list=public.outbox\n";
    let matches =
        "predicates.p.type=TopicNameMatches\npredicates.p.pattern=shop\\\\.public\\\\.outbox\n";
    let unwrap = "transforms.unwrap.type=io.debezium.transforms.ExtractNewRecordState\n";
    let (behind, before) = ("transforms=outbox,unwrap\n", "transforms=unwrap,outbox\n");
    let class = |lines: &str| {
        let text = format!("{CHAIN}{tables}{matches}{unwrap}{lines}");
        let report = match import(&text) {
            Ok(Imported { report, .. }) | Err(ImportError::Refused { report }) => report,
            Err(error) => panic!("{text}: {error}"),
        };
        let of = |finding: &&OptionFinding| finding.option == "transforms.unwrap.type";
        let outcome = report.iter().find(of).unwrap().outcome;
        let refused = report.iter().any(|finding| finding.outcome == ImportOutcome::Refused);
        (outcome, refused)
    };
    let negated = "transforms.unwrap.predicate=p\ntransforms.unwrap.negate=true\n";
    let asked = "transforms.unwrap.predicate=p\n";
    let kept = "transforms.unwrap.drop.tombstones=false\n";
    let (fine, differs) = (ImportOutcome::NotNeeded, ImportOutcome::Changed);
    for (lines, outcome) in [
        (format!("{behind}{kept}"), fine),
        (format!("{behind}transforms.unwrap.delete.tombstone.handling.mode=tombstone"), fine),
        (behind.to_owned(), differs),
        (format!("{behind}{kept}{negated}"), fine),
        (format!("{behind}{kept}{asked}"), fine),
        (format!("{behind}{kept}transforms.unwrap.add.headers="), fine),
        (format!("{before}{negated}"), fine),
    ] {
        assert_eq!(class(&lines), (outcome, false), "{lines}");
    }
    for lines in [
        before.to_owned(),
        format!("{before}{asked}"),
        format!("{before}transforms.unwrap.predicate=nobody"),
    ] {
        assert_eq!(class(&lines), (ImportOutcome::Refused, true), "{lines}");
    }
    for option in ["add.headers=op", "add.fields=op,lsn", "operation.header=true"] {
        assert!(class(&format!("{behind}{kept}transforms.unwrap.{option}")).1, "{option}");
    }
}

#[test]
fn topics_are_created_as_the_worker_would_create_them() {
    for (lines, expected) in [
        (
            "default.partitions=6\nCdefault.replication.factor=3",
            Some("[\"*: partitions=6 replication=3\"]"),
        ),
        ("default.partitions=-1\nCdefault.replication.factor=-1", Some("[\"*:\"]")),
        (
            "default.partitions=6\nCgroups=a\nCa.include=shop.outbox\nCa.cleanup.policy=compact",
            Some("[\"shop.outbox: cleanup.policy=compact partitions=6\", \"*: partitions=6\"]"),
        ),
        (
            "default.partitions=6\nCgroups=a\nCa.include=a.*\nCa.exclude=ab",
            Some("[\"*: partitions=6\"]"),
        ),
        ("enable=false\nCdefault.partitions=6", None),
        ("groups=a\nCa.include=a.*", None),
    ] {
        let lines = lines.replace('C', "topic.creation.");
        let text = format!("{CHAIN}topic.creation.{lines}");
        let toml = import(&text).unwrap().toml;
        assert_eq!(setting(&toml, "route.create_topics").as_deref(), expected, "{text}");
        let missing = setting(&toml, "route.missing_topic");
        assert_eq!(missing.as_deref(), expected.map(|_| "create"), "{text}");
    }
}

#[test]
fn an_import_without_brokers_leaves_a_line_to_fill_in() {
    let line = "\n# brokers = [\"host:9092\"]\n";
    for (lines, has_line) in [
        ("", true),
        ("producer.override.bootstrap.servers=${env:BROKERS}", true),
        ("producer.override.bootstrap.servers=a:1", false),
        ("signal.kafka.bootstrap.servers=a:1", false),
    ] {
        let toml = import(&format!("{CHAIN}{lines}")).unwrap().toml;
        assert_eq!(toml.contains(line) && toml.contains("REQUIRED"), has_line, "{toml}");
        assert_eq!(setting(&toml, "kafka.brokers").is_none(), has_line, "{toml}");
    }
}

#[test]
fn one_report_says_one_guarantee() {
    let text =
        format!("{CHAIN}exactly.once.support=required\nproducer.override.transactional.id=x\n");
    let Imported { toml, report, .. } = import(&text).unwrap();
    assert_eq!(setting(&toml, "kafka.delivery").as_deref(), Some("exactly_once"));
    let said = format!("{report:?}");
    assert!(
        !said.contains("at least once") && said.contains("postrider adopt --execute"),
        "{said}"
    );
}

#[test]
fn a_partial_import_leaves_out_and_names_refused_settings() {
    let text = format!(
        "{CHAIN}transforms=outbox,rename\ntransforms.rename.type=a.b.Mine\nslot.name=shop\n\
         producer.override.compression.type=brotli\nvalue.converter=io.confluent.connect.avro.AvroConverter\n"
    );
    assert!(!refused(&text).is_empty());
    let Imported { toml, report, .. } = import_partially(&text).unwrap();
    assert_eq!(loaded(&toml).source.slot, "shop");
    assert_eq!(setting(&toml, "kafka.compression"), None, "{toml}");
    for option in
        ["transforms.rename.type", "producer.override.compression.type", "value.converter"]
    {
        assert!(toml.contains(&format!("\n# - {option}: ")), "{option} in {toml}");
        let found = report.iter().find(|finding| finding.option == option).unwrap();
        assert_eq!(found.outcome, ImportOutcome::Refused, "{option}");
    }
    assert_eq!(
        import_partially("route.by.field=kind").unwrap(),
        import("route.by.field=kind").unwrap()
    );
}

#[test]
fn only_values_of_documented_options_are_shown() {
    let text = format!(
        "{CHAIN}topic.heartbeat.prefix=beat\npredicates.p.pattern=a.*\noffset.storage.topic=offsets\n\
         signal.data.collection=public.signals\nsignal.consumer.sasl.password=hunter2\nmade.up=hunter2\n\
         config.providers.vault.param.id=hunter2\n"
    );
    let report = import(&text).unwrap().report;
    for (option, value) in [
        ("topic.heartbeat.prefix", "beat"),
        ("predicates.p.pattern", "a.*"),
        ("offset.storage.topic", "offsets"),
        ("signal.data.collection", "public.signals"),
        ("signal.consumer.sasl.password", "****"),
        ("made.up", "****"),
        ("config.providers.vault.param.id", "****"),
    ] {
        let found = report.iter().find(|finding| finding.option == option).unwrap();
        assert_eq!(found.value.as_deref(), Some(value), "{option}");
    }
}

#[test]
fn tables_that_a_predicate_leaves_out_are_not_read() {
    let tables = "topic.prefix=shop\ntable.include.list=public.outbox,public.heartbeat\n";
    let matches = "predicates.p.type=TopicNameMatches\ntransforms.outbox.predicate=p\n";
    for rest in [
        "predicates.p.pattern=.*outbox",
        "predicates.p.pattern=.*heartbeat\ntransforms.outbox.negate=true",
    ] {
        let Imported { toml, report, .. } =
            import(&format!("{CHAIN}{tables}{matches}{rest}")).unwrap();
        assert!(toml.contains("tables = [\"public.outbox\"]"), "{toml}");
        let list = report.iter().find(|finding| finding.option == "table.include.list").unwrap();
        assert_eq!(list.outcome, ImportOutcome::Changed);
        assert!(list.note.contains("public.heartbeat"), "{list:?}");
    }
}

#[test]
fn the_producers_options_become_kafkas() {
    for (option, value, key, expected) in [
        ("linger.ms", "5", "kafka.linger", "5ms"),
        ("linger.ms", "5000", "kafka.linger", "1000ms"),
        ("max.request.size", "2000000", "kafka.message_max_bytes", "2000000B"),
        ("compression.type", "GZIP", "kafka.compression", "gzip"),
        ("partitioner.class", "a.RoundRobinPartitioner", "kafka.partitioner", "random"),
        ("partitioner.ignore.keys", "true", "kafka.partitioner", "random"),
        ("partitioner.class", "a.b.DefaultPartitioner", "kafka.partitioner", "murmur2_random"),
    ] {
        let toml = import(&format!("{CHAIN}producer.override.{option}={value}")).unwrap().toml;
        assert_eq!(setting(&toml, key).as_deref(), Some(expected), "{option}");
    }
    for (lines, name, expected) in [
        ("sasl.mechanism=PLAIN", "sasl.mechanism", "PLAIN"),
        (
            "ssl.keystore.type=PKCS12\nproducer.override.ssl.keystore.location=/a.p12",
            "ssl.keystore.location",
            "/a.p12",
        ),
        ("ssl.keystore.location=/a.pem", "ssl.key.location", "/a.pem"),
        ("ssl.keystore.location=/a.pem", "ssl.certificate.location", "/a.pem"),
        (
            "ssl.truststore.type=PEM\nproducer.override.ssl.truststore.location=/ca",
            "ssl.ca.location",
            "/ca",
        ),
    ] {
        let config = loaded(&import(&format!("{CHAIN}producer.override.{lines}")).unwrap().toml);
        let found = config.kafka.properties.iter().find(|property| property.name == name);
        assert_eq!(found.map(|property| property.value.as_str()), Some(expected), "{lines}");
    }
    for (lines, option) in [
        ("linger.ms=soon", "producer.override.linger.ms"),
        ("sasl.mechanism=GSSAPI", "producer.override.sasl.mechanism"),
        ("sasl.jaas.config=x.Krb5LoginModule required;", "producer.override.sasl.jaas.config"),
        ("ssl.keystore.location=/a.jks", "producer.override.ssl.keystore.location"),
        ("partitioner.class=a.Mine", "producer.override.partitioner.class"),
    ] {
        let found = refused(&format!("{CHAIN}producer.override.{lines}"));
        assert!(found.iter().any(|(name, _)| name == option), "{lines}: {found:?}");
    }
}

#[test]
fn a_column_that_a_part_of_the_outbox_is_called_is_not_mistaken_for_it() {
    let type_option = "transforms.outbox.table.field.event.type=kind";
    let toml = import(&format!("{CHAIN}{type_option}")).unwrap().toml;
    assert_eq!(setting(&toml, "outbox.event_type").as_deref(), Some("kind"));
    let routed = format!("{CHAIN}{type_option}\ntransforms.outbox.route.by.field=event_type");
    let toml = import(&routed).unwrap().toml;
    assert_eq!(setting(&toml, "outbox.event_type"), None);
}

fn login(lines: &[&str]) -> String {
    lines.iter().fold(CHAIN.to_owned(), |text, line| format!("{text}producer.override.{line}\n"))
}

const OAUTH: &str = "sasl.mechanism=OAUTHBEARER";
const ENDPOINT: &str = "sasl.oauthbearer.token.endpoint.url=https://login.example/t";

#[test]
fn tokens_come_from_where_they_came() {
    let module = "sasl.jaas.config=a.OAuthBearerLoginModule required";
    let msk = "sasl.login.callback.handler.class=software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler";
    for (lines, key, expected) in [
        (&[OAUTH, msk][..], "kafka.oauth.method", "aws_msk_iam"),
        (&["sasl.jaas.config=a.IAMLoginModule required;"], "kafka.oauth.method", "aws_msk_iam"),
        (
            &[OAUTH, ENDPOINT, "sasl.oauthbearer.client.credentials.client.id=relay"],
            "kafka.oauth.client_id",
            "relay",
        ),
        (
            &[OAUTH, "sasl.oauthbearer.token.endpoint.url=file:///var/run/token"],
            "kafka.oauth.command",
            "[\"cat\", \"/var/run/token\"]",
        ),
    ] {
        let toml = import(&login(lines)).unwrap().toml;
        assert_eq!(setting(&toml, key).as_deref(), Some(expected), "{lines:?}");
    }
    for (options, words) in [
        ("clientId=\"a\" extension_logicalCluster=\"lkc\"", "extension"),
        ("clientId=\"a\" ssl.truststore.location=\"/a.jks\"", "kafka.oauth.ca_file"),
        ("oauth.access.token=\"hunter2\"", "command"),
    ] {
        let found = refused(&login(&[OAUTH, ENDPOINT, &format!("{module} {options};")]));
        assert!(found.iter().any(|(_, said)| said.contains(words)), "{options}: {found:?}");
        assert!(!format!("{found:?}").contains("hunter2"), "{found:?}");
    }
    let custom = "sasl.login.callback.handler.class=com.example.Vault";
    for (lines, option) in [
        (&[OAUTH, custom][..], "producer.override.sasl.login.callback.handler.class"),
        (&[OAUTH], "producer.override.sasl.mechanism"),
        (&[OAUTH, ENDPOINT], "kafka.oauth.client_id"),
    ] {
        let found = refused(&login(lines));
        assert!(found.iter().any(|(name, _)| name == option), "{lines:?}: {found:?}");
    }
}

#[test]
fn a_client_that_the_file_does_not_name_is_left_to_the_environment() {
    let whole = "sasl.jaas.config=${env:JAAS}";
    let parts = "sasl.jaas.config=a.OAuthBearerLoginModule required clientId=\"${env:ID}\" \
                 clientSecret=\"${env:SECRET}\";";
    for lines in [whole, parts] {
        let imported = import(&login(&[OAUTH, ENDPOINT, lines])).unwrap();
        let of = |finding: &&OptionFinding| finding.option.ends_with("jaas.config");
        let finding = imported.report.iter().find(of).unwrap();
        let help = finding.help.as_deref().unwrap();
        assert!(help.contains("POSTRIDER_KAFKA__OAUTH__CLIENT_ID"), "{finding:?}");
        assert!(help.contains("POSTRIDER_KAFKA__OAUTH__CLIENT_SECRET"), "{finding:?}");
    }
}

#[test]
fn a_client_secret_is_in_the_private_text_alone() {
    let imported = imported("oauth.json");
    assert!(imported.toml.contains("client_secret = \"hunter2 %/+\""), "{}", imported.toml);
    let public = &imported.toml_without_secrets;
    assert!(!public.contains("hunter2"), "{public}");
    assert!(public.contains("POSTRIDER_KAFKA__OAUTH__CLIENT_SECRET_FILE"), "{public}");
    assert!(public.contains("endpoint = \"https://login.example/oauth2/token\""), "{public}");
}
