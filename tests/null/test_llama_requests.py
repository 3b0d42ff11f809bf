"""What is sent to llama-server, what it answers, and what a user reads when it cannot start."""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from weftline.contract.errors import InvalidRequest
from weftline_engine import api
from weftline_engine.own.models import ModelUnavailable
from weftline_engine.remote.llamacpp import slot_requests
from weftline_engine.remote.llamacpp.config import LlamaServerConfig
from weftline_engine.remote.llamacpp.engine import LlamaEngine
from weftline_engine.remote.llamacpp.llama_child import LlamaChild, cause
from weftline_engine.remote.llamacpp.llama_program import (
    ServerMissing,
    build_of,
    find_server,
    too_old,
)
from weftline_engine.remote.llamacpp.slots import Seat, SlotCall
from weftline_engine.remote.llamacpp.state_cut import StateCut
from weftline_engine.remote.openai.endpoint import EndpointError
from weftline_engine.remote.openai.remote import AnswerTimes
from weftline_server.commands import engine_spec, engines


def body(
    constraint: dict[str, Any] | None = None, **options: Any
) -> tuple[dict[str, Any], str, str]:
    text = None if constraint is None else json.dumps(constraint)
    sampling = api.SamplingParams(**{"max_tokens": 9, "constraint": text, **options})
    op = api.Op(id="a", kind="generate", context="a", sampling=sampling)
    seat = Seat(SlotCall("a", (1, 2), "", fills=False), slot=3, found=2)
    return slot_requests.generate(op, (1, 2), seat, 8)


def test_a_stop_token_ends_an_answer_and_so_does_a_stop_string_beside_it() -> None:
    """llama-server gets no stop strings then, because it would hold back text before a token that
    ends the answer. The last event says what the slot holds, and what llama-server has cached."""
    sent, _, _ = body(stop=("<b>",), stop_token_ids=(7,))
    assert sent["stop"] == [] and sent["timings_per_token"] is True

    def event(text: str, token: int, made: int) -> dict[str, Any]:
        timings = {"cache_n": 4}
        return {"content": text, "tokens": [token], "tokens_predicted": made, "timings": timings}

    def told(*events: tuple[str, int]) -> list[slot_requests.SlotEvent]:
        sampling = api.SamplingParams(max_tokens=9, stop=("<b>",), stop_token_ids=(7,))
        ending = slot_requests.AnswerEnd(sampling, prompt=10)
        made = enumerate(events, 1)
        read = (slot_requests.read(event(text, one, at)) for at, (text, one) in made)
        found = [ending.cut(one) for one in read]
        assert all(one.reason is None for one in found[:-1])
        return found

    first, second, last = told(("Hi ", 5), ("<", 6), ("never", 7))
    assert (first.text, second.text, last.text) == ("Hi ", "", "<")
    assert (last.tokens, last.reason, last.cached, last.held) == (
        (7,), api.FinishReason.STOP, 4, 12,
    )  # fmt: skip
    *_, last = told(("Hi <", 5), ("b", 6), ("> there", 8))
    assert (last.text, last.reason) == ("", api.FinishReason.STOP)


def test_a_generate_names_its_slot_and_our_order_of_samplers() -> None:
    """The temperature comes before top_k and top_p. No output is longer than the slot."""
    found, begin, end = body(temperature=0.5, top_k=4, seed=-1, stop=("", "x"))
    assert (begin, end) == ("", "")
    assert found == {
        "prompt": [1, 2],
        "stream": True,
        "n_predict": 6,
        "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
        "temperature": 0.5,
        "top_k": 4,
        "top_p": 1.0,
        "min_p": 0.0,
        "repeat_penalty": 1.0,
        "repeat_last_n": 8,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "ignore_eos": False,
        "stop": ["x"],
        "seed": 2**32 - 1,
        "id_slot": 3,
        "cache_prompt": True,
        "return_tokens": True,
    }


def test_states_are_asked_for_where_a_text_begins() -> None:
    """llama-server keeps one where a message of the user begins, and such a text begins one."""
    told = [{"role": "user", "delimiter": "one"}, {"role": "user", "delimiter": "two"}]
    op = api.Op(id="o", kind="generate", context="o", sampling=api.SamplingParams(max_tokens=1))
    seat = Seat(SlotCall("o", (1, 2), "", fills=False), 3, 0)
    found, _, _ = slot_requests.generate(op, (1, 2), seat, 8, ["one", "two"])
    assert found["message_delimiters"] == told
    assert slot_requests.fill((1, 2), 3, delimiters=["one", "two"]) == {
        "prompt": [1, 2],
        "n_predict": 0,
        "id_slot": 3,
        "cache_prompt": True,
        "return_tokens": True,
        "message_delimiters": told,
    }


