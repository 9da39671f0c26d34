//! Draws `postrider top`. A pure function of [`Model`] and [`View`].
//!
//! Everything fits in 80 columns and 24 lines; a smaller terminal loses the lower parts. A number
//! is whole or absent. Colours add nothing to the words.

use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Paragraph, Row, Sparkline, Table, Wrap};

use super::model::{Link, Model, State};
use crate::counted::grouped;
use crate::doctor::check::bytes as bytes_text;
use crate::marks::{Mark, shortened, wrapped};

#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) first: usize,
    pub(super) explains: bool,
    pub(super) has_colors: bool,
}

const PAGE: usize = 5;

impl View {
    pub(super) fn press(&mut self, key: KeyCode, topics: usize) {
        let last = topics.saturating_sub(1);
        self.first = match key {
            KeyCode::Up | KeyCode::Char('k') => self.first.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.first.saturating_add(1),
            KeyCode::PageUp => self.first.saturating_sub(PAGE),
            KeyCode::PageDown => self.first.saturating_add(PAGE),
            KeyCode::Home => 0,
            KeyCode::End => last,
            _ => self.first,
        }
        .min(last);
        self.explains = matches!(key, KeyCode::Char('h' | '?') | KeyCode::F(1)) && !self.explains;
    }

    fn style(&self, mark: Mark) -> Style {
        let modifier = if mark == Mark::Bad { Modifier::REVERSED } else { Modifier::BOLD };
        let style = Style::new().add_modifier(modifier);
        if self.has_colors { style.fg(color_of(mark)) } else { style }
    }

    fn state(&self, is: &str) -> Span<'static> {
        let mark = mark_of(is);
        Span::styled(format!("{} {is}", mark.sign()), self.style(mark))
    }
}

const fn color_of(mark: Mark) -> Color {
    match mark {
        Mark::Good => Color::Green,
        Mark::Attention => Color::Yellow,
        Mark::Bad => Color::Red,
        Mark::Unknown => Color::Cyan,
    }
}

fn mark_of(is: &str) -> Mark {
    match is {
        "ok" | "streaming" => Mark::Good,
        "waiting" | "catching up" | "paused" => Mark::Attention,
        "failed" | "not ready" | "no answer" => Mark::Bad,
        _ => Mark::Unknown,
    }
}

const HELP: &str = "\
Postgres, Slot, Relay, Kafka: the way of a row, and what each part of it does.
records/s     records that the brokers confirmed, over the last ten seconds
p50/95/99     latency, from commit in Postgres to confirmation: 50, 95 and 99 of a
              hundred transactions take at most so long
oldest        how long the oldest transaction has waited that is not confirmed
slot lag      WAL that the slot has not passed; kept: WAL that it keeps on disk

q, Esc        end                       arrows, Page Up, Page Down
h, ?          this text                                 move through the topics

What is wrong, and how to put it right: postrider doctor
Dead letters, each with its reason:     postrider dead-letters list";

