"""The steps of a graph beside calls, such as text and branch, as frozen dataclasses.

A step reads variables and writes one. Those of embedders, rerankers and stores are in
`retrieval_steps`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeAlias

from weftline.contract import predicates
from weftline.contract.calls import Call, InOut, Message
from weftline.contract.errors import InvalidRequest
from weftline.contract.ids import check_id
from weftline.contract.lease import check_lease
from weftline.contract.retrieval_steps import Delete as Delete
from weftline.contract.retrieval_steps import Embed as Embed
from weftline.contract.retrieval_steps import Fetch as Fetch
from weftline.contract.retrieval_steps import Ingest as Ingest
from weftline.contract.retrieval_steps import Mean as Mean
from weftline.contract.retrieval_steps import Merge as Merge
from weftline.contract.retrieval_steps import Rerank as Rerank
from weftline.contract.retrieval_steps import Search as Search
from weftline.contract.step_base import MAX_K as MAX_K
from weftline.contract.step_base import MAX_NAME as MAX_NAME
from weftline.contract.step_base import MAX_PARTS as MAX_PARTS
from weftline.contract.step_base import Parts as Parts
from weftline.contract.step_base import Reading as Reading
from weftline.contract.step_base import Source as Source
from weftline.contract.step_base import StepBase as StepBase
from weftline.contract.step_base import StepObject
from weftline.contract.step_base import check_cut as check_cut
from weftline.contract.tools import ClientTool, ServedTool

MAX_CASES = 64
MAX_ITEMS = 10_000  # of an `each`; a submit may have as many calls
MAX_ROUNDS = 1000
MAX_TURNS = 16  # of an agent, so that a model that calls tools for ever ends
MAX_NESTED = 4  # levels of bodies in bodies


@dataclass(frozen=True, slots=True, kw_only=True)
class Text(Parts):
    """Writes one text: its `parts`, one after the other. Each part is a text."""

    kind: Literal["text"] = field(default_factory=lambda: "text")


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
