"""The part of a session that needs no network: it collects calls and steps until they are sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Token
from dataclasses import dataclass
from typing import Any, Literal, cast

from weftline.contract.errors import ClientStepFailed, InvalidRequest
from weftline.contract.protocol import Call, Criterion, InOut, Placeholder, SubmitBody
from weftline.contract.steps import (
    Delete,
    Embed,
    Fetch,
    Ingest,
    Mean,
    Merge,
    Reading,
    Rerank,
    Search,
    Source,
    Step,
    Text,
)
from weftline.sdk.client_steps import SentSteps
from weftline.sdk.control_verbs import ControlVerbs, SessionState
from weftline.sdk.current_session import CURRENT, CurrentSession
from weftline.sdk.function import SemanticFunction
from weftline.sdk.variable_base import V, VariableBase


@dataclass(frozen=True, slots=True)
class SubmittedCall:
    """What the server returned for one submitted call.

    `name` and `call_id` are those of the call. `outputs` maps the name of each output to its
    variable's id.
    """

    name: str
    call_id: str
    outputs: Mapping[str, str]

    @staticmethod
    def of(body: Mapping[str, Any]) -> SubmittedCall:
        return SubmittedCall(body["name"], body["call_id"], body["outputs"])


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of an application that was run with one request.

    `values` maps the ids of the requested variables to their values. `graph` is the session's
    graph as JSON, or None where it was not asked for.
    """

    values: Mapping[str, Any]
    graph: Mapping[str, Any] | None

    @staticmethod
    def of(body: Mapping[str, Any]) -> Answer:
        return Answer(body.get("values", {}), body.get("graph"))


