"use strict";
// Shows what /api/v1 says, once a second. Data is set as text only, so that no name of a topic is markup.

const EVERY_MS = 1000;
const KEPT_MS = 15 * 60 * 1000;
const SHOWN_MIN_S = 60;
const RATE_SAMPLES = 10;
const one = (id) => document.getElementById(id);
const placed = (id) => document.querySelector(`[data-testid="${id}"]`);
function put(id, text) {
  const place = placed(id);
  if (place.textContent !== text) place.textContent = text;
}
// Text in which names stand in backquotes.
const spans = (text) => text.split("`").map((part, at) => (at % 2 === 1 ? made("code", { textContent: part }) : part));
function rich(id, text) {
  const place = placed(id);
  place.hidden = !text;
  if (place.dataset.shown === text) return;
  place.dataset.shown = text ?? "";
  place.replaceChildren(...spans(text ?? ""));
}
function made(kind, properties = {}, ...children) {
  const element = Object.assign(document.createElement(kind), properties);
  element.append(...children);
  return element;
}

// ---- values with their units ----
const whole = (n) => Math.round(n).toLocaleString("en-US");
const digits = (n) => (n >= 100 ? whole(n) : String(+n.toFixed(n >= 10 ? 1 : 2)));
const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");
const clockMs = (ms) => `${clock(ms / 1000)}.${String(ms % 1000).padStart(3, "0")}`;
const isNone = (n) => n === null || n === undefined;
const counted = (n, what) => `${whole(n)} ${what}${n === 1 ? "" : "s"}`;
function bytesParts(n) {
  if (isNone(n)) return ["–", ""];
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (n >= 1000 && at < units.length - 1) { n /= 1024; at += 1; }
  return [digits(n), units[at]];
}
function secondsParts(s) {
  if (isNone(s)) return ["–", ""];
  if (s === 0) return ["0", "s"];
  if (s < 1) return [String(+(s * 1000).toPrecision(2)), "ms"];
  if (s < 120) return [String(+s.toPrecision(3)), "s"];
  if (s < 7200) return [whole(s / 60), "min"];
  return s < 172800 ? [whole(s / 3600), "h"] : [whole(s / 86400), "days"];
}
const bytes = (n) => bytesParts(n).join(" ").trim();
const seconds = (s) => secondsParts(s).join(" ").trim();
const rate = (n) => (isNone(n) ? "–" : digits(n));
const ago = (ms) => (isNone(ms) ? "–" : `${seconds(Math.max(0, Math.round((Date.now() - ms) / 1000)))} ago`);
const sized = (content) => (isNone(content) ? "null" : content.text ?? { text: bytes(content.bytes), short: true });

// ---- history ----
const past = { at_ms: [], confirmed: [], in_flight: [], received: [], settled: [], lag: [], retained: [],
  p50_us: [], p95_us: [], p99_us: [] };
function remember(columns) {
  const oldest = Date.now() - KEPT_MS;
  for (const name of Object.keys(past)) past[name].push(...columns[name]);
  const gone = past.at_ms.findIndex((at) => at >= oldest);
  if (gone > 0) for (const name of Object.keys(past)) past[name].splice(0, gone);
}
// A rate is the difference of counters over ten seconds; a pause of the samples or a restart begins anew.
function rates() {
  let begin = 0;
  return past.at_ms.map((at, i) => {
    if (i > 0 && (at - past.at_ms[i - 1] > 5000 || past.confirmed[i] < past.confirmed[i - 1])) begin = i;
    const from = Math.max(begin, i - RATE_SAMPLES);
    const took = at - past.at_ms[from];
    return took > 0 ? ((past.confirmed[i] - past.confirmed[from]) * 1000) / took : null;
  });
}
const inSeconds = (column) => column.map((us) => (us === null ? null : us / 1e6));

