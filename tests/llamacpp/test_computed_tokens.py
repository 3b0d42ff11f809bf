"""How many tokens the next turn of an agent computes, by published template.

The engine computes with random weights, and writes what a model of the family would write. So its
KV cache holds the answer as the model wrote it, and what the server had computed for the next turn.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from tests.llamacpp.test_published_templates import MARK, PUBLISHED, TEMPLATES
from tests.null.asgi import Serve, Server
from tests.null.test_dialects import DIALECTS
from tests.null.test_openai_tools import SIGNATURE, chat
from tests.null.test_special_marks import TokenEngine
from tests.tool_turns import MOST_COMPUTED, RESULT, computed_behind_a_call
from tests.waits import until
from weftline_engine import api
from weftline_engine.bookkeeping.schedule.step_scheduler import SchedulerConfig
from weftline_engine.own.detokenizer import ByteDetokenizer
from weftline_engine.own.embedded.engine import Core
from weftline_engine.own.embedded.model.base import Model
from weftline_engine.own.embedded.model.decoders import load_decoder
from weftline_engine.own.models import default_home
from weftline_engine.remote.llamacpp.config import LlamaServerConfig
from weftline_engine.remote.llamacpp.engine import LlamaEngine
from weftline_server.prompt.answer_dialect import dialect_of
from weftline_server.prompt.thinking_block import Thinking

BLOCK = 16
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 50_000,  # SmolLM2's, and the marks of a template
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 8192,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rms_norm_eps": 1e-6,
}
QWEN, MISTRAL, LISTS = "Qwen2.5, Granite 4", "Mistral Small 3.2, Ministral 3, Devstral", "Apriel"
# The row of docs/tools.md of each template; a beginning of the row.
ROWS = {
    "Qwen-Qwen2.5-7B-Instruct": QWEN,
    "Qwen-Qwen3-0.6B": "Qwen3",
    "Qwen3-Coder": "Qwen3-Coder",
    "GLM-4.6": "GLM 4.5",
    "GLM-4.7-Flash": "GLM 4.7",
    "ibm-granite-granite-3.3-2B-Instruct": "Granite 3",
    "ibm-granite-granite-4.0": QWEN,
    "ibm-granite-granite-4.1": QWEN,
    "HuggingFaceTB-SmolLM3-3B": "SmolLM3",
    "Qwen3.5-4B": "Qwen3-Thinking",
    "meta-llama-Llama-3.1-8B-Instruct": "Llama",
    "meta-llama-Llama-3.2-3B-Instruct": "Llama",
    "mistralai-Mistral-Nemo-Instruct-2407": "Mistral",
    "Mistral-Small-3.2-24B-Instruct-2506": MISTRAL,
    "mistralai-Ministral-3-14B-Reasoning-2512": MISTRAL,
    "unsloth-mistral-Devstral-Small-2507": MISTRAL,
    "openai-gpt-oss-120b": "gpt-oss",
    "google-gemma-4-31B-it": "Gemma 4",
    "moonshotai-Kimi-K2": "Kimi K2",
    "deepseek-ai-DeepSeek-V3.2": "DeepSeek V3.2",
    "deepseek-ai-DeepSeek-V4": "DeepSeek V3.2",
    "MiniMax-M2": "MiniMax M2",
    "ByteDance-Seed-OSS": "Seed-OSS",
    "deepseek-ai-DeepSeek-V3.1": "DeepSeek V3, V3.1",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "Command R7B",
    "LFM2-8B-A1B": "LFM2",
    "LFM2.5-Instruct": "LFM2",
    "LFM2.5-8B-A1B": "LFM2",
    "NVIDIA-Nemotron-Nano-v2": "Nemotron",
    "unsloth-Apriel-1.5": LISTS,
    "MiniMax-M1": LISTS,
    "Apertus-8B-Instruct": "Apertus",
    "openbmb-MiniCPM5-1B": "MiniCPM5",
    "microsoft-Phi-3.5-mini-instruct": "Gemma 2 and 3",
}
# How an answer without thoughts begins, where it does not begin with its text.
BEGINNINGS = {
    "openai-gpt-oss-120b": "<|channel|>final<|message|>",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "<|START_RESPONSE|>",
}
# The thoughts of an answer of DIALECTS, up to what follows them.
THOUGHTS = re.compile(
    r"^.*?The user asks\.(\n?</think>\n*|</seed:think>\n|<\|END_THINKING\|>|<\|inner_suffix\|>"
    r"|\n<channel\|>|<\|end\|><\|start\|>assistant)",
    re.S,
)
AGAIN = "And is it warm in Oslo, or at least in Copenhagen?"
WEATHER = {"type": "function", "function": {**SIGNATURE, "name": "weather"}}
WORDS = dict.fromkeys(("enable_thinking", "thinking", "add_thoughts"), True)
# An answer has more than twice MOST_COMPUTED tokens, so that one that is computed again is seen.
LONG = "They ask how warm it is, and I cannot know that, so I look it up. " * 4
PLACE = "Rome and the towns on the hills around it and the coast from Ostia down to Anzio " * 3
# These write the name of a call, 24 random digits, in front of its result.
NAMES_CALLS = ("moonshotai-Kimi-K2",)


class ComputingEngine(TokenEngine):
    """Writes the answer of the test, and computes each prompt and the answer behind it."""

    def __init__(self, path: Path, template: str, model: Model) -> None:
        super().__init__(path, template, "", 16)
        config = SchedulerConfig(blocks=512, block_size=BLOCK, max_running=4, step_tokens=512)
        self._core = Core(model, config, ByteDetokenizer(self._tokenizer))
        self.filled: set[str] = set()  # the sessions whose next prompt has begun
        self.computed = 0  # tokens of the last prompt

    def submit(self, op: api.Op) -> None:
        if op.kind == api.Kind.FILL:
            self._emit(self._compute(op))
            self._send()
            self.filled.add(op.hints.application)
            return
        fill = replace(op, kind=api.Kind.FILL, sampling=None)
        usage = self._compute(fill).usage
        self.computed = usage.prompt_tokens - usage.cached_tokens
        name, written = f"{op.id}+answer", self._tokenizer.encode(self._answer).ids
        whole = (*(op.tokens or ()), *written)
        self._compute(replace(fill, id=name, context=name, tokens=whole))
        super().submit(op)

    def free(self, context: str) -> None:
        self._core.free(context)

    def _compute(self, op: api.Op) -> api.Finished:
        self._core.submit(op)
        found: list[api.Event] = []
        while self._core.busy:
            found += self._core.step()
        [finished] = [one for one in found if isinstance(one, api.Finished)]
        return finished


@dataclass(frozen=True, slots=True)
class Talk:
    """A session with a model of a family."""

    engine: ComputingEngine
    server: Server
    session: str
    words: dict[str, bool] = field(default_factory=lambda: WORDS)

    def without_thoughts(self, text: str) -> str:
        """This answer of a model that does not think, or closes the block that its prompt opens."""
        thinking = self.server.service.engines.model("marked").prompter.thinking(self.words)
        return f"</think>\n\n{text}" if thinking is Thinking.OPEN else text

    async def answer(self, text: str, *messages: Any) -> Any:
        """The message of an answer that the model writes as `text`."""
        self.engine._answer = text
        said = {"tools": [WEATHER], "session_id": self.session, "chat_template_kwargs": self.words}
        return (await chat(self.server, *messages, model="marked", **said))["choices"][0]["message"]

    async def filled(self) -> None:
        """The beginning of the next prompt was computed."""
        await until(lambda: self.session in self.engine.filled)

    def computed_beside(self, text: str) -> int:
        """The tokens of the last prompt that were computed, less those of its new text."""
        new = self.engine._tokenizer.encode(text, add_special_tokens=False).ids
        return self.engine.computed - len(new)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(SHAPE))
    return load_decoder(folder, "bfloat16", BLOCK, default_home() / "kernels", dummy=True)


@pytest.mark.parametrize("name", PUBLISHED)
async def test_a_turn_computes_what_is_new(
    name: str, serve: Serve, tmp_path: Path, model: Model, smollm2_directory: Path
) -> None:
    """Of a family, whose marks are tokens beside SmolLM2's. Each conversation has a question of its
    own, so that none finds another's prompt in the KV cache."""
    template = (TEMPLATES / f"{name}.jinja").read_text()
    dialect, marks = dialect_of(template), sorted(set(MARK.findall(template)))
    found = Tokenizer.from_file(str(smollm2_directory / "tokenizer.json"))
    found.add_special_tokens([*(dialect.marks if dialect else ()), "<eos>"])
    found.add_tokens([AddedToken(one, normalized=False) for one in marks])
    found.save(str(path := tmp_path / "tokenizer.json"))
    engine = ComputingEngine(path, template, model)
    server = await serve(also={"marked": lambda: engine})
    await _behind_a_call(name, Talk(engine, server, await server.session()), keeps=True)
    await _behind_a_call(name, Talk(engine, server, await server.session()), keeps=False)
    off = dict.fromkeys(WORDS, False)
    await _behind_a_call(name, Talk(engine, server, await server.session(), off), keeps=True)
    await _behind_thoughts(name, Talk(engine, server, await server.session()))


