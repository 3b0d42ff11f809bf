"""Models in the children of a fork: each child gets the answers to its own prompts.

Each program runs in a process of its own, which has opened connections when it forks.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CHILDREN, TURNS = 16, 6

PROGRAM = f"""
import asyncio
import os
import signal
import traceback

{{ways}}

def say(child):
    # What a child says of its answers: nothing, if each one holds the child's own prompt.
    try:
        # The parent's last connection is that of the children's first way, and so is still open.
        for name in WAYS if child == "parent" else reversed(WAYS):
            ask = WAYS[name]
            for turn in range({TURNS}):
                asked = f"child {{{{child}}}} asks {{{{turn}}}} by {{{{name}}}}."
                answer = ask(asked)
                if f"user: {{{{asked}}}}" not in answer:
                    return f"{{{{asked}}}} was answered by {{{{answer}}}}"
    except BaseException:
        return traceback.format_exc()
    return ""


assert say("parent") == ""
gate, opener = os.pipe()
started = []
for child in range({CHILDREN}):
    out, into = os.pipe()
    process = os.fork()
    if process == 0:
        signal.alarm(60)  # a child that hangs ends without a word
        os.close(opener)
        os.read(gate, 1)  # until all children are there
        os.write(into, (say(child) or "own answers")[-2000:].encode())
        os._exit(0)
    os.close(into)
    started.append((process, out))
os.close(opener)
for process, out in started:
    print(os.fdopen(out).read() or "nothing")
    os.waitpid(process, 0)
assert say("parent") == ""
"""
LANGCHAIN = """
from langchain_weftline import ChatWeftline

llm = ChatWeftline(temperature=0, max_retries=0)


async def read(asked):
    return "".join([part.content async for part in llm.astream(asked)])


WAYS = {
    "astream": lambda asked: asyncio.run(read(asked)),
    "ainvoke": lambda asked: asyncio.run(llm.ainvoke(asked)).content,
    "stream": lambda asked: "".join(part.content for part in llm.stream(asked)),
    "invoke": lambda asked: llm.invoke(asked).content,
}
"""
LLAMA_INDEX = """
from llama_index.llms.weftline import Weftline

llm = Weftline(max_retries=0)


async def read(asked):
    return [part.text async for part in await llm.astream_complete(asked)][-1]


WAYS = {
    "astream_complete": lambda asked: asyncio.run(read(asked)),
    "acomplete": lambda asked: asyncio.run(llm.acomplete(asked)).text,
    "stream_complete": lambda asked: [part.text for part in llm.stream_complete(asked)][-1],
    "complete": lambda asked: llm.complete(asked).text,
}
"""


@pytest.mark.parametrize("ways", [LANGCHAIN, LLAMA_INDEX], ids=["langchain", "llama_index"])
def test_every_child_gets_the_answers_to_its_own_prompts(ways: str, echo_url: str) -> None:
    """The parent's connections are open when it forks, and it uses them afterwards."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(ways=ways)],
        env={**os.environ, "WEFTLINE_BASE_URL": echo_url},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["own answers"] * CHILDREN
