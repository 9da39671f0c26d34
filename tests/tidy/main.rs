//! The house rules, executed.
//!
//! Input: the tree. Output: a failed test that names every place where a rule is broken. Each rule
//! is a small function with a test of its own that feeds it a snippet it must report, so that no
//! rule can rot into one that never fires. Why the rules are what they are: CONTRIBUTING.md.

#![expect(
    clippy::expect_used,
    reason = "test code throughout: a panic here is a failed test that names its place"
)]
#![expect(unreachable_pub, reason = "the modules of a test binary are private to it")]

mod calls;
mod citations;
mod faults;
mod modules;
mod prose;
mod scaling;
mod sizes;
mod source;
mod tree;
mod walls;
mod way;
mod words;

use std::path::{Path, PathBuf};
use std::process::Command;

use source::{Finding, Source};
use support::compare::plot;
use support::register;
use tree::Text;

/// Rules that look at one Rust file at a time.
const FILE_RULES: &[fn(&Source) -> Vec<Finding>] =
    &[sizes::files, sizes::functions, walls::hot_path, calls::banned, calls::module_docs];

/// Endings of files that are text.
const TEXT: [&str; 12] =
    ["rs", "md", "toml", "sql", "yaml", "yml", "json", "xml", "sh", "conf", "properties", "lock"];

#[test]
fn every_rust_file_obeys_the_rules() {
    let sources = sources();
    assert!(sources.len() > 20, "the walk over the tree found {} files only", sources.len());
    let findings =
        sources.iter().flat_map(|source| FILE_RULES.iter().flat_map(|rule| rule(source)));
    report(&findings.collect::<Vec<_>>());
}

#[test]
fn g1_only_the_loop_tells_postgres_an_lsn() {
    report(&calls::one_acknowledgement(&sources()));
}

#[test]
fn the_top_level_holds_what_belongs_there() {
    report(&tree::top_level(&top_level_entries()));
}

#[test]
fn no_file_names_a_path_of_one_machine() {
    report(&texts().iter().flat_map(tree::machine_paths).collect::<Vec<_>>());
}

#[test]
fn nobody_speaks_the_language_of_this_house_alone() {
    report(&texts().iter().flat_map(words::of_the_house).collect::<Vec<_>>());
}

#[test]
fn documents_link_to_files_that_exist() {
    let exists = |path: &str| root().join(path).exists();
    let documents = texts().into_iter().filter(|text| text.has_extension("md"));
    let findings: Vec<_> = documents.flat_map(|text| tree::dead_links(&text, &exists)).collect();
    report(&findings);
}

#[test]
fn documents_link_to_headings_that_exist() {
    let texts = texts();
    let pages: Vec<&Text> = texts.iter().filter(|text| text.has_extension("md")).collect();
    report(&pages.iter().flat_map(|page| tree::dead_fragments(page, &pages)).collect::<Vec<_>>());
}

#[test]
fn prose_is_plain_and_gets_no_worse() {
    let path = root().join("tests/tidy/prose.txt");
    let allowed = std::fs::read_to_string(&path).expect("tests/tidy/prose.txt");
    let (findings, now) = prose::beyond(&texts(), &allowed);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, now).expect("tests/tidy/prose.txt can be written");
    } else {
        report(&findings);
    }
}

/// `area: verb object`. Those before the newest 40 stay as they are.
#[test]
fn subjects_of_commits_have_an_area_and_fit_a_line() {
    let log = Command::new("git")
        .args(["log", "-40", "--no-merges", "--format=%s"])
        .current_dir(root())
        .output();
    // An unpacked archive has none.
    let Some(log) = log.ok().filter(|log| log.status.success()) else { return };
    let log = String::from_utf8_lossy(&log.stdout);
    report(&log.lines().filter_map(tree::subject).collect::<Vec<_>>());
}

#[test]
fn the_page_on_scaling_shows_what_its_model_computes() {
    let path = root().join("docs/scaling-model.md");
    let page = std::fs::read_to_string(&path).expect("docs/scaling-model.md");
    let computed = scaling::with_tables(&page, &scaling::tables());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &computed).expect("docs/scaling-model.md can be written");
    } else {
        let hint =
            "docs/scaling-model.md is out of date: UPDATE_DOCS=1 cargo test --test tidy -- scaling";
        assert!(page == computed, "{hint}");
    }
}

#[test]
fn the_readme_and_the_picture_show_the_figures_of_the_benchmarks() {
    let page = |path: &str| std::fs::read_to_string(root().join(path)).expect("a page");
    let (readme, benchmarks) = (page("README.md"), page("docs/benchmarks.md"));
    let (_, rest) = benchmarks.split_once("<!-- compare -->\n").expect("the table's place");
    let table = rest.split_once("<!-- end -->").expect("the table's end").0;
    report(&citations::other_figures(&readme, table));
    let (path, drawn) = (root().join("docs/benchmarks.svg"), plot::svg(table));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, drawn).expect("docs/benchmarks.svg can be written");
    } else {
        let picture = std::fs::read_to_string(&path).expect("docs/benchmarks.svg");
        let hint =
            "docs/benchmarks.svg differs: UPDATE_DOCS=1 cargo test --test tidy -- benchmarks";
        assert!(picture == drawn, "{hint}");
    }
}

#[test]
fn the_guarantees_name_tests_that_exist() {
    let (texts, sources) = (texts(), sources());
    for path in ["docs/guarantees.md", "docs/evidence.md"] {
        let document = texts.iter().find(|text| text.path == path);
        report(&tree::guarantees(document.expect(path), &sources));
    }
}

#[test]
fn the_pages_of_the_patterns_name_tests_that_exist() {
    let sources = sources();
    let tests = citations::tests(&sources);
    let pages = texts().into_iter().filter(|text| text.path.starts_with("docs/patterns"));
    report(&pages.flat_map(|page| citations::of_page(&page, &tests)).collect::<Vec<_>>());
}

