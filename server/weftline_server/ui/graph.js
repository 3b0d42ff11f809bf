// Draws a session's graph: a box for each call or step, a line for each value that travels.

import { el, pressed, seconds, shortened, svg } from "./dom.js";
import { HEIGHT, WIDTH, layout } from "./layout.js";
import { factor } from "./zoom.js";

const SIGNS = { later: " ", waiting: "○", queued: "◔", running: "◑", done: "●", failed: "✕", cancelled: "⊘", skipped: "–" };

// `matched` has the ids of the tasks that the filter lets through; null is no filter. The graph is drawn
// in a view of `room` pixels, and tells `session.zoomBar` how large it became.
export function drawGraph(session, matched, selected, select, room) {
  const { boxes, groups, links, width, height } = layout(session.tasks, session.edges);
  const critical = new Set(session.critical?.tasks ?? []);
  const onPath = (box) => box.tasks.some((id) => critical.has(id));
  const zoom = factor(session.zoom, width, room);
  session.zoomBar.shown(zoom);
  const picture = svg("svg", {
    width: width * zoom, height: height * zoom, viewBox: `0 0 ${width} ${height}`,
    role: "group", "aria-label": "graph of the session",
  });
  for (const { members, ...frame } of groups) {
    const label = `task group of ${members}: they should end together`;
    picture.append(svg("rect", { class: "group", rx: 8, role: "img", "aria-label": label, ...frame }, svg("title", {}, label)));
  }
  for (const { source, target } of links) {
    const [x1, y1, x2, y2] = [source.x + WIDTH, source.y + HEIGHT / 2, target.x, target.y + HEIGHT / 2];
    const bend = (x2 - x1) / 2;
    picture.append(
      svg("path", {
        class: `edge${onPath(source) && onPath(target) ? " critical" : ""}`,
        d: `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`,
      }),
    );
  }
  for (const box of boxes) picture.append(drawn(box, session, onPath(box), matched, selected, select));
  const view = el("div", { class: "scroll", id: "graph" }, picture);
  session.zoomBar.listen(view);
  return view;
}

function drawn(box, session, critical, matched, selected, select) {
  const tasks = box.tasks.map((id) => session.tasks.get(id));
  const state = stateOf(tasks);
  const many = tasks.length > 1;
  const name = many ? `${tasks[0].name} × ${tasks.length.toLocaleString("en")}` : tasks[0].name;
  const note = many
    ? `${tasks.filter((task) => task.state === "done").length.toLocaleString("en")} done`
    : noteOf(tasks[0]);
  const out = matched && !box.tasks.some((id) => matched.has(id));
  const classes = [
    "node", state, critical ? "critical" : "", box.tasks.includes(selected) ? "selected" : "", out ? "out" : "",
    tasks[0].kind ? "step" : "",
  ];
  return svg(
    "g",
    {
      class: classes.filter(Boolean).join(" "),
      transform: `translate(${box.x},${box.y})`,
      "data-task": box.tasks[0],
      "aria-label": `${name}, ${state}, ${note}${critical ? ", on the critical path" : ""}${out ? ", filtered out" : ""}`,
      ...pressed(() => select(box.tasks[0])),
    },
    svg("rect", { width: WIDTH, height: HEIGHT, rx: tasks[0].kind ? 18 : 6 }),
    svg("text", { x: 10, y: 17 }, `${SIGNS[state] ?? "?"} ${shortened(name, 21)}`),
    svg("text", { x: 10, y: 33, class: "soft" }, shortened(note, 26)),
  );
}

function stateOf(tasks) {
  for (const state of ["failed", "running", "queued", "waiting", "later", "cancelled", "done"]) {
    if (tasks.some((task) => task.state === state)) return state;
  }
  return tasks[0].state;
}

function noteOf(task) {
  if (task.state === "later") return "not submitted yet";
  if (task.kind) {
    const took = task.state === "done" && task.queued_s !== null ? seconds(task.finished_s - task.queued_s) : task.state;
    return task.kind === task.name ? took : `${task.kind}, ${took}`;
  }
  if (task.state !== "done") return task.state;
  return `${seconds(task.fill_s + task.generate_s)}, ${task.output_tokens} tokens`;
}
