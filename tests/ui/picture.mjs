// Takes the picture of the dashboard in README.md from a running demo.
//
//   node picture.mjs TOOLS BROWSER FILE PROGRAM
//
// Starts `PROGRAM demo` with 100 rows per second, and takes FILE once the charts cover four minutes and the tiles show what
// README.md says of the picture. The light theme, 1280 by 860 pixels, at most 150 kB.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createRequire } from "node:module";
import { writeFileSync } from "node:fs";

const [tools, executablePath, file, program] = process.argv.slice(2);
const puppeteer = createRequire(`${tools}/`)("puppeteer-core");
// With less, the charts label their axes with seconds, and the last label is cut off.
const CHARTED_MS = 240_000;
const QUIET_LIMIT_MS = 240_000;
const BYTES_MAX = 150_000;

const demo = spawn(program, ["demo", "--rate", "100", "--count", "60000"], { stdio: ["ignore", "ignore", "pipe"] });

// The demo prints the address first, and must be read to its end: a full pipe would stop it.
function dashboard() {
  return new Promise((found, failed) => {
    let text = "";
    demo.stderr.on("data", (part) => {
      text += part;
      const url = /Dashboard: (http:\S+)/.exec(text);
      if (url) found(url[1]);
    });
    demo.on("exit", (code) => failed(new Error(`the demo ended with ${code}: ${text}`)));
  });
}

// What README.md says of the picture.
function isQuiet() {
  const shown = (id) => document.querySelector(`[data-testid="${id}"]`)?.textContent ?? "";
  const number = (id) => Number(/[\d.]+/.exec(shown(id))?.[0] ?? NaN);
  const isRate = number("rate") >= 97 && number("rate") <= 103;
  return shown("condition") === "streaming" && isRate && shown("p99").endsWith("ms") && number("p99") <= 50;
}

let browser;
try {
  const url = await dashboard();
  browser = await puppeteer.launch({
    executablePath,
    headless: true,
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
    protocolTimeout: 2 * QUIET_LIMIT_MS,
  });
  const page = await browser.newPage();
  await page.setViewport({ width: 1280, height: 860 });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "light" }]);
  await page.goto(url, { waitUntil: "load" });
  await new Promise((passed) => setTimeout(passed, CHARTED_MS));
  await page.waitForFunction(isQuiet, { timeout: QUIET_LIMIT_MS, polling: 250 });
  const picture = await page.screenshot({ type: "png" });
  if (picture.length > BYTES_MAX) throw new Error(`the picture has ${picture.length} bytes; at most ${BYTES_MAX}`);
  writeFileSync(file, picture);
} finally {
  await browser?.close();
  if (demo.exitCode === null) {
    const ended = once(demo, "exit");
    demo.kill("SIGINT");
    await ended;
  }
}
