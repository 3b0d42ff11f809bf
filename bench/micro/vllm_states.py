"""Prompt tokens that vLLM computes: alone, behind weftline, and with our scheduler inside.

    weftline bench vllm_states [--families "dense,LFM2"] [--blocks 300]

The programs are those of `weftline bench states`, on models with random weights. One server runs
all programs of a family, one after another. It has room for everything, or for `--blocks` blocks of
32 tokens. vLLM counts the tokens that it computes.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from bench.harness import machine
from bench.harness.results import stamp, write
from bench.harness.servers import VLLM_PYTHON
from bench.micro._state_programs import PROGRAMS
from bench.micro.states import (
    CONTEXT,
    Prompts,
    ideal,
    launched_server,
    plain_model,
    settings,
    template,
    tokenizer_of,
)
from langchain_weftline import ChatWeftline, accelerate
from tests.llamacpp.random_ggufs import FAMILIES
from tests.ports import free_port
from weftline.local import local_server
from weftline_engine.own.models import DEFAULT_MODEL, for_stream, resolve

FOUND_BY_VLLM = ("dense", "Gemma 3", "LFM2")  # vLLM for CPUs has no kernel of the other two
BLOCK = 32
START_S = 600.0
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}

NAMES = ("family", "program", "ideal", "plain", "connected", "inside")


@dataclass(frozen=True, slots=True)
class Row:
    """The tokens that a program of a family lets vLLM compute."""

    family: str
    program: str
    ideal: int
    plain: int
    connected: int
    inside: int


def computed(url: str) -> int:
    """The prompt tokens that a vLLM has computed, by its own count."""
    name, source = "vllm:prompt_tokens_by_source_total", 'source="local_compute"'
    with urlopen(f"{url}/metrics", timeout=START_S) as answer:
        lines = answer.read().decode().splitlines()
    counts = (one.rpartition(" ")[2] for one in lines if one.startswith(name) and source in one)
    return int(sum(map(float, counts)))


def arguments(blocks: int | None) -> tuple[str, ...]:
    few = () if blocks is None else ("--num-gpu-blocks-override", str(blocks))
    return ("--enforce-eager", "--block-size", str(BLOCK), *few)


def alone(model: Path, blocks: int | None) -> AbstractContextManager[str]:
    """vLLM with its defaults."""
    port, log = free_port(), model / "vllm.log"
    given = {"--model": model, "--port": port, "--served-model-name": "default"}
    given |= {"--dtype": "float32", "--max-model-len": CONTEXT, "--max-num-seqs": 16}
    words = [str(word) for option in given.items() for word in option]
    tools = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    command = [str(VLLM_PYTHON), "-m", "vllm.entrypoints.openai.api_server", *words, *tools]
    environment = {**os.environ, **ENVIRONMENT}
    url = f"http://127.0.0.1:{port}"
    return launched_server([*command, *arguments(blocks)], environment, log, url, computed, START_S)


@contextmanager
def connected(model: Path, blocks: int | None) -> Iterator[str]:
    """weftline in front of such a vLLM."""
    with (
        alone(model, blocks) as vllm,
        local_server(str(model), "--engine", "vllm", "--connect", vllm) as url,
    ):
        yield url


@contextmanager
def inside(model: Path, blocks: int | None) -> Iterator[str]:
    """weftline that starts vLLM with our scheduler."""
    os.environ.update(ENVIRONMENT)
    given = {"--engine": "vllm", "--engine-python": VLLM_PYTHON, "--dtype": "float32"}
    given |= {"--context-limit": CONTEXT, "--max-running": 16}
    words = [str(word) for option in given.items() for word in option]
    more = f"--vllm-arguments={' '.join(arguments(blocks))}"
    with local_server(str(model), *words, "--vllm-scheduler", "weftline", more) as url:
        yield url


def counts(
    server: AbstractContextManager[str],
    client: Callable[[str], Any],
    change: Callable[[Any], Any],
    seen: Callable[[str], None] = lambda program: None,
) -> dict[str, int]:
    """The tokens that each program computes on one server. `seen` is told when one has ended."""
    found = {}
    with server as url:
        for name, program in PROGRAMS.items():
            before = computed(url)
            program(client(url), change)
            found[name] = computed(url) - before
            seen(name)
    return found


def rows(family: str, model: Path, tokenizer: Any, blocks: int | None) -> list[Row]:
    """The rows of a family, whose model is made if there is none."""
    chosen, prompts, least = settings(tokenizer), Prompts(tokenizer), dict[str, int]()

    def plain_client(url: str) -> Any:
        return plain_model(url, chosen, callbacks=[prompts])

    def ended(program: str) -> None:
        least[program] = ideal(prompts.found)
        prompts.found.clear()

    def ours(url: str) -> Any:
        return ChatWeftline(base_url=url, **chosen)

    plain = counts(alone(model, blocks), plain_client, lambda one: one, ended)
    front = counts(connected(model, blocks), ours, accelerate)
    within = counts(inside(model, blocks), ours, accelerate)
    return [
        Row(family, name, least[name], plain[name], front[name], within[name]) for name in PROGRAMS
    ]


def made(family: str, folder: Path, base: Path) -> Path:
    """A model of the family with random weights, and the tokenizer of `base`."""
    import torch
    from transformers import AutoModelForCausalLM

    model = folder / family.replace(" ", "-")
    if not model.exists():
        torch.manual_seed(0)
        config = FAMILIES[family]()
        config.num_attention_heads, config.head_dim = 2, 32  # vLLM's least on a CPU
        if family == "LFM2":  # these are in published files, and vLLM reads them
            config.conv_dim = config.block_dim = config.hidden_size
        AutoModelForCausalLM.from_config(config).float().save_pretrained(model)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (model / name).write_bytes((base / name).read_bytes())
        (model / "chat_template.jinja").write_text(template())
    return model


def main(argv: Sequence[str] | None = None) -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(
        prog="weftline bench vllm_states", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--families", default=",".join(FOUND_BY_VLLM), help="separated by commas")
    parser.add_argument("--blocks", type=int, help="of the KV cache; without it, all have room")
    models = Path("out/vllm_states")
    parser.add_argument("--models", type=Path, default=models, help="where they are made")
    parser.add_argument("--folder", type=Path, help="write the rows to this folder")
    args = parser.parse_args(argv)
    base = resolve(DEFAULT_MODEL, progress=for_stream())
    tokenizer = tokenizer_of(base)
    print(f"| {' | '.join(NAMES)} |\n{'|---' * len(NAMES)}|")
    found: list[Row] = []
    for family in args.families.split(","):
        found += rows(family, made(family, args.models, base), tokenizer, args.blocks)
        for row in found[-len(PROGRAMS) :]:
            print(f"| {' | '.join(map(str, asdict(row).values()))} |", flush=True)
    if args.folder is not None:
        body = {**stamp(machine.describe()), "blocks": args.blocks, "rows": [*map(asdict, found)]}
        write(args.folder, "vllm_states" if args.blocks is None else "vllm_states-few", body)
    return 0


if __name__ == "__main__":
    sys.exit(main())
