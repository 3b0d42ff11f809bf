// Draws the engines: what each runs, its KV pool as a bar, and its tokens a second of the last minute.

import { el, svg } from "./dom.js";

const HISTORY = 60; // looks, one a second
const POOL = ["running", "kept", "evictable", "free"];
const RATES = { output: "generated", computed: "prefill computed", cached: "prefill from cache" };
const number = (value) => Math.round(value).toLocaleString("en");

// `history` is kept by the caller from one drawing to the next: rates by engine's name.
export function drawEngines(engines, history) {
  if (!engines.length) return el("p", { class: "soft empty" }, "This server has no engine.");
  return el("div", { class: "engines" }, engines.map((engine) => card(engine, remembered(history, engine))));
}

function remembered(history, engine) {
  if (!history.has(engine.name)) history.set(engine.name, []);
  const past = history.get(engine.name);
  if (engine.rates) past.push(engine.rates);
  if (past.length > HISTORY) past.shift();
  return past;
}

function card(engine, past) {
  const shared = engine.tokens === null; // other tenants' calls are on it, too
  return el(
    "section",
    { class: "engine", "aria-label": `engine ${engine.name}` },
    el("h2", {}, engine.name, " ", el("span", { class: `badge ${engine.state}` }, engine.state)),
    el("p", { class: "soft" }, engine.model ?? "no model yet"),
    el(
      "dl",
      {},
      el("dt", {}, shared ? "your calls in its batch" : "batch"),
      el("dd", {}, `${number(engine.running)} running${engine.max_running ? ` of at most ${number(engine.max_running)}` : ""}`),
      el("dt", {}, shared ? "your calls that wait" : "queue of its model"),
      el("dd", {}, `${number(engine.waiting)} waiting`),
    ),
    shared ? el("p", { class: "soft" }, "Several tenants share this server, so its memory and its rates are not shown.") : pool(engine),
    shared ? null : rates(engine, past),
  );
}

function pool({ pool: kv, name }) {
  if (!kv) return [el("h3", {}, "KV pool"), el("p", { class: "soft" }, "This engine does not say how large its KV cache is.")];
  const parts = { ...kv, free: kv.size - kv.running - kv.kept - kv.evictable };
  const share = (part) => `${Math.round((100 * parts[part]) / kv.size)} %`;
  const told = POOL.map((part) => `${part} ${number(parts[part])}`).join(", ");
  let x = 0;
  const marks = POOL.map((part) => {
    const width = (100 * parts[part]) / kv.size;
    x += width;
    return svg("rect", { class: `kv-${part}`, x: x - width, y: 0, width, height: 10 });
  });
  return [
    el("h3", {}, `KV pool: ${number(kv.size)} tokens`),
    svg(
      "svg",
      { class: "pool", viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": `KV pool of ${name}: ${told}` },
      marks,
    ),
    el(
      "dl",
      { class: "parts" },
      POOL.map((part) => [
        el("dt", {}, svg("svg", { width: 11, height: 11 }, svg("rect", { class: `kv-${part}`, width: 11, height: 11 })), part),
        el("dd", {}, `${number(parts[part])} `, el("span", { class: "soft" }, share(part))),
      ]),
      el("dt", {}, "on the host"),
      el("dd", {}, kv.host_size ? `${number(kv.host)} of ${number(kv.host_size)}` : number(kv.host)),
    ),
  ];
}

function rates({ rates: now, tokens }, past) {
  return [
    el("h3", {}, "Tokens a second"),
    el(
      "table",
      { class: "rates", "aria-label": "tokens a second" },
      el(
        "tbody",
        {},
        Object.entries(RATES).map(([name, word]) =>
          el(
            "tr",
            {},
            el("th", { scope: "row" }, word),
            el("td", { class: "number" }, now ? `${number(now[name])} /s` : "–"),
            el("td", {}, line(past.map((one) => one[name]))),
            el("td", { class: "number soft" }, `${number(tokens[name])} in all`),
          ),
        ),
      ),
    ),
  ];
}

function line(values) {
  const most = Math.max(...values, 1);
  const points = values.map((value, at) => `${((HISTORY - values.length + at) * 100) / (HISTORY - 1)},${19 - (17 * value) / most}`);
  return svg("svg", { class: "rate", width: 100, height: 20, "aria-hidden": "true" }, svg("polyline", { points: points.join(" ") }));
}
