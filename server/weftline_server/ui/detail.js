// Shows one call: its times, its tokens, and its prompt with the values that stand in it.

import { el, seconds } from "./dom.js";

export function drawDetail(call) {
  return el(
    "section",
    { id: "detail", "aria-label": `call ${call.name}` },
    el("h2", {}, call.name),
    facts(call),
    call.error ? el("p", { class: "failed" }, `${call.error.type}: ${call.error.message}`) : null,
    call.placement.length ? placement(call.placement) : null,
    call.segments.length ? prompt(call) : null,
  );
}

function facts(call) {
  const rows = [["state", call.state]];
  if (call.kind) {
    rows.push(["kind", call.kind], ["runs on", call.resource || "the server"]);
    const [began, ended] = [call.began_s ?? call.queued_s, call.ended_s ?? call.finished_s];
    if (ended !== null && began !== null) rows.push(["took", seconds(ended - began)]);
  } else {
    rows.push(
      ["model", call.model],
      ["engine", call.engine ?? "–"],
      ["objective", call.objective ?? "–"],
      ["waited", waited(call)],
      ["prefill", `${seconds(call.fill_s)}: ${call.cached_tokens} tokens cached, ${call.computed_tokens} computed`],
      ["generate", `${seconds(call.generate_s)}: ${call.output_tokens} tokens`],
      ["transform", seconds(call.transform_s)],
    );
  }
  if (call.cost !== undefined) rows.push(["cost", `${call.cost.toPrecision(3)}, saved ${call.saved.toPrecision(3)}`]);
  rows.push(["reads", call.inputs.join(", ") || "–"], ["writes", call.outputs.join(", ") || "–"]);
  return el("dl", {}, rows.map(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]));
}

const TERMS = [
  ["load", "load"], ["missing", "missing_tokens"], ["prefix", "prefix"], ["group", "group"], ["gather", "gather"],
];

// Why that engine: the score's terms of each engine that was considered, the chosen one first.
// Where tenants share the server, the server leaves out what others' work makes of the engines.
function placement(rows) {
  const terms = TERMS.filter(([, field]) => rows[0][field] !== undefined);
  const number = (value) => Math.round(value).toLocaleString("en");
  const whole = rows[0].score !== undefined;
  return [
    el("h2", {}, "Why this engine"),
    el(
      "p",
      { class: "soft" },
      rows.length === 1
        ? "No other engine was considered."
        : `The least ${whole ? "score" : "sum of its terms"} among engines with room wins.`,
      " All numbers are tokens; a missing token counts four times, as “prefix”.",
    ),
    el("div", { class: "wide" }, el(
      "table",
      { class: "placement", "aria-label": "placement" },
      el(
        "thead",
        {},
        el("tr", {}, el("th", {}, "engine"), terms.map(([name]) => el("th", { class: "number" }, name)),
          whole ? el("th", { class: "number" }, "score") : null, el("th", {}, "")),
      ),
      el(
        "tbody",
        {},
        rows.map((row, at) =>
          el(
            "tr",
            { class: at === 0 ? "chosen" : null },
            el("td", {}, row.engine),
            terms.map(([, field]) => el("td", { class: "number" }, number(row[field]))),
            whole ? el("td", { class: "number" }, number(row.score)) : null,
            el("td", { class: "soft" }, at === 0 ? "chosen" : row.room ? "" : "no room"),
          ),
        ),
      ),
    )),
  ];
}

function waited(call) {
  const kv = call.steps.reduce((sum, step) => sum + (step.kv_s ?? 0), 0);
  return `${seconds(call.queue_s)} for room in an engine${kv > 0 ? `, ${seconds(kv)} of it for KV cache` : ""}`;
}

function prompt(call) {
  const box = el("div", { class: "prompt", tabindex: 0, role: "region", "aria-label": "prompt" });
  const before = call.segments.filter((segment) => segment.kind !== "output");
  const total = before.reduce((sum, segment) => sum + segment.text.length, 0);
  // Tokens are not characters, so the end of the cached part is where its share of the text ends.
  let cached = call.prompt_tokens ? Math.round((total * call.cached_tokens) / call.prompt_tokens) : 0;
  let role = null;
  for (const segment of call.segments) {
    if (segment.role && segment.role !== role) box.append(el("span", { class: "role" }, segment.role));
    role = segment.role;
    const title = segment.semantic_var_id ? `${segment.kind} ${segment.semantic_var_id}` : segment.kind;
    const shaded = segment.kind === "output" ? 0 : Math.min(cached, segment.text.length);
    cached -= shaded;
    box.append(
      el(
        "span",
        { class: segment.kind, title },
        shaded ? el("span", { class: "cached" }, segment.text.slice(0, shaded)) : null,
        segment.text.slice(shaded),
        segment.chars > segment.text.length ? ` … (${segment.chars.toLocaleString("en")} characters)` : null,
      ),
    );
    if (segment.transforms.length) box.append(el("span", { class: "soft" }, ` | ${segment.transforms.join(" | ")}`));
  }
  if (call.kind) return [el("h2", {}, "Arguments and result"), box];
  return [
    el("h2", {}, "Prompt"),
    el("p", { class: "soft" }, "Shaded: about the part that was in the KV cache. Underlined: variables."),
    box,
  ];
}
