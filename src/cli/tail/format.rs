//! Parses kcat's format strings (`tail -f`), such as `%t [%p] at %o: %k %s\n`, and writes records
//! in them.

use std::io::{self, Write};
use std::str::{Chars, FromStr};

use postrider_kafka::Received;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    Field(Field),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Topic,
    Partition,
    Offset,
    Key,
    Value,
    Headers,
    Time,
    ValueLength,
    KeyLength,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("%{0} is not a field: use %t %p %o %k %s %h %T %S %K or %%")]
    UnknownField(char),
    #[error("\\{0} is not an escape: use \\n \\r \\t \\\\ or \\xNN")]
    UnknownEscape(char),
    #[error("the format ends in the middle of a field or escape")]
    Unfinished,
}

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut template = Self(Vec::new());
        let mut rest = text.chars();
        while let Some(char) = rest.next() {
            match char {
                '%' => match field(rest.next().ok_or(TemplateError::Unfinished)?)? {
                    Some(field) => template.0.push(Piece::Field(field)),
                    None => template.text(b"%"),
                },
                '\\' => template.text(&[escape(&mut rest)?]),
                other => template.text(other.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        Ok(template)
    }
}

impl Template {
    /// `%s\n`: the format for pipes if none is given.
    pub(super) fn value_lines() -> Self {
        Self(vec![Piece::Field(Field::Value), Piece::Text(b"\n".to_vec())])
    }

    pub(super) fn write(&self, out: &mut impl Write, record: &Received<'_>) -> io::Result<()> {
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => out.write_all(text)?,
                Piece::Field(field) => write_field(out, *field, record)?,
            }
        }
        Ok(())
    }

    fn text(&mut self, more: &[u8]) {
        if let Some(Piece::Text(text)) = self.0.last_mut() {
            text.extend_from_slice(more);
        } else {
            self.0.push(Piece::Text(more.to_vec()));
        }
    }
}

fn field(letter: char) -> Result<Option<Field>, TemplateError> {
    Ok(Some(match letter {
        't' => Field::Topic,
        'p' => Field::Partition,
        'o' => Field::Offset,
        'k' => Field::Key,
        's' => Field::Value,
        'h' => Field::Headers,
        'T' => Field::Time,
        'S' => Field::ValueLength,
        'K' => Field::KeyLength,
        '%' => return Ok(None),
        other => return Err(TemplateError::UnknownField(other)),
    }))
}

fn escape(rest: &mut Chars<'_>) -> Result<u8, TemplateError> {
    match rest.next().ok_or(TemplateError::Unfinished)? {
        'n' => Ok(b'\n'),
        'r' => Ok(b'\r'),
        't' => Ok(b'\t'),
        '\\' => Ok(b'\\'),
        'x' => {
            let mut digit = || {
                let char = rest.next().ok_or(TemplateError::Unfinished)?;
                char.to_digit(16).ok_or(TemplateError::UnknownEscape('x'))
            };
            let code = (digit()? << 4) | digit()?;
            u8::try_from(code).map_err(|_| TemplateError::UnknownEscape('x'))
        }
        other => Err(TemplateError::UnknownEscape(other)),
    }
}

fn write_field(out: &mut impl Write, field: Field, record: &Received<'_>) -> io::Result<()> {
    match field {
        Field::Topic => out.write_all(record.topic().as_bytes()),
        Field::Partition => write!(out, "{}", record.partition()),
        Field::Offset => write!(out, "{}", record.offset()),
        Field::Key => out.write_all(record.key().unwrap_or_default()),
        Field::Value => out.write_all(record.value().unwrap_or_default()),
        Field::Time => write!(out, "{}", record.timestamp_ms().unwrap_or(-1)),
        Field::ValueLength => write_length(out, record.value()),
        Field::KeyLength => write_length(out, record.key()),
        Field::Headers => {
            for (number, (name, value)) in record.headers().enumerate() {
                let comma = if number == 0 { "" } else { "," };
                write!(out, "{comma}{name}=")?;
                out.write_all(value.unwrap_or(b"NULL"))?;
            }
            Ok(())
        }
    }
}

fn write_length(out: &mut impl Write, bytes: Option<&[u8]>) -> io::Result<()> {
    match bytes {
        Some(bytes) => write!(out, "{}", bytes.len()),
        None => out.write_all(b"-1"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "[%\\\\a-zA-Z0-9]{0,12}") {
            let _ = text.parse::<Template>();
        }

        #[test]
        fn escaped_bytes_mean_themselves(bytes: Vec<u8>) {
            let escaped = |byte: &u8| format!("\\x{byte:02x}");
            let text = bytes.iter().map(escaped).collect::<Vec<_>>().concat();
            let wanted = if bytes.is_empty() { vec![] } else { vec![Piece::Text(bytes)] };
            prop_assert_eq!(text.parse(), Ok(Template(wanted)));
        }

        #[test]
        fn plain_text_means_itself(text in "[^%\\\\]{1,20}") {
            let wanted = Template(vec![Piece::Text(text.clone().into_bytes())]);
            prop_assert_eq!(text.parse(), Ok(wanted));
        }
    }

    #[test]
    fn fields_and_text() {
        let template = "%t 100%%\\n%K".parse::<Template>().unwrap();
        let wanted = vec![
            Piece::Field(Field::Topic),
            Piece::Text(b" 100%\n".to_vec()),
            Piece::Field(Field::KeyLength),
        ];
        assert_eq!(template, Template(wanted));
        assert_eq!("%s\\n".parse(), Ok(Template::value_lines()));
    }

    #[test]
    fn mistakes_are_named() {
        let error = |text: &str| text.parse::<Template>().unwrap_err();
        assert_eq!(error("%q"), TemplateError::UnknownField('q'));
        assert_eq!(error("\\q"), TemplateError::UnknownEscape('q'));
        assert_eq!(error("\\xg0"), TemplateError::UnknownEscape('x'));
        for unfinished in ["%", "\\", "\\x", "\\x1"] {
            assert_eq!(error(unfinished), TemplateError::Unfinished, "{unfinished}");
        }
    }
}
