"""The engines, the models and the whole server, as routes, metrics and the cluster see them."""

from __future__ import annotations

from dataclasses import dataclass

from weftline_engine import api
from weftline_server.lowering.step import Tools
from weftline_server.prompt.prompter import Prompter
from weftline_server.prompt.tool_format import ToolFormat
from weftline_server.runtime.lifecycle import Lifecycle
from weftline_server.runtime.registry import Registry
from weftline_server.schedule.dispatcher import Dispatcher
from weftline_server.schedule.engines.activity import EngineActivity
from weftline_server.schedule.engines.member import EngineState, Member
from weftline_server.schedule.lengths import Exactness


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that clients can name. `context_limit` counts tokens of prompt and output."""

    name: str
    context_limit: int
    tool_format: ToolFormat
    prompter: Prompter


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One engine at this moment; `model` is None until the engine has described itself.

    `node` is the machine of an engine elsewhere, "" for this one. `lacks` names capabilities that
    the engine does not have. `tokens` bounds what its `running` primitives hold, prompt and output.
    """

    name: str
    state: EngineState
    model: str | None
    node: str
    lacks: tuple[str, ...]
    last_error: str
    running: int
    tokens: int
    kv_tokens: int | None  # the size of its KV cache; None where the engine does not say
    kept: int  # tokens in it that are kept for calls to come; of `EngineView.status` only
    kv_bytes: int | None  # of its KV cache; None where the engine does not say
    kv_costs: api.KvCosts | None  # measured at its start, if they were
    metrics: api.HasMetrics | None  # None: the engine has none of its own, or is down

    @staticmethod
    def of(member: Member, kept: int = 0) -> EngineStatus:
        description = member.description
        engine = None if member.state is EngineState.DOWN else member.engine
        return EngineStatus(
            name=member.name,
            state=member.state,
            model=None if description is None else description.model,
            node=member.node,
            lacks=() if description is None else description.lacking,
            last_error=member.last_error,
            running=len(member.ops.works),
            tokens=sum(work.tokens for work in member.ops.works.values()),
            kv_tokens=None if description is None else description.kv_tokens,
            kept=kept,
            kv_bytes=_kv_bytes(description),
            kv_costs=None if description is None else description.kv_costs,
            metrics=engine if isinstance(engine, api.HasMetrics) else None,
        )


def _kv_bytes(description: api.Description | None) -> int | None:
    if description is None or None in (description.kv_tokens, description.kv_bytes_per_token):
        return None
    return (description.kv_tokens or 0) * (description.kv_bytes_per_token or 0)


@dataclass(frozen=True, slots=True)
class Status:
    """The server at this moment.

    `healthy` means that every served model has an engine that takes work. `sessions` counts open
    sessions, `queued` the primitives that wait for an engine,
    `admitted` the applications in the KV caches and `waiting` those that wait for that. `lengths`
    says how well the lengths of outputs were predicted.
    """

    draining: bool
    healthy: bool
    sessions: int
    queued: int
    admitted: int
    waiting: int
    lengths: Exactness
    engines: tuple[EngineStatus, ...]


class EngineView:
    """The engines at this moment. Nothing here changes them."""

    def __init__(self, registry: Registry, dispatcher: Dispatcher, lifecycle: Lifecycle) -> None:
        self._registry = registry
        self._dispatcher = dispatcher
        self._lifecycle = lifecycle

    @property
    def models(self) -> tuple[ServedModel, ...]:
        return tuple(self.model(name) for name in self._dispatcher.catalogue.models)

    @property
    def items_models(self) -> tuple[str, ...]:
        """The embedders and rerankers, without names that generate, too."""
        return self._dispatcher.catalogue.items_models

    @property
    def tools(self) -> Tools:
        """The tools that this server runs now."""
        return self._dispatcher.catalogue.tools

    def model(self, name: str | None) -> ServedModel:
        """The served model that a client's `name` means. Raises UnknownModel, EngineUnavailable."""
        catalogue = self._dispatcher.catalogue
        found = catalogue.model(name)
        prompter = catalogue.prompter(found)
        limit = prompter.description.context_limit
        return ServedModel(found, limit, prompter.tool_format, prompter)

    def takes_updates(self, engine: str) -> bool:
        """Whether the engine of this name takes new hints for a call that it runs."""
        found = [one for one in self._dispatcher.members if one.name == engine]
        return any(api.Capability.UPDATES in one.capabilities for one in found)

    @property
    def statuses(self) -> tuple[EngineStatus, ...]:
        """The status of every engine, the configured ones first."""
        return tuple(EngineStatus.of(member) for member in self._dispatcher.members)

    def status(self) -> Status:
        """The server's status, for health checks, metrics and the cluster."""
        dispatcher = self._dispatcher
        memory = dispatcher.occupancy()
        return Status(
            draining=self._lifecycle.draining,
            healthy=dispatcher.catalogue.healthy,
            sessions=len(self._registry),
            queued=dispatcher.queued,
            admitted=memory.admitted,
            waiting=memory.waiting,
            lengths=Exactness() if dispatcher.lengths is None else dispatcher.lengths.exactness,
            engines=tuple(
                EngineStatus.of(member, memory.kept.get(member.name, 0))
                for member in dispatcher.members
            ),
        )

    def activity(self, tenant: str | None) -> list[EngineActivity]:
        """What each engine does now. For a `tenant`, only the tenant's own calls are counted."""
        dispatcher = self._dispatcher
        salt = None if tenant is None else self._registry.salts[tenant]
        kept = dispatcher.occupancy().kept if salt is None else {}
        return [
            EngineActivity.of(one, salt, dispatcher.queued_of, kept.get(one.name, 0))
            for one in dispatcher.members
        ]
