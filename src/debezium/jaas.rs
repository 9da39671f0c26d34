//! Parses `sasl.jaas.config`, for example `LoginModule required username="u" password="p";`.

pub(super) struct JaasLogin {
    /// Class without its package.
    pub(super) module: String,
    options: Vec<(String, String)>,
}

impl JaasLogin {
    pub(super) fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn options(&self) -> impl Iterator<Item = (&str, &str)> {
        self.options.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

pub(super) fn parse(text: &str) -> Option<JaasLogin> {
    let mut rest = text.trim();
    let class = word(&mut rest)?;
    let module = class.rsplit('.').next().unwrap_or(&class).to_owned();
    if module.is_empty() {
        return None;
    }
    // With one entry, required, requisite, sufficient and optional are equivalent.
    word(&mut rest)?;
    let mut options = Vec::new();
    loop {
        rest = rest.trim_start();
        if rest.is_empty() || rest.starts_with(';') {
            return Some(JaasLogin { module, options });
        }
        let (name, after) = rest.split_once('=')?;
        rest = after.trim_start();
        let value = match rest.strip_prefix('"') {
            Some(quoted) => {
                rest = quoted;
                quoted_text(&mut rest)?
            }
            None => word(&mut rest)?,
        };
        options.push((name.trim().to_owned(), value));
    }
}

fn word(rest: &mut &str) -> Option<String> {
    let text = rest.trim_start();
    let end = text.find(|char: char| char.is_whitespace() || char == ';').unwrap_or(text.len());
    let (word, after) = text.split_at(end);
    *rest = after;
    (!word.is_empty()).then(|| word.to_owned())
}

fn quoted_text(rest: &mut &str) -> Option<String> {
    let mut value = String::new();
    let mut chars = rest.char_indices();
    while let Some((index, char)) = chars.next() {
        match char {
            '"' => {
                *rest = rest.get(index + 1..).unwrap_or("");
                return Some(value);
            }
            '\\' => value.push(chars.next()?.1),
            char => value.push(char),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn entries_are_read() {
        let text = "org.apache.kafka.common.security.scram.ScramLoginModule required\n \
                    username=\"shop\" password=\"hun\\\"ter;2\" tokenauth=true;";
        let login = parse(text).unwrap();
        assert_eq!(login.module, "ScramLoginModule");
        assert_eq!(login.option("username"), Some("shop"));
        assert_eq!(login.option("password"), Some("hun\"ter;2"));
        assert_eq!(login.option("tokenauth"), Some("true"));
        for wrong in ["", "Module", "a.b. required x=\"", "M required x", "M required x=\"y"] {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_login_whose_module_it_names_or_none(text in ".{0,60}|[a-zM.]{1,8} required( [a-z]{1,4}=\"[a-z]{0,3}\"){0,2};") {
            if let Some(login) = parse(&text) {
                prop_assert!(!login.module.is_empty() && text.contains(&login.module));
            }
        }
    }
}
