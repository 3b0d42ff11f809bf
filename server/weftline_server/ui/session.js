// One session: at a glance, its graph, its timeline, and a selected call.

import { get } from "./api.js";
import { drawDetail } from "./detail.js";
import { count, el, seconds } from "./dom.js";
import { address, filterBar, isSet, matchesTask } from "./filter.js";
import { drawGlance } from "./glance.js";
import { drawGraph } from "./graph.js";
import { endOf, player, then } from "./playback.js";
import { drawTimeline, legend } from "./timeline.js";
import { asTask, withTools } from "./tools.js";
import { START, zoomBar } from "./zoom.js";

const MOVES_MS = 500; // between two drawings of bars that grow
const LIVE = new Set(["running", "queued"]);

// The view of session `id`, which draws itself into `main`. `said` shows a status, `filterBy` takes a filter.
export function sessionView(id, call, filter, main, said, filterBy) {
  const view = {
    id, filter, tasks: new Map(), told: [], tools: [], edges: [], critical: null, ended: null, glance: null, texts: {},
    selected: call, at: null, zoom: START, clock: null,
  };
  const bar = filterBar("session", filter, filterBy);
  view.zoomBar = zoomBar((zoom) => {
    view.zoom = zoom;
    view.draw();
  });
  const play = player((at) => {
    view.at = at;
    view.draw();
  });
  // Places that stay, so that a reader of a text keeps the place and the selection.
  const [glance, sentence, state, graph, timeline] = [el("div"), el("p", { class: "sentence" }), el("span"), el("div"), el("div")];
  const side = el("div", { class: "side" });
  const download = el("button", { onclick: () => saveTrace(id, said) }, "Download the trace");
  const left = el("div", {}, el("div", { class: "head" }, el("h2", {}, "Graph"), view.zoomBar), graph, el("h2", {}, "Timeline"), legend(), timeline);
  const both = el("div", {}, left, side);
  const body = el("div", {}, glance, sentence, el("p", { class: "soft state" }, state, " ", download), bar, play, both);
  const go = (task) => {
    location.hash = address(`s/${id}/${task}`, view.filter);
  };

  // The second of the session that it is now.
  view.now = () => (view.ended ?? (view.clock ? view.clock.second + (performance.now() - view.clock.at) / 1000 : 0));

  view.take = (change) => {
    for (const task of change.tasks ?? []) view.tasks.set(task.call_id ?? task.step_id, task);
    if (change.tools) {
      view.tools = change.tools;
      for (const tool of view.tools) view.tasks.set(tool.tool_id, asTask(tool));
    }
    if (change.edges) view.told = change.edges;
    if (change.edges || change.tools) view.edges = withTools(view.told, view.tools);
    if (change.critical) view.critical = change.critical;
    if (change.glance) view.glance = change.glance;
    if (change.texts) Object.assign(view.texts, change.texts);
    if (change.now_s !== undefined) view.clock = { second: change.now_s, at: performance.now() };
    if (change.ended_s !== undefined) view.ended = change.ended_s;
    view.draw();
  };

  function drawn() {
    const focus = kept();
    play.grown(endOf(view));
    const shown = view.at === null ? { ...view, second: view.now() } : then(view, view.at);
    const tasks = [...shown.tasks.values()];
    const matching = tasks.filter((task) => matchesTask(task, view.filter));
    bar.offer([...new Set(tasks.map((task) => task.engine).filter(Boolean))].sort());
    bar.show(view.filter, isSet(view.filter) ? `${matching.length.toLocaleString("en")} of ${count(tasks.length, "task")}` : "");
    const matched = isSet(view.filter) ? new Set(matching.map((task) => task.call_id ?? task.step_id)) : null;
    if (body.parentNode !== main) main.replaceChildren(body);
    if (view.glance) replace(glance, drawGlance(view.glance, outputOf(view), view.now()));
    sentence.textContent = view.critical?.sentence ?? "";
    state.textContent = view.at !== null
      ? `Played back: the session after ${seconds(view.at)}.`
      : view.ended === null ? "The session is open." : `Closed after ${seconds(view.ended)}.`;
    both.className = view.selected ? "two" : "";
    const width = room(main, view.selected);
    graph.replaceChildren(drawGraph(shown, matched, view.selected, go, width));
    timeline.replaceChildren(drawTimeline(shown, matched, view.selected, go, width));
    drawSide();
    focus();
  }

  // What a call writes is shown below its facts until its end, when the call is asked for again.
  function drawSide() {
    if (!view.selected) return side.replaceChildren();
    const task = view.tasks.get(view.selected);
    if (task && view.shownState && task.state !== view.shownState) view.select(view.selected);
    const text = task && LIVE.has(task.state) ? view.texts[view.selected] : null;
    const place = side.querySelector(".words");
    if (text && place) place.textContent = text;
    else if (text) side.prepend(el("div", {}, el("h3", {}, "Written so far"), el("div", { class: "words" }, text)));
    else place?.parentNode.remove();
    return null;
  }

  view.draw = soon(drawn);
  view.select = async (chosen) => {
    const isNew = view.selected !== chosen || !side.childElementCount;
    view.selected = chosen;
    view.shownState = view.tasks.get(chosen)?.state ?? null;
    if (isNew) side.replaceChildren();
    view.draw();
    if (!chosen) return;
    try {
      const found = await get(`../v1/session/${encodeURIComponent(id)}/call/${encodeURIComponent(chosen)}`);
      if (view.selected !== chosen) return;
      view.shownState = found.state;
      side.replaceChildren(drawDetail(found));
      if (isNew && matchMedia("(max-width: 60rem)").matches) side.scrollIntoView({ block: "start" });
      view.draw();
    } catch (error) {
      said(error.message);
    }
  };
  const moves = setInterval(() => {
    if (body.isConnected && view.at === null && view.ended === null && [...view.tasks.values()].some((task) => LIVE.has(task.state))) view.draw();
  }, MOVES_MS);
  view.leave = () => clearInterval(moves);
  said(`Session ${id}`);
  main.replaceChildren();
  if (call) view.select(call);
  return view;
}