// ---- charts ----
const zone = () => new Date().toLocaleTimeString("en-GB", { timeZoneName: "shortOffset" }).split(" ").at(-1).replace("GMT", "UTC");
const dark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};
const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power);
const CHARTS = [
  { title: "Throughput", unit: "records/s", value: (n) => `${rate(n)} /s`, tick: rate, least: 1, lines: [["records", 0]], data: () => [rates()] },
  { title: "Latency, at most", value: seconds, tick: seconds, log: true,
    lines: [["p50", 0], ["p95", 1], ["p99", 2]],
    data: () => [inSeconds(past.p50_us), inSeconds(past.p95_us), inSeconds(past.p99_us)] },
  { title: "WAL of the slot", value: bytes, tick: bytes, incrs: POWERS, least: 1024,
    lines: [["kept on disk", 1], ["lag", 0]], data: () => [past.retained, past.lag] },
  { title: "Received, not confirmed", value: bytes, tick: bytes, incrs: POWERS, least: 1024,
    lines: [["WAL", 0]], data: () => [past.received.map((at, i) => Math.max(0, at - past.settled[i]))] },
];
const COLORS = { light: ["#0a4f9e", "#8a5a00", "#a40e26"], dark: ["#80ccff", "#f2cc60", "#ff9a9a"] };
// A line for each power of ten.
const decades = (u, ticks) => ticks.map((at) => (Number.isInteger(+Math.log10(at).toFixed(6)) ? at : null));
const columnsOf = (chart) => [past.at_ms.map((ms) => ms / 1000), ...chart.data()];
// The values at the cursor, or the last ones.
function caption(chart) {
  const { data, cursor } = chart.plot;
  const isAt = !isNone(cursor.idx);
  const at = isAt ? cursor.idx : data[0].length - 1;
  chart.values.forEach((place, line) => {
    const value = data[line + 1][at];
    place.textContent = isNone(value) ? "–" : chart.value(value);
  });
  chart.time.textContent = isAt ? clock(data[0][at]) : "now";
}
function draw(chart) {
  const colors = COLORS[dark() ? "dark" : "light"];
  const style = getComputedStyle(document.documentElement);
  const axis = { stroke: style.getPropertyValue("--quiet"), grid: { stroke: style.getPropertyValue("--line"), width: 1 },
    ticks: { show: false }, font: "11px system-ui, sans-serif" };
  const widest = (u, values) => 14 + 6.2 * Math.max(3, ...(values ?? []).map((text) => text.length));
  const options = {
    width: Math.max(240, chart.box.clientWidth - 10), height: 150, padding: [8, 18, 0, 0], legend: { show: false },
    cursor: { sync: { key: "time" }, drag: { x: false, y: false } },
    hooks: { setCursor: [() => chart.plot && caption(chart)] },
    scales: { x: { range: (u, min, max) => [Math.min(min, max - SHOWN_MIN_S), max] },
      y: chart.log ? { distr: 3 } : { range: (u, min, max) => [0, Math.max(chart.least, max * 1.1)] } },
    axes: [{ ...axis, space: 80, size: 26,
      values: (u, ticks, axisAt, space, step) => ticks.map((at) => (step < 60 ? clock(at) : clock(at).slice(0, 5))) },
      { ...axis, grid: { ...axis.grid, ...(chart.log ? { filter: decades } : {}) }, size: widest, space: 28, gap: 4, ...(chart.incrs ? { incrs: chart.incrs } : {}),
        values: (u, ticks) => ticks.map((t) => (isNone(t) ? "" : chart.tick(t))) }],
    series: [{}, ...chart.lines.map(([label, color], at) => ({
      label, stroke: colors[color], width: 1.5, points: { show: false },
      fill: chart.lines.length === 1 && at === 0 ? `${colors[color]}1f` : undefined,
    }))],
  };
  if (chart.plot) chart.plot.destroy();
  chart.plot = new uPlot(options, columnsOf(chart), chart.box);
  caption(chart);
}
function place() {
  one("past").textContent = `Last 15 minutes (${zone()})`;
  for (const chart of CHARTS) {
    chart.time = made("span", { textContent: "now" });
    chart.values = chart.lines.map(() => made("span"));
    const labels = chart.lines.map(([label, color], at) => {
      const value = chart.values[at];
      return made("span", {}, made("i", { className: `line-${color}` }), `${label} `, value);
    });
    const about = made("figcaption", {}, made("b", { textContent: chart.title }), ...labels, chart.time);
    chart.box = made("figure", { tabIndex: 0 }, about);
    chart.box.addEventListener("keydown", (pressed) => step(chart, pressed));
    one("charts").append(chart.box);
  }
  for (const chart of CHARTS) draw(chart);
}
// Arrow keys move the cursor of the chart that has the focus.
function step(chart, pressed) {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[pressed.key];
  const [times] = chart.plot.data;
  if (!by || times.length === 0) return;
  pressed.preventDefault();
  const from = chart.plot.cursor.idx ?? times.length - 1;
  const to = Math.min(times.length - 1, Math.max(0, from + by * (pressed.shiftKey ? 10 : 1)));
  chart.plot.setCursor({ left: chart.plot.valToPos(times[to], "x"), top: 20 });
}