async def _behind_a_call(name: str, talk: Talk, keeps: bool) -> None:
    """Whether the model thinks or not, and the client keeps the thoughts before the call or not:
    the tool's result, and at most MOST_COMPUTED tokens."""
    thinks = talk.words == WORDS
    asked = {"role": "user", "content": f"Is it warm{' there' * thinks}{' in Rome' * keeps}?"}
    written = next(text for row, (*_, text) in DIALECTS.items() if row.startswith(ROWS[name]))
    if not thinks:
        written = talk.without_thoughts(THOUGHTS.sub("", written))
    written = written.replace("The user asks.", LONG).replace("Rome", PLACE)
    made = await talk.answer(written, asked)
    await talk.filled()
    [call] = made["tool_calls"]
    assert thinks or "reasoning_content" not in made
    if not keeps:
        made.pop("reasoning_content", None)
    await talk.answer("", asked, made, result_of(call["id"]))
    new = RESULT + call["id"] * (name in NAMES_CALLS)
    assert talk.computed_beside(new) <= MOST_COMPUTED


async def _behind_thoughts(name: str, talk: Talk) -> None:
    """Most templates drop the thoughts of a turn behind the user's next message, so all behind them
    is computed again: while the user reads."""
    call = {"name": "weather", "arguments": '{"city": "Rome"}'}
    planned = {
        "role": "assistant",
        "content": None,
        "reasoning_content": "They ask for the weather, so I look it up. " * 4,
        "tool_calls": [{"id": "abcdef123", "type": "function", "function": call}],
    }
    turns = ({"role": "user", "content": "What about Rome?"}, planned, result_of("abcdef123"))
    written = talk.without_thoughts(f"{BEGINNINGS.get(name, '')}It is warm in Rome.")
    made = await talk.answer(written, *turns)
    assert made["content"].strip() == "It is warm in Rome." and "tool_calls" not in made
    await talk.filled()
    await talk.answer("", *turns, made, {"role": "user", "content": AGAIN})
    assert talk.computed_beside(AGAIN) <= MOST_COMPUTED


def result_of(id: str) -> dict[str, str]:
    return {"role": "tool", "tool_call_id": id, "content": RESULT}


async def test_llama_cpp_computes_what_is_new(
    serve: Serve, llama_config: LlamaServerConfig
) -> None:
    """A real llama-server has the beginning of the next turn in a slot."""
    server = await serve(also={"llama": lambda: LlamaEngine(llama_config)})
    assert await computed_behind_a_call(server, "llama") <= MOST_COMPUTED
