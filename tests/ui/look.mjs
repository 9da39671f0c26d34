// Opens the dashboard in headless Chromium as a person would, and prints as JSON what is there.
//
//   node look.mjs TOOLS BROWSER ADDRESS CONDITION [SCREENSHOT]
//
// Waits until the page shows CONDITION. Prints the values by their test id, findings of axe that are serious, requests that
// left the origin, and what the page wrote to the console.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const [tools, browserPath, address, condition, screenshot] = process.argv.slice(2);
const require = createRequire(`${tools}/`);
const puppeteer = require("puppeteer-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const browser = await puppeteer.launch({
  executablePath: browserPath,
  headless: true,
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
});
try {
  const page = await browser.newPage();
  await page.setViewport({ width: 1200, height: 1050 });
  const origin = `http://${address}`;
  const elsewhere = [];
  const said = [];
  page.on("request", (request) => {
    if (!request.url().startsWith(`${origin}/`) && !request.url().startsWith("data:")) elsewhere.push(request.url());
  });
  page.on("console", (message) => said.push(message.text()));
  page.on("pageerror", (error) => said.push(String(error)));
  await page.goto(`${origin}/`, { waitUntil: "load", timeout: 30_000 });
  const text = (id) => document.querySelector(`[data-testid="${id}"]`).textContent;
  await page.waitForFunction(
    (wanted) => document.querySelector('[data-testid="condition"]').textContent === wanted,
    { timeout: 60_000 },
    condition,
  );
  // It has looked twice, so that rates are known.
  await page.waitForFunction(
    () => Number(document.body.dataset.looks) >= 2 && document.querySelector('[data-testid="rate"]').textContent !== "–",
    { timeout: 60_000 },
  );
  if (screenshot) await page.screenshot({ path: screenshot });
  const values = await page.evaluate(() => {
    const shown = [...document.querySelectorAll("[data-testid]")];
    return Object.fromEntries(shown.map((place) => [place.dataset.testid, place.textContent]));
  });
  const tables = await page.evaluate(() => Object.fromEntries([...document.querySelectorAll("table")].map((table) =>
    [table.id, [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent))])));
  const charts = await page.evaluate(() => document.querySelectorAll("figure canvas").length);
  // The page runs no script but its own: what looks for faults is put in past its policy.
  const serious = [];
  for (const scheme of ["light", "dark"]) {
    await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
    const found = await page.evaluate(async (source) => {
      (0, Function)(source)();
      return (await axe.run()).violations;
    }, axe).catch(async () => {
      // Where the policy forbids that, in the browser's own isolated world.
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
      return run("axe.run().then((result) => JSON.parse(JSON.stringify(result.violations)))");
    });
    for (const one of found) {
      if (["serious", "critical"].includes(one.impact)) {
        serious.push(`${scheme}: ${one.id}: ${one.nodes.map((node) => node.target.join(" ")).join(", ")}`);
      }
    }
  }
  // By keyboard: the first stop is the theme, the next ones are tables and the filter.
  await page.keyboard.press("Tab");
  const focus = await page.evaluate(() => document.activeElement.id);
  // The key that stops the live tail, and a letter that is typed.
  const pressed = () => page.evaluate(() => document.getElementById("pause").getAttribute("aria-pressed"));
  await page.keyboard.press("p");
  const paused = [await pressed()];
  await page.focus("#filter");
  await page.keyboard.press("p");
  paused.push(await pressed());
  console.log(JSON.stringify({ values, tables, charts, serious, elsewhere, said, focus, paused }));
} finally {
  await browser.close();
}
