// The page: a list of sessions, and one session with its graph, its timeline and a selected call.
// The address names the view: #/ is the list, #/engines the engines, #/advice the advice, #/s/SESSION a session, #/s/SESSION/CALL one of its calls.
// After "?" it has the filter of the list or of the calls.

import { drawAdvice } from "./advice.js";
import { Refused, Unreachable, events, get, setKey } from "./api.js";
import { drawDetail } from "./detail.js";
import { el, seconds } from "./dom.js";
import { drawEngines } from "./engines.js";
import { address, filterBar, isSet, matchesSession, matchesTask, read } from "./filter.js";
import { drawGraph } from "./graph.js";
import { endOf, player, then } from "./playback.js";
import { sessionTable } from "./sessions.js";
import { drawTimeline, legend } from "./timeline.js";
import { zoomBar } from "./zoom.js";

const LIST_MS = 1000;
const AGAIN_MS = 1500;
const ADVICE_MS = 3000; // advice changes with many calls, not with one
const main = document.getElementById("main");
const status = document.getElementById("status");
let leaving = new AbortController();
// The session that is followed: {id, tasks, edges, critical, ended, selected, panel, draw}.
let shown = null;
// The list that is shown: {filter, sessions, total, bar, draw}.
let listed = null;

const said = (text) => {
  if (status.textContent !== text) status.textContent = text;
};
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// The views by the first part of the address. Each gets the parts after it, the filter, and a signal that ends it.
const VIEWS = {
  "": (_, filter, signal) => list(filter, signal),
  engines: (_, filter, signal) => engines(signal),
  advice: (_, filter, signal) => advice(signal),
  s: ([session, call], filter, signal) => follow(session, call || null, filter, signal),
};

function route() {
  const { parts: [page = "", ...rest], filter } = read();
  if (page === "s" && rest[0] && shown?.id === rest[0]) {
    shown.filter = filter;
    return shown.selected === (rest[1] || null) ? shown.draw() : select(rest[1] || null);
  }
  const view = page in VIEWS && !(page === "s" && !rest[0]) ? page : "";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#/${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (!view && listed) {
    listed.filter = filter;
    return listed.draw();
  }
  leaving.abort();
  leaving = new AbortController();
  shown = null;
  listed = null;
  return VIEWS[view](rest, filter, leaving.signal);
}

function engines(signal) {
  const history = new Map();
  said("Engines");
  main.replaceChildren();
  return persist(signal, async () => {
    for await (const { engines: rows } of events("../v1/engines/follow", signal)) {
      said(count(rows.length, "engine"));
      main.replaceChildren(drawEngines(rows, history));
    }
    await sleep(AGAIN_MS); // the server stops: it is asked again until it is back
    return false;
  });
}

function advice(signal) {
  let before = "";
  said("Advice");
  main.replaceChildren();
  return persist(signal, async () => {
    const { advice: rows, total } = await get("../v1/advice", signal);
    said(total > rows.length ? `${rows.length} of ${count(total, "finding")}` : rows.length ? count(total, "finding") : "Advice");
    const now = JSON.stringify(rows);
    if (now !== before) main.replaceChildren(...drawAdvice(rows));
    before = now;
    await sleep(ADVICE_MS);
    return false;
  });
}

// Filters change the address in place: the back button leaves the view and does not undo letters.
function filterBy(filter) {
  history.replaceState(null, "", address(read().parts.join("/"), filter));
  route();
}

// Runs `act` again after a lost connection, asks for a key after 401, and ends when the view is left.
async function persist(signal, act) {
  while (!signal.aborted) {
    try {
      if (await act()) return;
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused && error.status === 401) return askKey();
      if (error instanceof Refused && error.status === 404) {
        main.replaceChildren(el("p", {}, error.message), el("a", { href: "#/" }, "All sessions"));
        return said("");
      }
      if (!(error instanceof Refused || error instanceof Unreachable)) throw error;
      said(error instanceof Refused ? error.message : "The server cannot be reached. Trying again …");
      await sleep(AGAIN_MS);
    }
  }
}

