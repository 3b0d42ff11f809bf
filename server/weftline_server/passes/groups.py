"""Task groups (Parrot section 5.2): tasks that feed one consumer, and so should finish together."""

from __future__ import annotations

from weftline_server.graph.graph import Graph
from weftline_server.passes.plan import MOST_EDGES, Changed, Findings, Plan


def groups(graph: Graph, plan: Plan, changed: Changed) -> Findings:
    """Tasks of equal depth under one consumer are a group; a lone producer is in no group. A list
    longer than MOST_EDGES goes through an engine in many batches, so its producers are no group. A
    task with several consumers belongs to the group of the first consumer that makes one.
    """
    found: dict[str, str] = {}
    for task in dict.fromkeys([graph.primitives[id].task for id in changed]):
        first, *more = graph.tasks[task].primitives
        waits = graph.primitives[first.id]
        if not more and len(waits.reads) + len(waits.after) < 2:
            continue  # most tasks wait for one other at most
        if any(len(graph.primitives[one.id].reads) > MOST_EDGES for one in (first, *more)):
            continue
        above = graph.tasks_above(task)
        if len(above) < 2:
            continue
        depths: dict[int, list[str]] = {}
        for one in above:
            of_task = plan.depth.get(graph.tasks[one].primitives[0].id, 0)
            depths.setdefault(of_task, []).append(one)
        for level, tasks in depths.items():
            if len(tasks) < 2:
                continue
            group = f"{task}@{level}"
            for member in tasks:
                for primitive in graph.tasks[member].primitives:
                    found.setdefault(primitive.id, group)
    return Findings(group=found)
