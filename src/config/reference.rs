//! Generates the commented example file and docs/configuration.md from the option tables, so that neither
//! can differ from the code.
//!
//! Input: `OPTIONS` and `RULE_OPTIONS`. Output: `example_toml`, `reference_markdown`; `wrap` breaks a text
//! into lines.

use std::fmt::Write as _;

use super::options::{OptionKind, OptionSpec};
use super::rule_options::RULE_OPTIONS;
use super::table::OPTIONS;
use postrider_service::units::{format_duration, format_size};

/// A `postrider.toml` with every option at its default, explained. The file can be loaded without a change.
pub fn example_toml() -> String {
    let mut out = String::from(
        "# Postrider's configuration. Every value below is the default.\n\
         # Each option can also be set by --set section.name=value, or by the environment variable\n\
         # POSTRIDER_SECTION__NAME. POSTRIDER_SECTION__NAME_FILE, or name_file here, reads it from a file.\n",
    );
    for option in OPTIONS {
        start_section(&mut out, option, |section| format!("\n[{section}]\n"));
        let mut comment = option.doc.to_owned();
        if let OptionKind::Choice(words) = option.kind {
            let _ = write!(comment, " One of: {}.", words.join(", "));
        }
        for line in wrap(&comment, 96) {
            let _ = writeln!(out, "# {line}");
        }
        let _ = writeln!(out, "{} = {}", option.name(), option.default);
        match option.key {
            "kafka.max_in_flight" => out.push_str(PROPERTIES_EXAMPLE),
            "route.rejected" => out.push_str(RULES_EXAMPLE),
            _ => {}
        }
    }
    out.push_str(STREAMS_EXAMPLE);
    out
}

const STREAMS_EXAMPLE: &str = "\n# Several databases in one process: one [[stream]] for each. The options above are its defaults.\n\
    # Example:\n\
    # [[stream]]\n\
    # name = \"orders\"\n\
    # source.url = \"postgres://postrider@db-1/orders\"\n\
    # source.slot = \"postrider_orders\"\n\
    #\n\
    # [[stream]]\n\
    # name = \"billing\"\n\
    # source.url = \"postgres://postrider@db-2/billing\"\n\
    # source.slot = \"postrider_billing\"\n";

const RULES_EXAMPLE: &str = "\n# Rules for rows with another topic, key or headers. The first match decides. Example:\n\
    # [[route.rules]]\n\
    # glob = \"Order*\"             # value of the column of route.by, or of `column`\n\
    # topic = \"orders\"\n\
    # key = \"customer_id\"\n\
    #\n\
    # [[route.rules]]\n\
    # column = \"tenant\"\n\
    # regex = \"test-(?<name>.*)\"\n\
    # drop = true\n";

const PROPERTIES_EXAMPLE: &str = "\n[kafka.properties]\n\
    # Properties of librdkafka. A property that a guarantee depends on is refused. Example:\n\
    # \"security.protocol\" = \"sasl_ssl\"\n\
    # \"sasl.mechanisms\" = \"SCRAM-SHA-512\"\n\
    # \"sasl.username\" = \"postrider\"\n\
    # Keep the password in a file of its own:\n\
    # \"sasl.password_file\" = \"/run/secrets/kafka\"\n";

