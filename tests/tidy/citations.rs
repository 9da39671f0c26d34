//! The tests that the pages of the patterns name, and the metrics that pages and alerts name.
//!
//! Input: a text, the sources. Output: a [`Finding`] for each row of a table "shown by" without a test, and
//! for each name of a test or a metric that does not exist.

use super::source::{Finding, Source};
use super::tree::{Text, anchors};

/// A test's name is a sentence: what is shorter in the text of a page is a column, a setting or a function.
const WORDS_MIN: usize = 5;

/// Names of all tests.
pub fn tests<'a>(sources: &'a [Source]) -> Vec<&'a str> {
    let of = |source: &'a Source| {
        let Source { text, functions, .. } = source;
        let lines: Vec<&str> = text.lines().collect();
        let is_test = move |first_line: usize| {
            let above = lines.iter().take(first_line - 1).rev();
            let mut attributes = above.take_while(|line| line.trim_start().starts_with("#["));
            attributes.any(|line| line.contains("test"))
        };
        functions.iter().filter(move |it| is_test(it.first_line)).map(|it| it.name.as_str())
    };
    sources.iter().flat_map(of).collect()
}

/// See the module.
pub fn of_page(page: &Text, tests: &[&str]) -> Vec<Finding> {
    let exists = |name: &str| match name.strip_prefix("..") {
        Some(end) => tests.iter().any(|test| test.ends_with(end)),
        None => tests.contains(&name),
    };
    let mut is_shown_by = false;
    let mut findings = Vec::new();
    for (index, line) in page.text.lines().enumerate() {
        let mut report = |what: String| findings.push(page.finding(index + 1, what));
        if !line.starts_with('|') {
            is_shown_by = false;
        }
        let last = line.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        if last.trim().eq_ignore_ascii_case("shown by") {
            is_shown_by = true;
        } else if is_shown_by && !last.contains('`') && !last.trim_matches([' ', '-']).is_empty() {
            if last.trim() != "the same" {
                report("this row names no test".to_owned());
            }
        } else if is_shown_by {
            names(last, 1).filter(|name| !exists(name)).for_each(|name| report(missing(name)));
            continue;
        }
        let in_text = names(line, WORDS_MIN).filter(|name| !name.starts_with("shop_"));
        in_text.filter(|name| !exists(name)).for_each(|name| report(missing(name)));
    }
    findings
}

fn missing(name: &str) -> String {
    format!("no test is named `{name}`")
}

/// What is in backticks and could be a test's name of so many words.
fn names(text: &str, words_min: usize) -> impl Iterator<Item = &str> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(move |name| {
        let is_name = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '_';
        let bare = name.strip_prefix("..").unwrap_or(name);
        bare.contains('_') && bare.chars().all(is_name) && bare.split('_').count() >= words_min
    })
}

/// Each alert has a runbook that is a heading of one of the pages.
pub fn dead_runbooks(rules: &Text, pages: &[&Text]) -> Vec<Finding> {
    let is_heading = |(path, fragment): (&str, &str)| {
        let mut page = pages.iter().filter(|page| page.path == path);
        page.any(|page| anchors(&page.text).any(|known| known == fragment))
    };
    let mut findings = Vec::new();
    let mut alerts = 0;
    for (index, line) in rules.text.lines().enumerate() {
        let line = line.trim();
        alerts += i32::from(line.starts_with("- alert:"));
        let Some(named) = line.strip_prefix("runbook: ") else { continue };
        alerts -= 1;
        if !named.trim_matches('\'').split_once('#').is_some_and(is_heading) {
            findings.push(rules.finding(index + 1, "no page has this heading".to_owned()));
        }
    }
    if alerts != 0 {
        findings.push(rules.finding(1, "an alert without a runbook".to_owned()));
    }
    findings
}

/// The page names every alert, and none that there is not.
pub fn unlisted_alerts(rules: &Text, page: &Text) -> Vec<Finding> {
    let alerts: Vec<&str> =
        rules.text.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let quoted = page.text.split('`').skip(1).step_by(2);
    let is_alert = |word: &&str| {
        word.strip_prefix("Postrider")
            .is_some_and(|rest| !rest.is_empty() && rest.chars().all(char::is_alphanumeric))
    };
    let listed: Vec<&str> = quoted.filter(is_alert).collect();
    let unlisted = alerts.iter().filter(|alert| !listed.contains(alert));
    let unlisted = unlisted.map(|alert| rules.finding(1, format!("{} has no {alert}", page.path)));
    let unknown = listed.iter().filter(|alert| !alerts.contains(alert));
    let unknown = unknown.map(|alert| page.finding(1, format!("there is no alert {alert}")));
    unlisted.chain(unknown).collect()
}

