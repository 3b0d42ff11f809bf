"""Makes the synchronous client from the asynchronous one: the same code without `await`.

    python .ci/sync_client.py            # writes the two files
    python .ci/sync_client.py --check    # fails if they are not what it would write

It replaces the passages in which the two clients differ, then words. A passage that is not in the
source ends it with an error, so that a change of the source cannot go unnoticed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SDK = ROOT / "client" / "weftline" / "sdk"
RUFF = (Path(sys.executable).parent / "ruff", "--config", ROOT / "pyproject.toml")

_UNANSWERED = r"^ *# The adapters are asynchronous inside.*?(?=^class )"
_WORDS = (
    (r"async (def|with|for) ", r"\1 "),
    (r"(?<!\w)\(await ([\w.]+\([^()]*\))\)", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsyncGenerator\[([\w.]+|dict\[str, Any\])(, None)?\]", r"Generator[\1, None, None]"),
    (r"\bAsyncGenerator\b", "Generator"),
    (r"\bAsync(Client|Session|Variable|Connection|AgentRun|BaseTransport)\b", r"\1"),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"\b(weftline\.sdk\.)a(client|connection)\b", r"\1\2"),
    (r"\baclosing\b", "closing"),
    (r"\.a(close|read)\(", r".\1("),
    (r"\bagent_arun\b", "agent_run"),
    (r"\bstep_tasks\b", "step_threads"),
    (r"\bStepTasks\b", "StepThreads"),
    (r"from asyncio import sleep", "from time import sleep"),
    (r"asynchronous client", "synchronous client"),
)

_MADE = "Made by `.ci/sync_client.py`; change `weftline.sdk.{}`."
_PASSAGES = {
    "client": (
        (", for coroutines.", ", over an HTTP connection pool."),
        ("Use it with `async with`, or await `close`.", "Use it with `with`, or call `close`."),
        ("Inside its `async with` block", "Inside its `with` block"),
        (
            '"""A session for one run of an application. It is not open yet.\n\n'
            '        Open it with `async with` or `await session.open()`.\n        """',
            '"""Open a session for one run of an application. A `with` block closes it."""',
        ),
        ("return AsyncSession(self)\n", "return Session(self).open()\n"),
        (
            "    def __await__(self) -> Generator[Any, None, Any]:\n"
            "        return self.get().__await__()\n\n",
            "",
        ),
        # What was added is sent by the call of `stream`, and not by the first text that is read.
        (
            'async for text in self._connection.texts("/v1/get", body):\n            yield text\n',
            'return self._connection.texts("/v1/get", body)\n',
        ),
        ("        await self._steps.close()\n", ""),  # threads end by themselves
    ),
    "connection": (
        ("A pool of connections to one server, for one event loop.",
         "A pool of connections to one server. Threads may share it."),
        ("    async def texts(", "    @text_stream\n    def texts("),
        ("from weftline.sdk.resume import StreamedRequest\n",
         "from weftline.sdk.resume import StreamedRequest\n"
         "from weftline.sdk.text_stream import text_stream\n"),
    ),
}  # fmt: skip


def made(name: str) -> str:
    """The synchronous file of this name."""
    source = f"a{name}"
    text = (SDK / f"{source}.py").read_text(encoding="utf-8")
    for passage, by in _PASSAGES[name]:
        if passage not in text:
            sys.exit(f"{source}.py has no {passage!r} any more: mend {__file__}")
        text = text.replace(passage, by)
    text = re.sub(_UNANSWERED, "", text, flags=re.M | re.S)
    for pattern, by in _WORDS:
        text = re.sub(pattern, by, text)
    text, found = re.subn(r"(?m)^`\.ci/sync_client\.py` makes .*", _MADE.format(source), text)
    assert found == 1, f"{source}.py does not say what is made from it"
    text = _ruff(text, "check", "--fix", "--quiet", "--select", "F401,I,UP043")
    return _ruff(text, "format", "--quiet")


def _ruff(text: str, verb: str, *options: str) -> str:
    command = (RUFF[0], verb, *RUFF[1:], *options, "--stdin-filename", SDK / "client.py", "-")
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stderr}{text}")
    return done.stdout


def main() -> None:
    """Write both files, or compare them."""
    stale = []
    for name in _PASSAGES:
        path, text = SDK / f"{name}.py", made(name)
        if path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(text, encoding="utf-8")
    if stale and "--check" in sys.argv:
        sys.exit(f"not current: {', '.join(stale)}; run python .ci/sync_client.py")


if __name__ == "__main__":
    main()
