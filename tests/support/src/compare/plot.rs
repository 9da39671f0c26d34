//! The picture of the short table: a panel of bars for each of its lines, as SVG.
//!
//! Input: the short table of Markdown. Output: one SVG document without scripts and fonts, readable
//! on a light and on a dark page. Invariant: each bar shows a value of the table, and no other value.

use std::fmt::Write as _;

const WIDTH: usize = 860;
const PANEL_WIDTH: usize = WIDTH / 2;
const PANEL_HEIGHT: usize = 104;
const BAR_HEIGHT: usize = 20;
const TITLE_HEIGHT: usize = 28;
const LEGEND_HEIGHT: usize = 30;
/// Room for each name in the legend.
const NAME_WIDTH: usize = 200;
/// Length of the longest bar of a panel.
const LONGEST: f64 = 250.0;

const STYLE: &str = "\
text{fill:#24292f;font:12px system-ui,sans-serif}.t{font-weight:600;font-size:13px}.d{fill:#57606a}\
.b0{fill:#2f855a}.b1{fill:#2b6cb0}.b2{fill:#c05621}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.d{fill:#9198a1}\
.b0{fill:#56b384}.b1{fill:#5b9bd9}.b2{fill:#e07b4a}}";

/// A line of the table.
struct Panel<'a> {
    title: &'a str,
    /// A value in words for each column.
    values: Vec<&'a str>,
}

/// Panels for all lines of `table` whose values are numbers.
pub fn svg(table: &str) -> String {
    let mut lines = table.lines().filter(|line| line.starts_with('|')).map(cells);
    let contestants: Vec<&str> = lines.next().unwrap_or_default().into_iter().skip(1).collect();
    let panels: Vec<_> = lines.filter_map(|line| panel(&line)).collect();
    let height = LEGEND_HEIGHT + panels.len().div_ceil(2) * PANEL_HEIGHT;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n\
         <title>Postrider and Debezium: bars for each line of the table</title>\n<style>{STYLE}</style>\n"
    );
    for (place, name) in contestants.iter().enumerate() {
        let left = place * NAME_WIDTH;
        writeln!(
            svg,
            "<rect x=\"{left}\" y=\"6\" width=\"12\" height=\"12\" rx=\"2\" class=\"b{place}\"/><text x=\"{}\" y=\"16\">{name}</text>",
            left + 18,
        )
        .unwrap();
    }
    for (number, panel) in panels.iter().enumerate() {
        let (left, top) = (number % 2 * PANEL_WIDTH, number / 2 * PANEL_HEIGHT + LEGEND_HEIGHT);
        draw(&mut svg, panel, [left, top]);
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw(svg: &mut String, panel: &Panel<'_>, [left, top]: [usize; 2]) {
    let better = if panel.values[0].contains("rows/s") { "more" } else { "less" };
    let greatest = panel.values.iter().filter_map(|value| number(value)).fold(0.0, f64::max);
    writeln!(
        svg,
        "<text x=\"{left}\" y=\"{}\"><tspan class=\"t\">{}</tspan> <tspan class=\"d\">({better} is better)</tspan></text>",
        top + 18,
        panel.title,
    )
    .unwrap();
    for (place, value) in panel.values.iter().enumerate() {
        let y = top + TITLE_HEIGHT + place * BAR_HEIGHT;
        // A bar of a very small value stays visible.
        let width = (number(value).unwrap_or_default() / greatest * LONGEST).max(1.0).round();
        writeln!(
            svg,
            "<rect x=\"{left}\" y=\"{}\" width=\"{width}\" height=\"14\" rx=\"2\" class=\"b{place}\"/>\
             <text x=\"{left}\" dx=\"{}\" y=\"{}\">{}</text>",
            y + 2,
            width + 6.0,
            y + 13,
            value.replace("**", ""),
        )
        .unwrap();
    }
}

fn panel<'a>(cells: &[&'a str]) -> Option<Panel<'a>> {
    let (title, values) = cells.split_first()?;
    let is_drawn = values.iter().all(|value| number(value).is_some());
    is_drawn.then(|| Panel { title, values: values.to_vec() })
}

fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').map(str::trim).collect()
}

/// The number that a cell begins with, such as `180,000 rows/s (**4.8x**)`.
fn number(cell: &str) -> Option<f64> {
    cell.split(' ').next()?.replace(',', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_numbers_becomes_a_panel() {
        let table = "| | Postrider, at least once | Debezium |\n|---|---|---|\n\
                     | Backlog | 160,000 rows/s (**4.0x**) | 40,000 rows/s |\n\
                     | Not measured | - | 2.0 s |\n";
        let svg = svg(table);
        assert_eq!(svg.matches("is better").count(), 1, "{svg}");
        assert!(svg.contains(">Debezium</text>") && svg.contains("(more is better)"), "{svg}");
        assert!(svg.contains("width=\"250\"") && svg.contains("width=\"63\""), "{svg}");
        assert!(svg.contains(">160,000 rows/s (4.0x)</text>"), "{svg}");
    }
}