/// Each metric of the relay or the services that a page, a rule or a dashboard names is written by one of them.
pub fn unknown_metrics(text: &Text, sources: &[Source]) -> Vec<Finding> {
    let shipped = || sources.iter().filter(|source| source.path.starts_with("src/"));
    let is_known = |name: &str| shipped().any(|it| it.text.contains(&format!("\"{name}\"")));
    let mut findings = Vec::new();
    for (index, line) in text.text.lines().enumerate() {
        let words = line.split(|it: char| !it.is_ascii_lowercase() && it != '_');
        let metrics = words.filter_map(|word| {
            let of_relay = word.strip_prefix("postrider_").map(|name| {
                let histogram = name.strip_suffix("_seconds_bucket");
                histogram.map_or(name.to_owned(), |name| format!("{name}_seconds"))
            });
            let of_shop = word.starts_with("shop_").then(|| word.to_owned());
            of_relay.or(of_shop).filter(|name| !name.ends_with('_'))
        });
        // A suite, and a crate.
        let names = ["shop_chaos", "patterns"];
        let unknown = metrics.filter(|name| !names.contains(&name.as_str()) && !is_known(name));
        findings.extend(
            unknown.map(|name| text.finding(index + 1, format!("nobody has a metric `{name}`"))),
        );
    }
    findings
}

/// Panels of a dashboard that show series of each stream, and name another thing alone: of several streams in one process all
/// lines would have one name.
pub fn nameless_series(dashboard: &Text) -> Vec<Finding> {
    let (mut findings, mut is_of_stream) = (Vec::new(), false);
    for (index, line) in dashboard.text.lines().enumerate() {
        let line = line.trim_start();
        if let Some(expression) = line.strip_prefix("\"expr\": \"") {
            let sums_up = ["sum ", "histogram_quantile("];
            let is_apart = !sums_up.iter().any(|start| expression.starts_with(start));
            is_of_stream = is_apart && expression.contains("postrider_");
        }
        let is_legend = line.starts_with("\"legendFormat\"");
        if is_legend && is_of_stream && !line.contains("{{stream}}") {
            findings
                .push(dashboard.finding(index + 1, "the legend names no {{stream}}".to_owned()));
        }
    }
    findings
}

