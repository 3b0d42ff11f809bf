// Draws the advice: where prompts part, what that costs, and what to change, the costliest first.

import { el } from "./dom.js";

const number = (value) => Math.round(value).toLocaleString("en");
const share = (part, whole) => (whole ? `${Math.round(100 * Math.min(1, part / whole))} %` : "–");

const ABOUT =
  "Engines share the KV cache of prompts up to the first difference. Equal text behind it is computed anew in every call, and is counted here as " +
  "tokens lost. Each sentence says where the prompts of a program part, and what to change. The server itself changes no prompt.";
const NO_VALUES = "The two texts are not shown: a server shows words of prompts only if it runs with --log-prompts.";
const NOTHING =
  "No advice. Either the prompts of your programs part only where nothing equal follows, or the server has seen too few calls " +
  "since it started: a program is judged by its last calls with at least 64 tokens in their prompts.";

// `rows` are those of GET /v1/advice.
export function drawAdvice(rows) {
  const about = el("p", { class: "soft about" }, ABOUT);
  if (!rows.length) return [about, el("p", { class: "empty" }, NOTHING)];
  const sorted = [...rows].sort((one, other) => other.lost_tokens - one.lost_tokens);
  const isShown = rows.some((row) => row.before !== null);
  return [about, isShown ? null : el("p", { class: "soft about" }, NO_VALUES), table(sorted)].filter(Boolean);
}

function table(rows) {
  const head = (name, about, isNumber = true) => el("th", { class: isNumber ? "number" : null, title: about }, name);
  return el(
    "table",
    { id: "advice" },
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        head("what to do", "where the prompts part, and what to change", false),
        head("program", "the name of the calls, and how their prompts begin", false),
        head("calls", "the share of the program's calls in which the prompts part here"),
        head("tokens lost", "tokens that were computed anew for this reason"),
        head("cached", "the share of the program's prompt tokens that came from the KV cache"),
      ),
    ),
    el("tbody", {}, rows.map(drawRow)),
  );
}

function drawRow(row) {
  return el(
    "tr",
    {},
    el("td", { class: "says" }, el("p", {}, row.says), row.before === null ? null : difference(row.before, row.after)),
    el("td", { class: "says" }, row.name, row.begins ? el("p", { class: "soft" }, row.begins) : null),
    el("td", { class: "number" }, share(row.times, row.calls), el("p", { class: "soft" }, `of ${number(row.calls)}`)),
    el("td", { class: "number" }, number(row.lost_tokens)),
    el("td", { class: "number" }, share(row.cached_tokens, row.prompt_tokens)),
  );
}

// The two texts around their first difference, with what differs marked. Characters are compared
// whole: half of an emoji would be shown as a box.
function difference(before, after) {
  const [old, now] = [[...before], [...after]];
  const most = Math.min(old.length, now.length);
  let head = 0;
  while (head < most && old[head] === now[head]) head += 1;
  let tail = 0;
  while (tail < most - head && old[old.length - 1 - tail] === now[now.length - 1 - tail]) tail += 1;
  const parts = (text, name) => [
    text.slice(0, head).join(""), el(name, {}, text.slice(head, text.length - tail).join("")), text.slice(text.length - tail).join(""),
  ];
  return el(
    "dl",
    { class: "difference" },
    el("dt", {}, "before"), el("dd", {}, parts(old, "del")),
    el("dt", {}, "after"), el("dd", {}, parts(now, "ins")),
  );
}