/// docs/configuration.md.
pub fn reference_markdown() -> String {
    let mut out = String::from(
        "# Configuration\n\n\
         <!-- Generated from src/config/table.rs and rule_options.rs; `UPDATE_DOCS=1 cargo test -p postrider-config` renews \
         it. -->\n\n\
         The configuration is a TOML file: `./postrider.toml`, `/etc/postrider/postrider.toml`, or the file of \
         `--config` or `POSTRIDER_CONFIG`. Every option has a default, so the relay also runs without a file.\n\n\
         - **Precedence**, highest first: flag, `--set section.name=value`, environment, file, libpq's `PG*` \
         variables, default.\n\
         - **Lists** in the environment and with `--set` are names separated by commas, with or without brackets, or \
         TOML. `[]` is an empty list.\n\
         - **Values from files:** the variable `<NAME>_FILE` reads a value from a file. If `<NAME>` is also set, the \
         relay refuses both. In the TOML file, `<name>_file` does the same for any text option at the top level or in \
         a `[[stream]]`: `url_file` in `[source]`, `client_secret_file` in `[kafka.oauth]`, `\"sasl.password_file\"` in \
         `[kafka.properties]`. A relative path starts at the working directory. An empty file is refused.\n\
         - **Variables** such as `${DB_PASSWORD}` are not replaced. In `source.url`, in `[kafka.properties]` and in \
         secrets they are refused.\n\
         - **Units:** durations are whole numbers with a unit: `250ms`, `1s`, `1m30s`, `2h`, `7d`. Sizes are whole \
         numbers with a unit: `512KiB`, `32MiB` (powers of two), `1MB` (powers of ten).\n\n\
         `postrider config show` prints every value in effect and its origin. `postrider config example` prints a \
         file to start with.\n",
    );
    for option in OPTIONS {
        start_section(&mut out, option, |section| {
            let rules = if section == "format" { rules_reference() } else { String::new() };
            format!(
                "{rules}\n## [{section}]\n\n| option | default | unit | environment | meaning |\n|---|---|---|---|---|\n"
            )
        });
        let mut meaning = option.doc.replace('|', "\\|");
        let unit = match option.kind {
            OptionKind::Choice(words) => {
                let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
                let _ = write!(meaning, " One of {}.", words.join(", "));
                "-"
            }
            OptionKind::Duration(min, max) => {
                let _ =
                    write!(meaning, " From {} to {}.", format_duration(min), format_duration(max));
                "time"
            }
            OptionKind::Size(min, max) => {
                let _ = write!(meaning, " From {} to {}.", format_size(min), format_size(max));
                "bytes"
            }
            OptionKind::Count(min, max) if max < u64::MAX => {
                let _ = write!(meaning, " From {min} to {max}.");
                "-"
            }
            OptionKind::Count(..)
            | OptionKind::Text
            | OptionKind::Connection
            | OptionKind::List
            | OptionKind::Names
            | OptionKind::Switch => "-",
        };
        let (name, env) = (option.name(), option.env());
        let default = option.default.replace('|', "\\|");
        let _ = writeln!(out, "| `{name}` | `{default}` | {unit} | `{env}` | {meaning} |");
    }
    out.push_str(PROPERTIES_REFERENCE);
    out.push_str(STREAMS_REFERENCE);
    out
}

const STREAMS_REFERENCE: &str = "\n## [[stream]]\n\n\
    Several streams in one file, for example one for each of many small databases. Each stream has a `name` of letters, \
    digits, `_`, `-` and `.`, and any option of the other sections: `source.slot = \"a\"` or `[stream.source]`. The \
    sections `[http]`, `[log]` and `[traces]` belong to the process and are not allowed. An option that a stream does not \
    set has its value from the top level of the file. A stream with `[[stream.route.rules]]` has only those rules. The \
    environment, `--set` and flags override every stream. Two streams must not have the same name, read the same slot of \
    a server or poll the same table. Slot names are unique per server. `--stream NAME` selects the stream of a command. \
    [How several streams are operated](operations/streams.md).\n";

/// The table of what a rule can say; it stands behind `[route]`.
fn rules_reference() -> String {
    let mut out = String::from(
        "\n## [[route.rules]]\n\n\
         Rules for rows that are delivered in another way, or not at all. The relay tries the rules in order, and the \
         first match decides. A row without a match follows `[route]`. The relay caches decisions by the columns that \
         rules look at, so a row costs one look-up for any number of rules. Outside of a file, a rule has a number: \
         `--set route.rules.0.glob=Order*`.\n\n\
         | option | default | meaning |\n|---|---|---|\n",
    );
    for option in RULE_OPTIONS {
        let meaning = option.doc.replace('|', "\\|");
        let _ = writeln!(out, "| `{}` | `{}` | {meaning} |", option.name(), option.default);
    }
    out
}

const PROPERTIES_REFERENCE: &str = "\n## [kafka.properties]\n\n\
    Properties of librdkafka under their own names, for example `\"security.protocol\" = \"sasl_ssl\"`. A property that a \
    guarantee depends on is refused with the reason. In the environment, write `_` for the dot: \
    `POSTRIDER_KAFKA__PROPERTIES__SECURITY_PROTOCOL`. `POSTRIDER_KAFKA__PROPERTIES__SASL_PASSWORD_FILE` reads a secret \
    from a file.\n";

fn start_section(out: &mut String, option: &OptionSpec, heading: impl Fn(&str) -> String) {
    let first = OPTIONS.iter().find(|other| other.section() == option.section());
    if first.is_some_and(|first| first.key == option.key) {
        out.push_str(&heading(option.section()));
    }
}

/// The words of a text in lines of at most so many bytes, but for a longer word.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
