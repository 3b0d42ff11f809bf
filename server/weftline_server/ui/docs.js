// The page /docs: every route of /openapi.json with its fields and answers, and a form that tries it.

import { key, setKey } from "./api.js";
import { el } from "./dom.js";

const MOST_CHARS = 20_000; // of an answer that is shown
const main = document.getElementById("main");
const status = document.getElementById("status");

const code = (value) =>
  el("pre", { class: "prompt", tabindex: 0 }, typeof value === "string" ? value : JSON.stringify(value, null, 2));

function kind(schema) {
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    return el("a", { href: `#type-${name}` }, name);
  }
  const several = schema.allOf ?? schema.anyOf ?? schema.oneOf;
  if (several) {
    const kinds = several.filter((one) => one.type !== "null").map(kind);
    return kinds.flatMap((one, at) => (at ? [" or ", one] : [one]));
  }
  if (schema.type === "array") return ["list of ", kind(schema.items ?? {})];
  return schema.const ?? schema.type ?? "any";
}

function table(heads, rows) {
  return el(
    "div",
    { class: "wide" },
    el(
      "table",
      {},
      el("thead", {}, el("tr", {}, heads.map((head) => el("th", {}, head)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell) => el("td", {}, cell))))),
    ),
  );
}

function fields(schema) {
  const rows = Object.entries(schema.properties ?? {}).map(([name, field]) => [
    el("code", {}, name, schema.required?.includes(name) ? " *" : ""),
    kind(field),
    field.description,
    el("code", {}, JSON.stringify(field.examples?.[0] ?? null)),
  ]);
  return rows.length ? table(["field (* required)", "type", "meaning", "example"], rows) : null;
}

function operation(method, path, told) {
  const body = told.requestBody?.content["application/json"];
  const [answer] = Object.values(told.responses["200"].content);
  return el(
    "details",
    { id: `${method}-${told.operationId}` },
    el("summary", {}, el("code", {}, `${method} ${path}`), ` ${told.summary ?? ""}`),
    el("p", {}, told.description),
    told.security ? null : el("p", { class: "soft" }, "It needs no key."),
    told.parameters ? table(["parameter", "in", "meaning"], told.parameters.map((one) => [one.name, one.in, one.description])) : null,
    body ? [el("h3", {}, "Request"), fields(body.schema)] : null,
    el("h3", {}, "Answer"),
    answer.example === undefined ? null : code(answer.example),
    table(["status", "meaning"], Object.entries(told.responses).map(([number, one]) => [number, one.description])),
    form(method, path, told.parameters ?? [], body?.example),
  );
}

function form(method, path, parameters, example) {
  const asked = parameters.filter((one) => one.in === "path");
  const inputs = asked.map((one) => el("input", { name: one.name, placeholder: one.name, "aria-label": one.name, required: "" }));
  const text = example === undefined ? null : el("textarea", { rows: 10, spellcheck: "false", "aria-label": "request body" }, JSON.stringify(example, null, 2));
  const shown = el("output", {});
  const made = el("form", { class: "try" }, inputs, text, el("button", {}, `Send ${method}`));
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    let target = path;
    for (const input of inputs) target = target.replace(`{${input.name}}`, encodeURIComponent(input.value));
    send(method, target, text?.value, shown).catch((error) => shown.replaceChildren(code(error.message)));
  });
  return [el("h3", {}, "Try it"), made, shown];
}

async function send(method, path, body, shown) {
  const headers = { ...(key() ? { Authorization: `Bearer ${key()}` } : {}) };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  shown.replaceChildren(code("…"));
  const response = await fetch(`..${path}`, { method, headers, body, cache: "no-store" });
  const text = await response.text();
  const cut = text.length > MOST_CHARS ? `${text.slice(0, MOST_CHARS)}…` : text;
  shown.replaceChildren(code(`${response.status}\n${cut}`));
}

function keyForm() {
  const input = el("input", { type: "password", "aria-label": "API key", placeholder: "API key", autocomplete: "off" });
  const made = el("form", {}, input, el("button", {}, "Use this key"));
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    setKey(input.value.trim());
    status.textContent = "The key is kept for this tab.";
  });
  return made;
}

async function draw() {
  const told = await (await fetch("../openapi.json")).json();
  const operations = Object.entries(told.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, one]) => operation(method.toUpperCase(), path, one)),
  );
  const types = Object.entries(told.components.schemas).sort(([a], [b]) => (a < b ? -1 : 1));
  const page = el(
    "div",
    {},
    el("p", {}, told.info.description),
    keyForm(),
    el("h2", {}, "Routes"),
    operations,
    el("h2", {}, "Types"),
    types.map(([name, schema]) => [
      el("h3", { id: `type-${name}` }, name),
      el("p", { class: "text" }, schema.description ?? ""),
      schema.enum ? el("p", {}, `One of ${schema.enum.join(", ")}.`) : null,
      fields(schema),
    ]),
  );
  main.replaceChildren(page);
}

draw().catch((error) => {
  status.textContent = `The description cannot be read: ${error.message}`;
});
