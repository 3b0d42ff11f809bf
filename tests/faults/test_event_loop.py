"""No request stops the event loop for more than 250 ms: each of these did, and a second client
watches.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.faults.pace import keeps_pace
from tests.null.asgi import Serve, Server, call
from weftline_engine import api
from weftline_engine.pretend.null import LatencyProfile, NullConfig, NullEngine, NullMode


def pattern(number: int) -> dict[str, Any]:
    """A pattern that takes half a second to compile: RE2 reads a set of 385,000 ranges."""
    regex = "([" + r"\w" * 490 + f"]{number})"
    return {"op": "regex", "regex": regex, "output_keys": ["a"]}


async def post(server: Server, path: str, body: bytes) -> httpx2.Response:
    return await server.http.post(
        path, content=body, headers={"content-type": "application/json"}, timeout=120
    )


async def sends(
    server: Server, body: Any, path: str = "/v1/submit"
) -> tuple[bool, httpx2.Response]:
    """Whether the loop kept its pace while `body` was answered, and the last answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answers: list[httpx2.Response] = []

    async def work() -> None:
        answers.append(await post(server, path, data))

    return await keeps_pace(server, work), answers[-1]


def out(name: str, *transforms: dict[str, Any], tokens: int = 100_000) -> dict[str, Any]:
    return {
        "in_out": "out",
        "semantic_var_id": name,
        "transforms": list(transforms),
        "sampling": {"max_tokens": tokens},
    }


async def test_patterns_compile_elsewhere_and_are_counted_first(serve: Serve) -> None:
    """80 patterns in one list stopped the server for 57 s: a list has 16."""
    server = await serve()
    calls = [call("c", "x{{output:o}}", o=out("o", *map(pattern, range(80))))]
    kept, answer = await sends(server, {"calls": calls})
    assert kept and answer.status_code == 400
    assert answer.json()["error"]["message"] == "at most 16 transforms in a row, got 80"
    kept, answer = await sends(server, {"calls": [call("c", "x{{output:o}}", o=out("o"))]})
    assert kept and answer.status_code == 200


async def test_yaml_is_read_elsewhere(serve: Serve) -> None:
    """A submit of 414 kB with YAML stopped the server for 51 s."""
    text = "- {a: [b, c]}\n" * 2000  # 28 kB, 0.8 s of PyYAML
    server = await serve(NullConfig(mode=NullMode.ECHO))
    calls = [call("c", text + "{{output:o}}", o=out("o", {"op": "yaml"}))]
    kept, answer = await sends(server, {"calls": calls, "get": ["o"], "close": True})
    assert kept and answer.json()["values"]["o"] == [{"a": ["b", "c"]}] * 2000


async def test_a_claim_about_a_large_value_is_not_searched_for(serve: Serve) -> None:
    """`from_var` wrote the whole value as JSON for each segment: 1.5 kB took 4.4 s."""
    server = await serve()
    session = await server.session()
    big = {f"key {i}": ["some text", i] for i in range(100_000)}
    path = f"/v1/session/{session}/variable/big"
    await server.http.put(path, json={"value": big}, timeout=60)
    segments = [{"text": f"piece {i}", "from_var": "big"} for i in range(30)]
    body = {
        "session_id": session,
        "calls": [{"name": "c", "prompt": [*segments, {"output": "o"}], "placeholders": [
            {"name": "o", "in_out": "out"}]}],
    }  # fmt: skip
    kept, answer = await sends(server, body)
    assert kept and answer.status_code == 200


async def test_pieces_of_one_name_are_numbered_in_linear_time(serve: Serve) -> None:
    """Each of 8,000 pieces called `x` tried all names before its own: 6.2 s."""
    server = await serve()
    pieces = [{"text": f"p{i} ", "name": "x"} for i in range(8000)]
    message = {"role": "user", "content": "".join(piece["text"] for piece in pieces)}
    body = {"messages": [message], "max_tokens": 1, "weftline": {"messages": [pieces]}}
    kept, answer = await sends(server, body, "/v1/chat/completions")
    assert kept and answer.status_code == 200


async def test_a_get_names_each_variable_once(serve: Serve) -> None:
    """500,000 names of one variable were as many readers, and 330 MB."""
    server = await serve()
    body = {"calls": [call("c", "x{{output:o}}", o="o")], "get": ["o"] * 500_000}
    kept, answer = await sends(server, body)
    assert kept and answer.status_code == 400
    assert answer.json()["error"]["param"] == "get"
    kept, answer = await sends(server, {**body, "get": ["o"] * 9000})
    assert kept and answer.json()["values"] == {"o": "x"}