// ---- commands ----
async function copy(button, code) {
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    // Only a secure context has a clipboard.
    getSelection().selectAllChildren(code);
    document.execCommand("copy");
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}
// Lines break between words only: a browser also breaks them behind the dashes of an option.
const words = (text) => text.split(" ").flatMap((word, at) => [at > 0 ? " " : "", made("span", { textContent: word })]);
function command(text) {
  const code = made("code", {}, ...words(text));
  const button = made("button", { type: "button", textContent: "Copy", ariaLabel: `Copy ${text}` });
  button.addEventListener("click", () => copy(button, code));
  return made("div", { className: "command" }, code, button);
}

// ---- tables ----
// A value is a text, a number, or an object: text, title, level, href, pill, command, code, rich, short. Cells that stay the same are
// left alone, so that a selection and the focus survive.
function fill(cell, value) {
  const text = JSON.stringify(value);
  if (cell.shown === text) return;
  cell.shown = text;
  const is = isNone(value) || typeof value !== "object" ? { text: value } : value;
  const said = typeof is.text === "number" ? whole(is.text) : is.text ?? "–";
  cell.title = is.title ?? "";
  cell.className = [typeof is.text === "number" || is.isNumber ? "number" : "", is.level ?? "", is.short ? "short" : ""].join(" ").trim();
  if (is.command) cell.replaceChildren(command(is.command));
  else if (is.href) cell.replaceChildren(made("a", { href: is.href, textContent: said }));
  else if (is.pill) cell.replaceChildren(made("span", { className: `pill ${is.pill}`, textContent: said }));
  else if (is.code) cell.replaceChildren(made("code", { textContent: said }));
  else if (is.rich) cell.replaceChildren(made("span", {}, ...spans(said)));
  else cell.textContent = said;
}
function table(id, head, rows, empty) {
  const place = one(id);
  if (!place.tHead) {
    place.append(made("thead", {}, made("tr", {}, ...head.map((name) => made("th", { scope: "col", textContent: name })))), made("tbody"));
  }
  const body = place.tBodies[0];
  if (rows.length === 0) {
    if (body.dataset.says !== empty) body.replaceChildren(made("tr", {}, made("td", { colSpan: head.length, className: "empty", textContent: empty })));
    body.dataset.says = empty;
    return;
  }
  if (body.dataset.says) { body.replaceChildren(); delete body.dataset.says; }
  while (body.rows.length > rows.length) body.lastChild.remove();
  while (body.rows.length < rows.length) {
    body.append(made("tr", {}, ...head.map((label, at) => {
      const cell = at === 0 ? made("th", { scope: "row" }) : made("td");
      if (at > 0) cell.dataset.label = label;
      return cell;
    })));
  }
  rows.forEach((row, at) => row.forEach((value, column) => fill(body.rows[at].cells[column], value)));
  [...place.tHead.rows[0].cells].forEach((cell, column) => {
    const below = [...body.rows].map((row) => row.cells[column]);
    const isNumber = below.some((one) => one.classList.contains("number"));
    for (const each of [cell, ...below]) each.classList.toggle("number", isNumber);
  });
}
const holds = (id) => {
  const wanted = one(id).value.trim().toLowerCase();
  return (text) => text.toLowerCase().includes(wanted);
};

