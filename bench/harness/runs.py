"""One repetition of one point on one system, and its raw record as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from bench.harness.stage import App, Call

KEPT = 1000  # characters of an answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run's applications and the CPU seconds spent during it.

    `client_cpu_s` is this process, `server_cpu_s` the system under test, and `others_cpu_s` the
    servers that only waited for their turn. `load` is how many cores other programs of the machine
    kept busy, on average. `phases_s` holds the seconds that all calls spent in
    each phase, where the server reports them.
    """

    system: str
    point: str
    x: float
    delay_ms: int
    repeat: int
    apps: Sequence[App]
    client_cpu_s: float
    server_cpu_s: float
    others_cpu_s: float
    load: float = 0.0
    phases_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def where(self) -> tuple[str, int]:
        """The point and the round trip, by which runs are grouped."""
        return self.point, self.delay_ms

    def to_json(self) -> dict[str, Any]:
        """The record. It keeps the calls of the first repetition only: all would be megabytes."""
        record = asdict(self)
        outputs = [app.output for app in self.apps]
        record["failed"] = sum(app.error is not None for app in self.apps)
        for app, output in zip(record["apps"], outputs, strict=True):
            del app["counted"]
            app["output"] = output
            app["result"] = app["result"][:KEPT]
            if self.repeat > 0:
                del app["calls"]
        return rounded(record)


def run_from(record: Mapping[str, Any]) -> Run:
    """Read what `Run.to_json` wrote. Later repetitions have the calls' token counts alone."""
    names = [field.name for field in fields(Run) if field.name != "apps"]
    apps = [_app(one) for one in record["apps"]]
    return Run(**{name: record[name] for name in names}, apps=apps)


def _app(record: Mapping[str, Any]) -> App:
    calls = [Call(**call) for call in record.get("calls", ())]
    names = ("kind", "start", "seconds", "result", "error")
    app = App(**{name: record[name] for name in names}, calls=calls)
    return replace(app, counted=record["output"] - app.output)


def rounded(value: Any) -> Any:
    """The same value with four digits after the point: a tenth of a millisecond."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value