pub(super) fn render(frame: &mut Frame, model: &Model, view: &View) {
    let (mark, lines) = says_lines(model, frame.area().width);
    let [title, says, body, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(u16::try_from(lines.len()).unwrap_or(u16::MAX)),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(title_line(model, view, title.width), title);
    let style = Style::new().add_modifier(Modifier::BOLD);
    let style = if view.has_colors { style.fg(color_of(mark)) } else { style };
    frame.render_widget(Paragraph::new(lines.join("\n")).style(style), says);
    match &model.state {
        _ if view.explains => frame.render_widget(Paragraph::new(HELP), body),
        Some(state) => render_state(frame, body, (state, model), view),
        None => {}
    }
    let help = "q quit   ↑ ↓ topics   h help";
    frame.render_widget(Paragraph::new(help).style(Style::new().add_modifier(Modifier::DIM)), keys);
}

/// Title with the parts that fit, most important first.
fn title_line(model: &Model, view: &View, width: u16) -> Line<'static> {
    let condition = match (&model.silence, &model.state) {
        (Some(_), _) => "no answer".to_owned(),
        (None, Some(state)) => state.condition.clone(),
        (None, None) => "asking".to_owned(),
    };
    let mut line = Line::from(vec![
        Span::styled("Postrider  ", Style::new().add_modifier(Modifier::BOLD)),
        view.state(&condition),
    ]);
    let mut parts = Vec::new();
    parts.extend(model.stream.as_ref().map(|name| format!("stream {name}")));
    if let Some(state) = &model.state {
        let slot = Some(&state.slot_name).filter(|name| !name.is_empty());
        parts.extend(slot.map(|name| format!("slot {name}")));
        parts.push(format!("up {}", time_text(state.uptime_seconds)));
    }
    parts.push(format!("at {}", model.address));
    for part in parts {
        let span = Span::raw(format!("  {part}"));
        if line.width() + span.width() <= usize::from(width) {
            line.push_span(span);
        }
    }
    line
}

/// Why nothing moves, and the steps to take, if something is wrong.
fn says(model: &Model) -> (Mark, String, Vec<String>) {
    match (&model.silence, model.trouble()) {
        (None, None) => (Mark::Good, String::new(), Vec::new()),
        (None, Some(status)) => (mark_of(&status.level), status.what(), status.steps()),
        (Some(why), _) if model.state.is_none() => {
            (Mark::Bad, format!("The relay does not answer: {why}."), Vec::new())
        }
        (Some(why), _) => {
            let age = time_text(model.age.as_secs_f64().round());
            let what = format!("The relay does not answer: {why}. What is shown is {age} old.");
            (Mark::Bad, what, Vec::new())
        }
    }
}

/// Maximum lines of that text: the parts below need the rest of 24.
const SAYS_MAX: usize = 5;

/// [`says`] in lines of this width. The last step is the command to run, so text above it is cut
/// off first.
fn says_lines(model: &Model, width: u16) -> (Mark, Vec<String>) {
    let (mark, what, mut steps) = says(model);
    let width = usize::from(width.max(1));
    let mut last = steps.pop().map(|step| folded(&step, width)).unwrap_or_default();
    last.truncate(SAYS_MAX - 1);
    let above = std::iter::once(what).chain(steps).filter(|text| !text.is_empty());
    let mut lines: Vec<_> = above.flat_map(|text| folded(&text, width)).collect();
    let room = SAYS_MAX - last.len();
    if lines.len() > room {
        lines.truncate(room);
        if let Some(end) = lines.last_mut() {
            *end = end.chars().take(width.saturating_sub(2)).chain(" …".chars()).collect();
        }
    }
    lines.extend(last);
    (mark, lines)
}

/// Lines of this width. A word that is wider continues in the next line.
fn folded(text: &str, width: usize) -> Vec<String> {
    let parts = |word: &str| {
        let letters: Vec<char> = word.chars().collect();
        letters.chunks(width).map(|part| part.iter().collect()).collect::<Vec<String>>()
    };
    let narrow = |line: &str| line.split_whitespace().flat_map(parts).collect::<Vec<_>>().join(" ");
    text.lines().flat_map(|line| wrapped(&narrow(line), width)).collect()
}

fn render_state(frame: &mut Frame, area: Rect, (state, model): (&State, &Model), view: &View) {
    let cells = numbers_cells(state, model);
    let packed = packed(&cells, area.width, view);
    let lines = packed.as_ref().map_or(3, Vec::len);
    let [chain, numbers, charts, topics, counts] = Layout::vertical([
        Constraint::Length(chain_height(state, area.width)),
        Constraint::Length(u16::try_from(lines).unwrap_or(u16::MAX)),
        Constraint::Length(5),
        Constraint::Min(3),
        Constraint::Length(2),
    ])
    .areas(area);
    render_chain(frame, chain, state, view);
    match packed {
        Some(lines) => frame.render_widget(Paragraph::new(lines), numbers),
        None => render_numbers(frame, numbers, &cells, view),
    }
    render_charts(frame, charts, model, view);
    render_topics(frame, topics, state, view);
    let text = counts_text(state);
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), counts);
}

