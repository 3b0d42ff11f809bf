// The table of the sessions: sorted by any column, and grouped by application.

import { el, seconds } from "./dom.js";

const money = (value) => (value === undefined ? "–" : value.toPrecision(3));
const share = (row) => (row.prompt_tokens ? row.cached_tokens / row.prompt_tokens : -1);
const sum = (rows, of) => rows.reduce((total, row) => total + of(row), 0);

// The time of day, with the date of another day.
export function clock(moment) {
  const at = new Date(1000 * moment);
  const time = at.toLocaleTimeString("sv");
  return at.toDateString() === new Date().toDateString() ? time : `${at.toLocaleDateString("sv")} ${time}`;
}

// A column: what it is sorted by, what a cell shows, and whether that is a number. `down` says that the largest come
// first when it is chosen.
const COLUMNS = {
  session: { by: (row) => row.session_id, show: (row) => el("a", { href: `#/s/${row.session_id}` }, row.session_id.slice(0, 20)) },
  name: { by: (row) => row.name.toLowerCase(), show: (row) => el("span", { class: "name", title: row.name }, row.name) },
  application: { by: (row) => row.application.toLowerCase(), show: (row) => row.application },
  state: { by: (row) => row.state, show: (row) => row.state },
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

// `filter` has the order and whether to group. `choose` gets the order that a click on a head asks for.
export function sessionTable(rows, filter, choose) {
  const priced = rows.some((row) => row.cost !== undefined); // the operator has set prices
  const heads = Object.keys(COLUMNS).filter((name) => priced || !COLUMNS[name].priced);
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
  const line = (row) =>
    el(
      "tr",
      { class: row.error ? "failed" : null },
      heads.map((name) => el("td", { class: COLUMNS[name].number ? "number" : null }, COLUMNS[name].show(row))),
    );
  const found = sorted(rows, filter.order);
  const groups = new Map([["", found]]);
  if (filter.group) {
    groups.clear();
    for (const row of found) groups.set(row.application, [...(groups.get(row.application) ?? []), row]);
  }
  return el(
    "table",
    { id: "sessions" },
    el("thead", {}, el("tr", {}, heads.map(head))),
    [...groups].map(([application, some]) =>
      el("tbody", {}, filter.group ? groupHead(application, some, heads.length) : null, some.map(line)),
    ),
  );
}

function groupHead(application, rows, width) {
  const prompt = sum(rows, (row) => row.prompt_tokens);
  const cached = prompt ? `, ${Math.round((100 * sum(rows, (row) => row.cached_tokens)) / prompt)} % of ${prompt.toLocaleString("en")} prompt tokens cached` : "";
  const failed = rows.filter((row) => row.error).length;
  const told = `${rows.length.toLocaleString("en")} session${rows.length === 1 ? "" : "s"}${failed ? `, ${failed} failed` : ""}${cached}`;
  return el("tr", { class: "group-head" }, el("th", { colspan: width, scope: "rowgroup" }, application || "without calls", " ", el("span", { class: "soft" }, told)));
}
