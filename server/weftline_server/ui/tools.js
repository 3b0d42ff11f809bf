// The tools that a client runs between two calls, as steps of the graph.

export const asTask = (tool) => ({
  step_id: tool.tool_id, kind: "tool", name: tool.name, resource: "the client", engine: null, state: tool.state,
  inputs: [], outputs: [], error: null,
  submitted_s: tool.began_s, queued_s: tool.began_s, started_s: tool.began_s, finished_s: tool.ended_s, ended_s: tool.ended_s,
});

// The edges between tasks, where those between two turns go through the tools that join them. A turn's prompt has all
// turns before it: of these only the last is shown.
export function withTools(edges, tools) {
  const asks = new Set(tools.map((tool) => tool.asked_by));
  const reads = new Set(tools.map((tool) => tool.read_by));
  const found = edges.filter(({ from, to }) => !(asks.has(from) && reads.has(to)));
  for (const tool of tools) {
    found.push({ from: tool.asked_by, to: tool.tool_id });
    if (tool.read_by) found.push({ from: tool.tool_id, to: tool.read_by });
  }
  return found;
}