/// Minimum width for parts of the chain side by side.
const CHAIN_WIDTH: u16 = 72;

/// Detail of a part, unless it has failed, which is shown above.
fn detail(link: &Link) -> &str {
    if link.is == "failed" { "" } else { &link.detail }
}

/// Lines of the chain: a part side by side with others has its name and at most three lines of detail.
fn chain_height(state: &State, width: u16) -> u16 {
    let parts = state.chain.len().max(1);
    let room = (usize::from(width) / parts).saturating_sub(1).max(1);
    let lines = state.chain.iter().map(|link| 1 + wrapped(detail(link), room).len());
    let height = if width < CHAIN_WIDTH { parts } else { lines.max().unwrap_or(1) };
    u16::try_from(height.min(4)).unwrap_or(4)
}

fn render_chain(frame: &mut Frame, area: Rect, state: &State, view: &View) {
    if area.width < CHAIN_WIDTH {
        let lines = state.chain.iter().map(|link| {
            let head = format!("{:<9}", link.name);
            let is = view.state(&link.is);
            let room = usize::from(area.width).saturating_sub(head.len() + is.width() + 2);
            Line::from(vec![
                Span::raw(head),
                is,
                Span::raw(format!("  {}", shortened(detail(link), room))),
            ])
        });
        frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), area);
        return;
    }
    let places = Layout::horizontal(vec![Constraint::Fill(1); state.chain.len()]).split(area);
    for (at, (link, place)) in state.chain.iter().zip(places.iter()).enumerate() {
        let arrow = if at + 1 < state.chain.len() { " →" } else { "" };
        let text = Text::from(vec![
            Line::from(vec![
                Span::raw(format!("{} ", link.name)),
                view.state(&link.is),
                Span::raw(arrow),
            ]),
            Line::from(detail(link).to_owned()),
        ]);
        let [inner, _] =
            Layout::horizontal([Constraint::Fill(1), Constraint::Length(1)]).areas(*place);
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), inner);
    }
}

struct Cell {
    name: &'static str,
    value: String,
    mark: Mark,
}

impl Cell {
    const fn good(name: &'static str, value: String) -> Self {
        Self { name, value, mark: Mark::Good }
    }

    fn line(&self, view: &View) -> Line<'static> {
        let value = match self.mark {
            Mark::Good => Span::styled(self.value.clone(), Modifier::BOLD),
            mark => Span::styled(format!("{} {}", mark.sign(), self.value), view.style(mark)),
        };
        Line::from(vec![Span::raw(format!("{} ", self.name)), value])
    }
}

/// Age of the oldest transaction at which rows are late: a healthy relay confirms within a second.
const LATE_SECONDS: f64 = 10.0;
/// Age at which rows are stuck: a relay without progress for this long is not ready.
const STUCK_SECONDS: f64 = 30.0;

const GRID: [u16; 3] = [3, 5, 3];

/// Cells in lines of this width, if a grid would cut some. Too wide cells are left out.
fn packed(cells: &[[Cell; 3]; 3], width: u16, view: &View) -> Option<Vec<Line<'static>>> {
    const GAP: usize = 3;
    let room = usize::from(width.saturating_sub(2));
    let share = |place: usize| {
        let share = GRID.get(place).copied().unwrap_or(1);
        room * usize::from(share) / usize::from(GRID.iter().sum::<u16>())
    };
    let fits = |row: &[Cell; 3]| {
        row.iter().enumerate().all(|(place, cell)| cell.line(view).width() <= share(place))
    };
    if cells.iter().all(fits) {
        return None;
    }
    let mut lines: Vec<Line<'static>> = Vec::new();
    for cell in cells.iter().flatten().map(|cell| cell.line(view)) {
        if cell.width() > usize::from(width) {
            continue;
        }
        match lines.last_mut().filter(|last| last.width() + GAP + cell.width() <= width.into()) {
            Some(last) => {
                last.push_span(Span::raw(" ".repeat(GAP)));
                last.spans.extend(cell.spans);
            }
            None => lines.push(cell),
        }
    }
    Some(lines)
}