// ---- state ----
const LEVELS = { streaming: "is-ok", "catching up": "is-waiting", paused: "is-waiting", standby: "is-unknown", "not ready": "is-failed" };
// A relay that streams may still need somebody's attention.
const toneOf = (condition, level) => {
  const tone = LEVELS[condition] ?? "is-failed";
  return tone === "is-ok" ? `is-${level}` : tone;
};
const params = new URLSearchParams(location.search);
let stream = params.get("stream");
const asked = (path, query = {}) => {
  const all = new URLSearchParams(query);
  if (stream) all.set("stream", stream);
  return `/api/v1/${path}?${all}`;
};
let last = null;
// What is said of a stream as a whole.
function say(condition, { level, headline, cause, help, command }) {
  const tone = toneOf(condition, level);
  put("condition", condition);
  one("condition").className = `pill ${tone}`;
  one("status").className = `status ${tone}`;
  rich("headline", headline);
  rich("cause", cause);
  rich("help", help);
  const code = placed("command");
  if (code.textContent !== (command ?? "")) code.replaceChildren(...words(command ?? ""));
  one("command").hidden = !command;
  document.title = `${condition} – ${stream ?? last?.database ?? ""} – Postrider`;
  icon(tone);
}
// The icon of the tab has the colour of the state.
function icon(kind) {
  if (one("icon").dataset.kind === kind) return;
  one("icon").dataset.kind = kind;
  const canvas = made("canvas", { width: 32, height: 32 });
  const brush = canvas.getContext("2d");
  brush.fillStyle = { "is-ok": "#2da44e", "is-waiting": "#d4a72c", "is-failed": "#cf222e" }[kind] ?? "#218bff";
  brush.arc(16, 16, 12, 0, 7);
  brush.fill();
  one("icon").href = canvas.toDataURL();
}
function show(state) {
  last = state;
  one("fact-stream").hidden = !state.stream;
  const several = (names) => (names.length > 2 ? `${names[0]} and ${names.length - 1} more` : names.join(", ")) || "–";
  put("stream", state.stream ?? "");
  put("database", state.database || "–");
  put("hosts", several(state.hosts));
  placed("hosts").title = state.hosts.join(", ");
  put("brokers", several(state.brokers));
  placed("brokers").title = state.brokers.join(", ");
  put("slot_name", state.slot_name || "–");
  put("uptime", seconds(Math.round(state.uptime_seconds)));
  put("version", `Postrider ${state.version} (${state.git}), librdkafka ${state.librdkafka}`);
  say(state.condition, state.status);
  chain(state.chain);
  tiles(state);
  showTopics();
  letters(state);
  const some = (what, counts) => counts.filter(([, count]) => count > 0).map(([reason, count]) => [what, { text: reason, code: true }, count]);
  table("counts", ["What", "Reason", "Count"],
    [...some("Dead letter", state.rejections), ...some("Skipped row", state.ignored), ...some("Restart", state.restarts)],
    "None since the relay started.");
  table("slot", ["Column", "Value"], state.slot ?? [], "The slot has not been seen in the last minute. A relay that polls has no slot.");
  showSettings();
}
function chain(links) {
  const list = one("chain");
  links.forEach((link, at) => {
    const item = list.children[at] ?? list.appendChild(made("li", {}, made("b"), made("span")));
    const [name, detail] = item.children;
    item.className = `is-${link.is}`;
    item.dataset.testid = `chain-${link.name}`;
    name.className = "dot";
    name.textContent = link.name;
    // What fails, and why nothing is known, stands above.
    const text = { failed: "fails", unknown: "not known" }[link.is] ?? link.detail;
    if (detail.textContent !== text) detail.textContent = text;
  });
}

