//! The import's working state: untranslated options, settings for the TOML, findings for the
//! report.
//!
//! Invariant: a module that takes an option out reports it once (`other_options::settle` handles
//! the rest). The report masks the file's secrets.

use super::options_file::{Entry, Flavour, GivenContent, OptionsFile};
use super::{ImportOutcome, OptionFinding};
use postrider_config::toml_text;
use postrider_secrets::mask::{MASK, for_scrubbing, is_secret_name, scrub, secret_parts};

pub(super) const PRODUCER: &str = "producer.override.";

const SHOWN_CHARS: usize = 80;

#[derive(Clone)]
pub(super) struct Taken {
    order: usize,
    name: String,
    value: String,
    /// True if the value is not secret unless name or value say so.
    is_known: bool,
}

impl Taken {
    pub(super) fn known(self) -> Self {
        Self { is_known: true, ..self }
    }

    /// Kafka's parser drops surrounding blanks too.
    pub(super) fn text(&self) -> &str {
        self.value.trim()
    }

    /// Passwords may begin or end in a blank.
    pub(super) fn verbatim(&self) -> &str {
        &self.value
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// True if another program must fill in the value: `${env:PASSWORD}`, and in Debezium Server
    /// `${PASSWORD}`.
    pub(super) fn is_placeholder(&self, flavour: Flavour) -> bool {
        is_placeholder(&self.value, flavour)
    }
}

/// A shell fills in names in capitals.
pub(super) fn is_placeholder(value: &str, flavour: Flavour) -> bool {
    let capital = |char: char| char.is_ascii_uppercase() || char.is_ascii_digit() || char == '_';
    flavour == Flavour::Server && references(value).next().is_some()
        || asks_provider(value)
        || references(value).any(|inside| !inside.is_empty() && inside.chars().all(capital))
}

/// True for a reference to one of Connect's providers, such as `${file:/path:key}`. Groups of a
/// regular expression contain no colon.
pub(super) fn asks_provider(value: &str) -> bool {
    references(value).any(|inside| inside.contains(':'))
}

fn references(value: &str) -> impl Iterator<Item = &str> {
    let parts = value.split("${").skip(1);
    parts.filter_map(|rest| rest.split_once('}').map(|(inside, _)| inside))
}

pub(super) struct DraftSetting {
    /// `source.slot`, or `kafka.properties.NAME`.
    pub(super) key: String,
    /// TOML syntax.
    pub(super) value: String,
    /// Value without its password, if it contains one.
    pub(super) without_secrets: Option<String>,
    pub(super) comment: String,
    /// The value is an example in a comment; the user must write the setting.
    pub(super) is_required: bool,
    options: Vec<usize>,
}

pub(super) struct Draft {
    pub(super) flavour: Flavour,
    entries: Vec<(usize, Entry)>,
    done: Vec<String>,
    settings: Vec<DraftSetting>,
    findings: Vec<(usize, OptionFinding)>,
    assumed: usize,
    secrets: Vec<String>,
    elsewhere: Vec<(&'static str, &'static str)>,
}

impl Draft {
    pub(super) fn new(given: OptionsFile) -> Self {
        let OptionsFile { flavour, entries } = given;
        let secrets = secrets_of(&entries, flavour);
        let assumed = entries.len();
        let entries = entries.into_iter().enumerate().collect();
        let (done, settings, findings) = (Vec::new(), Vec::new(), Vec::new());
        let elsewhere = Vec::new();
        let mut draft =
            Self { flavour, entries, done, settings, findings, assumed, secrets, elsewhere };
        draft.settle_contents();
        draft
    }

    /// Reports `null` as not needed, because Connect treats it as absent. Refuses objects and
    /// lists, which Connect lacks.
    fn settle_contents(&mut self) {
        let (texts, others) = std::mem::take(&mut self.entries)
            .into_iter()
            .partition(|(_, entry)| matches!(entry.content, GivenContent::Text(_)));
        self.entries = texts;
        let others: Vec<(usize, Entry)> = others;
        for (order, Entry { name, content, .. }) in others {
            let taken = Taken { order, name, value: String::new(), is_known: true };
            if content == GivenContent::Null {
                self.not_needed(taken, "says nothing: Debezium's default holds");
            } else {
                self.refuse(taken, "is an object or a list", "options are texts");
            }
        }
    }

    pub(super) fn take(&mut self, key: &str) -> Option<Taken> {
        let mine = |(_, entry): &&(usize, Entry)| entry.key == key;
        // Debezium prefers the current name over an old one.
        let present = self.entries.iter().filter(mine).find(|(_, entry)| entry.name.ends_with(key));
        let order = present.or_else(|| self.entries.iter().find(mine))?.0;
        self.take_where(|_, at| at == order).pop().map(Taken::known)
    }