fn numbers_cells(state: &State, model: &Model) -> [[Cell; 3]; 3] {
    let numbers = &state.numbers;
    let amount = |amount: Option<u64>| {
        amount.map_or("–".to_owned(), |amount| {
            bytes_text(i64::try_from(amount).unwrap_or(i64::MAX))
        })
    };
    let latency = model.latency_us().map(latency_text).join(" / ");
    let rate = model.rates().last().copied().flatten();
    let oldest = numbers.oldest_unacknowledged_seconds;
    let age_mark = match oldest {
        Some(age) if age < LATE_SECONDS => Mark::Good,
        Some(age) if age > STUCK_SECONDS => Mark::Bad,
        _ => Mark::Attention,
    };
    let letters = numbers.dead_lettered;
    [
        [
            Cell::good("records/s", rate.map_or("–".to_owned(), rate_text)),
            Cell::good("p50/95/99", latency),
            Cell {
                name: "oldest",
                value: oldest.map_or("–".to_owned(), time_text),
                mark: age_mark,
            },
        ],
        [
            Cell::good("confirmed", grouped(numbers.confirmed)),
            Cell::good("slot lag", amount(numbers.slot_lag_bytes)),
            Cell::good("in flight", grouped(numbers.in_flight_records)),
        ],
        [
            Cell {
                name: "dead letters",
                value: grouped(letters),
                mark: if letters == 0 { Mark::Good } else { Mark::Attention },
            },
            Cell::good("kept", amount(numbers.slot_retained_bytes)),
            Cell::good("version", state.version.clone()),
        ],
    ]
}

fn render_numbers(frame: &mut Frame, area: Rect, cells: &[[Cell; 3]; 3], view: &View) {
    let lines = |row: &[Cell; 3]| Row::new(row.each_ref().map(|cell| cell.line(view)));
    let rows = cells.each_ref().map(lines);
    frame.render_widget(Table::new(rows, GRID.map(Constraint::Fill)), area);
}

fn render_charts(frame: &mut Frame, area: Rect, model: &Model, view: &View) {
    let [rates, _, latencies] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(2), Constraint::Fill(1)])
            .areas(area);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the height of a bar"
    )]
    let bar = |rate: &Option<f64>| rate.map_or(0, |rate| (rate * 1_000.0).round() as u64);
    let all_rates = model.rates();
    let rate: Vec<u64> = all_rates.iter().map(bar).collect();
    let latency: Vec<u64> = model.p99_us().iter().map(|us| us.unwrap_or(0)).collect();
    let most_rate = shown(&all_rates, rates.width).iter().copied().flatten().fold(0.0, f64::max);
    let most_latency = shown(model.p99_us(), latencies.width).iter().copied().flatten().max();
    let peak = format!("{}/s", rate_text(most_rate));
    let title = title_of("records a second", "records", &peak, rates);
    chart(frame, rates, (title, &rate), view);
    let title = title_of("latency p99", "p99", &latency_text(most_latency), latencies);
    chart(frame, latencies, (title, &latency), view);
}

fn shown<T>(values: &[T], width: u16) -> &[T] {
    let first = values.len().saturating_sub(usize::from(width));
    values.get(first..).unwrap_or_default()
}

fn title_of(long: &str, short: &str, most: &str, area: Rect) -> String {
    let titles = [format!("{long}, peak {most}"), format!("{short} peak {most}"), short.to_owned()];
    let fits = |title: &String| title.chars().count() <= usize::from(area.width);
    titles.into_iter().find(fits).unwrap_or_default()
}