// ---- tiles ----
const DEAD_LETTER_MS = 10 * 60 * 1000;
const GIB = 2 ** 30;
const limited = (value, wait, bad) => (value >= bad ? "failed" : value >= wait ? "waiting" : "");
const limit = (text, isAbove) => `${isAbove ? "above limit" : "limit"} ${text}`;
const share = (part, max) => (max ? `${Math.round((part / max) * 100)}% of ${bytes(max)}` : "no limit");
// The limits follow the alerts that are shipped with the relay.
const TILES = [
  ["rate", "Throughput", ({ numbers }) => ({ parts: [rate(rates().at(-1)), "/s"], note: `${whole(numbers.confirmed)} total` })],
  ["p99", "Latency, p99", () => {
    const us = past.p99_us.at(-1);
    const [value, unit] = secondsParts(isNone(us) ? null : us / 1e6);
    const isAbove = us > 1e6;
    return { parts: [isNone(us) ? value : `≤ ${value}`, unit], note: limit("1 s", isAbove), level: isAbove ? "waiting" : "" };
  }],
  ["oldest", "Oldest waiting", ({ numbers: { oldest_unacknowledged_seconds: age } }) =>
    ({ parts: secondsParts(age), note: isNone(age) ? "not known" : limit("30 s", age >= 30), level: limited(age, 5, 30) })],
  ["slot_lag_bytes", "Slot lag", ({ numbers: { slot_lag_bytes: lag } }) =>
    ({ parts: bytesParts(lag), note: isNone(lag) ? "not known" : limit("1 GiB", lag >= GIB), level: lag >= GIB ? "waiting" : "" })],
  ["slot_retained_bytes", "WAL kept", ({ numbers: { slot_retained_bytes: kept, slot_safe_bytes: safe } }) => {
    const max = isNone(safe) ? null : kept + safe;
    return { parts: bytesParts(kept), note: isNone(kept) ? "not known" : share(kept, max), level: max ? limited(kept / max, 0.5, 0.8) : "" };
  }],
  ["in_flight", "In flight", ({ numbers: { in_flight_bytes: used, in_flight_bytes_max: max } }) =>
    ({ parts: bytesParts(used), note: share(used, max), level: max ? limited(used / max, 0.9, Infinity) : "" })],
  ["memory", "Memory", ({ numbers: { resident_bytes: used, memory_bytes_max: max } }) =>
    ({ parts: bytesParts(used), note: share(used, max), level: max ? limited(used / max, 0.8, 0.95) : "" })],
  ["dead_lettered", "Dead letters", ({ numbers, dead_letters: [newest] }) => ({ parts: [whole(numbers.dead_lettered), ""],
    note: newest ? `last ${ago(newest.at_ms)}` : "since the start", level: newest && Date.now() - newest.at_ms < DEAD_LETTER_MS ? "waiting" : "" })],
];
function tiles(state) {
  for (const [id, label, of] of TILES) {
    let tile = one(`tile-${id}`);
    if (!tile) {
      const value = made("dd", { className: "value" });
      const note = made("dd", { className: "note" });
      [value.dataset.testid, note.dataset.testid] = [id, `${id}-note`];
      tile = made("div", { id: `tile-${id}` }, made("dt", { textContent: label }), value, note);
      one("tiles").append(tile);
    }
    const { parts: [value, unit], note, level = "" } = of(state);
    const [, number, small] = tile.children;
    number.replaceChildren(value, ...(unit ? [made("small", { textContent: unit })] : []));
    small.textContent = note;
    tile.className = level && `is-${level}`;
  }
}

// ---- topics, dead letters, settings ----
// The topics that were used last stand first when the page opens. Later the order stays, so that no line jumps.
let places = null;
function inPlace(topics) {
  if (!places && topics.length === 0) return topics;
  places ??= new Map([...topics].sort((a, b) => (b.last_ms ?? 0) - (a.last_ms ?? 0)).map(({ name }, at) => [name, at]));
  const at = ({ name }) => places.get(name) ?? Infinity;
  return [...topics].sort((a, b) => (at(a) === at(b) ? 0 : at(a) - at(b)));
}
function showTopics() {
  const holdsText = holds("topics-filter");
  const why = (topic) => {
    const found = last.unavailable.find((gone) => gone.topic === topic);
    return found && { text: `${found.reason} for ${seconds(found.seconds)}${found.rows_wait ? "; rows wait" : ""}`, level: found.rows_wait ? "bad" : "wait" };
  };
  // Without a session or a broker nothing is known of a topic.
  const otherwise = last.chain.some((link) => link.name === "Kafka" && link.is === "ok") ? "available" : "not known";
  const unused = last.unavailable.filter((gone) => !last.topics.some((topic) => topic.name === gone.topic));
  const rows = [
    ...unused.map((gone) => [gone.topic, null, null, null, null, null, null, why(gone.topic)]),
    ...inPlace(last.topics).map((t) => [t.name || "all other topics", { text: rate(t.rate), isNumber: true }, t.sent + t.dead_lettered,
      { text: bytes(t.bytes), isNumber: true },
      { text: ago(t.last_ms), isNumber: true, title: t.last_ms ? clock(t.last_ms / 1000) : "" },
      { text: isNone(t.partitions) ? "–" : whole(t.partitions), isNumber: true }, t.dead_lettered, why(t.name) ?? otherwise]),
  ].filter(([name]) => holdsText(name));
  table("topics", ["Topic", "Records/s", "Sent", "Size", "Last delivery", "Partitions", "Dead letters", "State"], rows,
    one("topics-filter").value ? "No topic matches the filter." : "No record has been sent since the relay started.");
}
function letters({ dead_letters: all, numbers }) {
  const count = numbers.dead_lettered;
  rich("letters-say", all.length === 0 ? "" : `The last ${counted(all.length, "dead letter")} of ${whole(count)} since the relay started. All of them: \`postrider dead-letters list\``);
  table("letters", ["Time", "Row id", "Key", "Payload", "Topic", "Reason", "Next step"], all.map((letter) => [
    { text: clock(letter.at_ms / 1000), title: ago(letter.at_ms), short: true }, { text: letter.id, code: true }, sized(letter.key), letter.code === "too_large" ? "not kept" : sized(letter.payload), letter.topic,
    { text: `${letter.code}: ${letter.reason ?? ""}`, rich: true }, { command: letter.command }]),
  count > 0 ? "This process keeps none in memory." : "No row has become a dead letter since the relay started.");
}
function showSettings() {
  const holdsText = holds("settings-filter");
  table("settings", ["Setting", "Value", "Origin"], last.settings.filter((s) => holdsText(`${s.key} ${s.value}`))
    .map((s) => [{ text: s.key, code: true }, { text: s.value, code: true }, s.origin]), "No setting matches the filter.");
}

