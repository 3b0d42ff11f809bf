// Draws when each task ran, with its phases, in the order in which the tasks became ready.

import { el, pressed, seconds, shortened, svg } from "./dom.js";
import { money } from "./glance.js";

const ROW = 22;
const NARROW = 640; // pixels; a narrower view has short labels and no notes
const PHASES = ["kv", "queue", "fill", "generate", "transform"];
const WORDS = {
  input: "waits for an input", tool: "a tool, or a wait for one", kv: "waits: KV cache full", queue: "waits: engine full",
  fill: "prefill computed", cached: "prefill cached (share of the height)", generate: "generate", transform: "transform",
  running: "runs now", step: "other steps",
};
const TOOLS = new Set(["tool", "function", "client"]); // kinds of step
const OVER = 12; // rows drawn above and below the visible ones

// The bars of a task: [{start, phases: [[phase, seconds]]}], one for each output. What runs ends at second `now`.
function barsOf(task, now) {
  if (task.kind) {
    if (task.queued_s === null) return [];
    return [{ start: task.queued_s, phases: [[TOOLS.has(task.kind) ? "tool" : "step", Math.max((task.finished_s ?? now) - task.queued_s, 0)]] }];
  }
  return task.steps.map((step) => (step.started_s === null ? underWay(step, task, now) : ended(step))).filter(Boolean);
}

function ended(step) {
  const kv = Math.min(step.kv_s ?? 0, step.queue_s ?? 0);
  const lengths = { ...step, kv_s: kv, queue_s: (step.queue_s ?? 0) - kv };
  return {
    start: step.queued_s,
    cached: step.prompt_tokens ? step.cached_tokens / step.prompt_tokens : 0,
    phases: PHASES.map((phase) => [phase, lengths[`${phase}_s`] ?? 0]),
  };
}

// An engine tells the phases of an output at its end. Until then it is known when it was sent.
function underWay(step, task, now) {
  if (task.ended_s !== null || step.queued_s === null) return null;
  const sent = step.sent_s ?? now;
  return { start: step.queued_s, phases: [["queue", Math.max(sent - step.queued_s, 0)], ["running", Math.max(now - sent, 0)]] };
}

// What a task waited for before it was queued: the last of its inputs came from a tool, or not.
function waitOf(task, session, readsOf) {
  const before = (readsOf.get(task.call_id ?? task.step_id) ?? []).map((id) => session.tasks.get(id)).filter(Boolean);
  const last = before.reduce((late, one) => ((one.ended_s ?? 0) > (late?.ended_s ?? -1) ? one : late), null);
  return TOOLS.has(last?.kind) ? "tool" : "input";
}

function readsBy(edges) {
  const found = new Map();
  for (const { from, to } of edges) {
    if (!found.has(to)) found.set(to, []);
    found.get(to).push(from);
  }
  return found;
}

const endOf = (bar) => bar.phases.reduce((at, [, length]) => at + length, bar.start);