fn chart(frame: &mut Frame, area: Rect, (title, values): (String, &[u64]), view: &View) {
    let [head, bars] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    frame.render_widget(Paragraph::new(title), head);
    let [bars, _] = Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(bars);
    let mut heights = vec![0; usize::from(bars.width).saturating_sub(values.len())];
    let seen = shown(values, bars.width);
    // A small value has at least an eighth of a line, so it differs from no value.
    let least =
        seen.iter().max().map_or(0, |most| most.div_ceil(8 * u64::from(bars.height.max(1))));
    heights.extend(seen.iter().map(|value| if *value == 0 { 0 } else { (*value).max(least) }));
    let style = if view.has_colors { Style::new().fg(Color::Cyan) } else { Style::new() };
    frame.render_widget(Sparkline::default().data(heights).style(style), bars);
}

fn render_topics(frame: &mut Frame, area: Rect, state: &State, view: &View) {
    if state.topics.is_empty() && state.unavailable.is_empty() {
        frame.render_widget(
            Paragraph::new("No row has been delivered since the relay was started."),
            area,
        );
        return;
    }
    let trouble = |name: &str| {
        let found = state.unavailable.iter().find(|one| one.topic == name);
        found.map(unavailable).unwrap_or_default()
    };
    let bytes = |bytes: u64| bytes_text(i64::try_from(bytes).unwrap_or(i64::MAX));
    let used = state.topics.iter().map(|topic| {
        // Dead letters are records of the topic that stores them.
        let sent = grouped(topic.sent.saturating_add(topic.dead_lettered));
        let letters = grouped(topic.dead_lettered);
        let rate = topic.rate.map_or("–".to_owned(), rate_text);
        [topic.name.clone(), sent, rate, letters, bytes(topic.bytes), trouble(&topic.name)]
    });
    let is_unused = |topic: &&super::model::Unavailable| {
        !state.topics.iter().any(|used| used.name == topic.topic)
    };
    let none = || "0".to_owned();
    let unused = state.unavailable.iter().filter(is_unused);
    let unused =
        unused.map(|it| [it.topic.clone(), none(), none(), none(), none(), unavailable(it)]);
    let rows: Vec<_> = used.chain(unused).skip(view.first).collect();
    let columns = columns(&rows, area.width);
    let left = columns.iter().fold(usize::from(area.width), |left, (_, width)| {
        left.saturating_sub(usize::from(*width) + 1)
    });
    let names = rows.iter().map(|[name, ..]| name.chars().count());
    let name_width = names.max().unwrap_or(0).max(usize::from(NAME_MIN)).min(left);
    let line = |cells: [String; PLACES]| {
        let [name, ..] = &cells;
        let name = shortened(name, name_width);
        let shown = columns.iter().filter_map(|(place, _)| {
            let text = Text::from(cells.get(*place)?.clone());
            Some(if *place == PLACES - 1 { text } else { text.right_aligned() })
        });
        let row = Row::new(std::iter::once(Text::from(name)).chain(shown).collect::<Vec<_>>());
        let is_unavailable = view.has_colors && cells[PLACES - 1].starts_with(Mark::Bad.sign());
        if is_unavailable { row.style(Style::new().fg(Color::Red)) } else { row }
    };
    let head = line(HEAD.map(str::to_owned)).style(Style::new().add_modifier(Modifier::UNDERLINED));
    let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
    let name = Constraint::Length(u16::try_from(name_width).unwrap_or(u16::MAX));
    let widths: Vec<_> = std::iter::once(name).chain(widths).collect();
    frame.render_widget(Table::new(rows.into_iter().map(line), widths).header(head), area);
}

const PLACES: usize = 6;
const HEAD: [&str; PLACES] =
    ["topic", "records", "records/s", "dead letters", "bytes", "unavailable"];
