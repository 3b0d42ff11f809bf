"""Measures the passes over the graph: CPU milliseconds of each on a graph of 300 primitives.

    python -m bench.micro.passes [--primitives 300] [--repeat 15]

The graph is that of RAG applications in one session: a call writes queries, which are embedded,
searched, merged, reranked and answered. Each pass runs alone on the graph that those before it have
left, as it does when all steps come in one submit. The design's bound is 5 ms for each.
"""

from __future__ import annotations

import argparse
import statistics
import time

from weftline.protocol import Call, InOut, Placeholder, Segment
from weftline.steps import Embed, Merge, Rerank, Search, Source
from weftline_server import passes
from weftline_server.graph.addition import Addition
from weftline_server.graph.graph import Graph
from weftline_server.graph.primitive import Task
from weftline_server.lowering.call import task_of
from weftline_server.lowering.step import lower_step
from weftline_server.passes.plan import Plan

BOUND_MS = 5.0
STEPS = 6  # of one application


def application(number: int) -> list[Task]:
    """A call that writes queries, four steps, and a call that reads the best documents."""

    def var(name: str, *transforms: dict[str, str]) -> Source:
        return Source(var=f"{name}{number}", transforms=transforms)

    def named(name: str) -> str:
        return f"{name}{number}"

    def call(name: str, *reads: str) -> Task:
        """A call that reads these variables, as a task."""
        out = Placeholder(name="out", in_out=InOut.OUT, semantic_var_id=named(name))
        ins = [
            Placeholder(name=v, in_out=InOut.IN, semantic_var_id=named(v), transforms=TEXTS)
            for v in reads
        ]
        prompt = (Segment(text="Do: "), *(Segment(input=v) for v in reads), Segment(output="out"))
        made = Call(name=named(name), prompt=prompt, placeholders=(out, *ins))
        return task_of(named(name), made)

    query = Source(value="What does the shuttle carry?")
    steps = (
        (Embed(in_=var("queries", {"op": "line_list"}), out=named("vecs")), "minilm"),
        (Search(in_=var("vecs"), out=named("hits"), store="docs", k=16), "docs"),
        (Merge(in_=var("hits"), out=named("pool")), ""),
        (Rerank(in_=var("pool"), query=query, out=named("top"), k=3), "minilm"),
    )
    lowered = [lower_step(step, resource, batch=8) for step, resource in steps]
    return [call("queries"), *lowered, call("answer", "top")]


TEXTS = ({"op": "texts"},)


def measured(primitives: int, repeat: int) -> dict[str, list[float]]:
    """Milliseconds of each pass, and of all with their checks, in `repeat` new graphs."""
    found: dict[str, list[float]] = {}
    for _ in range(repeat):
        tasks = [task for n in range(primitives // STEPS) for task in application(n)]
        graph, plan = Graph(), Plan({})
        graph.check(Addition.of(tasks))
        graph.add(Addition.of(tasks))
        changed = {id: graph.downstream(id) for id in reversed(graph.topological())}
        for name, run in passes.PASSES.items():
            began = time.thread_time()
            passes.apply(graph, plan, run(graph, plan, changed))
            found.setdefault(name, []).append((time.thread_time() - began) * 1000)
        graph, plan = Graph(), Plan({})
        graph.add(Addition.of(tasks))
        began = time.thread_time()
        passes.analyse(graph, plan, graph.primitives)
        found.setdefault("all", []).append((time.thread_time() - began) * 1000)
    return found


def main() -> None:
    """Print a line for each pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--primitives", type=int, default=300, help="of the graph")
    parser.add_argument("--repeat", type=int, default=15, help="graphs")
    args = parser.parse_args()
    for name, times in measured(args.primitives, args.repeat).items():
        low, middle, high = statistics.quantiles(times, n=4)
        bound = "" if name == "all" else f", bound {BOUND_MS:g}"
        print(f"{name:10} {middle:7.2f} ms ({low:.2f} to {high:.2f}){bound}")


if __name__ == "__main__":
    main()
