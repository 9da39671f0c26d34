//! Metrics in the formats of Prometheus and OpenMetrics, encoded by the crate `prometheus-client`.
//! `_total` marks a counter, `_info` facts; every other name is a gauge or a histogram.
//!
//! Exemplars are appended here: the crate (0.26) writes only exemplars of its own histograms, and
//! these scrapes contain snapshots.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::{self, Debug, Write as _};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

pub type Labels<'a> = &'a [(&'a str, &'a str)];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Text format 0.0.4, the default.
    Text,
    /// OpenMetrics 1.0.0, which has exemplars. Prometheus requests it.
    OpenMetrics,
}

impl Format {
    /// OpenMetrics if it is named and no other format is preferred.
    pub fn accepted(accept: &str) -> Self {
        let mut best = [0.0_f32; 2];
        for entry in accept.split(',') {
            let mut parts = entry.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default();
            let mut weight = 1.0_f32;
            let mut is_known = true;
            for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                match name.trim() {
                    "q" => weight = value.trim().parse().unwrap_or(0.0),
                    "version" if media_type.starts_with("application/") => {
                        is_known = matches!(value.trim_matches([' ', '"']), "1.0.0" | "0.0.1");
                    }
                    _ => {}
                }
            }
            let [open_metrics, text] = &mut best;
            match media_type.to_ascii_lowercase().as_str() {
                "application/openmetrics-text" if is_known => {
                    *open_metrics = open_metrics.max(weight);
                }
                "text/plain" | "text/*" | "*/*" => *text = text.max(weight),
                _ => {}
            }
        }
        let [open_metrics, text] = best;
        if open_metrics > 0.0 && open_metrics >= text { Self::OpenMetrics } else { Self::Text }
    }

    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => prometheus_text::CONTENT_TYPE,
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

pub trait Metrics: Debug + Send + Sync + 'static {
    fn write(&self, page: &mut Page<'_>) -> fmt::Result;

    /// Single observations of histogram buckets, with their traces.
    fn exemplars(&self) -> Vec<Exemplar> {
        Vec::new()
    }
}

impl Metrics for Box<dyn Metrics> {
    fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        (**self).write(page)
    }

    fn exemplars(&self) -> Vec<Exemplar> {
        (**self).exemplars()
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Exemplar {
    pub histogram: &'static str,
    /// From 0.
    pub bucket: usize,
    /// 32 hexadecimal digits.
    pub trace_id: String,
    pub value: f64,
    /// Microseconds since the Unix epoch.
    pub unix_us: i64,
}

pub fn render(metrics: impl Metrics, format: Format) -> String {
    render_labelled(None, metrics, format)
}

pub fn render_all(parts: Vec<(Option<Label>, impl Metrics)>, format: Format) -> String {
    let pages = parts.into_iter().map(|(label, metrics)| render_labelled(label, metrics, format));
    let mut families: Vec<(String, String)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for page in pages {
        let mut current = 0;
        for line in page.lines().filter(|line| *line != END) {
            if let Some(about) = line.strip_prefix("# HELP ") {
                let name = about.split(' ').next().unwrap_or_default();
                current = *places.entry(name.to_owned()).or_insert(families.len());
            }
            if current == families.len() {
                families.push(Default::default());
            }
            let Some((header, samples)) = families.get_mut(current) else { continue };
            // HELP, TYPE and UNIT occur once, before all samples.
            let is_header = line.starts_with("# ");
            if is_header && header.lines().any(|known| known == line) {
                continue;
            }
            let text = if is_header { header } else { samples };
            text.push_str(line);
            text.push('\n');
        }
    }
    let end = if format == Format::OpenMetrics { "# EOF\n" } else { "" };
    families.into_iter().flat_map(|(header, samples)| [header, samples]).collect::<String>() + end
}

/// Label of all samples of some metrics.
pub type Label = (&'static str, String);

const END: &str = "# EOF";

fn render_labelled(label: Option<Label>, metrics: impl Metrics, format: Format) -> String {
    let exemplars = if format == Format::OpenMetrics { metrics.exemplars() } else { Vec::new() };
    let labels = label.into_iter().map(|(name, value)| (Cow::Borrowed(name), Cow::Owned(value)));
    let mut registry = Registry::with_labels(labels);
    registry.register_collector(Box::new(Scrape(metrics)));
    let mut page = String::new();
    let written = match format {
        Format::Text => prometheus_text::encode(&mut page, &registry),
        Format::OpenMetrics => text::encode(&mut page, &registry),
    };
    if written.is_err() {
        unreachable!("writing to a string cannot fail");
    }
    if exemplars.is_empty() { page } else { with_exemplars(&page, &exemplars) }
}

#[derive(Debug)]
struct Scrape<M>(M);

impl<M: Metrics> Collector for Scrape<M> {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.write(&mut Page { prefix: "", name: String::new(), encoder })
    }
}

fn with_exemplars(page: &str, exemplars: &[Exemplar]) -> String {
    let mut text = String::with_capacity(page.len() + 128 * exemplars.len());
    let mut bucket = 0;
    let mut before = "";
    for line in page.lines() {
        text.push_str(line);
        let name = line.split_once('{').and_then(|(name, _)| name.strip_suffix("_bucket"));
        if let Some(name) = name {
            bucket = if before == name { bucket + 1 } else { 0 };
            let is_its = |one: &&Exemplar| one.histogram == name && one.bucket == bucket;
            if let Some(Exemplar { trace_id, value, unix_us, .. }) = exemplars.iter().find(is_its) {
                let (seconds, fraction) =
                    (unix_us.div_euclid(1_000_000), unix_us.rem_euclid(1_000_000));
                let _ = write!(
                    text,
                    " # {{trace_id=\"{trace_id}\"}} {value:?} {seconds}.{fraction:06}"
                );
            }
        }
        before = name.unwrap_or_default();
        text.push('\n');
    }
    text
}

pub struct Page<'a> {
    prefix: &'static str,
    name: String,
    encoder: DescriptorEncoder<'a>,
}