    pub(super) fn take_producers(&mut self, option: &str) -> Option<Taken> {
        self.take(&format!("{PRODUCER}{option}"))
    }

    /// Settles an empty option, because it sets nothing.
    pub(super) fn take_said(&mut self, key: &str) -> Option<Taken> {
        let taken = self.take(key)?;
        if taken.text().is_empty() {
            self.not_needed(taken, "is empty");
            return None;
        }
        Some(taken)
    }

    /// Takes out options with this prefix. Their values are not shown until [`Taken::known`].
    pub(super) fn take_all(&mut self, prefix: &str) -> Vec<Taken> {
        self.take_where(|key, _| key.starts_with(prefix))
    }

    /// Takes out the remaining options with their keys; true if that key was taken before.
    pub(super) fn take_rest(&mut self) -> Vec<(String, bool, Taken)> {
        let done = self.done.clone();
        let keys: Vec<String> = self.entries.iter().map(|(_, entry)| entry.key.clone()).collect();
        let rest = keys.into_iter().zip(self.take_where(|_, _| true));
        rest.map(|(key, taken)| {
            let again = done.contains(&key);
            (key, again, taken)
        })
        .collect()
    }

    fn take_where(&mut self, wanted: impl Fn(&str, usize) -> bool) -> Vec<Taken> {
        let (taken, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.entries)
            .into_iter()
            .partition(|(order, entry)| wanted(&entry.key, *order));
        self.entries = rest;
        let mut all = Vec::with_capacity(taken.len());
        for (order, Entry { name, key, content }) in taken {
            let GivenContent::Text(value) = content else { continue };
            self.done.push(key);
            all.push(Taken { order, name, value, is_known: false });
        }
        all
    }

    pub(super) fn peek(&self, key: &str) -> Option<&str> {
        self.entries.iter().find_map(|(_, entry)| match &entry.content {
            GivenContent::Text(text) if entry.key == key => Some(text.trim()),
            _ => None,
        })
    }

    pub(super) fn set(&mut self, key: &str, value: String, comment: impl Into<String>) {
        self.put(key, value, comment.into(), Vec::new());
    }

    /// The options' findings are reported elsewhere.
    pub(super) fn set_from(&mut self, key: &str, value: String, comment: &str, from: &[&Taken]) {
        let names: Vec<&str> = from.iter().map(|taken| taken.name()).collect();
        let separator = if names.is_empty() || comment.is_empty() { "" } else { ": " };
        let comment = format!("{}{separator}{comment}", names.join(", "));
        self.set_bound(key, value, comment, from);
    }

    pub(super) fn set_bound(&mut self, key: &str, value: String, comment: String, to: &[&Taken]) {
        self.put(key, value, comment, to.iter().map(|taken| taken.order).collect());
    }

    fn put(&mut self, key: &str, value: String, comment: String, options: Vec<usize>) {
        self.settings.retain(|setting| setting.key != key);
        let (key, without_secrets, is_required) = (key.to_owned(), None, false);
        let setting = DraftSetting { key, value, without_secrets, comment, is_required, options };
        self.settings.push(setting);
    }

    pub(super) fn require(&mut self, key: &str, comment: &str) {
        self.put(key, list(["host:9092"]), comment.to_owned(), Vec::new());
        if let Some(setting) = self.settings.last_mut() {
            setting.is_required = true;
        }
    }

    /// Returns true if settings of refused options were removed.
    pub(super) fn leave_out_refused(&mut self) -> bool {
        let refused =
            |(_, finding): &&(usize, OptionFinding)| finding.outcome == ImportOutcome::Refused;
        let of = |(order, finding): &(usize, OptionFinding)| (*order, finding.option.clone());
        let refused: Vec<(usize, String)> = self.findings.iter().filter(refused).map(of).collect();
        let before = self.settings.len();
        self.settings.retain(|setting| {
            !refused
                .iter()
                .any(|(order, option)| setting.options.contains(order) || *option == setting.key)
        });
        self.settings.len() < before
    }

    pub(super) fn refused(&self) -> impl Iterator<Item = &OptionFinding> {
        let findings = self.findings.iter().map(|(_, finding)| finding);
        findings.filter(|finding| finding.outcome == ImportOutcome::Refused)
    }

