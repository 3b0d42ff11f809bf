// Places the tasks of a session in columns: a task stands right of everything that it reads.

export const WIDTH = 168;
export const HEIGHT = 40;
const GAP_X = 56;
const GAP_Y = 14;
const MARGIN = 14;
// Tasks of one column that are drawn one by one. More tasks of one name become one box.
const MOST = 24;

// `tasks` are views by id, `edges` {from, to}. Returns boxes {id, tasks, x, y}, links, width and height.
export function layout(tasks, edges) {
  const ids = [...tasks.keys()];
  const column = columns(ids, edges);
  const { boxes, boxOf } = collapsed(ids, tasks, column);
  const links = linked(edges, boxOf);
  const byColumn = new Map();
  for (const box of boxes) {
    if (!byColumn.has(box.column)) byColumn.set(box.column, []);
    byColumn.get(box.column).push(box);
  }
  let tallest = 0;
  for (const at of [...byColumn.keys()].sort((a, b) => a - b)) {
    const boxesHere = byColumn.get(at);
    order(boxesHere, links, tasks);
    boxesHere.forEach((box, row) => {
      box.x = MARGIN + at * (WIDTH + GAP_X);
      box.y = MARGIN + row * (HEIGHT + GAP_Y);
    });
    tallest = Math.max(tallest, boxesHere.length);
  }
  const height = 2 * MARGIN + tallest * (HEIGHT + GAP_Y) - GAP_Y;
  for (const boxesHere of byColumn.values()) {
    const used = 2 * MARGIN + boxesHere.length * (HEIGHT + GAP_Y) - GAP_Y;
    for (const box of boxesHere) box.y += (height - used) / 2;
  }
  const width = 2 * MARGIN + byColumn.size * (WIDTH + GAP_X) - GAP_X;
  return { boxes, groups: grouped(byColumn, tasks), links, boxOf, width: Math.max(width, 0), height: Math.max(height, 0) };
}

// The column of each task: one more than the largest of the tasks that it reads from.
function columns(ids, edges) {
  const column = new Map(ids.map((id) => [id, 0]));
  const waits = new Map(ids.map((id) => [id, 0]));
  const below = new Map(ids.map((id) => [id, []]));
  for (const { from, to } of edges) {
    if (!column.has(from) || !column.has(to) || from === to) continue;
    below.get(from).push(to);
    waits.set(to, waits.get(to) + 1);
  }
  const ready = ids.filter((id) => waits.get(id) === 0);
  for (let id = ready.pop(); id !== undefined; id = ready.pop()) {
    for (const next of below.get(id)) {
      column.set(next, Math.max(column.get(next), column.get(id) + 1));
      waits.set(next, waits.get(next) - 1);
      if (waits.get(next) === 0) ready.push(next);
    }
  }
  return column;
}

function collapsed(ids, tasks, column) {
  const groups = new Map();
  const inColumn = new Map();
  for (const id of ids) inColumn.set(column.get(id), (inColumn.get(column.get(id)) ?? 0) + 1);
  for (const id of ids) {
    const at = column.get(id);
    const key = inColumn.get(at) > MOST ? `${at} ${tasks.get(id).name}` : id;
    if (!groups.has(key)) groups.set(key, { id: key, column: at, tasks: [] });
    groups.get(key).tasks.push(id);
  }
  const boxOf = new Map();
  for (const box of groups.values()) for (const id of box.tasks) boxOf.set(id, box);
  return { boxes: [...groups.values()], boxOf };
}

function linked(edges, boxOf) {
  const links = new Map();
  for (const { from, to } of edges) {
    const [source, target] = [boxOf.get(from), boxOf.get(to)];
    if (source && target && source !== target) links.set(`${source.id}\n${target.id}`, { source, target });
  }
  return [...links.values()];
}

const groupOf = (box, tasks) => tasks.get(box.tasks[0]).group ?? null;

// A frame for each task group: the boxes of one column that should end together.
function grouped(byColumn, tasks) {
  const found = [];
  for (const boxes of byColumn.values()) {
    for (let from = 0, to; from < boxes.length; from = to) {
      const name = groupOf(boxes[from], tasks);
      for (to = from + 1; to < boxes.length && name !== null && groupOf(boxes[to], tasks) === name; ) to += 1;
      if (to - from < 2) continue;
      const [top, bottom] = [boxes[from].y - 5, boxes[to - 1].y + HEIGHT + 5];
      found.push({ x: boxes[from].x - 5, y: top, width: WIDTH + 10, height: bottom - top, members: to - from });
    }
  }
  return found;
}

// Boxes stand at the mean height of the boxes that they read from, so that few lines cross. Those
// of one task group stand together, at the mean of all of them.
function order(boxes, links, tasks) {
  const mean = new Map();
  for (const box of boxes) {
    const above = links.filter((link) => link.target === box && link.source.y !== undefined);
    mean.set(box, above.length ? above.reduce((sum, link) => sum + link.source.y, 0) / above.length : 0);
  }
  const groups = new Map();
  for (const box of boxes) {
    const name = groupOf(box, tasks);
    if (name !== null) groups.set(name, [...(groups.get(name) ?? []), box]);
  }
  const place = new Map(mean);
  for (const members of groups.values()) {
    const middle = members.reduce((sum, box) => sum + mean.get(box), 0) / members.length;
    for (const box of members) place.set(box, middle);
  }
  const rank = new Map([...groups.values()].flatMap((members, at) => members.map((box) => [box, at + 1])));
  const before = new Map(boxes.map((box, at) => [box, at]));
  boxes.sort(
    (one, other) =>
      place.get(one) - place.get(other) ||
      (rank.get(one) ?? 0) - (rank.get(other) ?? 0) ||
      mean.get(one) - mean.get(other) ||
      before.get(one) - before.get(other),
  );
}
