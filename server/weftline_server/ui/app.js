// The page: a list of sessions, one session, two sessions side by side, the engines, and advice.
// The address names the view: #/ is the list, #/engines the engines, #/advice the advice, #/s/SESSION a session, #/s/SESSION/CALL one of its calls,
// #/compare/SESSION/SESSION two sessions.
// After "?" it has the filter of the list or of the calls.

import { drawAdvice } from "./advice.js";
import { Refused, Unreachable, events, get, setKey } from "./api.js";
import { drawCompare, present } from "./compare.js";
import { count, el } from "./dom.js";
import { drawEngines } from "./engines.js";
import { address, filterBar, isSet, matchesSession, read } from "./filter.js";
import { sessionView } from "./session.js";
import { pageBar, pageOf, sessionTable } from "./sessions.js";

const LIST_MS = 1000;
const AGAIN_MS = 1500;
const ADVICE_MS = 3000; // advice changes with many calls, not with one
const main = document.getElementById("main");
const status = document.getElementById("status");
let leaving = new AbortController();
// The session that is followed; see session.js.
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
  compare: (ids, _, signal) => compare(ids, signal),
};

function route() {
  const { parts: [page = "", ...rest], filter } = read();
  if (page === "s" && rest[0] && shown?.id === rest[0]) {
    shown.filter = filter;
    return shown.selected === (rest[1] || null) ? shown.draw() : shown.select(rest[1] || null);
  }
  const needs = { s: 1, compare: 2 }[page] ?? 0;
  const view = page in VIEWS && rest.filter(Boolean).length >= needs ? page : "";
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
  shown?.leave();
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
    said("Asking the server …");
    main.replaceChildren(); // what is typed from now on would be lost with this form
    route();
  });
  said("This server needs an API key.");
  main.replaceChildren(form);
  input.focus();
}

const LIST_MOST = 1000; // what the server sends at most
const SEARCH_MS = 5000; // between two searches: the server reads all prompts for each
const TYPED_MS = 300; // after the last letter of a text the search begins
const picked = new Set(); // ids of sessions to compare

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
  const pick = (id, is) => {
    if (is) picked.add(id);
    else picked.delete(id);
    listed.draw();
  };
  const turn = (page) => filterBy({ ...read().filter, page: page > 1 ? String(page) : "" });
  const page = pageOf(found, filter);
  const order = (next) => filterBy({ ...read().filter, order: next });
  const empty = el("p", { class: "soft empty" }, total ? "No session matches this filter." : "");
  body.replaceChildren(
    comparison(),
    found.length ? sessionTable(page.rows, filter, order, { picked, pick }) : empty,
    pageBar(page, found.length, turn),
    el("p", { class: "soft" }, note),
  );
  if (focused) body.querySelector(`[data-order="${focused}"]`)?.focus({ preventScroll: true });
}

// What is said about the sessions that were picked, with a link where there are two.
function comparison() {
  const ids = [...picked];
  const told = ids.length === 1 ? "Choose another session to compare with." : ids.length > 2 ? "Choose two sessions to compare." : "";
  const link = ids.length === 2 ? el("a", { href: `#/compare/${ids.join("/")}` }, "Compare the two sessions side by side") : null;
  return el("p", { class: "soft compare", hidden: ids.length ? null : "" }, told, link);
}

function follow(id, call, filter, signal) {
  const view = sessionView(id, call, filter, main, said, filterBy);
  shown = view;
  return persist(signal, async () => {
    for await (const change of events(`../v1/session/${encodeURIComponent(id)}/follow`, signal)) view.take(change);
    return view.ended !== null;
  });
}

function compare(ids, signal) {
  said("Two sessions");
  main.replaceChildren();
  return persist(signal, async () => {
    const runs = await Promise.all(ids.slice(0, 2).map((id) => present(id, signal)));
    main.replaceChildren(...drawCompare(runs, main.clientWidth));
    return true;
  });
}

addEventListener("hashchange", route);
route();