async def test_messages_and_placeholders_are_counted(serve: Serve) -> None:
    """200,000 empty messages took 3.7 s, and one call with 8,000 placeholders 2 s."""
    server = await serve()
    messages = [{"role": "user", "content": ""}] * 200_000
    kept, answer = await sends(server, {"messages": messages}, "/v1/chat/completions")
    assert kept and answer.status_code == 400
    prompt = "".join(f"{{{{input:i{n}}}}}" for n in range(8000)) + "{{output:o}}"
    holders = [{"name": f"i{n}", "in_out": "in", "semantic_var_id": f"v{n}"} for n in range(8000)]
    named = {"name": "o", "in_out": "out", "semantic_var_id": "o"}
    body = {"calls": [{"name": "c", "prompt": prompt, "placeholders": [*holders, named]}]}
    kept, answer = await sends(server, body)
    assert kept and answer.status_code == 200
    outputs = "".join(f"{{{{output:o{n}}}}}" for n in range(8000))
    holders = [{"name": f"o{n}", "in_out": "out"} for n in range(8000)]
    body = {"calls": [{"name": "c", "prompt": outputs, "placeholders": holders}]}
    kept, answer = await sends(server, body)
    assert kept and answer.json()["error"]["param"] == "prompt"


@pytest.mark.parametrize(
    "value",
    [b"[" + b"[]," * 2_000_000 + b"0]", b"[" + b"0," * 4_000_000 + b"0]"],
    ids=["lists", "numbers"],
)
async def test_a_body_of_too_many_values_is_refused(serve: Serve, value: bytes) -> None:
    """The parser held the interpreter for 2.1 s."""
    server = await serve()
    session = await server.session()
    path = f"/v1/session/{session}/variable/v"
    answers: list[httpx2.Response] = []

    async def work() -> None:
        body = b'{"value":' + value + b"}"
        answers.append(await server.http.put(path, content=body, timeout=60))

    assert await keeps_pace(server, work)
    assert answers[-1].status_code == 400 and answers[-1].json()["error"]["param"] == "body"