    pub(super) fn set_without_secrets(&mut self, key: &str, value: String) {
        if let Some(setting) = self.settings.iter_mut().find(|setting| setting.key == key) {
            setting.without_secrets = Some(value);
        }
    }

    /// The environment must provide the setting. `any` is a valid value.
    pub(super) fn set_elsewhere(&mut self, key: &'static str, any: &'static str) {
        self.elsewhere.push((key, any));
    }

    pub(super) fn elsewhere(&self) -> &[(&'static str, &'static str)] {
        &self.elsewhere
    }

    pub(super) fn settings(&self) -> &[DraftSetting] {
        &self.settings
    }

    pub(super) fn setting(&self, key: &str) -> Option<&str> {
        self.settings.iter().find(|setting| setting.key == key).map(|it| it.value.as_str())
    }

    pub(super) fn map(&mut self, taken: Taken, key: &str, value: String) {
        self.set_from(key, value, "", &[&taken]);
        self.mapped(taken, key);
    }

    pub(super) fn mapped(&mut self, taken: Taken, setting: &str) {
        self.find(taken, ImportOutcome::Mapped, setting, None);
    }

    pub(super) fn mapped_with(&mut self, taken: Taken, setting: &str, help: &str) {
        self.find(taken, ImportOutcome::Mapped, setting, Some(help));
    }

    pub(super) fn changed(&mut self, taken: Taken, note: &str, help: Option<&str>) {
        self.find(taken, ImportOutcome::Changed, note, help);
    }

    pub(super) fn not_needed(&mut self, taken: Taken, note: &str) {
        self.find(taken, ImportOutcome::NotNeeded, note, None);
    }

    pub(super) fn refuse(&mut self, taken: Taken, note: &str, help: &str) {
        self.find(taken, ImportOutcome::Refused, note, Some(help));
    }

    fn find(&mut self, taken: Taken, outcome: ImportOutcome, note: &str, help: Option<&str>) {
        let Taken { order, name, value, is_known } = taken;
        let value = Some(if is_known || is_harmless(&value) {
            shown(&name, &value, self.flavour)
        } else {
            MASK.to_owned()
        });
        let (note, help) = (note.to_owned(), help.map(str::to_owned));
        self.findings.push((order, OptionFinding { option: name, value, outcome, note, help }));
    }

    /// Reports an assumption. Does nothing for the router's options alone, which leave almost
    /// everything open.
    pub(super) fn assume(&mut self, option: &str, note: &str, help: Option<&str>) {
        match self.flavour {
            Flavour::Router => {}
            Flavour::Server if !option.starts_with("debezium.") => {
                self.add(&format!("debezium.source.{option}"), ImportOutcome::Changed, note, help);
            }
            _ => self.add(option, ImportOutcome::Changed, note, help),
        }
    }

    /// Refuses a file without an option that the import needs.
    pub(super) fn lack(&mut self, option: &str, note: &str, help: &str) {
        let section = if self.flavour == Flavour::Server { "debezium." } else { "" };
        self.add(&format!("{section}{option}"), ImportOutcome::Refused, note, Some(help));
    }

    fn add(&mut self, option: &str, outcome: ImportOutcome, note: &str, help: Option<&str>) {
        let (note, help) = (note.to_owned(), help.map(str::to_owned));
        // The file may contain the option as `null` or without text.
        if let Some((_, finding)) = self.findings.iter_mut().find(|(_, it)| it.option == option) {
            if finding.outcome != ImportOutcome::Refused {
                *finding = OptionFinding { outcome, note, help, ..finding.clone() };
            }
            return;
        }
        let finding = OptionFinding { option: option.to_owned(), value: None, outcome, note, help };
        self.findings.push((self.assumed, finding));
        self.assumed += 1;
    }

    pub(super) fn change_setting(&mut self, key: &str, value: String, note: &str, help: &str) {
        let Some(setting) = self.settings.iter_mut().find(|setting| setting.key == key) else {
            return;
        };
        setting.value = value;
        for (_, finding) in self.findings.iter_mut().filter(|(it, _)| setting.options.contains(it))
        {
            finding.outcome = ImportOutcome::Changed;
            note.clone_into(&mut finding.note);
            finding.help = Some(help.to_owned());
        }
    }

    pub(super) fn refuse_setting(&mut self, key: &str, note: &str, help: Option<&str>) {
        let made_of = self.settings.iter().find(|setting| setting.key == key);
        let options = made_of.map(|setting| setting.options.clone()).unwrap_or_default();
        let mut found = false;
        for (order, finding) in &mut self.findings {
            if options.contains(order) && finding.outcome != ImportOutcome::Refused {
                finding.outcome = ImportOutcome::Refused;
                note.clone_into(&mut finding.note);
                finding.help = help.map(str::to_owned);
                found = true;
            }
        }
        if !found {
            self.add(key, ImportOutcome::Refused, note, help);
        }
    }