// ---- live tail ----
const TAIL_MAX = 500;
const TAIL_SHOWN = 200;
let tail = [];
let tailSeen = 0;
let paused = false;
// Nothing is copied in the relay while nobody asks.
async function follow() {
  if (paused || document.hidden) return;
  const { masked, records } = await ask(asked("tail", { after: tailSeen }));
  tailSeen = records.at(-1)?.number ?? tailSeen;
  tail = [...records.reverse(), ...tail].slice(0, TAIL_MAX);
  tail.masked = masked;
  showTail();
}
function showTail() {
  const holdsText = holds("tail-filter");
  const rows = tail.map((r) => [{ text: clockMs(r.committed_ms), short: true }, r.topic, { text: `${r.partition}:${r.offset}`, short: true },
    r.event_type, { text: r.id, code: true, level: "id" }, sized(r.key), sized(r.payload), { text: r.position, code: true, short: true }]);
  const found = rows.filter((row) => holdsText(row.map((value) => value?.text ?? value ?? "").join(" ")));
  const isFiltered = one("tail-filter").value.trim() !== "";
  table("tail", ["Committed", "Topic", "Offset", "Type", "Row id", "Key", "Payload", "Position"], found.slice(0, TAIL_SHOWN),
    isFiltered && rows.length > 0 ? "No record matches the filter." : "No record has been delivered since this page was opened.");
  const what = paused ? "Paused. Records that are delivered now are not shown."
    : `At most 50 records per second, newest first.${tail.masked ? " Set http.dashboard_payloads to see keys and payloads." : ""}`;
  put("tail-says", isFiltered ? `${whole(found.length)} of ${counted(rows.length, "record")} match. ${what}` : what);
}
function pause() {
  paused = !paused;
  one("pause").setAttribute("aria-pressed", String(paused));
  showTail();
}

