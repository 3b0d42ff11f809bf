"""Many sessions at once: none is lost, and the server answers others meanwhile."""

from __future__ import annotations

import asyncio
import time

from tests.faults.pace import fixed_work, limit_s
from tests.faults.sizes import AT_ONCE
from tests.null.asgi import Serve, call
from weftline_engine.pretend.null import LatencyProfile, NullConfig

CALLS = 5


async def test_none_of_many_sessions_is_lost(serve: Serve) -> None:
    """Each runs five calls in a row. 99 of 100 health checks come within the limit."""
    pace = LatencyProfile(step_s=0.002)
    server = await serve(NullConfig(latency=pace, max_running=64))
    waited: list[float] = []

    async def session(number: int) -> str:
        first = call("c0", f"number {number}{{{{output:o}}}}", o="v0")
        rest = [
            call(f"c{i}", "{{input:i}}{{output:o}}", i=f"v{i - 1}", o=f"v{i}")
            for i in range(1, CALLS)
        ]
        body = {"calls": [first, *rest], "get": [f"v{CALLS - 1}"], "close": True}
        answer = await server.http.post("/v1/submit", json=body, timeout=120)
        return str(answer.json()["values"][f"v{CALLS - 1}"])

    async def watch() -> None:
        while True:
            began = time.perf_counter()
            assert (await server.http.get("/health/live")).status_code == 200
            waited.append(time.perf_counter() - began)
            await asyncio.sleep(0.01)

    before = fixed_work()
    watching = asyncio.create_task(watch())
    found = await asyncio.gather(*map(session, range(AT_ONCE)))
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert found == [f"number {number}" for number in range(AT_ONCE)]
    assert sorted(waited)[len(waited) * 99 // 100 - 1] < limit_s(max(before, fixed_work()))
