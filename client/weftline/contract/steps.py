"""The steps of a graph beside calls, such as embed and search, as frozen dataclasses.

A step reads variables and writes one. "Texts" means one text, or a list of texts or items. An item
is an object with a `text`, and may have an `id` and `metadata`. "Embedded texts" is one value: the
items with their vectors. A search reads that value and returns hits, which are items with a
`score`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from weftline.contract import predicates
from weftline.contract.bodies import JsonBody, StrictBody
from weftline.contract.calls import Call, InOut, Message
from weftline.contract.errors import InvalidRequest
from weftline.contract.ids import check_id
from weftline.contract.lease import check_lease
from weftline.contract.tools import ClientTool, ServedTool

MAX_K = 1000  # hits of a search, and items that a rerank keeps
MAX_CUT = 1 << 30  # tokens
MAX_NAME = 128  # characters
MAX_CASES = 64
MAX_PARTS = 256  # of a text or a mean
MAX_ITEMS = 10_000  # of an `each`; a submit may have as many calls
MAX_ROUNDS = 1000
MAX_TURNS = 16  # of an agent, so that a model that calls tools for ever ends
MAX_NESTED = 4  # levels of bodies in bodies


def _in_json(name: str) -> str:
    """A field's name in JSON. Python reserves the word `in`, so its field is called `in_`."""
    return name.rstrip("_")


class StepObject(JsonBody):
    """An object of a step, whose unknown fields are refused. A reserved word is a field's name."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {
        **StrictBody.__pydantic_config__,
        "alias_generator": _in_json,
        "validate_by_name": False,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(StepObject):
    """What a step reads: a variable, whose value goes through `transforms`, or a constant value."""

    var: str | None = None
    value: Any = None
    transforms: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if (self.var is None) == (self.value is None):
            raise InvalidRequest("a step reads exactly one of 'var' and 'value'", param="in")
        if self.var is not None:
            check_id(self.var, "var")


def check_cut(tokens: int) -> None:
    """Raise InvalidRequest unless texts can be cut to so many tokens, or to the model's (-1)."""
    if tokens != -1 and not 1 <= tokens <= MAX_CUT:
        raise InvalidRequest(
            f"truncate_prompt_tokens must be -1, for what the model takes, or 1 to {MAX_CUT}",
            param="truncate_prompt_tokens",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBase(StepObject):
    """The fields of every step.

    `out` is the variable that the step writes. Without it the server makes one. The step also waits
    for the variables of `after`, but does not read them.
    """

    name: str = ""
    out: str | None = None
    after: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.name) > MAX_NAME or not (self.name.isprintable() or not self.name):
            raise InvalidRequest("a step's name has up to 128 printable characters", param="name")
        for variable in (*self.after, *(() if self.out is None else (self.out,))):
            check_id(variable, "out" if variable == self.out else "after")
        for name in ("k", "limit"):
            count = getattr(self, name, None)
            if count is not None and not 1 <= count <= MAX_K:
                raise InvalidRequest(f"{name} must be between 1 and {MAX_K}", param=name)
        if (cut := getattr(self, "truncate_prompt_tokens", None)) is not None:
            check_cut(cut)

    @property
    def sources(self) -> Mapping[str, Source]:
        """What it reads, by the field's name in JSON."""
        return {}

    @property
    def outputs(self) -> tuple[str, ...]:
        """The variables that the client has named for what it writes."""
        return () if self.out is None else (self.out,)

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that the step reads, without those of `after`."""
        return tuple(one.var for one in self.sources.values() if one.var is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(StepBase):
    """A step with one main input, `in`."""

    in_: Source

    @property
    def sources(self) -> Mapping[str, Source]:
        """What it reads, by the field's name in JSON."""
        return {"in": self.in_}


@dataclass(frozen=True, slots=True, kw_only=True)
class Embed(Reading):
    """Embeds texts with the embedder `engine`. None means the first one.

    A text that is longer than the model takes fails the step, or is cut to
    `truncate_prompt_tokens`. -1 cuts it to what the model takes.
    """

    kind: Literal["embed"] = field(default_factory=lambda: "embed")
    engine: str | None = None
    truncate_prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest(Reading):
    """Adds embedded texts to `store`, or replaces those with equal ids.

    An ingest may run again, because a second run has no further effect. With `items` an ingest
    stores these items with the vectors, one for each, in place of the texts that were embedded.

    An item without an id gets the hash of its content. The value is {"ids": [...], "count": n}.
    """

    store: str
    items: Source | None = None
    kind: Literal["ingest"] = field(default_factory=lambda: "ingest")

    @property
    def sources(self) -> Mapping[str, Source]:
        """What it reads: the vectors, and the items if they are others."""
        return {"in": self.in_} if self.items is None else {"in": self.in_, "items": self.items}


