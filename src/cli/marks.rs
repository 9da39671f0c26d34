//! Marks of states, and text that fits a terminal, for `status` and `top`.
//!
//! Invariant: the sign and the colour of a mark agree. Only steps are wider than the width. A long
//! word loses its middle.

use std::fmt::Write as _;
use std::os::fd::AsFd;

pub(crate) fn columns(stream: impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    Good,
    /// Rows are delivered, but a person should look.
    Attention,
    Bad,
    Unknown,
}

impl Mark {
    /// Sign that is one column wide.
    pub(crate) const fn sign(self) -> char {
        match self {
            Self::Good => '✓',
            Self::Attention => '!',
            Self::Bad => '✗',
            Self::Unknown => '·',
        }
    }

    const fn style(self) -> &'static str {
        match self {
            Self::Good => "32",
            Self::Attention => "33",
            Self::Bad => "1;31",
            Self::Unknown => "2",
        }
    }

    pub(crate) fn paint(self, text: &str, color: bool) -> String {
        if color { format!("\x1b[{}m{text}\x1b[0m", self.style()) } else { text.to_owned() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MarkedLine {
    pub(crate) mark: Mark,
    pub(crate) name: &'static str,
    pub(crate) text: String,
    /// Advice and commands, never wrapped, so that they can be copied.
    pub(crate) steps: Vec<String>,
}

const INDENT: usize = 16;
const UNIT_MAX: usize = 5;
/// Minimum columns of text.
const TEXT_MIN: usize = 16;

/// `width`: columns of the terminal; `None` does not wrap.
pub(crate) fn marked_text(lines: &[MarkedLine], width: Option<usize>, color: bool) -> String {
    let mut out = String::new();
    for MarkedLine { mark, name, text, steps } in lines {
        let room = width.map(|width| width.saturating_sub(INDENT).max(TEXT_MIN));
        let wrapped = room.map_or_else(|| vec![text.clone()], |room| wrapped(text, room));
        for (at, part) in wrapped.iter().enumerate() {
            let _ = if at == 0 {
                let sign = mark.paint(&mark.sign().to_string(), color);
                let part = if *mark == Mark::Bad { mark.paint(part, color) } else { part.clone() };
                writeln!(out, "{sign} {name:<13} {part}")
            } else {
                writeln!(out, "{:INDENT$}{part}", "")
            };
        }
        for step in steps {
            let _ = writeln!(out, "{:INDENT$}{step}", "");
        }
    }
    out
}

pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut words = text.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let mut word = word.to_owned();
        // A number and its unit stay together.
        if word.chars().all(|char| char.is_ascii_digit()) {
            word.extend(
                words.next_if(|next| next.len() <= UNIT_MAX).map(|unit| format!(" {unit}")),
            );
        }
        let word = shortened(&word, width);
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    if lines.is_empty() {
        lines.push(String::new());
    }
    lines
}

/// Keeps the end, because names in one system often begin alike.
pub(crate) fn shortened(name: &str, width: usize) -> String {
    let count = name.chars().count();
    if count <= width {
        return name.to_owned();
    }
    let kept = width.saturating_sub(1);
    let (head, tail) = (kept.div_ceil(2), kept / 2);
    let begin: String = name.chars().take(head).collect();
    let end: String = name.chars().skip(count - tail).collect();
    let ellipsis = if width == 0 { "" } else { "…" };
    format!("{begin}{ellipsis}{end}")
}

#[cfg(test)]
pub(crate) const WIDTHS: [u16; 4] = [50, 80, 120, 200];

/// Compares output with a file of this crate.
#[cfg(test)]
pub(crate) fn assert_snapshot(path: &str, shown: &str) {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let expected = std::fs::read_to_string(&file).unwrap();
    assert_eq!(shown, expected, "{path}:\n{shown}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_word_loses_its_middle() {
        assert_eq!(shortened("orders.placed.v1", 16), "orders.placed.v1");
        assert_eq!(shortened("orders.placed.v1", 9), "orde…d.v1");
        assert_eq!([0, 1, 2].map(|width| shortened("orders", width)), ["", "…", "o…"]);
    }

    #[test]
    fn text_is_broken_at_spaces_and_fits() {
        let text = "`orders` on db-01.internal.example.com:5432 as `relay`";
        assert_eq!(wrapped(text, 20), ["`orders` on", "db-01.inte….com:5432", "as `relay`"]);
        for width in 1..80 {
            assert!(wrapped(text, width).iter().all(|line| line.chars().count() <= width));
        }
        assert_eq!(wrapped("", 5), [""]);
    }

    #[test]
    fn only_colours_are_lost_without_colours() {
        let line = |mark| MarkedLine {
            mark,
            name: "kafka",
            text: "no broker answers".to_owned(),
            steps: Vec::new(),
        };
        let lines = [line(Mark::Bad), line(Mark::Unknown)];
        let plain = marked_text(&lines, Some(30), false);
        assert_eq!(
            plain,
            "✗ kafka         no broker\n                answers\n\
             · kafka         no broker\n                answers\n"
        );
        let colored = marked_text(&lines, None, true);
        assert!(colored.contains("\x1b[1;31m✗\x1b[0m kafka"), "{colored}");
        assert!(colored.contains("\x1b[2m·\x1b[0m kafka"), "{colored}");
    }
}
