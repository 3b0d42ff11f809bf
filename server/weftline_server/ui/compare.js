// Two sessions side by side: each at a glance with its timeline, and the steps of both in one table.

import { events } from "./api.js";
import { el, seconds } from "./dom.js";
import { address } from "./filter.js";
import { drawGlance, money, share } from "./glance.js";
import { drawTimeline } from "./timeline.js";
import { asTask, withTools } from "./tools.js";

// A session as it is now: what its stream tells at first.
export async function present(id, signal) {
  const found = { id, tasks: new Map(), edges: [], tools: [], critical: null, glance: null, at: null, second: 0 };
  for await (const change of events(`../v1/session/${encodeURIComponent(id)}/follow`, signal)) {
    for (const task of change.tasks ?? []) found.tasks.set(task.call_id ?? task.step_id, task);
    Object.assign(found, { ...(change.edges && { edges: change.edges }), ...(change.tools && { tools: change.tools }), ...(change.critical && { critical: change.critical }) });
    found.second = change.now_s ?? found.second;
    if (!change.glance) continue;
    found.glance = change.glance;
    break;
  }
  for (const tool of found.tools) found.tasks.set(tool.tool_id, asTask(tool));
  found.edges = withTools(found.edges, found.tools);
  return found;
}

export function drawCompare(runs, width) {
  const wide = matchMedia("(min-width: 60rem)").matches;
  const one = (run) =>
    el(
      "div",
      {},
      drawGlance(run.glance, run.glance.output, run.glance.age_s),
      el("p", { class: "sentence" }, run.critical?.sentence ?? ""),
      el("p", {}, el("a", { href: `#/s/${run.id}` }, "Open this session")),
      drawTimeline(run, null, null, (task) => {
        location.hash = address(`s/${run.id}/${task}`, {});
      }, (wide ? width / 2 - 8 : width) - 30),
    );
  return [el("div", { class: "pair" }, runs.map(one)), el("h2", {}, "Steps"), el("div", { class: "wide" }, table(runs))];
}

const stepOf = (name) => name.replace(/\[\d+\]$/, "");

// By step: how often it ran, its seconds, its tokens, what was cached, and its cost.
function sums(run) {
  const found = new Map();
  for (const task of run.tasks.values()) {
    const name = stepOf(task.name);
    const sum = found.get(name) ?? { runs: 0, seconds: 0, prompt_tokens: 0, cached_tokens: 0, output_tokens: 0, cost: undefined };
    sum.runs += 1;
    sum.seconds += task.kind ? (task.finished_s ?? task.queued_s ?? 0) - (task.queued_s ?? 0) : task.fill_s + task.generate_s + task.transform_s;
    for (const field of ["prompt_tokens", "cached_tokens", "output_tokens"]) sum[field] += task[field] ?? 0;
    if (task.cost !== undefined) sum.cost = (sum.cost ?? 0) + task.cost;
    found.set(name, sum);
  }
  return found;
}

function table(runs) {
  const [first, second] = runs.map(sums);
  const priced = [...first.values(), ...second.values()].some((sum) => sum.cost !== undefined);
  const shows = [
    ["runs", (sum) => String(sum.runs)], ["time", (sum) => seconds(sum.seconds)],
    ["prompt", (sum) => sum.prompt_tokens.toLocaleString("en")], ["cached", share],
    ["output", (sum) => sum.output_tokens.toLocaleString("en")], ...(priced ? [["cost", (sum) => money(sum.cost)]] : []),
  ];
  const cell = (sum, show) => el("td", { class: "number" }, sum ? show(sum) : "–");
  return el(
    "table",
    { id: "compared", "aria-label": "steps of both sessions" },
    el(
      "thead",
      {},
      el("tr", {}, el("th", {}), runs.map((run) => el("th", { colspan: shows.length, scope: "colgroup" }, run.glance.name || run.id))),
      el("tr", {}, el("th", {}, "step"), runs.map(() => shows.map(([name]) => el("th", { class: "number" }, name)))),
    ),
    el(
      "tbody",
      {},
      [...new Set([...first.keys(), ...second.keys()])].map((name) =>
        el("tr", {}, el("th", { scope: "row" }, name), [first, second].map((sum) => shows.map(([, show]) => cell(sum.get(name), show)))),
      ),
    ),
  );
}