def test_bans_and_probabilities() -> None:
    """A bias of -100 is a ban. Even without alternatives one probability is asked for."""
    found, _, _ = body(temperature=0, logit_bias=((5, -100.0), (6, 2.5)), logprobs=0)
    assert found["logit_bias"] == [[5, False], [6, 2.5]]
    assert (found["n_probs"], found["samplers"]) == (1, ["penalties", "temperature"])


def test_marks_stay_in_the_text() -> None:
    """llama-server leaves out all special tokens but those that a request names."""
    found, _, _ = body(marks=("<|call|>",))
    assert found["preserved_tokens"] == ["<|call|>"]


@pytest.mark.parametrize(
    ("constraint", "fields", "around"),
    [
        ({"json_schema": {"type": "null"}}, {"json_schema": {"type": "null"}}, ("", "")),
        ({"choice": ["a", 'b"']}, {"grammar": 'root ::= "a" | "b\\""'}, ("", "")),
        ({"grammar": 'root ::= "x"'}, {"grammar": 'root ::= "x"'}, ("", "")),
        (
            {
                "structural_tag": {
                    "type": "tags_with_separator",
                    "tags": [{"begin": "<t>", "content": {"json_schema": {}}, "end": "</t>"}],
                    "at_least_one": True,
                }
            },
            {"json_schema": {}},
            ("<t>", "</t>"),
        ),
    ],
)
def test_constraints(
    constraint: dict[str, Any], fields: dict[str, Any], around: tuple[str, str]
) -> None:
    """In llama.cpp's words. A forced call of one tool is a schema between fixed texts."""
    found, begin, end = body(constraint)
    assert {name: found[name] for name in ("json_schema", "grammar") if name in found} == fields
    assert (begin, end) == around


@pytest.mark.parametrize(
    ("constraint", "options", "said"),
    [
        ({"grammar": 'start: "x"'}, {}, "llama.cpp reads grammars in EBNF"),
        ({"regex": "a+"}, {}, "not by a regex"),
        (None, {"min_tokens": 1}, "llama.cpp has no min_tokens: leave it out"),
    ],
)
def test_what_llama_cpp_cannot_do(
    constraint: dict[str, Any] | None, options: dict[str, Any], said: str
) -> None:
    """It is refused with a sentence."""
    with pytest.raises(EndpointError, match=said) as refused:
        body(constraint, **options)
    assert refused.value.error == "InvalidRequest"


def test_events() -> None:
    """A token with its probabilities, and the end with its counts."""
    top = [{"id": 4, "logprob": -0.1}, {"id": 9, "logprob": -3.0}]
    told = {"content": "a", "tokens": [4], "tokens_predicted": 1, "stop": False}
    event = slot_requests.read(
        told | {"completion_probabilities": [{"id": 4, "logprob": -0.1, "top_logprobs": top}]}
    )
    assert event == slot_requests.SlotEvent("a", (4,), 1, -0.1, ((4, -0.1), (9, -3.0)))
    end = {"content": "", "tokens": [], "tokens_predicted": 2, "stop": True}
    timings = {"cache_n": 5, "prompt_ms": 250.0, "predicted_ms": 500}
    end |= {"stop_type": "word", "tokens_cached": 7, "timings": timings}
    times = AnswerTimes(fill_s=0.25, generate_s=0.5)
    assert slot_requests.read(end) == slot_requests.SlotEvent(
        "", (), 2, reason=api.FinishReason.STOP, cached=5, held=7, times=times
    )
    with pytest.raises(EndpointError, match="use a newer one"):
        slot_requests.read({"content": "an old llama-server names no tokens"})


def test_what_a_server_says_of_itself() -> None:
    """A build without git has no number. Another server is refused."""
    props = {
        "default_generation_settings": {"n_ctx": 512},
        "total_slots": 2,
        "model_path": "/models/tiny.gguf",
        "chat_template": "{{ messages }}",
        "bos_token": "<s>",
        "build_info": "b7100-abc",
    }
    found = slot_requests.properties(props, {"data": [{"meta": {"n_vocab": 260}}]})
    assert found == slot_requests.Properties(2, 512, "tiny", "{{ messages }}", "<s>", "", 7100, 260)
    bare = slot_requests.properties(props | {"build_info": "b0-unknown"}, {})
    assert (bare.build, bare.vocabulary) == (None, None)
    with pytest.raises(EndpointError, match="it is not a llama-server"):
        slot_requests.properties({"object": "list"}, {})
    with pytest.raises(EndpointError, match="give its address"):
        slot_requests.object_of(b"<html>")


