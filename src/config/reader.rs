//! `SettingsReader`: takes typed values out of the merged settings, and collects mistakes, so that
//! all are reported together. `None` means that a value was refused.

use std::collections::BTreeMap;
use std::time::Duration;

use super::checks;
use super::layer::{Item, Setting, SettingOrigin, Value, place_of};
use super::mistake::{Mistake, MistakeKind, SourcePosition};
use postrider_postgres::libpq::ConnectInfoWarning;
use postrider_service::units::InvalidValue;

type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

pub(super) struct SettingsReader<'a> {
    pub(super) settings: &'a BTreeMap<String, Setting>,
    pub(super) env: Env<'a>,
    pub(super) mistakes: Vec<Mistake>,
    pub(super) warnings: Vec<ConnectInfoWarning>,
}

impl<'a> SettingsReader<'a> {
    pub(super) fn new(settings: &'a BTreeMap<String, Setting>, env: Env<'a>) -> Self {
        Self { settings, env, mistakes: Vec::new(), warnings: Vec::new() }
    }

    pub(super) fn text<T>(
        &mut self,
        key: &str,
        parse: impl FnOnce(&str) -> Result<T, InvalidValue>,
    ) -> Option<T> {
        match self.settings.get(key).map(|setting| &setting.value) {
            Some(Value::Text(text)) => match parse(text) {
                Ok(value) => Some(value),
                Err(refusal) => self.refuse(key, refusal),
            },
            _ => self.absent(key),
        }
    }

    pub(super) fn as_typed(&mut self, key: &str) -> Option<String> {
        self.text(key, |text| Ok(text.to_owned()))
    }

    pub(super) fn choice<T>(&mut self, key: &str, from_word: fn(&str) -> Option<T>) -> Option<T> {
        self.text(key, |word| from_word(word).ok_or_else(|| InvalidValue::new("is not a choice")))
    }

    /// The outer option means "no mistake", the inner one "there is such a column".
    #[expect(clippy::option_option, reason = "two questions, two answers")]
    pub(super) fn optional_column(&mut self, key: &str) -> Option<Option<String>> {
        self.text(key, |text| match text {
            "" => Ok(None),
            _ => checks::identifier(text).map(Some),
        })
    }

    pub(super) fn list<T>(
        &mut self,
        key: &str,
        parse: fn(&str) -> Result<T, InvalidValue>,
        help: &str,
    ) -> Option<Vec<T>> {
        match self.items(key, parse) {
            Some(items) if items.is_empty() => {
                self.refuse(key, InvalidValue::new("needs at least one").help(help))
            }
            items => items,
        }
    }

    pub(super) fn items<T>(
        &mut self,
        key: &str,
        parse: fn(&str) -> Result<T, InvalidValue>,
    ) -> Option<Vec<T>> {
        let settings = self.settings;
        let Some((setting, Value::List(items))) = settings.get(key).map(|s| (s, &s.value)) else {
            return self.absent(key);
        };
        let mut values = Vec::with_capacity(items.len());
        let before = self.mistakes.len();
        for Item { text, span } in items {
            match parse(text) {
                Ok(value) => values.push(value),
                Err(InvalidValue { reason, help }) => {
                    let span = span.as_ref().or(setting.span.as_ref());
                    let place = place_of(&setting.origin, span);
                    let kind = MistakeKind::Invalid { key: key.to_owned(), reason };
                    self.mistakes.push(Mistake { kind, place, help });
                }
            }
        }
        (self.mistakes.len() == before).then_some(values)
    }

    pub(super) fn is_typed(&self, key: &str) -> bool {
        let origin = self.settings.get(key).map(|setting| &setting.origin);
        origin.is_some_and(|origin| *origin != SettingOrigin::Default)
    }

    pub(super) fn duration(&mut self, key: &str) -> Option<Duration> {
        match self.settings.get(key).map(|setting| &setting.value) {
            Some(Value::Duration(duration)) => Some(*duration),
            _ => self.absent(key),
        }
    }

    pub(super) fn size(&mut self, key: &str) -> Option<u64> {
        match self.settings.get(key).map(|setting| &setting.value) {
            Some(Value::Size(bytes)) => Some(*bytes),
            _ => self.absent(key),
        }
    }

    pub(super) fn count(&mut self, key: &str) -> Option<u64> {
        match self.settings.get(key).map(|setting| &setting.value) {
            Some(Value::Count(count)) => Some(*count),
            _ => self.absent(key),
        }
    }

    pub(super) fn switch(&mut self, key: &str) -> Option<bool> {
        match self.settings.get(key).map(|setting| &setting.value) {
            Some(Value::Switch(on)) => Some(*on),
            _ => self.absent(key),
        }
    }

    pub(super) fn refuse<T>(&mut self, key: &str, refusal: InvalidValue) -> Option<T> {
        let kind = MistakeKind::Invalid { key: key.to_owned(), reason: refusal.reason };
        self.mistake(key, kind, refusal.help);
        None
    }

    /// Unreachable: a test checks that every default has its option's kind.
    pub(super) fn absent<T>(&mut self, key: &str) -> Option<T> {
        self.refuse(key, InvalidValue::new("has no value"))
    }

    pub(super) fn mistake(&mut self, key: &str, kind: MistakeKind, help: Option<String>) {
        let place = self.settings.get(key).map_or(SourcePosition::Nowhere, Setting::place);
        self.mistakes.push(Mistake { kind, place, help });
    }
}
