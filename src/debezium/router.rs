//! Translates the outbox router's options to `[outbox]`, `[route]` and the JSON part of `[format]`.
//! A default of Debezium that differs from Postrider's is written out.

use super::chain::Chain;
use super::connector::refuse_placeholder;
use super::draft::{Draft, Taken, asks_provider, list, text};
use super::{additional_fields, names};

pub(super) fn map(draft: &mut Draft, chain: &Chain) {
    let Some(prefix) = &chain.router else { return };
    let mut router = RouterOptions { draft, prefix };
    router.event_type();
    router.columns();
    router.topic();
    router.placement();
    router.payload();
    router.updates();
    router.tracing();
    router.unknown();
}

struct RouterOptions<'a> {
    draft: &'a mut Draft,
    prefix: &'a str,
}

impl RouterOptions<'_> {
    /// The option may have an older name.
    fn take(&mut self, option: &str) -> Option<Taken> {
        let mut present = self.draft.take(&format!("{}{option}", self.prefix));
        if let (None, Some(old)) = (&present, names::old_router(option)) {
            present = self.draft.take(&format!("{}{old}", self.prefix));
        }
        let taken = present?;
        // Groups in the topic look like other placeholders.
        if asks_provider(taken.text()) {
            refuse_placeholder(self.draft, taken);
            return None;
        }
        Some(taken)
    }

    fn carry(&mut self, option: &str, setting: &str, default: &str) {
        match self.take(option) {
            Some(taken) => {
                let value = text(taken.text());
                self.draft.map(taken, setting, value);
            }
            None => self.default(option, setting, &text(default)),
        }
    }

    fn default(&mut self, option: &str, setting: &str, value: &str) {
        if self.draft.setting(setting).is_none() {
            self.draft.set(setting, value.to_owned(), format!("Debezium's default {option}"));
        }
    }

    /// The first word is Debezium's default.
    fn choice(&mut self, option: &str, setting: &str, words: &[(&str, &str)]) {
        let Some(taken) = self.take(option) else {
            if let Some((_, value)) = words.first() {
                self.default(option, setting, value);
            }
            return;
        };
        let word = taken.text().to_ascii_lowercase();
        if let Some((_, value)) = words.iter().find(|(known, _)| *known == word) {
            self.draft.map(taken, setting, (*value).to_owned());
        } else {
            let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let help = format!("the choices are {}", all.join(", "));
            self.draft.refuse(taken, "is not one of its choices", &help);
        }
    }

    fn columns(&mut self) {
        self.carry("table.field.event.id", "outbox.id", "id");
        self.carry("table.field.event.payload", "outbox.payload", "payload");
        let key = "table.field.event.key";
        let old_key = self.take("table.field.event.payload.id");
        match (self.take(key), old_key) {
            (Some(taken), old) => {
                let value = text(&self.own(taken.text()));
                self.draft.map(taken, "route.key", value);
                if let Some(old) = old {
                    self.draft.not_needed(old, "table.field.event.key goes before it");
                }
            }
            (None, Some(old)) => {
                let value = text(&self.own(old.text()));
                self.draft.map(old, "route.key", value);
            }
            (None, None) => self.default(key, "route.key", &text("aggregateid")),
        }
        if let Some(taken) = self.take("table.field.event.timestamp") {
            let value = text(taken.text());
            self.draft.map(taken, "outbox.timestamp", value);
        }
        if let Some(taken) = self.take("table.field.event.schema.version") {
            let value = text(taken.text());
            self.draft.map(taken, "outbox.schema_version", value);
        }
    }

    /// Debezium's router never reads the event type; CloudEvents do.
    fn event_type(&mut self) {
        let Some(taken) = self.take("table.field.event.type") else { return };
        let word = "event_type";
        let routed =
            ["route.by.field", "table.field.event.key", "table.fields.additional.placement"];
        let named = routed.iter().any(|option| {
            let key = format!("{}{option}", self.prefix);
            self.draft.peek(&key).is_some_and(|value| value.contains(word))
        });
        // In [route] the word means the column of [outbox].
        if taken.text().is_empty() || named && taken.text() != word {
            self.draft.not_needed(taken, "the router never reads it");
        } else {
            let value = text(taken.text());
            self.draft.map(taken, "outbox.event_type", value);
        }
    }

    fn topic(&mut self) {
        match self.take("route.by.field") {
            Some(taken) => {
                let value = text(&self.own(taken.text()));
                self.draft.map(taken, "route.by", value);
            }
            None => self.default("route.by.field", "route.by", &text("aggregatetype")),
        }
        let regex = self.take("route.topic.regex");
        let topic = self.take("route.topic.replacement");
        // Both options belong together, so an error in one is an error in both.
        let both: Vec<&Taken> = regex.iter().chain(&topic).collect();
        for (option, setting, taken, default) in [
            ("route.topic.regex", "route.regex", &regex, "(?<routedByValue>.*)"),
            ("route.topic.replacement", "route.topic", &topic, "outbox.event.${routedByValue}"),
        ] {
            let value = text(taken.as_ref().map_or(default, Taken::text));
            let comment = match taken {
                Some(taken) => taken.name().to_owned(),
                None => format!("Debezium's default {option}"),
            };
            self.draft.set_bound(setting, value, comment, &both);
        }
        for (taken, setting) in [(regex, "route.regex"), (topic, "route.topic")] {
            if let Some(taken) = taken {
                self.draft.mapped(taken, setting);
            }
        }
    }

    fn placement(&mut self) {
        let mut headers = Vec::new();
        if let Some(taken) = self.take("table.fields.additional.placement") {
            match additional_fields::parse(taken.text()) {
                Ok(placed) => {
                    headers = placed.headers;
                    let (mut settings, comment) = (Vec::new(), "");
                    if !placed.envelope.is_empty() {
                        let value = self.own_fields(&placed.envelope);
                        self.draft.set_from("route.envelope", value, comment, &[&taken]);
                        settings.push("route.envelope");
                    }
                    if let Some(column) = &placed.partition {
                        let value = text(&self.own(column));
                        self.draft.set_from("route.partition", value, comment, &[&taken]);
                        settings.push("route.partition");
                    }
                    if !headers.is_empty() {
                        let value = self.own_fields(&headers);
                        self.draft.set_from("route.headers", value, comment, &[&taken]);
                        settings.push("route.headers");
                    }
                    self.draft.mapped(taken, &settings.join(", "));
                }
                Err(misplaced) => self.draft.refuse(taken, &misplaced.reason, misplaced.help),
            }
        }
        if headers.is_empty() {
            let comment = "no column but the id becomes a header";
            self.draft.set("route.headers", list([]), comment);
        }
        let words = [("error", "\"refuse\""), ("ignore", "\"ignore\"")];
        self.choice("table.field.additional.missing", "route.missing_column", &words);
        if let Some(taken) = self.take("table.fields.additional.error.on.missing") {
            let ignore = taken.text().eq_ignore_ascii_case("false");
            let value = text(if ignore { "ignore" } else { "refuse" });
            self.draft.map(taken, "route.missing_column", value);
        }
        let comment =
            "consumers see the headers they saw; true lets them drop repeats by postrider-lsn";
        self.draft.set("route.position_header", "false".to_owned(), comment);
    }

    fn payload(&mut self) {
        let words = [("false", "\"keep\""), ("true", "\"tombstone\"")];
        self.choice("route.tombstone.on.empty.payload", "route.empty_payload", &words);
        let words = [("false", "false"), ("true", "true")];
        self.choice("table.expand.json.payload", "format.expand_json", &words);
        let words = [("ignore", "\"drop\""), ("optional_bytes", "\"keep\"")];
        self.choice("table.json.payload.null.behavior", "format.null_members", &words);
        let words = [("ignore", "\"drop\""), ("optional_string", "\"keep\"")];
        self.choice("table.json.payload.empty.array.behavior", "format.empty_arrays", &words);
    }

    fn updates(&mut self) {
        let words = [("warn", "\"warn\""), ("error", "\"error\""), ("fatal", "\"stop\"")];
        self.choice("table.op.invalid.behavior", "outbox.on_update", &words);
    }

    fn tracing(&mut self) {
        self.carry("tracing.span.context.field", "outbox.traceparent", "tracingspancontext");
        if let Some(taken) = self.take("tracing.operation.name") {
            let note = "Postrider hands the row's own trace context on and adds no span";
            self.draft.not_needed(taken, note);
        }
        if let Some(taken) = self.take("tracing.with.context.field.only") {
            if taken.text().eq_ignore_ascii_case("false") {
                let note =
                    "rows without a trace context are sent without one; Debezium begins a trace";
                self.draft.changed(taken, note, None);
            } else {
                self.draft.not_needed(taken, "only rows with a trace context have the header");
            }
        }
    }

    /// Name of a column in `[route]`. There, `id` and `payload` mean columns of `[outbox]`, so
    /// another column with such a name is quoted.
    fn own(&self, column: &str) -> String {
        let parts = [("id", "outbox.id"), ("payload", "outbox.payload")];
        let is_part = |(part, setting): &(&str, &str)| {
            *part == column && self.draft.setting(setting) != Some(&text(part))
        };
        if parts.iter().any(is_part) { format!("\"{column}\"") } else { column.to_owned() }
    }

    /// Each field is `column` or `column:name`.
    fn own_fields(&self, fields: &[String]) -> String {
        let own = |field: &String| {
            let (column, name) = field.split_once(':').unwrap_or((field, field));
            let own = self.own(column);
            if own == name { own } else { format!("{own}:{name}") }
        };
        let fields: Vec<String> = fields.iter().map(own).collect();
        list(fields.iter().map(String::as_str))
    }

    fn unknown(&mut self) {
        for taken in self.draft.take_all(self.prefix) {
            let name = taken.name().rsplit(self.prefix).next().unwrap_or("").to_owned();
            let near = names::near(&name, names::ROUTER.into_iter());
            let help = near.map(|near| format!("did you mean `{near}`?"));
            let note = "is unknown to the outbox router, and ignored";
            self.draft.changed(taken, note, help.as_deref());
        }
    }
}
