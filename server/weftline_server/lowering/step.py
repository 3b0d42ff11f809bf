"""Lowers a step to a primitive, and converts between the session's values and an engine's.

An engine gets plain inputs: texts, vectors, a query. The session's values also carry the items that
the texts came from, so that hits and reranked items keep their ids and metadata.
"""

from __future__ import annotations

import base64
import uuid
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weftline import transforms
from weftline.errors import InvalidRequest
from weftline.steps import (
    Branch,
    ClientStep,
    Delete,
    Each,
    Embed,
    Fetch,
    FunctionStep,
    Ingest,
    Loop,
    Mean,
    Merge,
    Rerank,
    Search,
    Step,
    Text,
)
from weftline_server.graph.primitive import Effects, Flow, ItemFlow, Primitive, Read, Specs, Task
from weftline_server.lowering.control import Control, lower_control
from weftline_server.session.budget import value_bytes

CHARS_PER_TOKEN = 4  # a guess that needs no tokenizer
GUESSED_WORK = 64  # tokens of a step whose inputs are not known yet
MAX_ITEMS = 100_000  # of one step
MAX_MEAN = 256  # vectors of one mean
FLOAT_BYTES = 4
EFFECTS = {"ingest": Effects.IDEMPOTENT, "delete": Effects.IDEMPOTENT}
WRITES_STORE = frozenset({"ingest", "delete"})
TAKES_ITEMS = frozenset({"each", "embed", "search", "merge", "rerank"})
# The client or the server computes these kinds.
NO_ENGINE = frozenset({"branch", "client", "each", "loop", "mean", "merge", "text"})


@dataclass(frozen=True, slots=True)
class StepBody:
    """The step that a primitive runs."""

    step: Step

    def boundaries(self) -> tuple[str, ...]:
        return ()

    def streams_out(self, variable: str) -> bool:
        return False

    def streams_in(self, variable: str) -> bool:
        return False

    def joins(self, variable: str) -> Specs | None:
        return None


def lower_step(step: Step, resource: str, id: str | None = None, batch: int | None = None) -> Task:
    """The task of a step that `resource` runs: a model, a store, or "" for the server itself.

    `batch` is the engine's efficient number of items; None if it takes whole lists only.

    Raises InvalidRequest for a transform or a constant that does not fit.
    """
    id = id or f"s_{uuid.uuid4().hex[:12]}"
    if isinstance(step, Control):
        return lower_control(step, id, lower_step)
    sources = step.sources
    constants = {name: one.value for name, one in sources.items() if one.var is None}
    for name, source in sources.items():
        for spec in source.transforms:
            transforms.read(spec)  # its pattern was compiled before, in a process of its own
        if source.var is None and source.transforms:
            raise InvalidRequest("transforms go with a variable, not with a value", param=name)
    size = sum(map(value_bytes, constants.values()))
    if sources and len(constants) == len(sources):
        engine_inputs(step, constants)  # what can be checked is checked before anything runs
    variables = step.variables
    reads = tuple(dict.fromkeys((*variables, *step.after)))
    primitive = Primitive(
        id=f"{id}/0",
        task=id,
        kind=step.kind,
        resource=resource,
        reads=tuple(
            Read(variable, Flow.WHOLE if variable in variables else Flow.ORDER)
            for variable in reads
        ),
        writes=(step.out or f"{id}.out",),
        effects=_effects(step),
        work=size // CHARS_PER_TOKEN + (GUESSED_WORK if variables else 1),
        body=StepBody(step),
        items=_item_flow(step, batch),
    )
    return Task(
        id=id,
        name=step.name or step.kind,
        resource=resource,
        primitives=(primitive,),
        reads=reads,
        constant_bytes=size,
    )


def _effects(step: Step) -> Effects:
    """What a repetition would do: a client says it of its own steps."""
    if isinstance(step, ClientStep | FunctionStep):
        return Effects(step.effects)
    return EFFECTS.get(step.kind, Effects.NONE)