// `width` is what the view may take, in pixels.
export function drawTimeline(session, matched, selected, select, width) {
  const [label, note] = width < NARROW ? [112, 64] : [190, 190];
  const chart = Math.max(140, width - label - note);
  const critical = new Set(session.critical?.tasks ?? []);
  const rows = [...session.tasks].map(([id, task]) => ({ id, task, bars: barsOf(task, session.at ?? session.second ?? 0) })).filter((row) => row.bars.length);
  rows.sort((one, other) => one.bars[0].start - other.bars[0].start);
  const played = session.at !== undefined && session.at !== null; // then the axis is that of the whole run
  const first = played || !rows.length ? 0 : rows[0].bars[0].start;
  const last = played ? session.whole : rows.reduce((most, row) => Math.max(most, ...row.bars.map(endOf)), first);
  const scale = chart / Math.max(last - first, 1e-6);
  const rowsShown = matched ? rows.filter(({ id }) => matched.has(id)) : rows; // times stay those of all
  if (!rowsShown.length) {
    const why = rows.length ? "Nothing that matches this filter has begun." : "Nothing has begun yet.";
    return el("p", { class: "soft scroll empty", id: "timeline" }, why);
  }
  const height = rowsShown.length * ROW + 24;
  const picture = svg("svg", {
    width: label + chart + note, height, role: "group", "aria-label": "timeline of the session",
  });
  const readsOf = readsBy(session.edges);
  const axis = svg("g", {});
  const ticks = chart < 300 ? 2 : 4;
  for (let tick = 0; tick <= ticks; tick += 1) {
    axis.append(svg("text", { class: "soft", x: label + (chart * tick) / ticks, y: 14 }, seconds(((last - first) * tick) / ticks)));
  }
  const body = svg("g", {});
  const x = label + session.at * scale;
  const cursor = played ? svg("line", { class: "cursor", x1: x, x2: x, y1: 18, y2: height }) : null;
  picture.append(...[axis, body, cursor].filter(Boolean));
  const box = el("div", { class: "scroll", id: "timeline" }, picture);
  const show = () => {
    const from = Math.max(0, Math.floor(box.scrollTop / ROW) - OVER);
    const to = Math.min(rowsShown.length, Math.ceil((box.scrollTop + (box.clientHeight || 800)) / ROW) + OVER);
    const drawn = [];
    for (let at = from; at < to; at += 1) {
      const row = rowsShown[at];
      drawn.push(rowOf(row, at, { first, scale, chart, label, note, critical: critical.has(row.id), selected, select, session, readsOf }));
    }
    body.replaceChildren(...drawn);
  };
  box.addEventListener("scroll", show);
  show();
  return box;
}

function rowOf({ id, task, bars }, at, { first, scale, chart, label, note, critical, selected, select, session, readsOf }) {
  const y = 24 + at * ROW;
  const marks = bars.flatMap((bar) => {
    let x = label + (bar.start - first) * scale;
    return bar.phases.map(([phase, length]) => {
      const width = Math.max(length * scale, 0);
      const marks = [svg("rect", { class: `phase-${phase}`, x, y: y + 4, width, height: ROW - 8 })];
      if (phase === "fill" && bar.cached) {
        const height = (ROW - 8) * bar.cached;
        marks.push(svg("rect", { class: "phase-cached", x, y: y + ROW - 4 - height, width, height }));
      }
      x += length * scale;
      return marks;
    });
  }).flat();
  const waited = Math.max(bars[0].start - Math.max(task.submitted_s, first), 0);
  const cause = waitOf(task, session, readsOf);
  if (waited > 0) {
    const x = label + (Math.max(task.submitted_s, first) - first) * scale;
    marks.unshift(svg("rect", { class: `phase-${cause}`, x, y: y + ROW / 2 - 1, width: waited * scale, height: 2 }));
  }
  const waits = waited > 0.0005 ? `, waited ${seconds(waited)} for ${cause === "tool" ? "a tool" : "an input"}` : "";
  const took = endOf(bars[bars.length - 1]) - bars[0].start;
  const isLive = task.ended_s === null;
  const cached = task.kind || isLive ? "" : `, ${task.cached_tokens} of ${task.prompt_tokens} cached`;
  const cost = task.cost ? `, cost ${money(task.cost)}` : "";
  const said = `${seconds(took)}${isLive ? " so far" : ""}`;
  return svg(
    "g",
    {
      class: `bar${critical ? " critical" : ""}${id === selected ? " selected" : ""}`,
      "data-task": id,
      "aria-label": `${task.name}: ${said}${cached}${cost}${waits}${critical ? ", on the critical path" : ""}`,
      ...pressed(() => select(id)),
    },
    svg("rect", { class: "track", x: 0, y, width: label + chart + note, height: ROW }),
    svg("text", { x: 8, y: y + 15 }, shortened(task.name, Math.floor(label / 7.3))),
    marks,
    svg("text", { class: "soft", x: label + chart + 8, y: y + 15 }, note < 100 ? seconds(took) : `${said}${cached}${cost}`),
  );
}

export const legend = () =>
  el(
    "p",
    { class: "legend" },
    Object.entries(WORDS).map(([phase, word]) =>
      el("span", {}, svg("svg", { width: 11, height: 11 }, svg("rect", { class: `phase-${phase}`, width: 11, height: 11 })), word),
    ),
  );
