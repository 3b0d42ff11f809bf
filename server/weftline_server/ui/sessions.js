// The table of the sessions: sorted by any column, grouped by application, and in pages.

import { el, seconds } from "./dom.js";
import { badge, clock, money } from "./glance.js";

export const PAGE = 50; // rows
const share = (row) => (row.prompt_tokens ? row.cached_tokens / row.prompt_tokens : -1);
const sum = (rows, of) => rows.reduce((total, row) => total + of(row), 0);

// A column: what it is sorted by, what a cell shows, and whether that is a number. `down` says that the largest come
// first when it is chosen.
const COLUMNS = {
  session: { by: (row) => row.session_id, show: (row) => el("a", { href: `#/s/${row.session_id}` }, row.session_id.slice(0, 20)) },
  name: { by: (row) => row.name.toLowerCase(), show: (row) => el("span", { class: "name", title: row.name }, row.name) },
  application: { by: (row) => row.application.toLowerCase(), show: (row) => row.application },
  state: { by: (row) => row.phase, show: (row) => badge(row.phase) },
  began: { by: (row) => row.opened, show: (row) => clock(row.opened), down: true },
  duration: { by: (row) => row.age_s, show: (row) => `${seconds(row.age_s)}${row.state === "open" ? " so far" : ""}`, number: true, down: true },
  calls: { by: (row) => row.calls + row.steps, show: (row) => String(row.calls + row.steps), number: true, down: true },
  "prompt tokens": { by: (row) => row.prompt_tokens, show: (row) => String(row.prompt_tokens), number: true, down: true },
  cached: { by: share, show: (row) => (row.prompt_tokens ? `${Math.round(100 * share(row))} %` : "–"), number: true, down: true },
  "output tokens": { by: (row) => row.output_tokens, show: (row) => String(row.output_tokens), number: true, down: true },
  cost: { by: (row) => row.cost ?? 0, show: (row) => money(row.cost), number: true, down: true, priced: true },
  saved: { by: (row) => row.saved ?? 0, show: (row) => money(row.saved), number: true, down: true, priced: true },
  error: { by: (row) => row.error ?? "", show: (row) => row.error ?? "", down: true },
};

// An order is a column's name, after "-" with the largest first. The server's order is "-began".
const parsed = (order) => {
  const down = order.startsWith("-");
  const name = down ? order.slice(1) : order;
  return name in COLUMNS ? { name, down } : { name: "began", down: true };
};

function sorted(rows, order) {
  const { name, down } = parsed(order);
  const { by } = COLUMNS[name];
  const compared = (a, b) => (by(a) < by(b) ? -1 : by(a) > by(b) ? 1 : 0);
  return [...rows].sort((a, b) => (down ? compared(b, a) : compared(a, b)));
}

// The page of the rows that the filter names, in its order.
export function pageOf(rows, filter) {
  const last = Math.max(1, Math.ceil(rows.length / PAGE));
  const at = Math.min(last, Math.max(1, Number.parseInt(filter.page, 10) || 1));
  return { at, last, rows: sorted(rows, filter.order).slice((at - 1) * PAGE, at * PAGE) };
}

// `turn` gets the number of a page.
export function pageBar({ at, last }, count, turn) {
  const button = (label, page) => el("button", { type: "button", disabled: page < 1 || page > last ? "" : null, onclick: () => turn(page) }, label);
  const told = `${((at - 1) * PAGE + 1).toLocaleString("en")} to ${Math.min(count, at * PAGE).toLocaleString("en")} of ${count.toLocaleString("en")}`;
  return el(
    "nav",
    { class: "pages", "aria-label": "pages", hidden: last > 1 ? null : "" },
    button("Newer", at - 1), button("Older", at + 1), el("span", { class: "soft" }, told),
  );
}

// `filter` has the order and whether to group. `choose` gets the order that a click on a head asks for. `picked` has
// the sessions to compare, which `pick` changes.
export function sessionTable(rows, filter, choose, { picked, pick }) {
  const priced = rows.some((row) => row.cost !== undefined); // the operator has set prices
  const failed = rows.some((row) => row.error);
  const heads = Object.keys(COLUMNS).filter((name) => (priced || !COLUMNS[name].priced) && (failed || name !== "error"));
  const order = parsed(filter.order);
  const head = (name) => {
    const here = order.name === name;
    const next = here ? (order.down ? name : `-${name}`) : COLUMNS[name].down ? `-${name}` : name;
    return el(
      "th",
      { class: COLUMNS[name].number ? "number" : null, "aria-sort": here ? (order.down ? "descending" : "ascending") : null },
      el("button", { type: "button", "data-order": name, onclick: () => choose(next) }, name, here ? (order.down ? " ▾" : " ▴") : ""),
    );
  };
  const box = (row) =>
    el("input", {
      type: "checkbox", "aria-label": `compare ${row.name || row.session_id}`, checked: picked.has(row.session_id) ? "" : null,
      onchange: (event) => pick(row.session_id, event.target.checked),
    });
  const line = (row) =>
    el(
      "tr",
      { class: row.error ? "failed" : null, onclick: (event) => open(event, row) },
      heads.map((name) => el("td", { class: COLUMNS[name].number ? "number" : null, "data-name": name }, COLUMNS[name].show(row))),
      el("td", { class: "pick", "data-name": "compare" }, box(row)),
    );
  const groups = new Map([["", rows]]);
  if (filter.group) {
    groups.clear();
    for (const row of rows) groups.set(row.application, [...(groups.get(row.application) ?? []), row]);
  }
  return el(
    "table",
    { id: "sessions" },
    el("thead", {}, el("tr", {}, heads.map(head), el("th", {}, "compare"))),
    [...groups].map(([application, some]) =>
      el("tbody", {}, filter.group ? groupHead(application, some, heads.length + 1) : null, some.map(line)),
    ),
  );
}

// A click anywhere in a row opens its session, unless it chooses text, a link or a box.
function open(event, row) {
  if (event.target.closest("a, input, label") || String(getSelection())) return;
  location.hash = `#/s/${row.session_id}`;
}

function groupHead(application, rows, width) {
  const prompt = sum(rows, (row) => row.prompt_tokens);
  const cached = prompt ? `, ${Math.round((100 * sum(rows, (row) => row.cached_tokens)) / prompt)} % of ${prompt.toLocaleString("en")} prompt tokens cached` : "";
  const failed = rows.filter((row) => row.error).length;
  const told = `${rows.length.toLocaleString("en")} session${rows.length === 1 ? "" : "s"}${failed ? `, ${failed} failed` : ""}${cached}`;
  return el("tr", { class: "group-head" }, el("th", { colspan: width, scope: "rowgroup" }, application || "without calls", " ", el("span", { class: "soft" }, told)));
}