// ---- several streams ----
let lines = null;
function showStreams() {
  const isList = lines.length > 0 && !stream;
  one("list").hidden = !isList;
  one("detail").hidden = isList;
  one("chain").hidden = isList;
  one("facts").hidden = isList;
  one("keys").parentElement.hidden = isList;
  one("nav").hidden = lines.length === 0 || isList;
  const links = [{ name: null }, ...lines];
  const list = one("nav-list");
  links.forEach(({ name, condition, status }, at) => {
    const link = list.children[at]?.firstChild ?? list.appendChild(made("li", {}, made("a"))).firstChild;
    link.textContent = name ?? "All streams";
    link.href = name ? `/?stream=${encodeURIComponent(name)}` : "/";
    link.className = condition ? `dot ${toneOf(condition, status.level)}` : "";
    if (name === stream) link.setAttribute("aria-current", "page");
  });
  if (!isList) return;
  table("streams", ["Stream", "State", "Records/s", "Latency, p99", "Oldest waiting", "Slot lag", "Dead letters", "Summary"], lines.map((line) => [
    { text: line.name, href: `/?stream=${encodeURIComponent(line.name)}` }, { text: line.condition, pill: toneOf(line.condition, line.status.level) },
    { text: rate(line.rate), isNumber: true }, { text: isNone(line.p99_us) ? "–" : `≤ ${seconds(line.p99_us / 1e6)}`, isNumber: true },
    { text: seconds(line.oldest_unacknowledged_seconds), isNumber: true },
    { text: bytes(line.slot_lag_bytes), isNumber: true }, line.dead_lettered,
    { text: line.status.headline, title: line.status.cause ?? "" }]), "");
  const troubled = lines.filter((line) => line.condition === "not ready");
  const late = lines.filter((line) => LEVELS[line.condition] === "is-waiting");
  const names = (some) => some.map((line) => line.name).join(", ");
  if (troubled.length > 0) say("not ready", { level: "failed", headline: `${troubled.length} of ${counted(lines.length, "stream")} not ready`, cause: `Not ready: ${names(troubled)}` });
  else if (late.length > 0) say(late[0].condition, { level: "waiting", headline: `${late.length} of ${counted(lines.length, "stream")} behind`, cause: `Behind: ${names(late)}` });
  else say(lines.every((line) => line.condition === "standby") ? "standby" : "streaming", { level: "ok", headline: `${counted(lines.length, "stream")} ready` });
}

// ---- the loop ----
async function ask(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(5000) });
  if (answer.status === 404 && stream) throw new Error(`The relay has no stream ${stream}`);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}
async function look() {
  try {
    if (lines === null || lines.length > 0) {
      lines = await ask("/api/v1/streams");
      showStreams();
    }
    if (lines.length === 0 || stream) {
      const [state, columns] = await Promise.all([ask(asked("state")), ask(asked("history", { after: past.at_ms.at(-1) ?? 0 }))]);
      remember(columns);
      show(state);
      if (!CHARTS[0].plot) place();
      for (const chart of CHARTS) {
        chart.plot.setData(columnsOf(chart));
        caption(chart);
      }
      await follow();
    }
    document.body.classList.remove("is-stale");
    document.body.dataset.looks = String(Number(document.body.dataset.looks ?? 0) + 1);
    look.answered = Date.now();
  } catch (error) {
    document.body.classList.add("is-stale");
    const since = look.answered ? ` The page shows the answer of ${clock(look.answered / 1000)}.` : "";
    say("no answer", { level: "failed", headline: "The relay does not answer", cause: `${error.message}.${since}`,
      help: "The process has ended, the connection to it is broken, or it has no such stream.", command: "postrider doctor" });
  }
  setTimeout(look, EVERY_MS);
}

// ---- theme, keys ----
const redraw = () => CHARTS.filter((chart) => chart.plot).forEach(draw);
const stored = (key, value) => {
  try {
    if (value === undefined) return localStorage.getItem(key);
    localStorage.setItem(key, value);
  } catch { /* Storage may be forbidden; the choice lasts as long as the page then. */ }
  return null;
};
one("theme").value = document.documentElement.dataset.theme ?? "";
one("theme").addEventListener("change", ({ target }) => {
  stored("postrider-theme", target.value);
  if (target.value) document.documentElement.dataset.theme = target.value;
  else delete document.documentElement.dataset.theme;
  redraw();
});
one("keys").checked = stored("postrider-keys") !== "off";
one("keys").addEventListener("change", ({ target }) => stored("postrider-keys", target.checked ? "on" : "off"));
one("copy").addEventListener("click", () => copy(one("copy"), placed("command")));
one("pause").addEventListener("click", pause);
for (const [id, refresh] of [["topics-filter", showTopics], ["tail-filter", showTail], ["settings-filter", showSettings]]) {
  one(id).addEventListener("input", () => last && refresh());
}
addEventListener("keydown", (pressed) => {
  const isTyping = pressed.target.closest?.("input, select, textarea") || pressed.ctrlKey || pressed.metaKey || pressed.altKey;
  if (isTyping || !one("keys").checked || one("detail").hidden) return;
  if (pressed.key === "p") pause();
  if (pressed.key === "/") {
    pressed.preventDefault();
    one("tail-filter").focus();
  }
});
let resized;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(redraw, 150);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
look();
