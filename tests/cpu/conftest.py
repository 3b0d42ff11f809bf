"""A tiny random Llama with a byte tokenizer, and helpers that run ops on it to their end."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig
from transformers.convert_slow_tokenizer import bytes_to_unicode

from tests.cores import keep_to_own_cores
from tests.variants import BUILDS, load_model
from weftline_engine.api import (
    Event,
    Failed,
    Finished,
    Kind,
    Op,
    Part,
    SamplingParams,
)
from weftline_engine.bookkeeping.schedule.step_scheduler import SchedulerConfig
from weftline_engine.own.embedded.engine import Core
from weftline_engine.own.embedded.model.host_model import HostModel
from weftline_kernels.cpu.loader import library

keep_to_own_cores()

VOCABULARY = 256
EOS = 0


class ByteStreamOfTest:
    """Token n is byte n, so that a character may need several tokens."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, tokens: Sequence[int]) -> str:
        return self._decoder.decode(bytes(tokens))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class ByteDetokenizerOfTest:
    def stream(self, prompt: Sequence[int]) -> ByteStreamOfTest:
        return ByteStreamOfTest()


@dataclass
class Outcome:
    """The result of one op."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finished: Finished | None = None
    failed: Failed | None = None
    events: list[Event] = field(default_factory=list)


@dataclass
class Bench:
    """A core and everything that its ops have reported."""

    core: Core
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def submit(self, ops: Iterable[Op]) -> None:
        for op in ops:
            self.core.submit(op)

    def step(self) -> list[Event]:
        events = self.core.step()
        for event in events:
            outcome = self.outcomes.setdefault(event.op, Outcome())
            outcome.events.append(event)
            match event:
                case Part():
                    assert event.offset == len(outcome.tokens)
                    outcome.tokens += event.tokens
                    outcome.text += event.text
                case Finished():
                    outcome.finished = event
                case Failed():
                    outcome.failed = event
        return events

    def run(self, *ops: Op) -> list[Outcome]:
        """Submit these ops together and step until the engine is idle."""
        self.submit(ops)
        for _ in range(20_000):
            if not self.core.busy:
                break
            self.step()
        else:
            raise AssertionError("the engine does not come to rest")
        return [self.outcomes[op.id] for op in ops]


def _tiny_llama(
    directory: Path, family: type[PretrainedConfig] = LlamaConfig, **changes: Any
) -> Path:
    """Save a random Llama of 3 layers whose logits are far enough apart for exact comparisons.

    Every vector is random too, because transformers starts norms at 1 and biases at 0.
    """
    torch.manual_seed(0)
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": EOS,
    }
    model = AutoModelForCausalLM.from_config(family(**{**shape, **changes}))
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 1.0, 0.2)
    model.save_pretrained(directory)
    characters = bytes_to_unicode()
    vocabulary = {characters[byte]: byte for byte in range(VOCABULARY)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "A", "eos_token": {"content": "B"}, "chat_template": "{{ messages }}"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """One thread, because on tensors this small more threads only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny_llama() -> Callable[..., Path]:
    """Save a tiny Llama with other settings."""
    return _tiny_llama


@pytest.fixture(scope="session")
def decoders_by_type(tiny_directory: Path) -> dict[torch.dtype, HostModel]:
    return {kind: load_model(tiny_directory, kind) for kind in (torch.float32, torch.float64)}


@pytest.fixture
def make_bench(decoders_by_type: dict[torch.dtype, HostModel]) -> Callable[..., Bench]:
    def make(
        *,
        blocks: int = 256,
        block_size: int = 16,
        max_running: int = 64,
        step_tokens: int = 512,
        dtype: torch.dtype = torch.float64,
        **options: Any,
    ) -> Bench:
        config = SchedulerConfig(
            blocks=blocks,
            block_size=block_size,
            max_running=max_running,
            step_tokens=step_tokens,
        )
        decoder = decoders_by_type[dtype]
        return Bench(Core(decoder, config, ByteDetokenizerOfTest(), **options))

    return make


@pytest.fixture(scope="session")
def tokens_of() -> Callable[[int, int], tuple[int, ...]]:
    """Return a random prompt for a seed and a length."""

    def make(seed: int, count: int) -> tuple[int, ...]:
        generator = torch.Generator().manual_seed(seed)
        return tuple(torch.randint(1, VOCABULARY, (count,), generator=generator).tolist())

    return make


@pytest.fixture(scope="session")
def generate() -> Callable[..., Op]:
    """A greedy generate of 12 tokens that does not stop early, unless the options say otherwise."""

    def make(name: str, tokens: Sequence[int], **options: Any) -> Op:
        words = ("parent", "salt", "open", "attempt", "context")
        op = {word: options.pop(word) for word in words if word in options}
        sampling = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True, **options}
        return Op(
            id=name,
            kind=Kind.GENERATE,
            tokens=tuple(tokens),
            sampling=SamplingParams(**sampling),
            **{"context": f"{name}.context", **op},
        )

    return make


@pytest.fixture(scope="session")
def fill() -> Callable[..., Op]:
    """A fill of these tokens."""

    def make(name: str, tokens: Sequence[int], **options: Any) -> Op:
        options = {"context": f"{name}.context", **options}
        return Op(id=name, kind=Kind.FILL, tokens=tuple(tokens), **options)

    return make


@pytest.fixture(scope="session", params=BUILDS.values(), ids=list(BUILDS))
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The decoder of each variant. With pairs, what enters a product is rounded to bfloat16, and
    lies otherwise in memory."""
    return library(tmp_path_factory.mktemp("kernels"), flags=request.param)