@pytest.fixture
def words(tmp_path: Path) -> Callable[[], NullEngine]:
    """An engine whose prompts are tokenised by bytes, as byte-level BPE does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: id for id, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))

    class Words(NullEngine):
        async def start(self) -> api.Description:
            template = (
                "{% for m in messages %}{{ m['content'] }}{% for c in m.get('tool_calls', []) %}"
                "{{ c['function']['arguments'] | tojson }}{% endfor %}{% endfor %}"
                "{{ tools | tojson }}"
            )
            return api.Description(
                model="words",
                tokenizer=str(path),
                chat_template=template,
                context_limit=1 << 24,
                capabilities=(),
            )

    return lambda: Words(NullConfig(mode=NullMode.FIXED))


TOOLS = [
    {"type": "function", "function": {"name": f"f{i}", "parameters": {"x": "lorem " * 8000}}}
    for i in range(12)
]
CALLED = {"function": {"name": "f", "arguments": json.dumps({"x": "lorem ipsum " * 80_000})}}


@pytest.mark.parametrize(
    "more",
    [
        {"messages": [{"role": "user", "content": "lorem ipsum " * 60_000}]},
        {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS},
        {"messages": [{"role": "assistant", "tool_calls": [CALLED]}]},
    ],
    ids=["text", "tools", "calls of tools"],
)
async def test_a_megabyte_is_tokenised_elsewhere(
    serve: Serve, words: Callable[[], NullEngine], more: dict[str, Any]
) -> None:
    """The tokenizer held the interpreter for 1.2 s, and tools did not count as text."""
    server = await serve(also={"words": words})
    body = {"model": "words", "max_tokens": 1, **more}
    kept, answer = await sends(server, body, "/v1/chat/completions")
    assert kept and answer.status_code == 200, answer.text[:300]


async def test_one_tenant_does_not_hold_the_workers_of_another(serve: Serve) -> None:
    """A submit whose patterns need all the time that they may have fails alone; a value of another
    session that is parsed meanwhile comes in time.
    """
    server = await serve()
    hard = [
        call(f"c{i}", "x{{output:o}}", o=out(f"o{i}", *map(pattern, range(16 * i, 16 * i + 16))))
        for i in range(8)
    ]
    attack = asyncio.ensure_future(post(server, "/v1/submit", json.dumps({"calls": hard}).encode()))
    await asyncio.sleep(0.2)
    easy = {"op": "regex", "regex": "(x)", "output_keys": ["a"]}
    body = {"calls": [call("c", "x{{output:o}}", o=out("o", easy))], "get": ["o"]}
    answer = await post(server, "/v1/submit", json.dumps(body).encode())
    assert answer.json()["values"] == {"o": {"a": "x"}} and not attack.done()
    error = (await attack).json()["error"]
    assert error["param"] == "transforms" and "take more than 5 s to compile" in error["message"]


def alone(count: int) -> list[dict[str, Any]]:
    return [call(f"c{i}", f"x{i}{{{{output:o}}}}", o=f"v{i}") for i in range(count)]


def reduced(count: int) -> list[dict[str, Any]]:
    """99 of 100 calls are read by the hundredth."""
    calls = alone(count - count // 100)
    for number in range(count // 100):
        reads = {f"i{i}": f"v{number * 99 + i}" for i in range(99)}
        prompt = "".join(f"{{{{input:{name}}}}}" for name in reads) + "{{output:o}}"
        calls.append(call(f"r{number}", prompt, **reads, o=f"w{number}"))
    return calls


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("shape", [alone, reduced])
async def test_a_session_of_ten_thousand_calls(
    serve: Serve, shape: Callable[[int], list[dict[str, Any]]]
) -> None:
    """To take them took 0.3 s at once, their graph 0.8 s, their trace 0.2 s, the end 0.3 s."""
    server = await serve(NullConfig(latency=LatencyProfile(step_s=0.01)))
    body = json.dumps({"calls": shape(10_000), "detach": True}).encode()

    async def work() -> None:
        answer = await post(server, "/v1/submit", body)
        assert answer.status_code == 200
        (session,) = server.service.registry
        path = f"/v1/session/{session.id}"
        graph = (await server.http.get(f"{path}/graph")).json()
        assert len(graph["calls"]) == 10_000
        assert (await server.http.get(f"{path}/trace")).status_code == 200
        while any(run.held for run in session.primitives.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await server.http.delete(path)
        await server.driver._backlog.contained.settle()

    assert await keeps_pace(server, work)


@pytest.mark.usefixtures("uncollected")
async def test_the_input_of_five_thousand_calls(serve: Serve) -> None:
    """All were rendered, tokenised and queued in one turn of the loop, which took 1 s."""
    server = await serve(NullConfig(latency=LatencyProfile(step_s=0.01)))
    calls = [call(f"c{i}", f"x{i} {{{{input:q}}}}{{{{output:o}}}}", q="q", o=f"v{i}")
             for i in range(5000)]  # fmt: skip
    body = json.dumps({"calls": calls, "detach": True}).encode()

    async def work() -> None:
        assert (await post(server, "/v1/submit", body)).status_code == 200
        (session,) = server.service.registry
        while any(run.held for run in session.primitives.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        path = f"/v1/session/{session.id}"
        answer = await server.http.put(f"{path}/variable/q", json={"value": "a question"})
        assert answer.status_code == 200
        await server.driver._backlog.contained.settle()
        await server.http.delete(path)
        await server.driver._backlog.contained.settle()

    assert await keeps_pace(server, work)


async def test_a_predicates_patterns_compile_elsewhere(serve: Serve) -> None:
    """Each pattern of a branch was compiled on the event loop, for 0.15 to 0.4 s: 8 took 2 s."""
    server = await serve()
    sides = [call(one, f"{one}{{{{output:{one}}}}}", **{one: one}) for one in ("a", "b")]
    tries: list[httpx2.Response] = []

    async def work() -> None:
        patterns = ["([" + r"\w" * 490 + f"]{n})z{len(tries)}" for n in range(1, 9)]  # all are new
        cases = [{"when": {"op": "matches", "value": one}, "take": "a"} for one in patterns]
        step = {"kind": "branch", "on": {"value": "?"}, "cases": cases, "default": "b"}
        body = {"calls": sides, "steps": [{**step, "out": "won"}], "get": ["won"]}
        tries.append(await post(server, "/v1/submit", json.dumps(body).encode()))

    assert await keeps_pace(server, work)
    assert tries[-1].json()["values"] == {"won": "b"}