/// Columns behind the topic, with their minimum widths. All of them fit in 80 columns, also beside
/// an unavailable topic.
const WIDTHS: [(usize, u16); PLACES - 1] = [(1, 10), (2, 9), (3, 12), (4, 8), (5, 11)];
/// Columns in the order in which they are left out.
const SPARED: [usize; PLACES - 1] = [4, 3, 2, 5, 1];
const NAME_MIN: u16 = 12;

fn unavailable(topic: &super::model::Unavailable) -> String {
    format!("{} {}", Mark::Bad.sign(), topic.to_text())
}

fn columns(rows: &[[String; PLACES]], width: u16) -> Vec<(usize, u16)> {
    let widest = |place: usize| {
        let cells = rows.iter().filter_map(|row| row.get(place));
        let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        u16::try_from(widest).unwrap_or(u16::MAX)
    };
    let mut columns = WIDTHS.map(|(place, least)| (place, least.max(widest(place)))).to_vec();
    let mut spared = SPARED.into_iter();
    while columns.iter().fold(NAME_MIN, |sum, (_, width)| sum.saturating_add(width + 1)) > width {
        let Some(place) = spared.next() else { break };
        columns.retain(|(column, _)| *column != place);
    }
    columns
}

fn counts_text(state: &State) -> String {
    let listed = |what: &str, counts: &[(String, u64)]| {
        let counts: Vec<_> = counts.iter().filter(|(_, count)| *count > 0).collect();
        let text: Vec<_> =
            counts.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        (!text.is_empty()).then(|| format!("{what}: {}", text.join(", ")))
    };
    let parts = [
        listed("Dead letters", &state.rejections),
        listed("Left out", &state.ignored),
        listed("Restarts", &state.restarts),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    if parts.is_empty() {
        return "No dead letter, no row left out, no restart since the relay was started."
            .to_owned();
    }
    parts.join("   ")
}

fn rate_text(rate: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate that people read"
    )]
    let whole = || grouped(rate.round() as u64);
    if rate <= 0.0 {
        return "0".to_owned();
    }
    if rate < 9.95 { format!("{rate:.1}") } else { whole() }
}

fn latency_text(us: Option<u64>) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a time that people read")]
    let shown = |us: u64, unit_us: u64, unit: &str| {
        let amount = us as f64 / unit_us as f64;
        // Amounts that round to 10.0 get no decimal.
        let decimals = usize::from(amount < 9.95);
        format!("{amount:.decimals$} {unit}")
    };
    match us {
        None => "–".to_owned(),
        Some(us) if us < 1_000 => format!("{us} µs"),
        Some(us) if us < 999_500 => shown(us, 1_000, "ms"),
        Some(us) => shown(us, 1_000_000, "s"),
    }
}

fn time_text(seconds: f64) -> String {
    match seconds {
        none if none <= 0.0 => "0 s".to_owned(),
        short if short < 1.0 => format!("{:.0} ms", short * 1_000.0),
        short if short < 10.0 => format!("{short:.1} s"),
        some if some < 120.0 => format!("{some:.0} s"),
        some if some < 7_200.0 => format!("{:.0} min", some / 60.0),
        some if some < 172_800.0 => format!("{:.0} h", some / 3_600.0),
        long => format!("{:.0} days", long / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_below_ten_units_have_a_decimal() {
        let shown = |us| latency_text(Some(us));
        for (us, text) in [
            (0, "0 µs"),
            (999, "999 µs"),
            (1_000, "1.0 ms"),
            (2_540, "2.5 ms"),
            (9_960, "10 ms"),
            (39_700, "40 ms"),
            (999_499, "999 ms"),
            (999_500, "1.0 s"),
            (1_940_000, "1.9 s"),
            (61_000_000, "61 s"),
        ] {
            assert_eq!(shown(us), text);
        }
        assert_eq!(latency_text(None), "–");
    }
}
