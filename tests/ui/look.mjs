// Opens the dashboard in headless Chromium as a person would, and prints as JSON what is there.
//
//   node look.mjs TOOLS BROWSER URL CONDITION SCREENSHOTS
//
// Waits until the page shows CONDITION, then looks at it in three widths and two themes. Prints the values by their test id,
// the tables, serious findings of axe, widths at which the page overflows, uneven headings, requests that left the origin, and what the page
// wrote to the console. SCREENSHOTS is the beginning of the names of six files.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const [tools, browserPath, url, condition, screenshots] = process.argv.slice(2);
const require = createRequire(`${tools}/`);
const puppeteer = require("puppeteer-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const origin = new URL(url).origin;
const WIDTHS = [400, 800, 1280];

const browser = await puppeteer.launch({
  executablePath: browserPath,
  headless: true,
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
});

// The page runs no script but its own: what looks for faults is put in past its policy, in a world of its own.
async function isolated(page) {
  const session = await page.createCDPSession();
  const { frameTree } = await session.send("Page.getFrameTree");
  const world = await session.send("Page.createIsolatedWorld", { frameId: frameTree.frame.id, worldName: "axe", grantUniveralAccess: true });
  const run = async (expression) => {
    const answer = await session.send("Runtime.evaluate",
      { expression, contextId: world.executionContextId, awaitPromise: true, returnByValue: true });
    if (answer.exceptionDetails) throw new Error(JSON.stringify(answer.exceptionDetails));
    return answer.result.value;
  };
  await run(`${axe}; 0`);
  return () => run("axe.run().then((result) => JSON.parse(JSON.stringify(result.violations)))");
}

// Values that are wider than their place, which would be cut.
const cut = () => [...document.querySelectorAll(".tiles dd, .pill, figcaption span")]
  .filter((place) => place.offsetParent && place.scrollWidth > place.clientWidth + 1 && place.clientWidth > 0)
  .map((place) => place.textContent);

// Headings that are not aligned as the cells below them.
const uneven = () => [...document.querySelectorAll("table")].filter((table) => table.offsetParent && table.tHead?.offsetHeight > 1)
  .flatMap((table) => [...table.tHead.rows[0].cells].filter((head, column) => [...table.tBodies[0].rows]
    .some((row) => row.cells[column]?.colSpan === 1 && getComputedStyle(row.cells[column]).textAlign !== getComputedStyle(head).textAlign))
    .map((head) => `${table.id}: ${head.textContent}`));

async function looks(page, wide, audit) {
  const found = { serious: [], overflows: [], uneven: [] };
  for (const theme of ["light", "dark"]) {
    await page.select("#theme", theme);
    for (const width of wide) {
      await page.setViewport({ width, height: 1000 });
      // The charts are drawn anew 150 ms after the last change of the width.
      await page.waitForFunction(() => [...document.querySelectorAll("figure")].every((box) =>
        !box.offsetParent || Math.abs(box.querySelector("canvas").getBoundingClientRect().width - (box.clientWidth - 10)) < 2));
      if (await page.evaluate(() => document.documentElement.scrollWidth > innerWidth)) found.overflows.push(`${theme} ${width}: the page`);
      for (const text of await page.evaluate(cut)) found.overflows.push(`${theme} ${width}: ${text}`);
      for (const head of await page.evaluate(uneven)) found.uneven.push(`${theme} ${width}: ${head}`);
      await page.screenshot({ path: `${screenshots}-${width}-${theme}.png` });
      // Contrast depends on the theme, and names on the layout: three audits see all of both.
      if (width === 800 || (theme === "dark" && width === 400)) continue;
      for (const one of await audit()) {
        if (["serious", "critical"].includes(one.impact)) {
          found.serious.push(`${theme} ${width}: ${one.id}: ${one.nodes.map((node) => node.target.join(" ")).join(", ")}`);
        }
      }
    }
  }
  return found;
}

try {
  const page = await browser.newPage();
  await page.setViewport({ width: 1280, height: 1000 });
  const elsewhere = [];
  const said = [];
  page.on("request", (request) => {
    if (!request.url().startsWith(`${origin}/`) && !request.url().startsWith("data:")) elsewhere.push(request.url());
  });
  page.on("console", (message) => said.push(message.text()));
  page.on("pageerror", (error) => said.push(String(error)));
  await page.goto(url, { waitUntil: "load", timeout: 30_000 });
  await page.waitForFunction(
    (wanted) => document.querySelector('[data-testid="condition"]').textContent === wanted,
    { timeout: 60_000 },
    condition,
  );
  // Two answers, so that rates are known.
  await page.waitForFunction(() => Number(document.body.dataset.looks) >= 2, { timeout: 60_000 });
  const values = await page.evaluate(() => {
    const shown = [...document.querySelectorAll("[data-testid]")];
    return Object.fromEntries(shown.map((place) => [place.dataset.testid, place.textContent]));
  });
  const tables = await page.evaluate(() => Object.fromEntries([...document.querySelectorAll("table")].filter((table) => table.tHead)
    .map((table) => [table.id, [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent))])));
  const charts = await page.evaluate(() => document.querySelectorAll("figure canvas").length);
  const found = await looks(page, WIDTHS, await isolated(page));
  // A theme that was chosen is there after a reload.
  await page.reload({ waitUntil: "load" });
  const theme = await page.evaluate(() => [document.documentElement.dataset.theme, document.getElementById("theme").value]);
  // By keyboard: the first stop is the skip link; p pauses the tail, but not while somebody types; / goes to its filter.
  await page.keyboard.press("Tab");
  const focus = [await page.evaluate(() => document.activeElement.className)];
  const keys = [];
  if (charts > 0) {
    await page.waitForFunction(() => Number(document.body.dataset.looks) >= 1, { timeout: 60_000 });
    const pressed = () => page.evaluate(() => document.getElementById("pause").getAttribute("aria-pressed"));
    await page.keyboard.press("p");
    keys.push(await pressed());
    await page.keyboard.press("/");
    focus.push(await page.evaluate(() => document.activeElement.id));
    await page.keyboard.press("p");
    keys.push(await pressed());
  }
  console.log(JSON.stringify({ values, tables, charts, ...found, elsewhere, said, theme, focus, keys }));
} finally {
  await browser.close();
}