def _item_flow(step: Step, batch: int | None) -> ItemFlow | None:
    """How items pass through a step whose results for them do not depend on each other."""
    if step.kind in NO_ENGINE:
        batch = 0
    if not isinstance(step, (Embed, Search, Merge, Rerank)) or batch is None:
        return None
    others = {one.var for name, one in step.sources.items() if name != "in"}
    source = step.in_
    takes = source.var is not None and source.var not in {*others, *step.after}
    return ItemFlow(
        takes=source.var or "" if takes else "",
        through=source.transforms,
        # The order of reranked items, and what a limit leaves out, is known at the end only.
        gives=not isinstance(step, Rerank) and getattr(step, "limit", None) is None,
        count=len(source.value) if isinstance(source.value, list) else 0,
        batch=batch,
        ordered=isinstance(step, Search),  # merged documents are sorted at the end
    )


def step_of(task: Task) -> Step | None:
    """The step that a task was lowered from; None for a call."""
    body = task.primitives[0].body
    return body.step if isinstance(body, StepBody) else None


def lease_of(primitive: Primitive) -> float:
    """The seconds for which the step waits for a client that has left."""
    assert isinstance(primitive.body, StepBody) and isinstance(primitive.body.step, ClientStep)
    return primitive.body.step.lease_s


def read_values(step: Step, values: Mapping[str, object]) -> dict[str, Any]:
    """What the step reads, by field: constants, or variables' values after their transforms.

    Raises TransformFailed for a value that does not suit its transforms.
    """
    return {
        name: source.value
        if source.var is None
        else transforms.run(source.transforms, values[source.var])
        for name, source in step.sources.items()
    }


