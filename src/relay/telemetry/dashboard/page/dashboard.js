"use strict";
// Shows /api/v1/state, /api/v1/history and /api/v1/tail, once a second. Text is set as text, so that no name of a topic is markup.

const EVERY_MS = 1000;
const KEPT_MS = 15 * 60 * 1000;
const SHOWN_MIN_S = 60;
const one = (id) => document.getElementById(id);
const put = (id, text) => {
  const place = document.querySelector(`[data-testid="${id}"]`);
  if (place.textContent !== text) place.textContent = text;
};

const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");
const few = (n) => (n < 10 ? String(+n.toFixed(1)) : whole(n));
const whole = (n) => Math.round(n).toLocaleString("en-US");
function bytes(n) {
  if (n === null || n === undefined) return "–";
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) { n /= 1024; at += 1; }
  return `${at === 0 ? n : n.toPrecision(3)} ${units[at]}`;
}
function seconds(s) {
  if (s === null || s === undefined) return "–";
  if (s === 0) return "0 s";
  if (s < 1) return `${+(s * 1000).toPrecision(2)} ms`;
  if (s < 120) return `${+s.toPrecision(3)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} days`;
}

// ---- history ----
const past = { at_ms: [], confirmed: [], in_flight: [], received: [], settled: [], lag: [], retained: [],
  p50_us: [], p95_us: [], p99_us: [] };
function remember(columns) {
  const oldest = Date.now() - KEPT_MS;
  for (const name of Object.keys(past)) past[name].push(...columns[name]);
  const gone = past.at_ms.findIndex((at) => at >= oldest);
  if (gone > 0) for (const name of Object.keys(past)) past[name].splice(0, gone);
}
// Of two samples that a pause or a restart lies between nothing is known.
function rates() {
  return past.at_ms.map((at, i) => {
    const took = i > 0 ? at - past.at_ms[i - 1] : 0;
    const came = i > 0 ? past.confirmed[i] - past.confirmed[i - 1] : -1;
    return took <= 0 || took > 5000 || came < 0 ? null : (came * 1000) / took;
  });
}
const inSeconds = (column) => column.map((us) => (us === null ? null : us / 1e6));