function askKey() {
  const input = el("input", { type: "password", name: "key", "aria-label": "API key", autocomplete: "off" });
  const form = el("form", {}, input, el("button", {}, "Open"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    setKey(input.value.trim());
    shown = null; // what was shown has ended: the view begins again
    listed = null;
    route();
  });
  said("This server needs an API key.");
  main.replaceChildren(form);
  input.focus();
}

const LIST_MOST = 1000; // what the server sends at most
const SEARCH_MS = 5000; // between two searches: the server reads all prompts for each
const TYPED_MS = 300; // after the last letter of a text the search begins
const count = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;

function list(filter, signal) {
  const body = el("div", {});
  const bar = filterBar("list", filter, filterBy);
  let before = "";
  const own = { filter, sessions: null, total: 0, note: "", draw: () => drawList(own, bar, body) };
  listed = own;
  return persist(signal, async () => {
    const { text } = own.filter;
    const query = new URLSearchParams(text ? { limit: LIST_MOST, text } : { limit: LIST_MOST });
    const { sessions, total, all_read } = await get(`../v1/sessions?${query}`, signal);
    said(total ? count(total, "session") : "No session yet. Run a program.");
    const note = all_read === false ? "The newest sessions were searched: there was too much text to read all." : "";
    const now = JSON.stringify([sessions, note]);
    if (body.parentNode !== main) main.replaceChildren(bar, body); // it was replaced by a question for a key
    Object.assign(own, { sessions, total, note });
    if (now !== before) own.draw();
    before = now;
    await changed(() => own.filter.text !== text, text ? SEARCH_MS : LIST_MS, signal);
    return false;
  });
}

// Waits for `most` milliseconds, or until something `has` changed and is still for TYPED_MS.
async function changed(has, most, signal) {
  for (let left = most; left > 0 && !signal.aborted && !has(); left -= 100) await sleep(Math.min(left, 100));
  if (has()) await sleep(TYPED_MS);
}

function drawList({ filter, sessions, total, note }, bar, body) {
  if (sessions === null) return;
  const found = sessions.filter((row) => matchesSession(row, filter));
  bar.hidden = total === 0;
  bar.offer([...new Set(sessions.flatMap((row) => row.engines))].sort());
  bar.show(filter, isSet(filter) ? `${found.length.toLocaleString("en")} of ${count(total, "session")}` : "");
  const focused = document.activeElement?.dataset?.order;
  const order = (next) => filterBy({ ...read().filter, order: next });
  const empty = el("p", { class: "soft empty" }, total ? "No session matches this filter." : "");
  body.replaceChildren(found.length ? sessionTable(found, filter, order) : empty, el("p", { class: "soft" }, note));
  if (focused) body.querySelector(`[data-order="${focused}"]`)?.focus({ preventScroll: true });
}