impl Page<'_> {
    /// Applies to all following names.
    pub const fn begin_names(&mut self, prefix: &'static str) {
        self.prefix = prefix;
    }

    /// Counters (`.._total`), facts (`.._info`) or gauges.
    pub fn family(&mut self, name: &str, help: &str) -> Result<Family<'_>, fmt::Error> {
        let (name, kind) = if let Some(name) = name.strip_suffix("_total") {
            (name, MetricType::Counter)
        } else if let Some(name) = name.strip_suffix("_info") {
            (name, MetricType::Info)
        } else {
            (name, MetricType::Gauge)
        };
        Ok(Family { encoder: self.descriptor(name, help, kind)?, kind })
    }

    pub fn single(&mut self, name: &str, help: &str, value: impl Into<Number>) -> fmt::Result {
        self.family(name, help)?.sample(&[], value)
    }

    /// Writes upper bounds, the last one infinite, and the observations in each bucket.
    pub fn histogram(
        &mut self,
        name: &str,
        help: &str,
        (buckets, sum): (&[(f64, u64)], f64),
    ) -> fmt::Result {
        let count = buckets.iter().map(|(_, count)| count).sum();
        let mut encoder = self.descriptor(name, help, MetricType::Histogram)?;
        encoder.encode_histogram::<[(&str, &str); 0]>(sum, count, buckets, None)
    }

    fn descriptor(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
    ) -> Result<MetricEncoder<'_>, fmt::Error> {
        self.name.clear();
        self.name.push_str(self.prefix);
        self.name.push_str(name);
        self.encoder.encode_descriptor(&self.name, help, None, kind)
    }
}

pub struct Family<'a> {
    encoder: MetricEncoder<'a>,
    kind: MetricType,
}

impl Family<'_> {
    pub fn sample(&mut self, labels: Labels<'_>, value: impl Into<Number>) -> fmt::Result {
        let mut encoder = self.encoder.encode_family(&labels)?;
        match (self.kind, value.into()) {
            (MetricType::Counter, Number::Whole(value)) => {
                encoder.encode_counter::<[(&str, &str); 0], _, f64>(&value, None)
            }
            (MetricType::Counter, Number::Real(value)) => {
                encoder.encode_counter::<[(&str, &str); 0], _, f64>(&value, None)
            }
            (MetricType::Info, _) => encoder.encode_info(&[("", ""); 0]),
            (_, Number::Whole(value)) => encoder.encode_gauge(&value),
            (_, Number::Real(value)) => encoder.encode_gauge(&value),
        }
    }

    pub fn facts(&mut self, labels: Labels<'_>) -> fmt::Result {
        self.sample(labels, 1_u64)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    Whole(u64),
    /// Seconds, or a ratio.
    Real(f64),
}

impl From<u64> for Number {
    fn from(number: u64) -> Self {
        Self::Whole(number)
    }
}

impl From<bool> for Number {
    fn from(yes: bool) -> Self {
        Self::Whole(yes.into())
    }
}

