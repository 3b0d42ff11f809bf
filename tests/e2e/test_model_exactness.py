"""SmolLM2 against transformers on the same weights: greedy tokens in float32, and bfloat16 judged
position by position against float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.sizes import sized
from tests.variants import load_model
from weftline_engine.api import Finished, Kind, Op, Part, SamplingParams
from weftline_engine.bookkeeping.op_table import Backend
from weftline_engine.bookkeeping.schedule.sequence import Sequence as Planned
from weftline_engine.bookkeeping.schedule.step_scheduler import Scheduler, SchedulerConfig
from weftline_engine.own.detokenizer import ByteDetokenizer
from weftline_engine.own.embedded.engine import Core
from weftline_engine.own.embedded.model.base import Model
from weftline_engine.own.embedded.model.checkpoint import Checkpoint
from weftline_engine.own.embedded.model.config import LlamaConfig
from weftline_engine.own.embedded.model.decoders import load_decoder
from weftline_engine.own.embedded.model.families import read_config
from weftline_engine.own.embedded.model.host_model import HostModel
from weftline_engine.own.embedded.model.native_decoder import NativeDecoder
from weftline_engine.own.embedded.step_inputs import step_input
from weftline_kernels.cpu.loader import FLAGS, library

SYSTEM = (
    "<|im_start|>system\nYou are a careful assistant. You answer every question briefly and "
    "precisely, in one sentence.<|im_end|>\n"
)
QUESTIONS = [
    "What is the capital of France?",
    "Name three primary colours.",
    "Write one sentence about the sea.",
    "How many days has a week?",
    "Translate 'good morning' into Spanish.",
    "What does a compiler do?",
    "Give me a synonym for 'fast'.",
    "Who wrote Hamlet?",
    "Is the sun a star?",
    "Write a Python function that adds two numbers.",
    "What is 12 times 12?",
    "Why is the sky blue?",
    "List the planets of the solar system.",
    "What is photosynthesis?",
    "Summarise: the cat sat on the mat, and the dog slept.",
    "What do bees make?",
    "How do I boil an egg?",
    "Name an animal that can fly.",
    "What is the opposite of 'cold'?",
    "Describe a forest in ten words.",
]
OUTPUT = 16
# The first bfloat16 test loads the model four times.
pytestmark = pytest.mark.timeout(600)
# Two logits closer than this may swap when the same float32 sums are added in another order.
TIE = 1e-3


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads on two busy cores wait for each other at every operator, 100 times as long as
    they work. One thread does not wait.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer(smollm2_directory: Path) -> Tokenizer:
    return Tokenizer.from_file(str(smollm2_directory / "tokenizer.json"))


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """The first questions as chats: all 20, or down to 8 on a slow machine."""
    questions = QUESTIONS[: sized(len(QUESTIONS), 8)]
    texts = [f"{SYSTEM}<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n" for q in questions]
    return [tuple(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]


@pytest.fixture(scope="module")
def reference(smollm2_directory: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(smollm2_directory, dtype=torch.float32)


@pytest.fixture(scope="module")
def decoder(smollm2_directory: Path) -> HostModel:
    return load_model(smollm2_directory, torch.float32)


@pytest.fixture
def core(decoder: HostModel, tokenizer: Tokenizer) -> Core:
    return Core(decoder, SchedulerConfig(blocks=512), ByteDetokenizer(tokenizer))


def generate(name: str, tokens: Sequence[int], parent: str | None = None) -> Op:
    sampling = SamplingParams(max_tokens=OUTPUT, temperature=0, ignore_eos=True)
    return Op(
        id=name,
        kind=Kind.GENERATE,
        context=f"{name}.context",
        parent=parent,
        tokens=tuple(tokens),
        sampling=sampling,
    )


def run(core: Core, *ops: Op) -> tuple[list[list[int]], list[Finished]]:
    """Tokens and ends of the generates among these ops."""
    tokens: dict[str, list[int]] = {op.id: [] for op in ops if op.kind == Kind.GENERATE}
    finished: dict[str, Finished] = {}
    for op in ops:
        core.submit(op)
    while core.busy:
        for event in core.step():
            if isinstance(event, Part):
                tokens[event.op] += event.tokens
            elif isinstance(event, Finished):
                finished[event.op] = event
    return list(tokens.values()), [finished[name] for name in tokens]


@pytest.fixture(scope="module")
def check_greedy(
    reference: torch.nn.Module, prompts: list[tuple[int, ...]]
) -> Callable[[list[list[int]]], None]:
    """Check the outputs of the first prompts. Each token must be the reference's best one after all
    tokens before it, or a tie. By induction the whole output is then the reference's greedy one.
    An output that was checked before is not computed again."""

    @cache
    def behind(prompt: tuple[int, ...], output: tuple[int, ...]) -> float:
        with torch.inference_mode():
            ids = torch.tensor([[*prompt, *output]])
            logits = reference(ids).logits[0, len(prompt) - 1 : -1]
        chosen = logits[torch.arange(OUTPUT), torch.tensor(output)]
        return float((logits.max(-1).values - chosen).max())

    def check(found: list[list[int]]) -> None:
        for prompt, output in zip(prompts, found, strict=False):
            assert behind(prompt, tuple(output)) < TIE, (prompt, output)

    return check


Check = Callable[[list[list[int]]], None]


def test_greedy_tokens_equal_generate(
    core: Core, reference: torch.nn.Module, prompts: list[tuple[int, ...]]
) -> None:
    """Three prompts alone, against transformers' own loop."""
    for i, prompt in enumerate(prompts[:3]):
        ids = torch.tensor([prompt])
        expected = reference.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=OUTPUT,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=2,
        )
        assert run(core, generate(f"op{i}", prompt))[0][0] == expected[0, len(prompt) :].tolist()


