//! Reads JSON into a tree that keeps the order of members and the spelling of numbers, on which
//! Kafka Connect's bytes depend.
//!
//! Accepts the texts of `serde_json` (RFC 8259, nested at most 127 deep), in linear time. If a name
//! repeats, the last value replaces the first.
//!
//! `serde_json` offers this tree behind two features, which Cargo would enable for the whole
//! program. An application's own types then accept other values: for example, an `f64` in a tagged
//! enum is refused.

use indexmap::IndexMap;

pub(crate) type Members = IndexMap<String, Json, foldhash::quality::RandomState>;

/// `serde_json`'s limit; the parser is recursive.
const DEPTH_MAX: usize = 127;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(Number),
    String(String),
    Array(Vec<Json>),
    Object(Members),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Number(Box<str>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotJson;

impl Json {
    pub(crate) fn parse(text: &[u8]) -> Result<Self, NotJson> {
        let mut reader = Reader { text, at: 0 };
        let json = reader.value(0)?;
        reader.skip_space();
        if reader.at < text.len() { Err(NotJson) } else { Ok(json) }
    }

    /// Ignores the text after the document.
    pub(crate) fn parse_first(text: &[u8]) -> Result<Self, NotJson> {
        Reader { text, at: 0 }.value(0)
    }

    /// The first members of an object that may be cut off. A member counts if a comma or the end
    /// follows.
    pub(crate) fn parse_beginning(text: &[u8]) -> Members {
        let mut members = Members::default();
        // An error marks the cut.
        let _ = Reader { text, at: 0 }.members(1, &mut members);
        members
    }

    pub(crate) fn as_object(&self) -> Option<&Members> {
        if let Self::Object(members) = self { Some(members) } else { None }
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    pub(crate) fn is_array(&self) -> bool {
        matches!(self, Self::Array(_))
    }

    pub(crate) fn is_object(&self) -> bool {
        matches!(self, Self::Object(_))
    }

    /// Appends the document without white space.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Null => out.extend(b"null"),
            Self::Bool(on) => out.extend(if *on { &b"true"[..] } else { b"false" }),
            Self::Number(number) => out.extend(number.as_str().as_bytes()),
            Self::String(text) => write_string(out, text),
            Self::Array(elements) => {
                out.push(b'[');
                for (index, element) in elements.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    element.write(out);
                }
                out.push(b']');
            }
            Self::Object(members) => {
                out.push(b'{');
                for (index, (name, member)) in members.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    write_string(out, name);
                    out.push(b':');
                    member.write(out);
                }
                out.push(b'}');
            }
        }
    }
}

impl Number {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The value of a 64-bit integer without point and exponent.
    pub(crate) fn as_i64(&self) -> Option<i64> {
        self.0.parse().ok()
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.0.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
    }
}

fn write_string(out: &mut Vec<u8>, text: &str) {
    let written = serde_json::to_writer(out, text);
    assert!(written.is_ok(), "a string can be written into memory");
}

struct Reader<'t> {
    text: &'t [u8],
    at: usize,
}

