// Shows one call: its times, its tokens, and its prompt with the values that stand in it.

import { el, seconds } from "./dom.js";

export function drawDetail(call) {
  return el(
    "section",
    { id: "detail", "aria-label": `call ${call.name}` },
    el("h2", {}, call.name),
    facts(call),
    call.error ? el("p", { class: "failed" }, `${call.error.type}: ${call.error.message}`) : null,
    call.segments.length ? prompt(call) : null,
  );
}

function facts(call) {
  const rows = [["state", call.state]];
  if (call.kind) {
    rows.push(["kind", call.kind], ["runs on", call.resource || "the server"]);
  } else {
    rows.push(
      ["model", call.model],
      ["engine", call.engine ?? "–"],
      ["for", call.objective ?? "–"],
      ["queue", seconds(call.queue_s)],
      ["prefill", `${seconds(call.fill_s)}: ${call.cached_tokens} tokens cached, ${call.computed_tokens} computed`],
      ["generate", `${seconds(call.generate_s)}: ${call.output_tokens} tokens`],
      ["transform", seconds(call.transform_s)],
    );
  }
  if (call.cost !== undefined) rows.push(["cost", `${call.cost.toPrecision(3)}, saved ${call.saved.toPrecision(3)}`]);
  rows.push(["reads", call.inputs.join(", ") || "–"], ["writes", call.outputs.join(", ") || "–"]);
  return el("dl", {}, rows.map(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]));
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
  return [
    el("h2", {}, "Prompt"),
    el("p", { class: "soft" }, "Shaded: about the part that was in the KV cache. Underlined: variables."),
    box,
  ];
}