def test_old_builds_are_refused() -> None:
    """By the number that --version prints; without one a build is tried."""
    assert build_of("version: 6999 (abc)\nbuilt with cc") == 6999
    assert build_of("version: 0.5.0-dev (build 11434, commit abc)") == 11434
    assert build_of("version: 0.5.0-dev (build 0, commit unknown)") is None
    assert build_of("version: 0 (unknown)") is None and build_of("?") is None
    assert too_old(6999) == (
        "this llama-server is build 6999, and weftline needs build 7000 or newer: install a newer "
        "llama.cpp"
    )
    assert too_old(7000) == too_old(None) == ""


def test_the_cause_of_a_failed_start() -> None:
    """It is the last line about an error, else the last line."""
    assert cause(["load: error loading model: bad magic", "exiting"]) == (
        "load: error loading model: bad magic"
    )
    assert cause(["one", "two"]) == "two" and cause([]) == "it printed nothing"


def test_the_command_line(tmp_path: Path) -> None:
    """The operator's words come last, so they count."""
    config = LlamaServerConfig(
        llama_server="llama-server",
        model=Path("m.gguf"),
        slots=2,
        context=100,
        llama_arguments=("-ngl", "9"),
    )
    text = (
        f"llama-server --model m.gguf --host {tmp_path}/http.sock --parallel 2 --ctx-size 200 "
        f"--slot-save-path {tmp_path}/ --cache-ram 0 --metrics -ngl 9"
    )
    assert config.command(tmp_path) == text.split(" ")
    windows = replace(config, cut=StateCut.WINDOWS).command(tmp_path)
    assert "--cache-ram" not in windows and "--slot-prompt-similarity" in windows
    with pytest.raises(ValueError, match="either a llama-server to start or --connect URL"):
        LlamaServerConfig()


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


async def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    """An old build is not started, and the last words of one that ends are quoted."""
    model = tmp_path / "m.gguf"
    old = program(tmp_path / "old", "echo 'version: 41 (abc)'")
    with pytest.raises(api.EngineDied, match="build 41, and weftline needs build 7000 or newer"):
        await LlamaEngine(LlamaServerConfig(llama_server=old, model=model)).start()
    ends = program(
        tmp_path / "ends",
        '[ "$1" = --version ] || { echo "error: no such file m.gguf" >&2; exit 1; }',
    )
    child = LlamaChild(LlamaServerConfig(llama_server=ends, model=model))
    with pytest.raises(
        api.EngineDied, match=r"llama-server ended while loading: error: no such file m\.gguf"
    ):
        await child.start()
    with pytest.raises(api.EngineDied, match="does not run"):
        await LlamaEngine(LlamaServerConfig(llama_server=str(model), model=model)).start()
    slow = program(tmp_path / "slow", '[ "$1" = --version ] || exec sleep 60')
    with pytest.raises(api.EngineDied, match=r"did not answer within 0\.2 s"):
        async with asyncio.timeout(30):
            await LlamaEngine(
                LlamaServerConfig(llama_server=slow, model=model, ready_s=0.2)
            ).start()


def spec(*words: str) -> engine_spec.EngineSpec:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    engine_spec.add_arguments(parser)
    (found,) = engine_spec.from_arguments(parser.parse_args(words))
    return found


def test_what_a_user_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No llama-server, no file, a file of another kind, both ways at once: a sentence each."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidRequest, match="there is no llama-server on PATH: install"):
        engines.factory(spec("m.gguf", "--engine", "llamacpp"))
    with pytest.raises(ServerMissing, match="there is no program 'nowhere'"):
        find_server("nowhere")
    server = program(tmp_path / "llama-server", "true")
    assert find_server(None) == server
    engine = ("--engine", "llamacpp")
    with pytest.raises(ModelUnavailable, match=r"there is no file '/none\.gguf'"):
        engines.factory(spec("/none.gguf", *engine))
    (tmp_path / "text.gguf").write_text("text")
    with pytest.raises(ModelUnavailable, match=r"text\.gguf is not a GGUF file"):
        engines.factory(spec(str(tmp_path / "text.gguf"), *engine))
    with pytest.raises(ModelUnavailable, match=r"llama\.cpp reads a \.gguf file"):
        engines.factory(spec("hf:org/name", *engine))
    with pytest.raises(InvalidRequest, match=r"starts a llama-server .* and not both"):
        spec("m.gguf", *engine, "--connect", "http://a", "--llama-server", "b")


def test_words_for_llama_server_may_be_one_text() -> None:
    """As words of their own they would be taken for options of weftline."""
    found = spec("m.gguf", "--engine", "llamacpp", "--llama-arguments=-ngl 99 --threads 4")
    assert found.llama.llama_arguments == ("-ngl", "99", "--threads", "4")