impl Reader<'_> {
    /// `depth`: number of enclosing arrays and objects.
    fn value(&mut self, depth: usize) -> Result<Json, NotJson> {
        self.skip_space();
        match self.peek().ok_or(NotJson)? {
            b'n' => self.literal(b"null", Json::Null),
            b't' => self.literal(b"true", Json::Bool(true)),
            b'f' => self.literal(b"false", Json::Bool(false)),
            b'"' => Ok(Json::String(self.string()?)),
            b'[' => self.array(depth + 1),
            b'{' => {
                let mut members = Members::default();
                self.members(depth + 1, &mut members)?;
                Ok(Json::Object(members))
            }
            _ => self.number(),
        }
    }

    fn array(&mut self, depth: usize) -> Result<Json, NotJson> {
        self.open(b'[', depth)?;
        let mut elements = Vec::new();
        if self.take(b']') {
            return Ok(Json::Array(elements));
        }
        loop {
            elements.push(self.value(depth)?);
            if self.ends(b']')? {
                return Ok(Json::Array(elements));
            }
        }
    }

    /// Adds a member only once it is complete.
    fn members(&mut self, depth: usize, members: &mut Members) -> Result<(), NotJson> {
        self.open(b'{', depth)?;
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            self.skip_space();
            let name = self.string()?;
            if !self.take(b':') {
                return Err(NotJson);
            }
            let value = self.value(depth)?;
            let has_ended = self.ends(b'}')?;
            members.insert(name, value);
            if has_ended {
                return Ok(());
            }
        }
    }

    fn open(&mut self, bracket: u8, depth: usize) -> Result<(), NotJson> {
        let is_open = self.take(bracket) && depth <= DEPTH_MAX;
        is_open.then_some(()).ok_or(NotJson)
    }

    fn ends(&mut self, bracket: u8) -> Result<bool, NotJson> {
        if self.take(b',') {
            return Ok(false);
        }
        if self.take(bracket) { Ok(true) } else { Err(NotJson) }
    }

    fn literal(&mut self, word: &[u8], json: Json) -> Result<Json, NotJson> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        if !rest.starts_with(word) {
            return Err(NotJson);
        }
        self.at += word.len();
        Ok(json)
    }

    fn string(&mut self) -> Result<String, NotJson> {
        let start = self.at;
        if self.peek() != Some(b'"') {
            return Err(NotJson);
        }
        self.at += 1;
        loop {
            let byte = self.peek().ok_or(NotJson)?;
            self.at += if byte == b'\\' { 2 } else { 1 };
            if byte == b'"' {
                let quoted = self.text.get(start..self.at).ok_or(NotJson)?;
                return serde_json::from_slice(quoted).map_err(|_| NotJson);
            }
        }
    }

    fn number(&mut self) -> Result<Json, NotJson> {
        let start = self.at;
        self.skip(|byte| byte == b'-', 1);
        let first = self.peek();
        let whole = self.skip(|byte| byte.is_ascii_digit(), usize::MAX);
        let mut is_number = whole == 1 || (whole > 1 && first != Some(b'0'));
        if self.skip(|byte| byte == b'.', 1) == 1 {
            is_number &= self.skip(|byte| byte.is_ascii_digit(), usize::MAX) > 0;
        }
        if self.skip(|byte| matches!(byte, b'e' | b'E'), 1) == 1 {
            self.skip(|byte| matches!(byte, b'+' | b'-'), 1);
            is_number &= self.skip(|byte| byte.is_ascii_digit(), usize::MAX) > 0;
        }
        let text = self.text.get(start..self.at).and_then(|text| str::from_utf8(text).ok());
        let text = text.filter(|_| is_number).ok_or(NotJson)?;
        Ok(Json::Number(Number(text.into())))
    }

    fn skip(&mut self, is_wanted: impl Fn(u8) -> bool, max: usize) -> usize {
        let start = self.at;
        while self.at - start < max && self.peek().is_some_and(&is_wanted) {
            self.at += 1;
        }
        self.at - start
    }

    fn skip_space(&mut self) {
        self.skip(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'), usize::MAX);
    }

    fn take(&mut self, byte: u8) -> bool {
        self.skip_space();
        let is_there = self.peek() == Some(byte);
        self.at += usize::from(is_there);
        is_there
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn compact(text: &str) -> String {
        let mut out = Vec::new();
        Json::parse(text.as_bytes()).unwrap().write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn numbers_stay_as_they_are_written_and_members_in_their_order() {
        let text = r#" {"b" : [1.50, -0, 1E+05, 12345678901234567890123], "a":{"x":"\u00e9\n","":null},"b2":true} "#;
        let short =
            r#"{"b":[1.50,-0,1E+05,12345678901234567890123],"a":{"x":"é\n","":null},"b2":true}"#;
        assert_eq!(compact(text), short);
        assert_eq!(compact(r#"{"a":1,"b":2,"a":3}"#), r#"{"a":3,"b":2}"#);
    }

    #[test]
    fn what_follows_the_first_document_matters_to_parse_alone() {
        assert_eq!(Json::parse(b"[1] x"), Err(NotJson));
        assert_eq!(Json::parse_first(b"[1] x"), Json::parse(b"[1]"));
    }

    #[test]
    fn arrays_and_objects_are_nested_at_most_127_deep() {
        let deep = |levels| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(Json::parse(deep(127).as_bytes()).is_ok());
        assert_eq!(Json::parse(deep(128).as_bytes()), Err(NotJson));
        assert_eq!(Json::parse("[".repeat(1_000_000).as_bytes()), Err(NotJson));
        assert_eq!(Json::parse("{\"a\":".repeat(1_000_000).as_bytes()), Err(NotJson));
    }

    fn texts() -> impl Strategy<Value = Vec<u8>> {
        let scalar = proptest::sample::select(vec![
            "0",
            "-0",
            "00",
            "-",
            "+1",
            "1.",
            ".5",
            "1.50",
            "1e5",
            "1E+05",
            "1e",
            "12345678901234567890",
            "null",
            "nul",
            "true",
            "false",
            "\"\"",
            "\"a\"",
            "\"\\n\\u0041\"",
            "\"\\ud800\"",
            "\"\\ud83d\\ude00\"",
            "\"\\x\"",
            "\"\u{1}\"",
            "\"\u{e9}\"",
            "\"\\\"",
            "\"",
            "",
        ]);
        let space = proptest::sample::select(vec!["", " ", "\t\r\n", "\u{a0}"]);
        let scalar =
            (space.clone(), scalar).prop_map(|(space, scalar)| format!("{space}{scalar}{space}"));
        let tree = scalar.prop_recursive(4, 40, 5, move |inner| {
            let name =
                proptest::sample::select(vec!["\"a\"", "\"b\"", " \"\" ", "\"\\u0061\"", "c"]);
            let end = proptest::sample::select(vec!["", "", "", ",", "]", "}"]);
            prop_oneof![
                (vec(inner.clone(), 0..5), end.clone())
                    .prop_map(|(elements, end)| format!("[{}{end}]", elements.join(","))),
                (vec((name, inner), 0..5), end).prop_map(|(members, end)| {
                    let members: Vec<_> =
                        members.iter().map(|(name, value)| format!("{name}:{value}")).collect();
                    format!("{{{}{end}}}", members.join(","))
                }),
            ]
        });
        (tree, any::<proptest::sample::Index>(), proptest::option::weighted(0.2, any::<u8>()))
            .prop_map(|(text, at, byte)| {
                let mut bytes = text.into_bytes();
                if let (Some(byte), true) = (byte, !bytes.is_empty()) {
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                }
                bytes
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// As doubles, because a program may use `serde_json` without exact numbers.
        #[test]
        fn it_accepts_what_serde_json_accepts_and_reads_the_same(text in texts()) {
            let theirs = serde_json::from_slice::<serde_json::Value>(&text);
            let ours = Json::parse(&text);
            prop_assert_eq!(ours.is_ok(), theirs.is_ok());
            if let (Ok(ours), Ok(theirs)) = (ours, theirs) {
                let mut written = Vec::new();
                ours.write(&mut written);
                let again: serde_json::Value = serde_json::from_slice(&written).unwrap();
                prop_assert_eq!(&again, &theirs);
                prop_assert_eq!(Json::parse(&written), Ok(ours));
            }
        }

        #[test]
        fn of_an_object_that_is_cut_the_first_members_are_known(text in texts(), at: proptest::sample::Index) {
            let Ok(Json::Object(whole)) = Json::parse(&text) else { return Ok(()) };
            let mut cut = text.clone();
            cut.truncate(at.index(text.len() + 1));
            for (name, _) in Json::parse_beginning(&cut) {
                prop_assert!(whole.contains_key(&name));
            }
            prop_assert_eq!(Json::parse_beginning(&text), whole);
        }
    }
}
