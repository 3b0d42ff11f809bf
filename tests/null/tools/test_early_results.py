"""Results of parallel tools are filled into the next prompt while slower tools still run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.null.asgi import Serve
from tests.null.tools.conftest import config
from tests.null.tools.test_tool_runs import called
from weftline_engine import api
from weftline_engine.pretend.null import CHAT_TEMPLATE
from weftline_engine.services.tools.engine import ToolEngine
from weftline_engine.services.tools.tool_calls import BegunCalls
from weftline_server.config import ServerConfig
from weftline_server.prompt.words import WordTokenizer

WORDS = 16
FOUND = " ".join(f"river{number}" for number in range(80))


class Writer:
    """An engine whose tokens are words. It calls two tools, and answers what it is fed.

    `open` has the tokens of the open op as far as they came. `came` is set with each part.
    """

    def __init__(self, calls: str) -> None:
        self.open: tuple[int, ...] = ()
        self.whole: tuple[int, ...] = ()  # of the prompt, once it was closed
        self.came = asyncio.Event()
        self._calls = calls
        self._op: api.Op | None = None
        self._out: asyncio.Queue[list[api.Event] | None] = asyncio.Queue()

    async def start(self) -> api.Description:
        tokenizer = f"{api.WORDS}{WORDS}"
        return api.Description(model="m", tokenizer=tokenizer, chat_template=CHAT_TEMPLATE)

    def submit(self, op: api.Op) -> None:
        if op.open:
            self._op = op
            self._fill(op.tokens or ())
        else:
            self._write(op, self._calls)

    def feed(self, op: str, offset: int, part: api.Fed, last: bool) -> None:
        assert self._op is not None and self._op.id == op and offset == len(self.open)
        assert isinstance(part, tuple)
        if last:
            self.whole = (*self.open, *part)
            self._write(self._op, "Both are there.")
        else:
            self._fill(part)

    def _fill(self, tokens: tuple[int, ...]) -> None:
        self.open += tokens
        self.came.set()

    def _write(self, op: api.Op, text: str) -> None:
        usage = api.Usage(
            prompt_tokens=9, cached_tokens=0, output_tokens=5, started=0.0, filled=0.0
        )
        head: dict[str, Any] = {"op": op.id, "attempt": op.attempt, "time": 0.0}
        said = api.Part(**head, sequence=1, offset=0, tokens=(), text=text)
        end = api.Finished(**head, sequence=2, reason=api.FinishReason.STOP, usage=usage)
        self._out.put_nowait([said, end])

    async def events(self) -> AsyncIterator[list[api.Event]]:
        while (events := await self._out.get()) is not None:
            yield events

    def update(self, op: str, hints: api.Hints) -> None: ...
    def cancel(self, op: str) -> None: ...
    def retain(self, context: str, retention: api.Retention) -> None: ...
    def free(self, context: str) -> None: ...

    async def close(self) -> None:
        self._out.put_nowait(None)


def holds(tokens: tuple[int, ...], words: list[int]) -> bool:
    """Whether these words stand in the tokens, one after the other."""
    count = len(words)
    return any(list(tokens[at : at + count]) == words for at in range(len(tokens) - count + 1))


async def test_a_result_is_filled_while_a_slower_tool_runs(serve: Serve, tmp_path: Path) -> None:
    """The slow tool waits for a file, which is written when the engine has the other's result. The
    rest of the prompt follows, and nothing is sent twice.
    """
    file = tmp_path / "end"
    writer = Writer(called("look_up", query=FOUND) + called("wait_for", path=str(file)))
    begun = BegunCalls()
    also = {"m": lambda: writer, "tool:some": lambda: ToolEngine(config(), begun)}
    server = await serve(config=ServerConfig(), also=also)
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "Which rivers?"}],
        "weftline": {"run_tools": True},
    }
    # The first and the last words stand beside quotation marks, and the last may still change.
    result = WordTokenizer(WORDS).encode(" ".join(FOUND.split()[1:60])).ids
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(server.http.post("/v1/chat/completions", json=body))
        while not holds(writer.open, result):
            writer.came.clear()
            await writer.came.wait()
        assert not file.exists() and not asked.done()
        file.touch()
        answer = (await asked).json()
    assert answer["choices"][0]["message"]["content"] == "Both are there."
    tools = [one["content"] for one in answer["weftline"]["messages"] if one["role"] == "tool"]
    assert FOUND in tools[0] and tools[1] == "waited"
    waited = WordTokenizer(WORDS).encode("waited").ids
    assert holds(writer.whole, result) and holds(writer.whole, waited)
    assert not holds(writer.open, waited)