def test_batched_greedy_tokens(
    core: Core, prompts: list[tuple[int, ...]], check_greedy: Check
) -> None:
    """All at once; they share the first block of the system message within the first step."""
    found, ends = run(core, *[generate(f"op{i}", prompt) for i, prompt in enumerate(prompts)])
    check_greedy(found)
    assert [end.usage.cached_tokens for end in ends] == [0] + [16] * (len(prompts) - 1)


def test_greedy_tokens_alone(
    core: Core, prompts: list[tuple[int, ...]], check_greedy: Check
) -> None:
    """Each prompt by itself gives the greedy tokens of transformers."""
    check_greedy([run(core, generate(f"op{i}", p))[0][0] for i, p in enumerate(prompts)])


def test_forked_greedy_tokens(
    core: Core, tokenizer: Tokenizer, prompts: list[tuple[int, ...]], check_greedy: Check
) -> None:
    """The forked system message is a context of its own that ends inside a block."""
    system = tokenizer.encode(SYSTEM, add_special_tokens=False).ids
    assert len(system) % 16
    root = Op(id="root", kind=Kind.FILL, context="system", tokens=tuple(system))
    forks = [generate(f"op{i}", p[len(system) :], "system") for i, p in enumerate(prompts)]
    found, ends = run(core, root, *forks)
    check_greedy(found)
    assert min(end.usage.cached_tokens for end in ends) >= len(system)


@dataclass(frozen=True)
class Judged:
    """Prompts with their float32 outputs, the reference's logits, and how close transformers'
    bfloat16 comes to them."""

    texts: list[list[int]]
    exact: list[Tensor]
    agree: int
    error: float


def closeness(exact: list[Tensor], found: list[Tensor]) -> tuple[int, float]:
    """Positions with the same best token, and the mean errors of all positions, summed."""
    agree, error = 0, 0.0
    for right, logits in zip(exact, found, strict=True):
        agree += int((logits.argmax(-1) == right.argmax(-1)).sum())
        error += float((logits - right).abs().mean(-1).sum())
    return agree, error


@pytest.fixture(scope="module")
def judged(
    smollm2_directory: Path,
    reference: torch.nn.Module,
    decoder: HostModel,
    tokenizer: Tokenizer,
    prompts: list[tuple[int, ...]],
) -> Judged:
    theirs = AutoModelForCausalLM.from_pretrained(smollm2_directory, dtype=torch.bfloat16)
    core = Core(decoder, SchedulerConfig(blocks=512), ByteDetokenizer(tokenizer))
    some = prompts[:6]
    outputs, _ = run(core, *[generate(f"op{i}", prompt) for i, prompt in enumerate(some)])
    texts = [[*prompt, *output] for prompt, output in zip(some, outputs, strict=True)]
    with torch.inference_mode():
        exact = [reference(torch.tensor([text])).logits[0] for text in texts]
        plain = [theirs(torch.tensor([text])).logits[0].float() for text in texts]
    return Judged(texts, exact, *closeness(exact, plain))


@pytest.mark.parametrize("path", ["served", "pairs", "torch"])
def test_bfloat16_is_no_worse_than_transformers(
    smollm2_directory: Path, judged: Judged, path: str, tmp_path: Path
) -> None:
    """At every position of prompt and float32 output, teacher-forced: how often bfloat16 has
    float32's best token, and the mean error of its logits."""
    ours: Model
    if path == "served":  # in C, where there is a compiler
        ours = load_decoder(smollm2_directory, "bfloat16", 16, tmp_path)
    elif path == "pairs":  # as on a processor that multiplies pairs of bfloat16
        built = library(tmp_path, flags=(*FLAGS, "-DWEFTLINE_PAIRS"))
        config = read_config(smollm2_directory)
        assert isinstance(config, LlamaConfig)
        ours = NativeDecoder(config, Checkpoint(smollm2_directory), built)
    else:
        ours = load_model(smollm2_directory, torch.bfloat16)
    with torch.inference_mode():
        found = [all_logits(ours, text) for text in judged.texts]
    agree, error = closeness(judged.exact, found)
    # transformers' own bfloat16 changes 1 % of the positions between two batch shapes.
    assert agree >= judged.agree - 0.01 * sum(map(len, judged.texts))
    assert error <= judged.error * 1.02


def all_logits(decoder: Model, text: list[int]) -> Tensor:
    """The logits at every position, computed in chunks of 32 tokens on the paged cache."""
    scheduler = Scheduler(SchedulerConfig(blocks=64, step_tokens=32, max_running=1), Backend())
    cache = decoder.new_cache(64, 16)
    op = Op(id="op", kind=Kind.FILL, context="op")
    scheduler.add(Planned(op, 0, tokens=list(text), prompt=len(text)))
    parts = []
    while plan := scheduler.plan():
        if not plan.chunks:
            break
        step = step_input(plan, 16, min_blocks_saved=decoder.min_blocks_saved)
        every = np.arange(len(step.tokens_T))
        parts.append(torch.from_numpy(decoder.forward(replace(step, rows_R=every), cache)))
        scheduler.apply(plan)
    return torch.cat(parts)
