//! Writes metrics in Prometheus's text format, version 0.0.4.
//!
//! Input: names, help, labels and numbers. Output: a page. Invariant: HELP and TYPE precede a family's
//! first sample; a name that ends in `_total` is a counter's; labels are escaped.
//!
//! Written by hand, since the crate `prometheus-client` (0.25) writes only OpenMetrics: there a counter's
//! HELP and TYPE lack `_total`, and the page ends in `# EOF`, which readers of this version do not expect.

use std::fmt::{Display, Write as _};

/// The media type of a page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Name and value of each label.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// Families of metrics whose names begin alike. Writing to a string cannot fail.
pub struct Page {
    prefix: &'static str,
    text: String,
}

impl Page {
    /// An empty page, whose names begin so.
    pub const fn new(prefix: &'static str) -> Self {
        Self { prefix, text: String::new() }
    }

    /// The page so far, whose next families begin otherwise.
    #[must_use]
    pub fn then(self, prefix: &'static str) -> Self {
        Self { prefix, ..self }
    }

    /// The page as it is served.
    pub fn into_text(self) -> String {
        self.text
    }

    /// Begins a family of counters or gauges.
    pub fn family(&mut self, name: &str, help: &str) {
        self.family_of(name, if name.ends_with("_total") { "counter" } else { "gauge" }, help);
    }

    /// Begins a family of this kind.
    pub fn family_of(&mut self, name: &str, kind: &str, help: &str) {
        let prefix = self.prefix;
        let _ = writeln!(self.text, "# HELP {prefix}{name} {help}\n# TYPE {prefix}{name} {kind}");
    }

    /// One number of the family that was begun last.
    pub fn sample(&mut self, name: &str, labels: Labels<'_>, value: impl Display) {
        let _ = write!(self.text, "{}{name}", self.prefix);
        for (index, (label, text)) in labels.iter().enumerate() {
            let open = if index == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{open}{label}=\"{}\"", escaped(text));
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{close} {value}");
    }

    /// A family of one number.
    pub fn single(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, help);
        self.sample(name, &[], value);
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_three_lines() {
        let mut page = Page::new("shop_");
        page.single("orders_total", "orders placed", 7);
        let lines = "# HELP shop_orders_total orders placed\n# TYPE shop_orders_total counter\n\
                     shop_orders_total 7\n";
        assert_eq!(page.into_text(), lines);
    }
}