impl From<Duration> for Number {
    fn from(time: Duration) -> Self {
        Self::Real(time.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Example;

    impl Metrics for Example {
        fn write(&self, page: &mut Page<'_>) -> fmt::Result {
            page.begin_names("shop_");
            page.single("orders_total", "orders placed", 7)?;
            page.family("build_info", "what runs")?.facts(&[("version", "a\"b\\c\nd")])?;
            page.single("age_seconds", "how old", Duration::from_millis(1500))?;
            page.histogram("time_seconds", "took", (&[(0.5, 3), (f64::INFINITY, 1)], 2.5))
        }

        fn exemplars(&self) -> Vec<Exemplar> {
            let trace_id = "4bf92f3577b34da6a3ce929d0e0e4736".to_owned();
            let (histogram, value) = ("shop_time_seconds", 0.25);
            vec![Exemplar { histogram, bucket: 0, trace_id, value, unix_us: 1_000_250_000 }]
        }
    }

    #[test]
    fn both_formats_have_the_same_names() {
        let expected = "\
# HELP shop_orders_total orders placed
# TYPE shop_orders_total counter
shop_orders_total 7
# HELP shop_build_info what runs
# TYPE shop_build_info gauge
shop_build_info{version=\"a\\\"b\\\\c\\nd\"} 1
# HELP shop_age_seconds how old
# TYPE shop_age_seconds gauge
shop_age_seconds 1.5
# HELP shop_time_seconds took
# TYPE shop_time_seconds histogram
shop_time_seconds_bucket{le=\"0.5\"} 3
shop_time_seconds_bucket{le=\"+Inf\"} 4
shop_time_seconds_sum 2.5
shop_time_seconds_count 4
";
        assert_eq!(render(Example, Format::Text), expected);
        let expected = "\
# HELP shop_orders orders placed
# TYPE shop_orders counter
shop_orders_total 7
# HELP shop_build what runs
# TYPE shop_build info
shop_build_info{version=\"a\\\"b\\\\c\\nd\"} 1
# HELP shop_age_seconds how old
# TYPE shop_age_seconds gauge
shop_age_seconds 1.5
# HELP shop_time_seconds took
# TYPE shop_time_seconds histogram
shop_time_seconds_sum 2.5
shop_time_seconds_count 4
shop_time_seconds_bucket{le=\"0.5\"} 3 # {trace_id=\"4bf92f3577b34da6a3ce929d0e0e4736\"} 0.25 1000.250000
shop_time_seconds_bucket{le=\"+Inf\"} 4
# EOF
";
        assert_eq!(render(Example, Format::OpenMetrics), expected);
    }

    #[test]
    fn several_have_their_families_once_and_their_samples_by_label() {
        let part = |name: &str| (Some(("stream", name.to_owned())), Example);
        for format in [Format::Text, Format::OpenMetrics] {
            let page = render_all(vec![part("a"), part("b"), (None, Example)], format);
            let count = |start: &str| page.lines().filter(|line| line.starts_with(start)).count();
            assert_eq!((count("# HELP shop_orders"), count("# TYPE shop_time_seconds ")), (1, 1));
            assert_eq!((count("shop_orders_total"), count("# EOF") <= 1), (3, true));
            for line in [
                "shop_orders_total{stream=\"a\"} 7",
                "shop_orders_total{stream=\"b\"} 7",
                "shop_orders_total 7",
            ] {
                assert!(page.lines().any(|known| known == line), "{line}: {page}");
            }
            let bucket = "shop_time_seconds_bucket{stream=\"b\",le=\"0.5\"} 3";
            let has = |line: &str| line.starts_with(bucket);
            assert!(page.lines().any(has), "{page}");
            assert_eq!(
                page.matches(" # {trace_id").count(),
                if format == Format::Text { 0 } else { 3 }
            );
            assert_eq!(page.ends_with("# EOF\n"), format == Format::OpenMetrics);
        }
    }

    #[test]
    fn open_metrics_are_for_whoever_asks_for_them() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                          application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;q=0.3,\
                          text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        for (accept, format) in [
            ("", Format::Text),
            ("*/*", Format::Text),
            ("text/html,application/xhtml+xml,*/*;q=0.8", Format::Text),
            ("text/plain;version=0.0.4", Format::Text),
            ("application/openmetrics-text;q=0.1, text/plain", Format::Text),
            ("application/openmetrics-text;q=0", Format::Text),
            ("application/openmetrics-text;version=2.0.0", Format::Text),
            ("application/openmetrics-text", Format::OpenMetrics),
            ("Application/OpenMetrics-Text; version=\"1.0.0\", */*", Format::OpenMetrics),
            (prometheus, Format::OpenMetrics),
        ] {
            assert_eq!(Format::accepted(accept), format, "{accept}");
        }
    }
}
