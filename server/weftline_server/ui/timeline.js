// Draws when each task ran, with its phases, in the order in which the tasks became ready.

import { el, pressed, seconds, shortened, svg } from "./dom.js";

const ROW = 22;
const LABEL = 190;
const NOTE = 190;
const PHASES = ["queue", "fill", "generate", "transform"];
const WORDS = { queue: "queue", fill: "prefill", generate: "generate", transform: "transform", step: "other steps" };
const OVER = 12; // rows drawn above and below the visible ones

// The bars of a task: [{start, phases: [[phase, seconds]]}], one for each output.
function barsOf(task) {
  if (task.kind) {
    if (task.finished_s === null || task.queued_s === null) return [];
    return [{ start: task.queued_s, phases: [["step", task.finished_s - task.queued_s]] }];
  }
  return task.steps
    .filter((step) => step.started_s !== null)
    .map((step) => ({ start: step.queued_s, phases: PHASES.map((phase) => [phase, step[`${phase}_s`] ?? 0]) }));
}

const endOf = (bar) => bar.phases.reduce((at, [, length]) => at + length, bar.start);

// `width` is what the view may take, in pixels.
export function drawTimeline(session, matched, selected, select, width) {
  const chart = Math.max(240, width - LABEL - NOTE);
  const critical = new Set(session.critical?.tasks ?? []);
  const rows = [...session.tasks].map(([id, task]) => ({ id, task, bars: barsOf(task) })).filter((row) => row.bars.length);
  rows.sort((one, other) => one.bars[0].start - other.bars[0].start);
  const played = session.at !== undefined && session.at !== null; // then the axis is that of the whole run
  const first = played || !rows.length ? 0 : rows[0].bars[0].start;
  const last = played ? session.whole : rows.reduce((most, row) => Math.max(most, ...row.bars.map(endOf)), first);
  const scale = chart / Math.max(last - first, 1e-6);
  const rowsShown = matched ? rows.filter(({ id }) => matched.has(id)) : rows; // times stay those of all
  if (!rowsShown.length) {
    const why = rows.length ? "Nothing that matches this filter has ended." : "Nothing has ended yet.";
    return el("p", { class: "soft scroll empty", id: "timeline" }, why);
  }
  const height = rowsShown.length * ROW + 24;
  const picture = svg("svg", {
    width: LABEL + chart + NOTE, height, role: "group", "aria-label": "timeline of the session",
  });
  const axis = svg("g", {});
  for (let tick = 0; tick <= 4; tick += 1) {
    axis.append(svg("text", { class: "soft", x: LABEL + (chart * tick) / 4, y: 14 }, seconds(((last - first) * tick) / 4)));
  }
  const body = svg("g", {});
  const x = LABEL + session.at * scale;
  const cursor = played ? svg("line", { class: "cursor", x1: x, x2: x, y1: 18, y2: height }) : null;
  picture.append(...[axis, body, cursor].filter(Boolean));
  const box = el("div", { class: "scroll", id: "timeline" }, picture);
  const show = () => {
    const from = Math.max(0, Math.floor(box.scrollTop / ROW) - OVER);
    const to = Math.min(rowsShown.length, Math.ceil((box.scrollTop + (box.clientHeight || 800)) / ROW) + OVER);
    const drawn = [];
    for (let at = from; at < to; at += 1) {
      const row = rowsShown[at];
      drawn.push(rowOf(row, at, { first, scale, chart, critical: critical.has(row.id), selected, select }));
    }
    body.replaceChildren(...drawn);
  };
  box.addEventListener("scroll", show);
  show();
  return box;
}

function rowOf({ id, task, bars }, at, { first, scale, chart, critical, selected, select }) {
  const y = 24 + at * ROW;
  const marks = bars.flatMap((bar) => {
    let x = LABEL + (bar.start - first) * scale;
    return bar.phases.map(([phase, length]) => {
      const mark = svg("rect", { class: `phase-${phase}`, x, y: y + 4, width: Math.max(length * scale, 0), height: ROW - 8 });
      x += length * scale;
      return mark;
    });
  });
  const took = endOf(bars[bars.length - 1]) - bars[0].start;
  const cached = task.kind ? "" : `, ${task.cached_tokens} of ${task.prompt_tokens} cached`;
  return svg(
    "g",
    {
      class: `bar${critical ? " critical" : ""}${id === selected ? " selected" : ""}`,
      "data-task": id,
      "aria-label": `${task.name}: ${seconds(took)}${cached}${critical ? ", on the critical path" : ""}`,
      ...pressed(() => select(id)),
    },
    svg("rect", { class: "track", x: 0, y, width: LABEL + chart + NOTE, height: ROW }),
    svg("text", { x: 8, y: y + 15 }, shortened(task.name, 26)),
    marks,
    svg("text", { class: "soft", x: LABEL + chart + 8, y: y + 15 }, `${seconds(took)}${cached}`),
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
