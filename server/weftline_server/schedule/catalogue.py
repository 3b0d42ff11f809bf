"""What the engines serve, by the names that clients use: models, embedders, stores and tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weftline.contract.errors import EngineUnavailable, UnknownModel, UnknownStore, WeftlineError
from weftline_engine.api.description import BATCHED
from weftline_server.prompt.prompter import Prompter
from weftline_server.schedule import model_names
from weftline_server.schedule.engines.fleet import Fleet


class Catalogue:
    """Finds what runs a call or a step. Nothing is kept: the fleet's engines come and go."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    @property
    def healthy(self) -> bool:
        """Whether every served model has an engine that takes work."""
        return self._fleet.healthy

    @property
    def models(self) -> list[str]:
        """The models that some engine generates with, the default one first."""
        return list(self._fleet.models)

    @property
    def items_models(self) -> tuple[str, ...]:
        """The models that embed or rerank, without those that generate."""
        found = (name for kind in sorted(BATCHED) for name in self._fleet.resources(kind))
        return tuple(one for one in dict.fromkeys(found) if one not in self._fleet.models)

    def model(self, name: str | None) -> str:
        """Return the served model that `name` means. Raises UnknownModel, EngineUnavailable."""
        models = self._fleet.models
        if not models:
            raise EngineUnavailable("no engine is ready yet", retry_after_s=1.0)
        if name in (None, "", "default"):
            return models[0]
        assert name is not None
        found = model_names.find(name, models)
        if found is None:
            served = ", ".join(models)
            raise UnknownModel(
                f"no engine serves model {name[:256]!r}: use one of {served}", param="model"
            )
        return found

    def prompter(self, model: str) -> Prompter:
        """Return what renders and tokenises prompts for a served model."""
        return self._fleet.prompters[model]

    def resource(self, kind: str, what: str, name: str | None) -> str:
        """Return the embedder, reranker or store that runs ops of `kind`; None means the first.
        `what` is its table in the configuration.

        One on demand starts now, and not when its first op is ready. Raises UnknownModel or
        UnknownStore.
        """
        known = self._fleet.resources(kind)
        found = known[0] if name is None and known else name
        if found is None or found not in known:
            raise _unknown_resource(what, name, known)
        self._fleet.wake(found, kind)
        return found

    @property
    def tools(self) -> dict[str, tuple[str, Mapping[str, Any]]]:
        """The tools that engines run, by name: the engine's name, and what it says of the tool."""
        found: dict[str, tuple[str, Mapping[str, Any]]] = {}
        for member in self._fleet.members.values():
            if (description := member.description) is not None:
                for told in description.tools:
                    found.setdefault(str(told["name"]), (description.model, told))
        return found


def _unknown_resource(what: str, name: str | None, found: Sequence[str]) -> WeftlineError:
    """The error for a step that no engine of this server runs. `what` is the engine's table in the
    configuration.
    """
    error = UnknownStore if what == "store" else UnknownModel
    if not found:
        return error(
            f"this server has no {what}: start it with a table [[{what}]] in its configuration",
            param=what,
        )
    return error(f"there is no {what} {name!r}: use one of {', '.join(found)}", param=what)
