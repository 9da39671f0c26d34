//! A row's way through the code, as docs/modules.md lists it.
//!
//! Input: the document and the sources. Output: a [`Finding`] for each line of the list that names a
//! function that is not there, or that its caller does not call; and one if the way has grown.

use std::collections::BTreeSet;

use super::source::{Finding, Source};
use super::tree::Text;

/// The block begins below this line.
const HEADING: &str = "## A row's way, call by call";

/// So many calls in so many files at most: the way becomes shorter, never longer.
const CALLS_MAX: usize = 20;
const FILES_MAX: usize = 10;

/// A line of the list.
struct Call<'a> {
    line: usize,
    path: &'a str,
    name: &'a str,
    depth: usize,
}

pub fn row(document: &Text, sources: &[Source]) -> Vec<Finding> {
    let calls = listed(&document.text);
    let mut findings = Vec::new();
    let mut callers: Vec<&Call<'_>> = Vec::new();
    for call in &calls {
        callers.retain(|caller| caller.depth < call.depth);
        let finding = |what: String| document.finding(call.line, what);
        let path = format!("src/{}", call.path);
        if bodies(sources, &path, call.name).is_empty() {
            findings.push(finding(format!("{path} has no function `{}`", call.name)));
        } else if let Some(caller) = callers.last() {
            let bodies = bodies(sources, &format!("src/{}", caller.path), caller.name);
            if !bodies.iter().any(|body| body.contains(&format!("{}(", call.name))) {
                findings.push(finding(format!("`{}` does not call `{}`", caller.name, call.name)));
            }
        }
        callers.push(call);
    }
    let files: BTreeSet<&str> = calls.iter().map(|call| call.path).collect();
    if calls.is_empty() || calls.len() > CALLS_MAX || files.len() > FILES_MAX {
        let what = format!("a row's way is {} calls in {} files", calls.len(), files.len());
        findings.push(document.finding(0, what));
    }
    findings
}

/// Lines such as `relay/hot.rs    Hot::forward`, the callee further to the right than its caller.
fn listed(text: &str) -> Vec<Call<'_>> {
    let lines = text.lines().enumerate().skip_while(|(_, line)| *line != HEADING).skip(1);
    let block = lines.skip_while(|(_, line)| !line.starts_with("```")).skip(1);
    let block = block.take_while(|(_, line)| !line.starts_with("```"));
    let call = |(index, line)| -> Option<Call<'_>> {
        let (path, function): (&str, &str) = str::split_once(line, ' ')?;
        let depth = line.len() - function.trim_start().len();
        let name = function.trim().rsplit("::").next()?;
        Some(Call { line: index + 1, path, name, depth })
    };
    block.filter_map(call).collect()
}

/// The text of each function of that name in a file.
fn bodies(sources: &[Source], path: &str, name: &str) -> Vec<String> {
    let files = sources.iter().filter(|source| source.path == path);
    files
        .flat_map(|source| {
            let named = source.functions.iter().filter(move |function| function.name == name);
            named.map(move |function| {
                let lines = source.text.lines().skip(function.first_line - 1);
                let body = lines.take(function.last_line + 1 - function.first_line).skip(1);
                body.collect::<Vec<_>>().join("\n")
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "fn a() {\n    b()\n}\nfn b() {\n    c()\n}\n";

    fn found(list: &str) -> usize {
        let text = format!("{HEADING}\n\n```text\n{list}```\n");
        let document = Text { path: "docs/modules.md".to_owned(), text };
        row(&document, &[Source::new("src/x.rs", CODE)]).len()
    }

    #[test]
    fn a_way_is_what_the_code_does() {
        assert_eq!(found("x.rs  X::a\nx.rs    X::b\n"), 0);
        assert_eq!(found("x.rs  X::b\nx.rs    X::a\n"), 1, "b does not call a");
        assert_eq!(found("x.rs  X::a\nx.rs    X::c\n"), 1, "there is no c");
        assert_eq!(found(""), 1, "nothing is listed");
        assert_eq!(found(&"x.rs  X::a\n".repeat(CALLS_MAX + 1)), 1);
    }
}
