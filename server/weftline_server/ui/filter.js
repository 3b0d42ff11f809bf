// Filters of the sessions and of a session's calls: by state, name and engine, kept in the address. The list has a
// search in the prompts, too, which the server does.

import { el } from "./dom.js";

const STATES = {
  list: ["queued", "running", "waiting for a tool", "waiting for the client", "done", "failed"],
  session: ["waiting", "queued", "running", "done", "failed", "cancelled", "skipped"],
};
const FILTERS = ["state", "name", "engine", "text"];
const NAMES = [...FILTERS, "order", "group", "page"]; // the last three say how the list is shown

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

export const isSet = (filter) => FILTERS.some((name) => filter[name]);

const holds = (text, part) => text.toLowerCase().includes(part.toLowerCase());

export const matchesSession = (row, { state, name, engine }) =>
  (!state || row.phase === state) &&
  (!name || [row.name, row.application, row.session_id].some((one) => holds(one, name))) &&
  (!engine || row.engines.includes(engine));

export const matchesTask = (task, { state, name, engine }) =>
  (!state || task.state === state) && (!name || holds(task.name, name)) && (!engine || task.engine === engine);

// A row of controls. It is made once for a view, so that typing is not interrupted by a new drawing.
// `filtered` gets the new filter. `bar.offer` takes the engines that can be chosen, `bar.found` a count.
export function filterBar(view, filter, filtered) {
  const changed = (next) => filtered({ ...next, page: "" }); // another filter begins with its first page
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
  const text = el("input", {
    type: "search", name: "text", size: 20, maxlength: 256, placeholder: "in prompts and values",
    oninput: () => changed({ ...read().filter, text: text.value }),
  });
  text.value = filter.text;
  const group = el("input", {
    type: "checkbox", name: "group",
    onchange: () => changed({ ...read().filter, group: group.checked ? "1" : "" }),
  });
  const listed = view === "list" ? [el("label", {}, "Text ", text), el("label", {}, group, " Group by application")] : [];
  const count = el("output", { class: "soft" });
  const clear = el("button", {
    type: "button",
    onclick: () => changed({ order: read().filter.order, group: read().filter.group }),
  }, "Clear");
  const bar = el(
    "search",
    { class: "filter", "aria-label": view === "list" ? "filter of the sessions" : "filter of the calls" },
    el("label", {}, "State ", state), el("label", {}, "Name ", name), el("label", {}, "Engine ", engine),
    listed, clear, count,
  );
  bar.offer = (engines) => fillChoice(engine, "engine", engines, read().filter.engine);
  bar.show = (now, counted) => {
    if (state.value !== now.state) state.value = now.state;
    if (name.value !== now.name) name.value = now.name;
    if (engine.value !== now.engine) engine.value = now.engine;
    if (text.value !== now.text) text.value = now.text;
    group.checked = Boolean(now.group);
    clear.hidden = !isSet(now);
    if (count.textContent !== counted) count.textContent = counted;
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