def engine_inputs(step: Step, given: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of the op, from what `read_values` gave. Raises InvalidRequest if they do not fit.

    The driver adds the tenant of those that work on a store.
    """
    match step:
        case Embed():
            return {"texts": [item["text"] for item in items_of(step, given["in"])]}
        case Ingest():
            return _ingested(step, given)
        case Search():
            embedded = embedded_of(step, given["in"])
            vectors = {name: embedded[name] for name in ("vectors", "dimensions")}
            return {**vectors, "k": step.k, "filter": step.filter}
        case Rerank():
            query = given["query"]
            if not isinstance(query, str):
                raise InvalidRequest(f"{_named(step)} takes a query that is text", param="query")
            return {"query": query, "texts": [i["text"] for i in items_of(step, given["in"])]}
        case Delete() | Fetch():
            ids = given["in"]
            if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
                raise InvalidRequest(f"{_named(step)} takes a list of ids", param="in")
            return {"ids": ids, "filter": step.filter}
        case Merge() | Text() | Mean():
            _check(step, given)
            return {}
        case FunctionStep():
            return {"arguments": dict(given)}
        case ClientStep() | Branch() | Each() | Loop():
            return {}  # no engine gets them


def _check(step: Merge | Text | Mean, given: Mapping[str, Any]) -> None:
    """Raise InvalidRequest if what the step read does not fit."""
    match step:
        case Merge():
            hits_of(step, given["in"])
        case Text():
            joined(step, given)
        case Mean():
            rows_of(step, given)


def _ingested(step: Ingest, given: Mapping[str, Any]) -> dict[str, Any]:
    """Vectors, and the items that are stored with them."""
    embedded = embedded_of(step, given["in"])
    found = {name: embedded[name] for name in ("items", "vectors", "dimensions")}
    if "items" in given:
        found["items"] = items_of(step, given["items"])
        if len(found["items"]) != len(embedded["items"]):
            raise InvalidRequest(
                f"{_named(step)} has {len(found['items'])} items for {len(embedded['items'])} "
                "vectors: give one for each",
                param="items",
            )
    return found


def result_of(step: Step, given: Mapping[str, Any], result: Any) -> object:
    """The value of the step, from what it read and what the engine answered."""
    match step:
        case Embed():
            items = items_of(step, given["in"])
            return {"items": items, "single": isinstance(given["in"], str), **result}
        case Search():
            hits = result["hits"]
            return hits[0] if embedded_of(step, given["in"]).get("single") and hits else hits
        case Rerank():
            items = items_of(step, given["in"])
            scored = zip(result["scores"], range(len(items)), strict=True)
            best = sorted(scored, key=lambda one: (-one[0], one[1]))[: step.k]
            return [{**items[at], "score": score} for score, at in best]
        case Merge():
            return merged(step, hits_of(step, given["in"]))
        case Text():
            return joined(step, given)
        case Mean():
            return mean_of(step, given)
        case Fetch():
            return result["items"]
        case Ingest() | Delete() | ClientStep() | FunctionStep() | Branch() | Each() | Loop():
            return result


def items_of(step: Step, value: object) -> list[dict[str, Any]]:
    """The items of a text or of a list of texts or items. Raises InvalidRequest."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or len(listed) > MAX_ITEMS:
        raise InvalidRequest(
            f"{_named(step)} takes a text, or a list of at most {MAX_ITEMS:,} texts or items",
            param="in",
        )
    return [_item(step, one) for one in listed]


def _item(step: Step, value: object) -> dict[str, Any]:
    item = {"text": value} if isinstance(value, str) else value
    if not isinstance(item, dict) or not isinstance(item.get("text"), str):
        raise InvalidRequest(
            f"{_named(step)} takes texts, or objects with a 'text', not {str(value)[:60]!r}",
            param="in",
        )
    return item


def embedded_of(step: Step, value: object) -> Mapping[str, Any]:
    """The value of an embed step. Raises InvalidRequest for any other value."""
    if not isinstance(value, dict) or not {"items", "vectors", "dimensions"} <= value.keys():
        raise InvalidRequest(
            f"{_named(step)} takes embedded texts: read the output of an embed step", param="in"
        )
    return value


def hits_of(step: Step, value: object) -> list[dict[str, Any]]:
    """The hits of one list, or of lists of hits. Raises InvalidRequest for any other value."""
    if not isinstance(value, list):
        raise InvalidRequest(f"{_named(step)} takes lists of hits", param="in")
    flat: Iterator[object] = (
        hit for one in value for hit in (one if isinstance(one, list) else [one])
    )
    return [_item(step, hit) for hit in flat]


def merged(step: Merge, hits: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Each document once, with its best score; the best first, ties in the order of arrival."""
    best: dict[Any, Mapping[str, Any]] = {}
    for hit in hits:
        key = hit.get(step.by, hit["text"])
        if key not in best or hit.get("score", 0.0) > best[key].get("score", 0.0):
            best[key] = hit
    ranked = sorted(best.values(), key=lambda hit: -hit.get("score", 0.0))
    return ranked[: step.limit]


def joined(step: Text, given: Mapping[str, Any]) -> str:
    """The text of the parts. Raises InvalidRequest for a part that is no text."""
    for number in range(len(step.parts)):
        if not isinstance(part := given[str(number)], str):
            raise InvalidRequest(
                f"{_named(step)} takes parts that are text, and part {number} is a "
                f"{type(part).__name__}",
                param="parts",
            )
    return "".join(given[str(number)] for number in range(len(step.parts)))


def mean_of(step: Mean, given: Mapping[str, Any]) -> dict[str, Any]:
    """The mean of all vectors of the parts, with the first item. Raises InvalidRequest."""
    rows = rows_of(step, given)
    numbers = array("f", (sum(column) / len(rows) for column in zip(*rows, strict=True)))
    return {
        "items": given["0"]["items"][:1],
        "vectors": base64.b64encode(numbers.tobytes()).decode(),
        "dimensions": len(numbers),
        "single": True,
    }


def rows_of(step: Mean, given: Mapping[str, Any]) -> list[array[float]]:
    """The vectors of the parts. Raises InvalidRequest if they have no mean."""
    parts = [embedded_of(step, given[str(number)]) for number in range(len(step.parts))]
    width, texts = parts[0]["dimensions"], [part["vectors"] for part in parts]
    try:
        if not (isinstance(width, int) and all(part["dimensions"] == width for part in parts)):
            raise ValueError
        size = FLOAT_BYTES * width
        if size <= 0 or sum(map(len, texts)) > 2 * MAX_MEAN * size:
            raise ValueError
        raw = b"".join(base64.b64decode(text, validate=True) for text in texts)
        if not 0 < len(raw) <= MAX_MEAN * size or len(raw) % size:
            raise ValueError
    except (TypeError, ValueError):
        raise InvalidRequest(
            f"{_named(step)} takes 1 to {MAX_MEAN} vectors, all of one width", param="parts"
        ) from None
    return [array("f", raw[at : at + size]) for at in range(0, len(raw), size)]


def _named(step: Step) -> str:
    return f"{step.kind} {step.name!r}" if step.name else step.kind
