//! The plot of a report, as SVG: bars of what each workload is about, rows per second, latency or recovery.
//!
//! Input: the workloads. Output: one SVG document, without a script or a font of its own.

use std::fmt::Write as _;

use super::contestants::Contestant;
use super::figures::{Cell, RIVAL, rounded};

/// In pixels: one bar with its distance to the next.
const BAR: usize = 20;
/// The room above a workload's bars.
const HEAD: usize = 34;
/// Where bars begin, and how long the longest is.
const LEFT: f64 = 230.0;
const LONGEST: f64 = 480.0;
const WIDTH: usize = 940;

/// What is drawn of a workload, and which way it is good.
fn figure(cell: &Cell) -> (&'static str, &'static str) {
    match cell.name.split('_').next() {
        Some("latency") => ("p99_ms", "less is better"),
        Some("kill") => ("recovery_s", "less is better"),
        _ => ("rows_per_s", "more is better"),
    }
}

/// Bars of every workload.
pub(super) fn svg(cells: &[Cell]) -> String {
    let drawn: Vec<&Cell> = cells.iter().filter(|cell| greatest(cell) > 0.0).collect();
    let bars: usize = drawn.iter().map(|cell| HEAD + BAR * cell.contestants.len()).sum();
    let height = bars + HEAD;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<title>Comparison</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    let mut top = 0;
    for cell in drawn {
        let middle = top + HEAD - 10;
        let (name, what, (figure, better)) = (cell.name, &cell.what, figure(cell));
        writeln!(
            svg,
            "<text x=\"10\" y=\"{middle}\" fill=\"#222222\"><tspan font-weight=\"bold\">{name}</tspan>, {figure} ({better}): {what}</text>"
        )
        .unwrap();
        top += HEAD;
        for contestant in &cell.contestants {
            bar(&mut svg, cell, *contestant, top);
            top += BAR;
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn bar(svg: &mut String, cell: &Cell, contestant: Contestant, top: usize) {
    let Some([median, ..]) = cell.of(contestant, figure(cell).0) else { return };
    let width = median / greatest(cell) * LONGEST;
    let (y, height, base) = (top, BAR - 5, top + BAR - 8);
    let ratio = cell.ratio(contestant, figure(cell).0).filter(|_| contestant != RIVAL);
    let ratio = ratio.map_or_else(String::new, |ratio| format!(" ({}x)", rounded(ratio)));
    let (name, colour, value) = (contestant.name(), colour(contestant), rounded(median));
    let (label, end) = (LEFT - 8.0, LEFT + width + 6.0);
    writeln!(
        svg,
        "<text x=\"{label}\" y=\"{base}\" text-anchor=\"end\" fill=\"#222222\">{name}</text>\
         <rect x=\"{LEFT}\" y=\"{y}\" width=\"{width:.1}\" height=\"{height}\" fill=\"{colour}\"/>\
         <text x=\"{end:.1}\" y=\"{base}\" fill=\"#222222\">{value}{ratio}</text>"
    )
    .unwrap();
}

fn greatest(cell: &Cell) -> f64 {
    let medians = cell.contestants.iter().filter_map(|of| cell.of(*of, figure(cell).0));
    medians.map(|[median, ..]| median).fold(0.0, f64::max)
}

const fn colour(contestant: Contestant) -> &'static str {
    match contestant {
        Contestant::Ceiling(_) => "#9aa5b1",
        Contestant::AtLeastOnce(_) => "#2f855a",
        Contestant::Streamed => "#68a67d",
        Contestant::ExactlyOnce(_) => "#2b6cb0",
        Contestant::Poll => "#6b46c1",
        Contestant::DebeziumDefault => "#dd9a7c",
        Contestant::DebeziumTuned => "#c05621",
        Contestant::Go => "#0086a3",
        Contestant::Writer => "#8d99a6",
    }
}
