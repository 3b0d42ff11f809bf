"""The applications of `bench rag_graph` as one request each: a graph of calls and steps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from string import Formatter
from typing import Any

import httpx2

from bench.micro import _rag_apps as apps
from bench.micro import _rag_programs
from bench.micro._rag_apps import App, Task
from bench.micro._rag_programs import STORE
from weftline.contract.protocol import (
    Call,
    InOut,
    Message,
    Placeholder,
    Segment,
    SubmitBody,
    to_wire,
)
from weftline.contract.sampling import Sampling
from weftline.contract.steps import (
    Body,
    Branch,
    Case,
    Each,
    Embed,
    FunctionStep,
    Ingest,
    Search,
    Source,
    Step,
)

FIXED = Sampling(temperature=0, max_tokens=apps.OUTPUT, ignore_eos=True)
PLANNED = Sampling(temperature=0, max_tokens=220, constraint=apps.PLANNED)
JUDGED = Sampling(temperature=0, max_tokens=8, constraint=apps.VERDICT)
Given = Mapping[str, "str | Placeholder"]


def ask(name: str, template: str, given: Given, sampling: Sampling = FIXED) -> Call:
    """A chat call whose one user message is the template with the given texts and variables."""
    content: list[Segment] = []
    for text, field, _, _ in Formatter().parse(template):
        content += [Segment(text=text)] if text else []
        if field is not None:
            value = given[field]
            content.append(
                Segment(text=value) if isinstance(value, str) else Segment(input=value.name)
            )
    out = Placeholder(name="said", in_out=InOut.OUT, semantic_var_id=name, sampling=sampling)
    holders = [one for one in given.values() if isinstance(one, Placeholder)]
    prompt = (
        Message(role="user", content=tuple(content)),
        Message(role="assistant", content=(Segment(output="said"),)),
    )
    return Call(name=name, prompt=prompt, placeholders=(*holders, out))


def read(name: str, variable: str, *transforms: dict[str, Any]) -> Placeholder:
    """An input of a call that comes from a variable."""
    return Placeholder(
        name=name, in_out=InOut.IN, semantic_var_id=variable, transforms=tuple(transforms)
    )


def submit(task: Task) -> SubmitBody:
    """The graph of a task; its answer is the variable `final`."""
    calls, steps = GRAPHS[task.app](task)
    return SubmitBody(calls=calls, steps=steps, get=("final",), close=True)


def body(task: Task) -> str:
    """The request of a task."""
    return json.dumps(to_wire(submit(task)))


Graph = tuple[tuple[Call, ...], tuple[Step, ...]]


def _indexed(task: Task) -> tuple[Step, Step]:
    about = {"of": str(task.number)}
    items = [{"text": text, "metadata": about} for text in task.chunks]
    return (
        Embed(in_=Source(value=items), out="vecs", name="chunks"),
        Ingest(in_=Source(var="vecs"), store=STORE, out="indexed", name="index"),
    )


def _search(task: Task, vectors: str, k: int) -> Search:
    about = {"of": str(task.number)}
    return Search(
        in_=Source(var=vectors), store=STORE, k=k, filter=about, after=("indexed",), out="hits"
    )


def search(task: Task) -> Graph:
    """A draft, a verdict on it, and an answer from what a search server found."""
    question = task.question
    web = FunctionStep(
        function="web", args={"question": Source(value=question)}, effects="none", out="found"
    )
    decided = Branch(
        on=Source(var="verdict"),
        cases=(Case(when={"op": "contains", "value": apps.NEEDS}, take="searched"),),
        default="draft",
        out="final",
    )
    found = read("found", "found", {"op": "texts"})
    calls = (
        ask("draft", apps.DRAFT, {"query_str": question}),
        ask(
            "verdict", apps.JUDGE, {"query_str": question, "draft": read("draft", "draft")}, JUDGED
        ),
        ask("searched", apps.ANSWER, {"context_str": found, "query_str": question}),
    )
    return calls, (web, decided)


def sub_questions(task: Task) -> Graph:
    """Each of the four questions is embedded, searched and answered when its text is complete."""
    answer: Given = {
        "context_str": read("context", "found", {"op": "texts"}),
        "query_str": read("part", "part"),
    }
    about = {"of": str(task.number)}
    find = Search(
        in_=Source(var="vector"), store=STORE, k=1, filter=about, after=("indexed",), out="found"
    )
    body = Body(
        calls=(ask("answer", apps.ANSWER, answer),),
        steps=(Embed(in_=Source(var="part"), out="vector"), find),
    )
    parts = Each(
        over=Source(var="plan", transforms=({"op": "json"},)),
        item="part",
        body=body,
        collect={"answer": "answers"},
        max_items=apps.PARTS,
    )
    pairs = [
        apps.PAIR.format(question=f"{{question{n}}}", answer=f"{{answer{n}}}")
        for n in range(apps.PARTS)
    ]
    template = apps.ANSWER.replace("{context_str}", "\n\n".join(pairs))
    given: dict[str, str | Placeholder] = {"query_str": task.question}
    for n in range(apps.PARTS):
        key = {"op": "path", "keys": [n]}
        given[f"question{n}"] = read(f"question{n}", "plan", {"op": "json"}, key)
        given[f"answer{n}"] = read(f"answer{n}", "answers", key, {"op": "strip"})
    plan = ask("plan", apps.PLAN, {"query_str": task.question}, PLANNED)
    return (plan, ask("final", template, given)), (*_indexed(task), parts)


GRAPHS = {
    App.SEARCH: search,
    App.SUB_QUESTIONS: sub_questions,
}


async def run(http: httpx2.AsyncClient, task: Task) -> str:
    """Send the graph, and wait for its answer. That of `advanced` is LlamaIndex's program's."""
    if task.app is App.ADVANCED:
        return await _rag_programs.advanced(str(http.base_url).rstrip("/"), task)
    response = await http.post("/v1/submit", content=body(task))
    if response.is_error:
        raise SystemExit(f"weftline bench rag_graph: {response.text[:400]}")
    said = response.json()["values"]["final"]
    return str(said["value"] if isinstance(said, dict) else said)