@dataclass(frozen=True, slots=True, kw_only=True)
class Search(Reading):
    """Finds the `k` documents of `store` that are nearest to an embedded text, best first.

    The value is a list of hits. If a list of texts was embedded, it is one such list for each text.
    `filter` has metadata that a document must have.
    """

    store: str
    kind: Literal["search"] = field(default_factory=lambda: "search")
    k: int = 4
    filter: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge(Reading):
    """Merges lists of hits into one list that has each document once, with its best score.

    Two hits are the same document if they have equal ids, or with `by` "text" equal texts. At most
    `limit` hits are kept. The best hit comes first. With `rank` "order" the hits stay in the order
    of the lists. With "reciprocal" a document's score is the sum of 1 / (60 + its place in each
    list), where the first place is 0.
    """

    kind: Literal["merge"] = field(default_factory=lambda: "merge")
    by: Literal["id", "text"] = "id"
    limit: int | None = None
    rank: Literal["score", "order", "reciprocal"] = "score"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerank(Reading):
    """Keeps the `k` hits or texts that the reranker `engine` scores best for `query`.

    A text that is too long fails the step, or is cut as in an Embed.
    """

    query: Source
    kind: Literal["rerank"] = field(default_factory=lambda: "rerank")
    engine: str | None = None
    k: int | None = None  # None keeps all
    truncate_prompt_tokens: int | None = None

    @property
    def sources(self) -> Mapping[str, Source]:
        """What it reads: the texts and the query."""
        return {"in": self.in_, "query": self.query}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts(StepBase):
    """A step that makes one value of several."""

    parts: tuple[Source, ...]

    def __post_init__(self) -> None:
        StepBase.__post_init__(self)  # super() fails here: slots=True makes a new class
        if not 0 < len(self.parts) <= MAX_PARTS:
            kind = getattr(self, "kind", "step")
            raise InvalidRequest(f"a {kind} has 1 to {MAX_PARTS} parts", param="parts")

    @property
    def sources(self) -> Mapping[str, Source]:
        """The step's parts, by their numbers."""
        return {str(number): part for number, part in enumerate(self.parts)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Text(Parts):
    """Writes one text: its `parts`, one after the other. Each part is a text."""

    kind: Literal["text"] = field(default_factory=lambda: "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean(Parts):
    """The mean of the vectors of its `parts`, which are embedded texts: one vector to search with.

    Together the parts have at most 256 vectors, all of one width. The value is an embedded text: a
    search for it gives one list of hits.
    """

    kind: Literal["mean"] = field(default_factory=lambda: "mean")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete(Reading):
    """Deletes documents of `store` by their ids. The value is {"count": n}.

    With a `filter` it also deletes the documents whose metadata matches the filter.
    """

    store: str
    kind: Literal["delete"] = field(default_factory=lambda: "delete")
    filter: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch(Reading):
    """Reads the documents of `store` with the given ids, in that order. Unknown ids are left out.

    With a `filter` the documents whose metadata matches follow, in the order of their ids.
    """

    store: str
    kind: Literal["fetch"] = field(default_factory=lambda: "fetch")
    filter: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStep(StepBase):
    """A step that the client computes. It reads the variables `reads` and sets `out`.

    `effects` says what running it twice would do. The step fails when it could run and the client
    has had no request open for `lease_s` seconds.
    """

    kind: Literal["client"] = field(default_factory=lambda: "client")
    reads: tuple[str, ...] = ()
    effects: Literal["none", "idempotent", "once"] = "none"
    lease_s: float = 60.0

    def __post_init__(self) -> None:
        StepBase.__post_init__(self)  # super() fails here: slots=True makes a new class
        for variable in self.reads:
            check_id(variable, "reads")
        check_lease(self.lease_s, "lease_s")

    @property
    def variables(self) -> tuple[str, ...]:
        return self.reads


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionStep(StepBase):
    """Calls a function that the server's operator has configured. Its arguments are by name.

    `effects` says what running it twice would do. A step with `once` is not tried again.
    """

    function: str
    args: dict[str, Source] = field(default_factory=dict, hash=False)
    effects: Literal["none", "idempotent", "once"] = "once"
    kind: Literal["function"] = field(default_factory=lambda: "function")

    def __post_init__(self) -> None:
        StepBase.__post_init__(self)
        for name in self.args:
            if not name.isidentifier() or len(name) > MAX_NAME:
                raise InvalidRequest(f"{name[:40]!r} is not a parameter's name", param="args")

    @property
    def sources(self) -> Mapping[str, Source]:
        """The function's arguments."""
        return self.args


class _Steps:
    """Tells pydantic the type of a body's steps, which is defined below."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return handler.generate_schema(tuple[Step, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class Body(StepObject):
    """Calls and steps that run once for each item of a list, or in each round of a loop.

    The calls and steps of a body read variables of the body, and any other variable of the session.
    """

    calls: tuple[Call, ...] = ()
    steps: Annotated[tuple[Any, ...], _Steps()] = ()

    def __post_init__(self) -> None:
        if not self.calls and not self.steps:
            raise InvalidRequest("a body has a call or a step", param="body")
        if any(_needs_its_client(step) for step in self.steps):
            raise InvalidRequest(
                "a client step, or an agent with client_tools, cannot stand in a body: put it "
                "before or behind",
                param="body",
            )
        if self.depth > MAX_NESTED:
            raise InvalidRequest(f"bodies nest at most {MAX_NESTED} deep", param="body")

    @property
    def depth(self) -> int:
        """1, and one more for each body in a body."""
        inner = [step.body.depth for step in self.steps if isinstance(step, Each | Loop)]
        return 1 + max(inner, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case(StepObject):
    """One way of a branch: when the predicate holds, the branch has the value of `take`."""

    when: dict[str, Any]
    take: str

    def __post_init__(self) -> None:
        predicates.read(self.when)
        check_id(self.take, "take")


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch(StepBase):
    """Takes the value of the first case whose predicate holds for `on`, or that of `default`.

    The calls and steps that only the other cases need are skipped, or stopped if they are running.
    """

    on: Source
    cases: tuple[Case, ...]
    default: str
    kind: Literal["branch"] = field(default_factory=lambda: "branch")

    def __post_init__(self) -> None:
        StepBase.__post_init__(self)
        check_id(self.default, "default")
        if not 0 < len(self.cases) <= MAX_CASES:
            raise InvalidRequest(f"a branch has 1 to {MAX_CASES} cases", param="cases")

    @property
    def sources(self) -> Mapping[str, Source]:
        """The value that the predicates are applied to."""
        return {"on": self.on}

    @property
    def sides(self) -> tuple[str, ...]:
        """The variables of its cases, each once."""
        return tuple(dict.fromkeys((*(case.take for case in self.cases), self.default)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Each(StepBase):
    """Runs the body for each item of the list `over`, all of them at the same time.

    The body reads its item as the variable `item`. `collect` maps variables of the body to new
    variables, whose values are the lists of the items' values in the order of the items. `on_error`
    says what happens when an item fails: "fail" fails the step, "skip" leaves the item out, and
    "value" puts `otherwise` in its place.
    """

    over: Source
    body: Body
    collect: dict[str, str] = field(hash=False)
    item: str = "item"
    max_items: int = 32
    on_error: Literal["fail", "skip", "value"] = "fail"
    otherwise: Any = None
    kind: Literal["each"] = field(default_factory=lambda: "each")

    def __post_init__(self) -> None:
        StepBase.__post_init__(self)
        if self.out is not None:
            raise InvalidRequest("each writes the variables of 'collect', not 'out'", param="out")
        check_id(self.item, "item")
        if not self.collect:
            raise InvalidRequest("each collects at least one variable of its body", param="collect")
        for name in (*self.collect, *self.collect.values()):
            check_id(name, "collect")
        if not 1 <= self.max_items <= MAX_ITEMS:
            raise InvalidRequest(f"max_items must be in 1 to {MAX_ITEMS:,}", param="max_items")
        if (self.otherwise is None) == (self.on_error == "value"):
            raise InvalidRequest("'otherwise' goes with on_error 'value'", param="otherwise")

    @property
    def sources(self) -> Mapping[str, Source]:
        return {"over": self.over}

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self.collect.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Until(StepObject):
    """The condition that ends a loop: the predicate holds for the body's variable `on`."""

    on: str
    when: dict[str, Any]
    transforms: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        check_id(self.on, "on")
        predicates.read(self.when)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop(StepBase):
    """Runs the body in rounds, until the predicate holds, and at most `most` times.

    `carry` maps names to variables, and the body reads the names. In the first round a name has the
    value of that variable. In each later round it has the value that the round before gave to the
    body's variable in `next`. `out` gets the last value of the name `result`, which may be left out
    if `carry` has one name.
    """

    carry: dict[str, str] = field(hash=False)
    next: dict[str, str] = field(hash=False)
    body: Body
    until: Until
    most: int
    result: str | None = None
    kind: Literal["loop"] = field(default_factory=lambda: "loop")

    def __post_init__(self) -> None:
        StepBase.__post_init__(self)
        for name in (*self.carry, *self.carry.values(), *self.next.values()):
            check_id(name, "carry")
        if not self.carry or self.carry.keys() != self.next.keys():
            raise InvalidRequest("'carry' and 'next' have the same names", param="next")
        if self.result is None and len(self.carry) > 1:
            raise InvalidRequest("several carries need 'result', one of them", param="result")
        if self.result is not None and self.result not in self.carry:
            raise InvalidRequest("'result' is one of the carries", param="result")
        if not 1 <= self.most <= MAX_ROUNDS:
            raise InvalidRequest(f"most must be in 1 to {MAX_ROUNDS:,}", param="most")

    @property
    def carried(self) -> str:
        """The name in `carry` whose last value is the loop's value."""
        return self.result or next(iter(self.carry))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStep(StepBase):
    """Runs `call`, and the tools that its answer calls, until an answer calls none.

    Each turn is a call that reads the tools' results. The call has a prompt of messages and one
    output. Without `tools` it may call all tools of the server. The client computes those of
    `client_tools`, which are among the call's tools: each call of one is a client step. A call of
    any other tool ends the run, and so do `most` turns. The value is the text of the last answer.
    With `code_tool` the blocks of Python in an answer are calls of that tool, and no others.

    The server fills in `served`: who runs the tools.
    """

    call: Call
    most: int = MAX_TURNS
    client_tools: tuple[ClientTool, ...] = ()
    code_tool: str | None = None
    served: tuple[ServedTool, ...] = ()
    kind: Literal["agent"] = field(default_factory=lambda: "agent")

    def __post_init__(self) -> None:
        StepBase.__post_init__(self)
        if not 1 <= self.most <= MAX_TURNS:
            raise InvalidRequest(f"most must be in 1 to {MAX_TURNS}", param="most")
        if self.client_tools and self.code_tool is not None:
            raise InvalidRequest("a run has client_tools or a code_tool", param="code_tool")
        outputs = [one for one in self.call.placeholders if one.in_out is InOut.OUT]
        if len(outputs) != 1 or outputs[0].transforms or outputs[0].semantic_var_id is not None:
            raise InvalidRequest(
                "the call of an agent has one output without transforms or a variable: the step's "
                "'out' names one",
                param="call",
            )
        prompt = self.call.prompt
        last = prompt[-1] if prompt and not isinstance(prompt, str) else None
        if not isinstance(last, Message) or all(one.output is None for one in last.content):
            raise InvalidRequest(
                "the call of an agent has a prompt of messages, and the last of them is the output",
                param="call",
            )


def _needs_its_client(step: StepBase) -> bool:
    return isinstance(step, ClientStep) or (isinstance(step, AgentStep) and bool(step.client_tools))


STEPS: Mapping[str, type[StepBase]] = MappingProxyType(
    {
        "embed": Embed,
        "ingest": Ingest,
        "search": Search,
        "merge": Merge,
        "rerank": Rerank,
        "text": Text,
        "mean": Mean,
        "delete": Delete,
        "fetch": Fetch,
        "client": ClientStep,
        "function": FunctionStep,
        "branch": Branch,
        "each": Each,
        "loop": Loop,
        "agent": AgentStep,
    }
)


class _ByKind:
    """Tells pydantic to choose the class by the field `kind`. The client works without pydantic."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        return {
            "type": "tagged-union",
            "discriminator": "kind",
            "choices": {kind: handler.generate_schema(cls) for kind, cls in STEPS.items()},
        }


Step: TypeAlias = Annotated[
    Embed
    | Ingest
    | Search
    | Merge
    | Rerank
    | Text
    | Mean
    | Delete
    | Fetch
    | ClientStep
    | FunctionStep
    | Branch
    | Each
    | Loop
    | AgentStep,
    _ByKind(),
]
