"""The applications that wait for room in a model's KV cache, in lines by model and tenant."""

from __future__ import annotations

from itertools import islice

from weftline_server.schedule.memory.applications import Application
from weftline_server.schedule.memory.constants import CONSIDERED, CONSIDERED_OF_TENANT

_Line = dict[str, tuple[int, Application]]


class AdmissionLine:
    """Applications in the order in which they began to wait.

    Admission looks at the first ones only. With 20,000 that waited, a round that looked at all took
    70 ms, and a chat of another tenant waited for it at each of its steps.
    """

    def __init__(self) -> None:
        self._models: dict[str, dict[str, _Line]] = {}
        self._all: dict[str, Application] = {}
        self._came = 0

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, application: object) -> bool:
        return application in self._all

    def add(self, one: Application) -> None:
        """Let an application wait at the end, unless it waits already."""
        if one.id in self._all:
            return
        self._all[one.id] = one
        self._came += 1
        line = self._models.setdefault(one.model, {}).setdefault(one.salt, {})
        line[one.id] = self._came, one

    def remove(self, application: str) -> Application | None:
        """Remove an application and return it; None if it does not wait."""
        one = self._all.pop(application, None)
        if one is not None:
            tenants = self._models[one.model]
            del tenants[one.salt][one.id]
            if not tenants[one.salt]:
                del tenants[one.salt]
                if not tenants:
                    del self._models[one.model]
        return one

    def waits(self, model: str) -> bool:
        """Whether an application waits for room in the model's KV cache."""
        return model in self._models

    def first(self, model: str) -> list[Application]:
        """The applications that admission looks at: the first of each tenant that waits.

        CONSIDERED applications are looked at, in equal parts of the tenants. Of each tenant at
        least CONSIDERED_OF_TENANT are looked at, and of more than CONSIDERED tenants only the
        applications of the first ones.
        """
        tenants = self._models.get(model, {})
        each = max(CONSIDERED_OF_TENANT, CONSIDERED // max(1, len(tenants)))
        lines = islice(tenants.values(), CONSIDERED)
        found = [entry for line in lines for entry in islice(line.values(), each)]
        return [one for _, one in sorted(found, key=lambda entry: entry[0])]