#[test]
fn pages_and_alerts_name_metrics_that_exist() {
    let sources = sources();
    let is_read = |path: &str| {
        path.starts_with("docs/patterns")
            || path == "docs/scaling.md"
            || path.starts_with("docker/prometheus")
            || path.starts_with("docker/grafana")
    };
    let texts: Vec<_> = texts().into_iter().filter(|text| is_read(&text.path)).collect();
    for read in ["prometheus/rules.yaml", "prometheus/relay.yaml", "grafana/dashboards/relay.json"]
    {
        assert!(texts.iter().any(|text| text.path == format!("docker/{read}")), "no {read}");
    }
    let findings = texts.iter().flat_map(|text| citations::unknown_metrics(text, &sources));
    report(&findings.collect::<Vec<_>>());
}

#[test]
fn the_dashboard_names_streams() {
    let texts = texts();
    let dashboard = texts.iter().find(|text| text.path == "docker/grafana/dashboards/relay.json");
    report(&citations::nameless_series(dashboard.expect("the dashboard")));
}

#[test]
fn each_alert_of_the_relay_has_its_paragraph_of_the_runbook() {
    let texts = texts();
    let find = |path: &str| texts.iter().find(|text| text.path == path).expect("a file");
    let rules = find("docker/prometheus/relay.yaml");
    let pages = texts.iter().filter(|text| text.path.starts_with("docs/operations/"));
    report(&citations::dead_runbooks(rules, &pages.collect::<Vec<_>>()));
    report(&citations::unlisted_alerts(rules, find("docs/operations/alerts.md")));
}

#[test]
fn a_row_takes_the_way_that_is_listed() {
    let document = texts().into_iter().find(|text| text.path == "docs/modules.md");
    report(&way::row(&document.expect("docs/modules.md"), &sources()));
}

#[test]
fn the_core_s_modules_use_each_other_as_is_listed() {
    let document = texts().into_iter().find(|text| text.path == "docs/modules.md");
    report(&modules::of_core(&document.expect("docs/modules.md"), &sources()));
}

#[test]
fn every_thread_is_in_the_table_of_threads() {
    let document = texts().into_iter().find(|text| text.path == "docs/architecture.md");
    report(&tree::threads(&document.expect("docs/architecture.md"), &sources()));
}

#[test]
fn every_guarantee_has_tests() {
    report(&tree::guarantees_without_tests(&sources()));
}

#[test]
fn every_row_of_the_fault_matrix_runs_or_says_why_not() {
    let text = std::fs::read_to_string(root().join(register::REGISTER)).expect("the register");
    let rows = register::parse(&text).expect("a register of faults");
    let document = std::fs::read_to_string(root().join(register::DOCUMENT)).expect("a document");
    let exists = |path: &str| root().join(path).exists();
    report(&faults::complete(&rows));
    report(&faults::named_tests_exist(&rows, &sources(), &exists));
    report(&faults::shown(&rows, &document));
}

#[test]
fn every_error_code_that_is_named_exists() {
    let (document, others): (Vec<_>, Vec<_>) =
        texts().into_iter().partition(|it| it.path == "docs/codes.md");
    report(&tree::unknown_codes(&document[0], &others));
}

/// The clock on the wall may jump: it stamps what others read, and decides nothing.
#[test]
fn no_timeout_looks_at_the_clock_on_the_wall() {
    report(&sources().iter().flat_map(calls::wall_clock).collect::<Vec<_>>());
}

#[test]
fn no_crate_is_built_with_what_it_keeps_out() {
    for wall in walls::WALLS {
        report(&walls::broken(wall, &walls::tree(wall, root())));
    }
}

fn report(findings: &[Finding]) {
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{} findings:\n{}", lines.len(), lines.join("\n"));
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources() -> Vec<Source> {
    let rust = texts().into_iter().filter(|text| text.has_extension("rs"));
    rust.map(|text| Source::new(&text.path, &text.text)).collect()
}

fn texts() -> Vec<Text> {
    let ignored: Vec<PathBuf> = std::fs::read_to_string(root().join(".gitignore"))
        .expect(".gitignore")
        .lines()
        .map(|line| root().join(line.trim_matches('/')))
        .collect();
    let mut texts = Vec::new();
    collect(root(), &ignored, &mut texts);
    texts.sort_by(|a, b| a.path.cmp(&b.path));
    texts
}

fn collect(folder: &Path, ignored: &[PathBuf], texts: &mut Vec<Text>) {
    for entry in std::fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        if ignored.contains(&path) || path.file_name().is_some_and(|name| name == ".git") {
            continue;
        }
        // A link leads to what is collected where it is.
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            collect(&path, ignored, texts);
        } else if is_text(&path) {
            let relative = path.strip_prefix(root()).expect("inside the tree");
            texts.push(Text {
                path: relative.to_string_lossy().replace('\\', "/"),
                text: String::from_utf8_lossy(&std::fs::read(&path).expect("a readable file"))
                    .into(),
            });
        }
    }
}

fn is_text(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.map_or(["Makefile", "Dockerfile", "run"].contains(&name), |it| TEXT.contains(&it))
}

/// What git tracks; in an unpacked archive without git, what lies there.
fn top_level_entries() -> Vec<String> {
    let git =
        Command::new("git").args(["ls-tree", "--name-only", "HEAD"]).current_dir(root()).output();
    if let Some(output) = git.ok().filter(|output| output.status.success()) {
        return String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    }
    let entries = std::fs::read_dir(root()).expect("a readable folder");
    let names =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    names.filter(|name| !["target", ".servers", ".git"].contains(&name.as_str())).collect()
}