class SessionBase(ControlVerbs[V]):
    """Collects calls until they are sent."""

    def __init__(self, state: SessionState) -> None:
        super().__init__(state)
        self._tokens: list[Token[CurrentSession | None]] = []

    @property
    def id(self) -> str:
        """The server's name for the session. It is empty until the session is open."""
        return self.state.id

    @property
    def closed(self) -> bool:
        """Whether the session was closed."""
        return self.state.closed

    def add_call(self, function: SemanticFunction, given: Mapping[str, Any]) -> list[V]:
        """Add a call of `function` to the next submit. Returns the variables of its outputs.

        `given` maps parameters to values or variables. Raises InvalidRequest for a variable of
        another session, and for an output that is given a value.
        """
        placeholders = [
            self._input(name, given[name], mark.transforms)
            for name, mark in function.inputs.items()
        ]
        made = []
        for name, mark in function.outputs.items():
            target = given.get(name)
            if target is None:
                target = self.variable()
            elif not isinstance(target, VariableBase):
                raise InvalidRequest(
                    f"output {name!r} of {function.name} takes a variable, not a value", param=name
                )
            made.append(self._variable(target.id))
            placeholders.append(
                Placeholder(
                    name=name,
                    in_out=InOut.OUT,
                    semantic_var_id=target.id,
                    transforms=tuple(dict(t) for t in mark.transforms),
                    sampling=mark.sampling,
                )
            )
        call = Call(
            name=function.name,
            prompt=function.prompt,
            placeholders=tuple(placeholders),
            model=function.model,
            criteria=function.criteria,
        )
        self.state.calls.append(call)
        return made

    def _input(self, name: str, value: Any, transforms: Sequence[Mapping[str, Any]]) -> Placeholder:
        specs = tuple(dict(t) for t in transforms)
        if not isinstance(value, VariableBase):
            return Placeholder(name=name, in_out=InOut.IN, value=value, transforms=specs)
        if value.owner is not self:
            raise InvalidRequest(
                f"input {name!r} is a variable of another session: pass its .get()", param=name
            )
        return Placeholder(name=name, in_out=InOut.IN, semantic_var_id=value.id, transforms=specs)

    def embed(
        self,
        texts: V | str | Sequence[str | Mapping[str, Any]],
        *,
        engine: str | None = None,
        transforms: Sequence[Mapping[str, Any]] = (),
        after: Sequence[V] = (),
    ) -> V:
        """Embed a text, or a list of texts or items.

        An item is an object with a `text`, and may have an `id` and `metadata`. A variable's value
        goes through `transforms` first. `engine` names an embedder of the server; None means the
        first one. The step also waits for the variables of `after`, but does not read them.
        """
        return self._add_step(Embed, texts, transforms, after, engine=engine)

    def ingest(
        self,
        embedded: V,
        *,
        store: str,
        items: V | Sequence[str | Mapping[str, Any]] | None = None,
        after: Sequence[V] = (),
    ) -> V:
        """Add embedded texts to the server's store of this name.

        A text replaces the one with the same id. With `items` these are stored, one for each
        vector, in place of the texts that were embedded. The value is `{"ids": [...], "count": n}`.
        The step also waits for the variables of `after`.
        """
        source = None if items is None else self._source(items, ())
        return self._add_step(Ingest, embedded, (), after, store=store, items=source)

    def search(
        self,
        embedded: V,
        *,
        store: str,
        k: int = 4,
        filter: Mapping[str, Any] | None = None,
        after: Sequence[V] = (),
    ) -> V:
        """Find the `k` documents of a store that are nearest to an embedded text.

        The value is a list of hits, the best first. A hit is an item with a `score`. If a list of
        texts was embedded, the value is one such list for each text. `filter` has metadata that a
        document must have. The step also waits for the variables of `after`, such as that of an
        `ingest`. Raises InvalidRequest for a `k` outside of 1 to 1,000.
        """
        kept = dict(filter or {})
        return self._add_step(Search, embedded, (), after, store=store, k=k, filter=kept)

    def merge(
        self,
        hits: V,
        *,
        by: Literal["id", "text"] = "id",
        limit: int | None = None,
        rank: Literal["score", "order", "reciprocal", "relative", "distribution"] = "score",
        beside: Sequence[V] = (),
        weights: Sequence[float] = (),
    ) -> V:
        """Merge lists of hits into one list, the best hit first, that has each document once.

        Two hits are the same document if they have equal ids, or with `by="text"` equal texts. At
        most `limit` hits are kept; None keeps all. With `rank="order"` the hits stay in the order
        of the lists. With "reciprocal" a document's score is the sum of 1 / (60 + its place in each
        list), where the first place is 0. With "relative" it is the sum of its scores, where each
        list's scores go from 0 to 1, and with "distribution" from three standard deviations below
        their mean to three above.

        `beside` has the hits of other searches. `weights` has a factor for the scores of `hits` and
        of each of them.
        """
        others = tuple(self._source(one, ()) for one in beside)
        return self._add_step(
            Merge,
            hits,
            (),
            (),
            by=by,
            limit=limit,
            rank=rank,
            beside=others,
            weights=tuple(weights),
        )

    def text(self, *parts: V | str) -> V:
        """Make one text of texts, one after the other, such as `session.text("Q: ", question)`."""
        made = self.variable()
        step = Text(parts=tuple(self._source(part, ()) for part in parts), out=made.id)
        self.state.steps.append(step)
        return made

    def mean(self, *embedded: V) -> V:
        """The mean of embedded texts, such as a question and a passage that could answer it.

        A search for the mean gives one list of hits.
        """
        made = self.variable()
        step = Mean(parts=tuple(self._source(part, ()) for part in embedded), out=made.id)
        self.state.steps.append(step)
        return made

    def rerank(
        self,
        texts: V | Sequence[str | Mapping[str, Any]],
        query: V | str,
        *,
        k: int | None = None,
        engine: str | None = None,
        transforms: Sequence[Mapping[str, Any]] = (),
    ) -> V:
        """Order texts or hits by how well they fit `query`, and keep the best `k`.

        `k` None keeps all of them. `engine` names a reranker of the server; None means the first
        one. A variable's value goes through `transforms` before it is reranked.
        """
        source = self._source(query, ())
        return self._add_step(Rerank, texts, transforms, (), query=source, k=k, engine=engine)

    def delete(
        self,
        ids: V | Sequence[str] = (),
        *,
        store: str,
        filter: Mapping[str, Any] | None = None,
        after: Sequence[V] = (),
    ) -> V:
        """Delete the documents of a store that have one of `ids` or whose metadata match `filter`.

        The value is `{"count": n}`. The step also waits for the variables of `after`.
        """
        return self._add_step(Delete, ids, (), after, store=store, filter=dict(filter or {}))

    def fetch(
        self,
        ids: V | Sequence[str] = (),
        *,
        store: str,
        filter: Mapping[str, Any] | None = None,
        after: Sequence[V] = (),
    ) -> V:
        """Read documents of a store: those with these ids, then those that match `filter`.

        The first are in the order of `ids`. An unknown id is left out. The step also waits for the
        variables of `after`.
        """
        return self._add_step(Fetch, ids, (), after, store=store, filter=dict(filter or {}))

    def _add_step(
        self,
        kind: type[Reading],
        read: object,
        transforms: Sequence[Mapping[str, Any]],
        after: Sequence[V],
        **more: Any,
    ) -> V:
        """Add a step to the next submit. Returns the variable that it writes."""
        made = self.variable()
        waits = tuple(variable.id for variable in after)
        step = kind(in_=self._source(read, transforms), out=made.id, after=waits, **more)
        self.state.steps.append(cast(Step, step))
        return made

    def _source(self, read: object, transforms: Sequence[Mapping[str, Any]]) -> Source:
        if not isinstance(read, VariableBase):
            value = read if isinstance(read, str) else list(cast(Sequence[Any], read))
            return Source(value=value)
        self._check_own(read)
        return Source(var=read.id, transforms=tuple(dict(one) for one in transforms))

    def _take_pending(
        self, get: tuple[str, ...] = (), criteria: Criterion | str | None = None
    ) -> SubmitBody | None:
        """Remove the pending calls and return them as a submit, or None if there are none.

        The response to the submit will have the values of the variables in `get`. `criteria` is
        that of the get that sends the calls.
        """
        state = self.state
        if not state.calls and not state.steps:
            return None
        calls, state.calls = tuple(state.calls), []
        steps, state.steps = tuple(state.steps), []
        asked = None if criteria is None else Criterion(criteria)
        return SubmitBody(session_id=self.id, calls=calls, steps=steps, get=get, criteria=asked)

    def _take_computations(self) -> SentSteps | None:
        """The client steps of the submit that `_take_pending` returned, or None."""
        taken, self.state.computations = self.state.computations, []
        return SentSteps(taken) if taken else None

    @contextmanager
    def _own_failures(self) -> Iterator[None]:
        """Chain a ClientStepFailed to the exception that the step raised in this process."""
        try:
            yield
        except ClientStepFailed as error:
            raise error from self.state.failures.get(error.param or "")

    def _enter(self) -> None:
        self._tokens.append(CURRENT.set(self))

    def _exit(self) -> None:
        CURRENT.reset(self._tokens.pop())
