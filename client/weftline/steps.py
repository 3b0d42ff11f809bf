"""The steps of a graph beside calls, such as embed and search, as frozen dataclasses.

A step reads variables and writes one. Texts are one text, or a list of texts or items. An item is
an object with a `text`; its `id` and `metadata` may be left out. Embedded texts travel as one
value: the items with their vectors. A search turns it into hits, which are items with a `score`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeAlias

from weftline.errors import InvalidRequest
from weftline.ids import check_id

MAX_K = 1000  # hits of a search, and items that a rerank keeps
MAX_NAME = 128  # characters
MAX_LEASE_S = 3600  # a client that is gone longer has lost its session, too


def _in_json(name: str) -> str:
    """A field's name in JSON. Python reserves the word `in`, so its field is called `in_`."""
    return name.rstrip("_")


_STRICT = {
    "extra": "forbid",
    "allow_inf_nan": False,
    "alias_generator": _in_json,
    "validate_by_name": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a step reads: a variable, whose value goes through `transforms`, or a constant value."""

    var: str | None = None
    value: Any = None
    transforms: tuple[dict[str, Any], ...] = ()

    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        if (self.var is None) == (self.value is None):
            raise InvalidRequest("a step reads exactly one of 'var' and 'value'", param="in")
        if self.var is not None:
            check_id(self.var, "var")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBase:
    """The fields of every step.

    `out` is the variable that it writes; without it the server makes one. The step also waits for
    the variables of `after`, without reading them.
    """

    name: str = ""
    out: str | None = None
    after: tuple[str, ...] = ()

    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        if len(self.name) > MAX_NAME or not (self.name.isprintable() or not self.name):
            raise InvalidRequest("a step's name has up to 128 printable characters", param="name")
        for variable in (*self.after, *(() if self.out is None else (self.out,))):
            check_id(variable, "out" if variable == self.out else "after")
        for name in ("k", "limit"):
            count = getattr(self, name, None)
            if count is not None and not 1 <= count <= MAX_K:
                raise InvalidRequest(f"{name} must be between 1 and {MAX_K}", param=name)

    @property
    def sources(self) -> Mapping[str, Source]:
        """What it reads, by the field's name in JSON."""
        return {}

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that it reads, without those of `after`."""
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
    """Texts to vectors, by the embedder `engine`; None means the first one."""

    kind: Literal["embed"] = field(default_factory=lambda: "embed")
    engine: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest(Reading):
    """Adds embedded texts to `store`, or replaces those with equal ids. It may run again.

    An item without an id gets the hash of its content. The value is {"ids": [...], "count": n}.
    """

    store: str
    kind: Literal["ingest"] = field(default_factory=lambda: "ingest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Search(Reading):
    """Finds the `k` documents of `store` that are nearest to an embedded text, best first.

    The value is a list of hits; for a list of texts it is a list of such lists. `filter` names
    metadata that a document must have.
    """

    store: str
    kind: Literal["search"] = field(default_factory=lambda: "search")
    k: int = 4
    filter: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge(Reading):
    """Lists of hits to one list in which each document stands once, with its best score.

    Equal documents have equal ids, or equal texts with `by` = "text". `limit` cuts the list.
    """

    kind: Literal["merge"] = field(default_factory=lambda: "merge")
    by: Literal["id", "text"] = "id"
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerank(Reading):
    """The `k` hits or texts that fit `query` best, by the reranker `engine`, best first."""

    query: Source
    kind: Literal["rerank"] = field(default_factory=lambda: "rerank")
    engine: str | None = None
    k: int | None = None  # None keeps all

    @property
    def sources(self) -> Mapping[str, Source]:
        """What it reads: the texts and the query."""
        return {"in": self.in_, "query": self.query}


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete(Reading):
    """Deletes documents of `store` by their ids. The value is {"count": n}.

    With a `filter` it also deletes those whose metadata matches it.
    """

    store: str
    kind: Literal["delete"] = field(default_factory=lambda: "delete")
    filter: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch(Reading):
    """The documents of `store` with the given ids, in their order. Unknown ids are left out.

    With a `filter` those whose metadata matches it follow, in the order of their ids.
    """

    store: str
    kind: Literal["fetch"] = field(default_factory=lambda: "fetch")
    filter: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStep(StepBase):
    """A step that the client computes. It sets `out` when the variables of `reads` are ready.

    `effects` says what a repetition would do. The step fails when the client has had no request
    open for `lease_s` seconds since the step could begin.
    """

    kind: Literal["client"] = field(default_factory=lambda: "client")
    reads: tuple[str, ...] = ()
    effects: Literal["none", "idempotent", "once"] = "none"
    lease_s: float = 60.0

    def __post_init__(self) -> None:
        StepBase.__post_init__(self)  # a slotted dataclass is a new class, which super() misses
        for variable in self.reads:
            check_id(variable, "reads")
        if not 0 < self.lease_s <= MAX_LEASE_S:
            raise InvalidRequest(
                f"lease_s must be above 0 and at most {MAX_LEASE_S:,}", param="lease_s"
            )

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that it reads."""
        return self.reads


STEPS: Mapping[str, type[StepBase]] = MappingProxyType(
    {
        "embed": Embed,
        "ingest": Ingest,
        "search": Search,
        "merge": Merge,
        "rerank": Rerank,
        "delete": Delete,
        "fetch": Fetch,
        "client": ClientStep,
    }
)


class _ByKind:
    """Tells pydantic, which the client need not have, to choose the class by the field `kind`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        return {
            "type": "tagged-union",
            "discriminator": "kind",
            "choices": {kind: handler.generate_schema(cls) for kind, cls in STEPS.items()},
        }


Step: TypeAlias = Annotated[
    Embed | Ingest | Search | Merge | Rerank | Delete | Fetch | ClientStep, _ByKind()
]