function follow(id, call, filter, signal) {
  shown = {
    id, filter, tasks: new Map(), edges: [], critical: null, ended: null, selected: call, panel: null,
    bar: filterBar("session", filter, filterBy), body: el("div", {}), draw: soon(draw), at: null, zoom: 1,
    zoomBar: zoomBar((zoom) => {
      shown.zoom = zoom;
      shown.draw();
    }),
    player: player((at) => {
      shown.at = at;
      shown.draw();
    }),
  };
  said(`Session ${id}`);
  main.replaceChildren();
  if (call) select(call);
  return persist(signal, async () => {
    for await (const change of events(`../v1/session/${encodeURIComponent(id)}/follow`, signal)) {
      for (const task of change.tasks ?? []) shown.tasks.set(task.call_id ?? task.step_id, task);
      if (change.edges) shown.edges = change.edges;
      if (change.critical) shown.critical = change.critical;
      if (change.ended_s !== undefined) shown.ended = change.ended_s;
      shown.draw();
    }
    return shown.ended !== null;
  });
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

function draw() {
  if (!shown) return;
  const zooming = shown.zoomBar.contains(document.activeElement) ? document.activeElement : null;
  const focused = document.activeElement?.getAttribute("data-task");
  const where = document.activeElement?.closest(".scroll")?.id;
  const scrolled = ["graph", "timeline"].map((name) => [name, document.getElementById(name)]);
  const at = new Map(scrolled.map(([name, box]) => [name, box ? [box.scrollLeft, box.scrollTop] : [0, 0]]));
  const go = (task) => {
    location.hash = address(`s/${shown.id}/${task}`, shown.filter);
  };
  shown.player.grown(endOf(shown));
  const view = shown.at === null ? shown : then(shown, shown.at);
  const tasks = [...view.tasks.values()];
  const matching = tasks.filter((task) => matchesTask(task, shown.filter));
  shown.bar.offer([...new Set(tasks.map((task) => task.engine).filter(Boolean))].sort());
  shown.bar.show(
    shown.filter,
    isSet(shown.filter) ? `${matching.length.toLocaleString("en")} of ${count(tasks.length, "task")}` : "",
  );
  const matched = isSet(shown.filter) ? new Set(matching.map((task) => task.call_id ?? task.step_id)) : null;
  if (shown.body.parentNode !== main) main.replaceChildren(shown.bar, shown.player, shown.body);
  shown.body.replaceChildren(
    el("p", { class: "sentence" }, shown.critical?.sentence ?? ""),
    el(
      "p",
      { class: "soft state" },
      shown.at !== null
        ? `Played back: the session after ${seconds(shown.at)}. `
        : shown.ended === null ? "The session is open. " : `Closed after ${seconds(shown.ended)}. `,
      el("button", { onclick: () => download(shown.id) }, "Download the trace"),
    ),
    el(
      "div",
      { class: shown.selected ? "two" : "" },
      el(
        "div",
        {},
        el("div", { class: "head" }, el("h2", {}, "Graph"), shown.zoomBar),
        drawGraph(view, matched, shown.selected, go, timelineWidth()),
        el("h2", {}, "Timeline"),
        legend(),
        drawTimeline(view, matched, shown.selected, go, timelineWidth()),
      ),
      shown.selected ? (shown.panel ?? el("section", { id: "detail" })) : null,
    ),
  );
  for (const [name, [left, top]] of at) document.getElementById(name).scrollTo(left, top);
  zooming?.focus({ preventScroll: true }); // the button was moved, and so lost the focus
  if (focused && where) {
    const task = [...document.querySelectorAll(`#${where} [data-task]`)].find((one) => one.dataset.task === focused);
    task?.focus({ preventScroll: true });
  }
}

// A link cannot send a key, so the trace is fetched and then saved.
async function download(id) {
  try {
    const trace = await get(`../v1/session/${encodeURIComponent(id)}/trace`);
    const address = URL.createObjectURL(new Blob([JSON.stringify(trace)], { type: "application/json" }));
    el("a", { href: address, download: `${id}.json` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
  } catch (error) {
    said(error.message);
  }
}

// Beside a selected call the views have the part of the page that the style sheet leaves them.
function timelineWidth() {
  const beside = shown.selected && matchMedia("(min-width: 60rem)").matches;
  return main.clientWidth - 50 - (beside ? 28 * 14 + 14 : 0);
}

async function select(call) {
  shown.selected = call;
  shown.panel = null;
  shown.draw();
  if (!call) return;
  const { id } = shown;
  try {
    const found = await get(`../v1/session/${encodeURIComponent(id)}/call/${encodeURIComponent(call)}`);
    if (shown?.id !== id || shown.selected !== call) return;
    shown.panel = drawDetail(found);
    shown.draw();
  } catch (error) {
    said(error.message);
  }
}

addEventListener("hashchange", route);
route();