/// Rows that the README's table shares with the short table of the comparison, and that say something else there. The first
/// cell names a row, the second one is Postrider's, and the third one Debezium's.
pub fn other_figures(readme: &str, table: &str) -> Vec<Finding> {
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let rows = |text: &str| {
        text.lines()
            .filter(|line| line.starts_with("| ") && !line.starts_with("| |"))
            .map(cells)
            .collect::<Vec<_>>()
    };
    let (measured, finding) =
        (rows(table), |what| Finding { path: "README.md".to_owned(), line: 0, what });
    let shared = |row: &[String]| measured.iter().find(|it| it.get(1) == row.get(1)).cloned();
    let of = |row: Vec<String>| {
        let [_, name, ours, theirs, ..] = row.as_slice() else { return None };
        let measured = shared(&row)?;
        let [_, _, our_figure, _, their_figure, ..] = measured.as_slice() else { return None };
        let is_same = our_figure.starts_with(&format!("{ours} (")) && their_figure == theirs;
        (!is_same).then(|| {
            finding(format!("`{name}` is {our_figure}, {their_figure} in docs/benchmarks.md"))
        })
    };
    let found: Vec<_> = rows(readme).into_iter().filter_map(of).collect();
    let has_shared = rows(readme).iter().any(|row| shared(row).is_some());
    if has_shared {
        found
    } else {
        vec![finding("no figure of docs/benchmarks.md is there".to_owned())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_that_differ_are_reported() {
        let table = "| Peak memory | 32 MiB (**15x less**) | 42 MiB (**10x less**) | 480 MiB |\n";
        assert_eq!(other_figures("| Peak memory | 32 MiB | 480 MiB | – |\n", table), []);
        assert_eq!(other_figures("| Peak memory | 31 MiB | 480 MiB | – |\n", table).len(), 1);
        assert_eq!(other_figures("| Peak memory | 32 MiB | 48 MiB | – |\n", table).len(), 1);
        assert_eq!(other_figures("| Delivery | once | twice | – |\n", table).len(), 1);
    }

    #[test]
    fn a_legend_that_names_no_stream_is_reported() {
        let panel = |expression: &str, legend: &str| Text {
            path: "relay.json".into(),
            text: format!(
                " \"expr\": \"{expression}\",\n \"format\": \"x\",\n \"legendFormat\": \"{legend}\"\n"
            ),
        };
        assert_eq!(nameless_series(&panel("postrider_a == 1", "{{instance}}")).len(), 1);
        assert!(nameless_series(&panel("postrider_a == 1", "{{stream}}")).is_empty());
        assert!(nameless_series(&panel("sum by (job) (postrider_a)", "{{job}}")).is_empty());
        assert!(nameless_series(&panel("process_a", "{{instance}}")).is_empty());
    }

    #[test]
    fn a_row_without_a_test_and_a_test_that_is_gone_are_reported() {
        let source = "#[test]\nfn one_is_shown() {}\nfn helper_of_it() {}\n";
        let sources = [Source::new("tests/x.rs", source)];
        let tests = tests(&sources);
        assert_eq!(tests, ["one_is_shown"]);
        let found = |row: &str| {
            let text = format!("| Mistake | Shown by |\n|---|---|\n{row}\n");
            of_page(&Text { path: "docs/patterns/x.md".to_owned(), text }, &tests).len()
        };
        assert_eq!(found("| a | `one_is_shown`; here `.._shown` |\n| b | the same |"), 0);
        assert_eq!(found("| a | `helper_of_it` |\n| b | one table |\n| c | `.._gone` |"), 3);
        assert_eq!(found("\nAs `a_test_that_is_not_there` says; `shop_a_b_c_d_e`, `a_column`"), 1);
    }
    #[test]
    fn a_metric_that_no_service_has_is_reported() {
        let sources = [Source::new("src/shop/x.rs", "(\"shop_orders_open\", 1)")];
        let text = "expr: max(shop_orders_open) > 0 and shop_orders_gone_total > 0, shop_sagas_*";
        let rules = Text { path: "rules.yaml".to_owned(), text: text.to_owned() };
        assert_eq!(unknown_metrics(&rules, &sources).len(), 1);
        let relay = [Source::new("src/relay/x.rs", "page.single(\"lag_seconds\", 1)")];
        let text = "postrider_lag_seconds_bucket > 1 and postrider_lag_bytes > 0".to_owned();
        let rules = Text { path: "relay.yaml".to_owned(), text };
        assert_eq!(unknown_metrics(&rules, &relay).len(), 1);
    }

    #[test]
    fn an_alert_without_a_paragraph_is_reported() {
        let text = |path: &str, text: &str| Text { path: path.to_owned(), text: text.to_owned() };
        let page = text("docs/a.md", "# A\n## Position refused (exit 70)\n");
        let found = |runbooks: &str| {
            let rules = text("relay.yaml", &format!("- alert: One\n{runbooks}"));
            dead_runbooks(&rules, &[&page]).len()
        };
        assert_eq!(found("runbook: 'docs/a.md#position-refused-exit-70'\n"), 0);
        assert_eq!(found("runbook: 'docs/a.md#gone'\n"), 1);
        assert_eq!(found("runbook: 'docs/b.md#position-refused-exit-70'\n"), 1);
        assert_eq!(found(""), 1);
    }

    #[test]
    fn an_alert_that_page_and_rules_do_not_share_is_reported() {
        let text = |path: &str, text: &str| Text { path: path.to_owned(), text: text.to_owned() };
        let rules = text("relay.yaml", "  - alert: PostriderOne\n  - alert: PostriderTwo\n");
        let found = |page: &str| unlisted_alerts(&rules, &text("docs/a.md", page)).len();
        assert_eq!(found("| `PostriderOne`, `PostriderTwo` | `postrider run` |"), 0);
        assert_eq!(found("| `PostriderOne` |"), 1);
        assert_eq!(found("| `PostriderOne`, `PostriderTwo`, `PostriderGone` |"), 1);
    }
}