// Replaces what is shown only if it differs, so that a selection in it stays.
function replace(place, made) {
  const before = place.firstElementChild;
  if (before?.outerHTML === made.outerHTML) return;
  const tops = [...place.querySelectorAll(".words")].map((box) => box.scrollTop);
  place.replaceChildren(made);
  made.querySelectorAll(".words").forEach((box, at) => box.scrollTo(0, tops[at] ?? 0));
}

// What the session has answered: the text that is being written, or the one that the server has told.
function outputOf({ glance, texts, tasks }) {
  const task = tasks.get(glance.output_task);
  return (task && LIVE.has(task.state) && texts[glance.output_task]) || glance.output;
}

// Remembers what has the focus and how far views are scrolled; the result brings both back.
function kept() {
  const active = document.activeElement;
  const zooming = active?.closest(".zoom") ? active : null;
  const focused = active?.getAttribute("data-task");
  const where = active?.closest(".scroll")?.id;
  const at = ["graph", "timeline"].map((name) => [name, document.getElementById(name)]).map(([name, box]) => [name, box?.scrollLeft ?? 0, box?.scrollTop ?? 0]);
  return () => {
    for (const [name, left, top] of at) document.getElementById(name).scrollTo(left, top);
    zooming?.focus({ preventScroll: true });
    if (focused && where) {
      const task = [...document.querySelectorAll(`#${where} [data-task]`)].find((one) => one.dataset.task === focused);
      task?.focus({ preventScroll: true });
    }
  };
}

// Beside a selected call the views have the part of the page that the style sheet leaves them.
function room(main, selected) {
  const beside = selected && matchMedia("(min-width: 60rem)").matches;
  return main.clientWidth - (matchMedia("(max-width: 40rem)").matches ? 22 : 50) - (beside ? 28 * 14 + 14 : 0);
}

// A link cannot send a key, so the trace is fetched and then saved.
async function saveTrace(id, said) {
  try {
    const trace = await get(`../v1/session/${encodeURIComponent(id)}/trace`);
    const at = URL.createObjectURL(new Blob([JSON.stringify(trace)], { type: "application/json" }));
    el("a", { href: at, download: `${id}.json` }).click();
    setTimeout(() => URL.revokeObjectURL(at), 10_000);
  } catch (error) {
    said(error.message);
  }
}

// Many changes in one frame are drawn once. Drawing takes at most a quarter of the time, so that a
// session of ten thousand calls leaves time for its reader.
function soon(act) {
  let due = false;
  let rest = 0; // milliseconds to wait before the next drawing
  return () => {
    if (due) return;
    due = true;
    setTimeout(() => {
      requestAnimationFrame(() => {
        due = false;
        const began = performance.now();
        act();
        rest = 3 * (performance.now() - began);
      });
    }, rest);
  };
}
