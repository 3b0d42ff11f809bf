// A session at a glance: its name, what it does, its input and its output.

import { el, seconds } from "./dom.js";

export const money = (value) => (value === undefined ? "–" : value.toPrecision(3));
export const share = (row) => (row.prompt_tokens ? `${Math.round((100 * row.cached_tokens) / row.prompt_tokens)} %` : "–");
export const badge = (phase) => el("span", { class: `badge ${phase.split(" ")[0]}` }, phase);

// The time of day, with the date of another day.
export function clock(moment) {
  const at = new Date(1000 * moment);
  const time = at.toLocaleTimeString("sv");
  return at.toDateString() === new Date().toDateString() ? time : `${at.toLocaleDateString("sv")} ${time}`;
}

// `row` is the session as the server tells it, `output` its text so far, `age` its seconds.
export function drawGlance(row, output, age, heading = "h2") {
  const calls = `${row.calls + row.steps} call${row.calls + row.steps === 1 ? "" : "s"}`;
  const facts = [
    row.application === row.name ? null : row.application, `began ${clock(row.opened)}`, seconds(age), calls,
    `${row.prompt_tokens.toLocaleString("en")} prompt tokens, ${share(row)} cached`, `${row.output_tokens.toLocaleString("en")} output tokens`,
    row.cost === undefined ? null : `cost ${money(row.cost)}, saved ${money(row.saved)}`,
  ];
  return el(
    "section",
    { class: "glance", "aria-label": "at a glance" },
    el(heading, { class: "title" }, row.name || row.session_id, " ", badge(row.phase)),
    el("p", { class: "soft facts" }, facts.filter(Boolean).map((fact) => el("span", {}, fact))),
    row.error ? el("p", { class: "failed" }, row.error) : null,
    el("div", { class: "said" }, words("input", row.input), words("output", output)),
  );
}

function words(name, text) {
  return el("div", {}, el("h3", {}, name), el("div", { class: "words", tabindex: 0, role: "region", "aria-label": name }, text || "–"));
}
