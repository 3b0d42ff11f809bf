"""Engines that start when a submit first names them, and what is told of them meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.null.asgi import Serve, Server
from tests.null.steps.wire import run
from tests.waits import WAIT_S
from weftline_engine import api
from weftline_server.commands.retrieval_tables import factories, from_tables
from weftline_server.schedule import dispatcher, queue
from weftline_server.schedule.engines import fleet
from weftline_server.schedule.engines.on_demand import OnDemand

WORDS = {"name": "words", "model": "null"}
DOCS = {"name": "docs", "store": "memory"}
EMBED = {"kind": "embed", "in": {"value": ["red fox"]}, "out": "v", "engine": "words"}


async def states(server: Server) -> tuple[int, dict[str, str]]:
    """The status of /health/ready, and the state of each engine of items in it."""
    answer = await server.http.get("/health/ready")
    found = {name: state for name, state in answer.json()["engines"].items() if ":" in name}
    return answer.status_code, found


async def test_an_engine_starts_when_a_submit_names_it(serve: Serve) -> None:
    """A sleeping engine does not make the server unready, and the others sleep on."""
    tables = {"embedder": [WORDS, {**WORDS, "name": "eager", "start": "eager"}], "store": [DOCS]}
    server = await serve(also=factories(from_tables(tables)))
    before = {"embedder:words": "asleep", "embedder:eager": "ready", "store:docs": "asleep"}
    assert await states(server) == (200, before)
    answer = await run(server, EMBED, get=["v"])
    assert "error" not in answer, answer
    assert await states(server) == (200, {**before, "embedder:words": "ready"})
    unknown = await run(server, {**EMBED, "engine": "big"}, get=["v"])
    assert unknown["error"]["message"] == "there is no embedder 'big': use one of words, eager"
    assert (await states(server))[1]["store:docs"] == "asleep"


class Broken:
    """Makes an engine that does not start until it is `mended`. Its second start tells `again`."""

    def __init__(self, again: Callable[[], None]) -> None:
        [made] = factories(from_tables({"embedder": [WORDS]})).values()
        assert isinstance(made, OnDemand)
        self.made, self.mended, self.starts, self._again = made, False, 0, again

    def __call__(self) -> api.Engine:
        engine = self.made()
        self.starts += 1
        if self.starts == 2:
            self._again()
        if not self.mended:
            engine.start = self.fails
        return engine

    async def fails(self) -> api.Description:
        raise api.EngineDied("the disk is gone")


async def test_one_that_does_not_start_is_tried_while_steps_wait(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps fail with the reason. Then it sleeps, without further tries, until the next use."""
    monkeypatch.setattr(fleet, "RESTART_PAUSES_S", (0.01,))
    monkeypatch.setattr(dispatcher, "EXPIRE_EVERY_S", 0.01)
    broken = Broken(lambda: monkeypatch.setattr(queue, "UNAVAILABLE_S", 0.0))
    server = await serve(also={"embedder:words": OnDemand(broken, broken.made.says)})
    failed = (await run(server, EMBED, get=["v"]))["error"]
    assert failed["type"] == "EngineUnavailable" and "the disk is gone" in failed["message"]
    assert broken.starts > 1
    while (await states(server))[1] != {"embedder:words": "asleep"}:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    answer = await server.http.get("/health/ready")
    assert answer.status_code == 200
    assert answer.json()["reasons"] == {"embedder:words": "the disk is gone"}
    monkeypatch.setattr(queue, "UNAVAILABLE_S", WAIT_S)
    broken.mended, tried = True, broken.starts
    assert "error" not in await run(server, EMBED, get=["v"])
    assert broken.starts == tried + 1


@pytest.mark.parametrize("kind", ["embed", "rerank"])
def test_a_directory_says_its_kinds_before_it_is_loaded(tmp_path: Path, kind: str) -> None:
    """A classifier of pairs only reranks."""
    of = "BertForSequenceClassification" if kind == "rerank" else "BertModel"
    (tmp_path / "config.json").write_text(f'{{"architectures": ["{of}"]}}')
    table: dict[str, Any] = {"name": "m", "model": str(tmp_path)}
    [made] = factories(from_tables({"embedder": [table]})).values()
    assert isinstance(made, OnDemand)
    assert (kind == "embed") == ("embed" in made.says.kinds) and "rerank" in made.says.kinds