// ---- charts ----
const dark = () => getComputedStyle(document.documentElement).colorScheme === "dark"
  || (document.documentElement.dataset.theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
const CHARTS = [
  { title: "Records a second", value: few, lines: [["confirmed", 0]], data: () => [rates()] },
  { title: "From commit to confirmation", value: seconds, log: true,
    lines: [["p50", 0], ["p95", 1], ["p99", 2]],
    data: () => [inSeconds(past.p50_us), inSeconds(past.p95_us), inSeconds(past.p99_us)] },
  { title: "WAL that the slot keeps, and has not passed", value: bytes,
    lines: [["kept", 1], ["not passed", 0]], data: () => [past.retained, past.lag] },
  { title: "Received and not confirmed", value: bytes,
    lines: [["WAL", 2]], data: () => [past.received.map((at, i) => Math.max(0, at - past.settled[i]))] },
];
const COLORS = { light: ["#0a4f9e", "#8a5a00", "#a40e26"], dark: ["#80ccff", "#f2cc60", "#ff9a9a"] };
function draw(chart) {
  const colors = COLORS[dark() ? "dark" : "light"];
  const ink = dark() ? "#9aa5b1" : "#57606a";
  const axis = { stroke: ink, grid: { stroke: dark() ? "#2d343d" : "#e4e8ec", width: 1 }, ticks: { show: false } };
  const options = {
    width: Math.max(260, chart.box.clientWidth - 26), height: 170, cursor: { sync: { key: "time" } },
    scales: { x: { range: (u, min, max) => [Math.min(min, max - SHOWN_MIN_S), max] }, y: chart.log ? { distr: 3 } : { range: (u, min, max) => [0, Math.max(1, max * 1.1)] } },
    axes: [{ ...axis, space: 90, values: (u, ticks) => ticks.map(clock) }, { ...axis, size: 74, values: (u, ticks) => ticks.map((t) => (t === null ? "" : chart.value(t))) }],
    series: [{ label: "at", value: (u, at) => (at === null ? "–" : clock(at)) }, ...chart.lines.map(([label, color]) => ({
      label, stroke: colors[color], width: 1.5, points: { show: false }, value: (u, v) => (v === null ? "–" : chart.value(v)),
    }))],
  };
  if (chart.plot) chart.plot.destroy();
  chart.plot = new uPlot(options, columnsOf(chart), chart.box);
}
const columnsOf = (chart) => [past.at_ms.map((ms) => ms / 1000), ...chart.data()];
function drawAll() {
  for (const chart of CHARTS) draw(chart);
}
function place() {
  for (const chart of CHARTS) {
    chart.box = document.createElement("figure");
    const title = document.createElement("figcaption");
    title.textContent = chart.title;
    chart.box.append(title);
    one("charts").append(chart.box);
  }
  drawAll();
}

// ---- tables ----
function table(id, head, rows, empty) {
  const place = one(id);
  const text = JSON.stringify([rows, empty]);
  if (place.dataset.shown === text) return;
  place.dataset.shown = text;
  const cell = (kind, value, isNumber) => {
    const made = document.createElement(kind);
    made.textContent = value;
    if (isNumber) made.className = "number";
    return made;
  };
  const isNumber = (at) => rows.some((row) => typeof row[at] === "number");
  const header = document.createElement("tr");
  head.forEach((name, at) => {
    const made = cell("th", name, isNumber(at));
    made.scope = "col";
    header.append(made);
  });
  const body = rows.map((row) => {
    const line = document.createElement("tr");
    row.forEach((value, at) => {
      const made = cell(at === 0 ? "th" : "td", typeof value === "number" ? whole(value) : value, typeof value === "number");
      if (at === 0) made.scope = "row";
      line.append(made);
    });
    return line;
  });
  if (rows.length === 0) {
    const line = document.createElement("tr");
    const said = cell("td", empty, false);
    said.colSpan = head.length;
    line.append(said);
    body.push(line);
  }
  const [top, rest] = ["thead", "tbody"].map((kind) => document.createElement(kind));
  top.append(header);
  rest.append(...body);
  place.replaceChildren(top, rest);
}

// ---- state ----
const CONDITIONS = { streaming: "is-ok", "catching up": "is-waiting", paused: "is-waiting", standby: "is-unknown", "not ready": "is-failed" };
let settings = [];
function show(state) {
  const { numbers } = state;
  condition(state.condition, CONDITIONS[state.condition]);
  put("slot_name", state.slot_name || "–");
  put("uptime", seconds(state.uptime_seconds));
  put("version", `${state.version} (${state.git}), librdkafka ${state.librdkafka}`);
  put("oldest", seconds(numbers.oldest_unacknowledged_seconds));
  put("slot_lag_bytes", bytes(numbers.slot_lag_bytes));
  for (const name of ["in_flight_records", "confirmed", "dead_lettered"]) put(name, whole(numbers[name]));
  chain(state);
  const waiting = (topic) => {
    const found = state.unavailable.find((one) => one.topic === topic);
    return found ? `${found.reason} for ${found.seconds} s${found.rows_wait ? ", rows wait" : ""}` : "";
  };
  const unused = state.unavailable.filter((gone) => !state.topics.some((topic) => topic.name === gone.topic));
  table("topics", ["topic", "records", "dead letters", "bytes", "unavailable"],
    [...state.topics.map((t) => [t.name, t.sent, t.dead_lettered, t.bytes, waiting(t.name)]),
      ...unused.map((t) => [t.topic, 0, 0, 0, waiting(t.topic)])],
    "No row has been delivered since this process began.");
  const counted = (what, counts) => counts.filter(([, count]) => count > 0).map(([reason, count]) => [what, reason, count]);
  table("aside", ["what", "reason", "count"],
    [...counted("dead letter", state.rejections), ...counted("left out", state.ignored), ...counted("restart", state.restarts)],
    "None since this process began.");
  table("slot", ["column", "value"], state.slot ?? [],
    "Not seen in the last minute. Where rows are polled there is no slot.");
  settings = state.settings;
  showSettings();
}
function showSettings() {
  const wanted = one("filter").value.trim().toLowerCase();
  const rows = settings.filter((s) => `${s.key} ${s.value}`.toLowerCase().includes(wanted));
  table("settings", ["setting", "value", "from"], rows.map((s) => [s.key, s.value, s.origin]), "None contains that.");
}
function condition(text, kind) {
  put("condition", text);
  one("condition").className = `pill ${kind}`;
  document.title = `${text} – Postrider`;
}
function chain(state) {
  const text = JSON.stringify(state.chain);
  const place = one("chain");
  if (place.dataset.shown !== text) {
    place.dataset.shown = text;
    place.replaceChildren(...state.chain.map((link) => {
      const item = document.createElement("li");
      item.className = `is-${link.is}`;
      item.dataset.testid = `chain-${link.name}`;
      const name = document.createElement("b");
      name.textContent = link.name;
      item.append(name, link.is === "failed" ? "see below" : link.detail);
      return item;
    }));
  }
  const failing = state.health.checks.filter((check) => !check.ok);
  const said = [...new Set(failing.map((check) => check.detail))].join("; ");
  cause(said);
}
function cause(text) {
  put("cause", text);
  one("cause").hidden = text === "";
}

// ---- live tail ----
const TAIL_MAX = 200;
let tail = [];
let tailSeen = 0;
let paused = false;
const sized = (content) => {
  if (content === null) return "null";
  return content.text ?? `${whole(content.bytes)} ${content.bytes === 1 ? "byte" : "bytes"}`;
};
const moment = (ms) => `${new Date(ms).toLocaleTimeString("en-GB")}.${String(ms % 1000).padStart(3, "0")}`;
// Nothing is copied in the relay while nobody asks.
async function follow() {
  if (paused || document.hidden) return;
  const { masked, records } = await ask(`/api/v1/tail?after=${tailSeen}`);
  tailSeen = records.at(-1)?.number ?? tailSeen;
  tail = [...records.reverse(), ...tail].slice(0, TAIL_MAX);
  showTail();
  if (!paused) put("tail-says", `At most 50 records a second, the newest first.${masked
    ? " Keys and payloads are told by their size unless http.dashboard_payloads is on." : ""}`);
}
function showTail() {
  table("tail", ["committed", "topic", "partition", "offset", "type", "id", "key", "payload", "position"],
    tail.map((r) => [moment(r.committed_ms), r.topic, String(r.partition), String(r.offset), r.event_type ?? "–", r.id ?? "–",
      sized(r.key), sized(r.payload), r.position ?? "–"]),
    "None since this page was opened.");
}
function pause() {
  paused = !paused;
  one("pause").setAttribute("aria-pressed", String(paused));
  if (paused) put("tail-says", "Paused: what is delivered meanwhile is not shown here.");
}

// ---- the loop ----
async function ask(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(5000) });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}
async function look() {
  try {
    const last = past.at_ms.at(-1) ?? 0;
    const [state, columns] = await Promise.all([ask("/api/v1/state"), ask(`/api/v1/history?after=${last}`)]);
    remember(columns);
    show(state);
    const rate = rates().at(-1);
    put("rate", rate === null || rate === undefined ? "–" : whole(rate));
    const p99 = past.p99_us.at(-1);
    put("p99", p99 === null || p99 === undefined ? "–" : `≤ ${seconds(p99 / 1e6)}`);
    for (const chart of CHARTS) chart.plot.setData(columnsOf(chart));
    await follow();
    document.body.dataset.looks = String(Number(document.body.dataset.looks ?? 0) + 1);
  } catch (error) {
    condition("no answer", "is-failed");
    cause(`The relay does not answer (${error.message}). What is shown is what it said last.`);
  }
  setTimeout(look, EVERY_MS);
}

one("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = dark() ? "light" : "dark";
  drawAll();
});
one("pause").addEventListener("click", pause);
addEventListener("keydown", (pressed) => {
  const typing = pressed.target instanceof HTMLInputElement || pressed.ctrlKey || pressed.metaKey || pressed.altKey;
  if (pressed.key === "p" && !typing) pause();
});
one("filter").addEventListener("input", showSettings);
let resized;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(drawAll, 200);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
showTail();
place();
look();