    pub(super) fn into_report(mut self) -> Vec<OptionFinding> {
        self.findings.sort_by_key(|(order, _)| *order);
        let secrets = self.secrets;
        let without = |text: String| scrub(&text, &secrets);
        let public = |(_, finding): (usize, OptionFinding)| OptionFinding {
            // A missing option may be derived from another option's value.
            option: match finding.value {
                Some(_) => finding.option,
                None => without(finding.option),
            },
            note: without(finding.note),
            help: finding.help.map(without),
            ..finding
        };
        self.findings.into_iter().map(public).collect()
    }

    pub(super) fn without_secrets(&self, text: &str) -> String {
        scrub(text, &self.secrets)
    }
}

fn shown(name: &str, value: &str, flavour: Flavour) -> String {
    let alone = value.trim();
    // Quarkus's placeholders may contain a default value after a colon.
    let whole_placeholder = is_placeholder(alone, flavour)
        && alone.starts_with("${")
        && alone.find('}') == Some(alone.len() - 1)
        && !(flavour == Flavour::Server && alone.contains(':'));
    if value.is_empty() || whole_placeholder && !alone.contains(char::is_control) {
        return value.to_owned();
    }
    let value = postrider_secrets::shown(name, value);
    let visible = |char: char| if char.is_control() { ' ' } else { char };
    let mut shown: String = value.chars().take(SHOWN_CHARS).map(visible).collect();
    if value.chars().nth(SHOWN_CHARS).is_some() {
        shown.push_str("...");
    }
    shown
}

/// Not secret, although the names contain a secret word.
const PUBLIC: [&str; 3] = [
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.scope",
];

fn secrets_of(entries: &[Entry], flavour: Flavour) -> Vec<String> {
    let mut all = Vec::new();
    for Entry { name, content, .. } in entries {
        let GivenContent::Text(value) = content else { continue };
        if PUBLIC.iter().any(|end| name.ends_with(end)) {
            all.extend(secret_parts("", value));
        } else if !is_placeholder(value, flavour) || !is_secret_name(name) {
            all.extend(secret_parts(name, value));
        }
    }
    for_scrubbing(all)
}

/// True for a value that is never secret.
fn is_harmless(value: &str) -> bool {
    /// A longer number may be a PIN.
    const DIGITS: usize = 9;
    let is_number = value.len() <= DIGITS && value.bytes().all(|byte| byte.is_ascii_digit());
    is_number || ["true", "false"].contains(&value.to_ascii_lowercase().as_str())
}

pub(super) fn text(value: &str) -> String {
    toml_text(value)
}

pub(super) fn list<'a>(items: impl IntoIterator<Item = &'a str>) -> String {
    let items: Vec<String> = items.into_iter().map(toml_text).collect();
    format!("[{}]", items.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_told_from_groups_of_a_regular_expression() {
        for value in ["${env:DB_PASSWORD}", "${file:/opt/x.properties:key}", "a${secrets:ns/n:k}b"]
        {
            assert!(is_placeholder(value, Flavour::Connect), "{value}");
        }
        for value in ["outbox.event.${routedByValue}", "${", "plain", "$1", "}${"] {
            assert!(!is_placeholder(value, Flavour::Connect), "{value}");
        }
        assert!(is_placeholder("${DB_PASSWORD}", Flavour::Connect));
        assert!(is_placeholder("${db.password}", Flavour::Server));
        assert!(!asks_provider("${DB_PASSWORD}") && asks_provider("${env:DB_PASSWORD}"));
    }

    #[test]
    fn secrets_are_masked_and_long_values_cut() {
        let connect = |name, value| shown(name, value, Flavour::Connect);
        assert_eq!(connect("database.password", "hunter2"), MASK);
        assert_eq!(connect("x", "user=a password=hunter2"), "user=a password=****");
        assert_eq!(connect("x", "http://a:hunter2@b/"), "http://a:****@b/");
        assert_eq!(connect("database.password", "${env:P}"), "${env:P}");
        assert_eq!(connect("database.password", "${env:P}hunter2"), MASK);
        assert_eq!(shown("database.password", "${P:hunter2}", Flavour::Server), MASK);
        assert_eq!(connect("x", "a\nb"), "a b");
        assert_eq!(connect("x", &"a".repeat(100)).len(), 83);
    }
}
