"""Special tokens that part an answer: engines leave them out, and the server puts them back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.null.asgi import Serve
from tests.null.test_answer_dialects import ANSWERS, CALLS, SAID, SCHEMAS, THOUGHTS, calls_of
from tests.null.test_openai_tools import USER, chat, streamed
from weftline_engine import api
from weftline_engine.bookkeeping.output import StopScanner
from weftline_engine.own.detokenizer import ByteDetokenizer
from weftline_engine.pretend.null import NullConfig, NullEngine, NullMode
from weftline_server.prompt.answer_dialect import ANSWER_DIALECTS
from weftline_server.prompt.prompter import _byte_alphabet
from weftline_server.prompt.special_marks import MarkedText

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if tools %}"


def tokenizer(marks: Sequence[str]) -> Tokenizer:
    """A token for each byte, and a special one for each mark and for the end."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    found = Tokenizer(models.BPE({one: id for id, one in enumerate(alphabet)}, []))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens([*marks, "<eos>"])
    return found


class TokenEngine(NullEngine):
    """A null engine whose tokens are a tokenizer's. As all engines, it leaves special tokens out of
    its text, and ends an answer with its end token, in parts of `size` tokens. Some engines tell
    ids only where they are asked for."""

    def __init__(self, path: Path, template: str, answer: str, size: int) -> None:
        super().__init__(NullConfig(mode=NullMode.SCRIPT, model="marked"))
        self.marks: list[tuple[str, ...]] = []  # of its ops
        self._path, self._template, self._answer, self._size = path, template, answer, size
        self._tokenizer = Tokenizer.from_file(str(path))

    async def start(self) -> api.Description:
        found = await super().start()
        return replace(
            found,
            tokenizer=str(self._path),
            chat_template=self._template,
            capabilities=(*found.capabilities, api.Capability.TOKENS),
        )

    def submit(self, op: api.Op) -> None:
        assert op.sampling is not None
        self.marks.append(op.sampling.marks)
        ids = self._tokenizer.encode(self._answer + "<eos>").ids[: op.sampling.max_tokens]
        stream = ByteDetokenizer(self._tokenizer).stream(op.tokens or ())
        scanner = StopScanner(op.sampling.stop)
        for offset in range(0, len(ids), self._size):
            some = tuple(ids[offset : offset + self._size])
            text = scanner.push("".join(stream.push([one]) for one in some))
            told = some if op.sampling.marks else ()
            part = api.Part(**self._head(op), offset=offset, tokens=told, text=text)
            self._emit(part)
            if scanner.stopped:
                break
        usage = api.Usage(
            prompt_tokens=1, cached_tokens=0, output_tokens=len(ids), started=0.0, filled=0.0
        )
        self._emit(api.Finished(**self._head(op), reason=api.FinishReason.STOP, usage=usage))
        self._send()


@pytest.mark.parametrize("name", ANSWER_DIALECTS)
@pytest.mark.parametrize("size", [1, 3, 50])
async def test_an_answer_in_special_tokens_is_read(
    name: str, size: int, serve: Serve, tmp_path: Path
) -> None:
    """The engine's text has no marks. The client gets thoughts, content and calls, whole and
    streamed."""
    dialect, path = ANSWER_DIALECTS[name], tmp_path / "tokenizer.json"
    tokenizer(dialect.marks).save(str(path))
    template = TEMPLATE + "{{ tools | tojson }}{% endif %}<think></think>" + dialect.sign
    answer = ANSWERS[name]
    server = await serve(also={"marked": lambda: TokenEngine(path, template, answer, size)})
    functions = [
        {"name": one, "parameters": {"type": "object"} | schema} for one, schema in SCHEMAS.items()
    ]
    tools = [{"type": "function", "function": one} for one in functions]
    message = (await chat(server, USER, model="marked", tools=tools))["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (THOUGHTS, SAID)
    assert calls_of(message) == CALLS
    chunks = await streamed(server, USER, model="marked", tools=tools)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(one.get("reasoning_content") or "" for one in deltas) == THOUGHTS
    assert "".join(one.get("content") or "" for one in deltas) == SAID


@pytest.mark.parametrize("stop", [None, "ro"])
async def test_an_answer_without_tools_has_no_marks(
    stop: str | None, serve: Serve, tmp_path: Path
) -> None:
    """The value of a chat's output is its text. It ends before a stop string, as the engine's
    does. A prompt of text has no template that asks for channels, so its output stays as it is."""
    path = tmp_path / "tokenizer.json"
    text = "<|channel|>final<|message|>Zürich, Rom & Europe.<|return|>"
    tokenizer(ANSWER_DIALECTS["gpt-oss"].marks).save(str(path))
    template = TEMPLATE + "{% endif %}<|channel|>"
    engine = TokenEngine(path, template, text, 4)
    server = await serve(also={"marked": lambda: engine})
    wish = {} if stop is None else {"stop": stop}
    message = (await chat(server, USER, model="marked", **wish))["choices"][0]["message"]
    assert message["content"] == ("Zürich, Rom & Eu" if stop else "Zürich, Rom & Europe.")
    answer = await server.http.post("/v1/completions", json={"model": "marked", "prompt": "Where?"})
    assert answer.json()["choices"][0]["text"] == "finalZürich, Rom & Europe."
    assert engine.marks == [ANSWER_DIALECTS["gpt-oss"].marks, ()]
    await asyncio.sleep(0)
    assert not server.driver._runners.prompts.answers._rewritings


_PIECES = st.sampled_from(["<|a|>", "<|b|>", "é", "x", " ", "日", "<eos>", "|"])


@given(pieces=st.lists(_PIECES, max_size=12), size=st.integers(1, 5), is_late=st.booleans())
def test_marks_return_to_their_places(pieces: list[str], size: int, is_late: bool) -> None:
    """Whatever bytes a part ends with, the text and the marks are those that were written. An
    engine whose text is late changes nothing."""
    found = tokenizer(("<|a|>", "<|b|>"))
    ids = found.encode("".join(pieces)).ids
    added = {id: token.content for id, token in found.get_added_tokens_decoder().items()}
    marks = {id: text for id, text in added.items() if text != "<eos>"}
    letters = _byte_alphabet()
    reader = MarkedText(lambda id: bytes([letters[str(found.id_to_token(id))]]), set(added), marks)
    stream = ByteDetokenizer(found).stream(())
    made, late = "", ""
    for offset in range(0, len(ids), size):
        some = ids[offset : offset + size]
        text = "".join(stream.push([one]) for one in some)
        made += reader.feed(some, "" if is_late else text)
        late += text if is_late else ""
    made += reader.feed((), late + stream.finish()) + reader.end()
    assert made == "".join(pieces).replace("<eos>", "")


def test_a_mark_that_the_engine_left_in_stays_once() -> None:
    """llama-server leaves the marks in that it is asked for, and tells their ids."""
    reader = MarkedText(lambda id: b"x", {7}, {7: "<|a|>"})
    assert reader.feed((1, 7, 1), "x<|a|>x") + reader.end() == "x<|a|>x"
