// Filters of the sessions and of a session's calls: by state, name and engine, kept in the address.

import { el } from "./dom.js";

const STATES = {
  list: ["open", "closed", "failed"],
  session: ["waiting", "queued", "running", "done", "failed", "cancelled", "skipped"],
};
const NAMES = ["state", "name", "engine"];

// The address after "#": its parts between slashes, and the filter after "?".
export function read() {
  const [path, query] = location.hash.split("?");
  const given = new URLSearchParams(query ?? "");
  const filter = Object.fromEntries(NAMES.map((name) => [name, given.get(name) ?? ""]));
  return { parts: path.split("/").slice(1), filter };
}

// An address with the same filter.
export function address(path, filter) {
  const set = new URLSearchParams(NAMES.filter((name) => filter[name]).map((name) => [name, filter[name]]));
  return `#/${path}${set.size ? `?${set}` : ""}`;
}

export const isSet = (filter) => NAMES.some((name) => filter[name]);

const holds = (text, part) => text.toLowerCase().includes(part.toLowerCase());

export const matchesSession = (row, { state, name, engine }) =>
  (!state || (state === "failed" ? row.error !== null : row.state === state)) &&
  (!name || holds(row.name, name) || holds(row.session_id, name)) &&
  (!engine || row.engines.includes(engine));

export const matchesTask = (task, { state, name, engine }) =>
  (!state || task.state === state) && (!name || holds(task.name, name)) && (!engine || task.engine === engine);

// A row of controls. It is made once for a view, so that typing is not interrupted by a new drawing.
// `changed` gets the new filter. `bar.offer` takes the engines that can be chosen, `bar.found` a count.
export function filterBar(view, filter, changed) {
  const choice = (name, options) => {
    const select = el("select", { name, onchange: () => changed({ ...read().filter, [name]: select.value }) });
    fillChoice(select, name, options, filter[name]);
    return select;
  };
  const state = choice("state", STATES[view]);
  const engine = choice("engine", []);
  const name = el("input", {
    type: "search", name: "name", size: 18,
    placeholder: view === "list" ? "name or id" : "name of a call",
    oninput: () => changed({ ...read().filter, name: name.value }),
  });
  name.value = filter.name;
  const count = el("output", { class: "soft" });
  const clear = el("button", { type: "button", onclick: () => changed({}) }, "Clear");
  const bar = el(
    "search",
    { class: "filter", "aria-label": view === "list" ? "filter of the sessions" : "filter of the calls" },
    el("label", {}, "State ", state), el("label", {}, "Name ", name), el("label", {}, "Engine ", engine),
    clear, count,
  );
  bar.offer = (engines) => fillChoice(engine, "engine", engines, read().filter.engine);
  bar.show = (now, text) => {
    if (state.value !== now.state) state.value = now.state;
    if (name.value !== now.name) name.value = now.name;
    if (engine.value !== now.engine) engine.value = now.engine;
    clear.hidden = !isSet(now);
    if (count.textContent !== text) count.textContent = text;
  };
  return bar;
}

// A value of the address is offered even when nothing has it now.
function fillChoice(select, name, options, chosen) {
  const all = chosen && !options.includes(chosen) ? [...options, chosen] : options;
  const before = [...select.options].slice(1).map((option) => option.value);
  if (select.options.length && before.join("\n") === all.join("\n")) return;
  select.replaceChildren(
    el("option", { value: "" }, `any ${name}`),
    ...all.map((one) => el("option", { value: one }, one)),
  );
  select.value = chosen ?? "";
}
