"""Loads the model of the embedded engine's child process, and describes the engine.

This module is not part of `embedded`, which knows no tokenizer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from weftline_engine.api import Capability, Constraint, Description
from weftline_engine.bookkeeping.drafting.draft_counts import StepCosts
from weftline_engine.bookkeeping.schedule.step_scheduler import SchedulerConfig
from weftline_engine.own.detokenizer import ByteDetokenizer
from weftline_engine.own.embedded import devices
from weftline_engine.own.embedded.costs import kv_costs
from weftline_engine.own.embedded.device import ComputeDevice
from weftline_engine.own.embedded.engine import Core
from weftline_engine.own.embedded.model.base import Model
from weftline_engine.own.embedded.model.config import ModelError
from weftline_engine.own.embedded.model.decoders import load_decoder
from weftline_engine.own.embedded.model.native_decoder import NativeDecoder
from weftline_engine.own.embedded.sample.constraint import Grammars
from weftline_engine.own.embedded.step_budget import RowCost, budget, itl_limit
from weftline_engine.own.embedded.step_inputs import chunk_cost, largest_step, step_profile
from weftline_engine.own.embedded.window_sizes import window_sizes
from weftline_engine.own.model_texts import default_sampling, tokenizer_texts
from weftline_engine.own.models.cache import default_home
from weftline_engine.own.models.progress import Silent, for_stream
from weftline_engine.own.step_times import StepTimer, StepTimesFile


def load(options: argparse.Namespace) -> tuple[Core, Description]:
    """The engine and its description. Raises ModelError with a sentence for the user."""
    device = devices.choose(options.device, options.dtype)
    directory: Path = options.model
    dummy = options.load_format == "dummy"
    path = directory / "tokenizer.json"
    if dummy and not path.is_file():
        path = _byte_tokenizer(default_home() / "dummy")
    if not path.is_file():
        raise ModelError(f"{directory} holds no tokenizer.json; the engine needs it to make text")
    tokenizer = Tokenizer.from_file(str(path))
    decoder = _decoder(options, device)
    cell = decoder.new_cache(1, 1)
    per_token = cell.nbytes
    # Only in the C decoder, a row's result does not depend on the rows beside it.
    drafting = isinstance(decoder, NativeDecoder) and not options.no_drafting
    timer = None
    if device.kind == "cpu":
        timer = StepTimer(decoder, options.block_size, _times_file(options, decoder, drafting))
    config = _scheduling(options, decoder, None if timer is None else timer.row, per_token)
    grammars = _grammars(path, decoder.config.vocabulary, decoder.config.eos)
    core = Core(
        decoder,
        config,
        ByteDetokenizer(tokenizer),
        grammars=grammars,
        seed=options.seed,
        tree_attention=not options.no_tree_attention,
    )
    row, drafts, profile = _step_times(decoder, core, config, timer, drafting)
    core.draft(drafts)
    if row is not None:
        core.book.scheduler.keep(itl_limit(row, profile, drafts, device.kind))
    texts = tokenizer_texts(directory)
    description = Description(
        model=options.name or directory.name,
        tokenizer=str(path),
        chat_template=texts["chat_template"] or None,
        bos_token=texts["bos_token"],
        eos_token=texts["eos_token"],
        context_limit=core.limit,
        kv_tokens=config.blocks * config.block_size,
        kv_bytes_per_token=per_token,
        max_running=config.max_running,
        dtype=decoder.precision,
        device=device.name,
        default_sampling=default_sampling(directory),
        vocabulary=decoder.config.vocabulary,
        capabilities=_capabilities(grammars),
        constraints=() if grammars is None else tuple(Constraint),
        step_profile=profile,
        drafts=drafts is not None,
        kv_costs=kv_costs(row, core.cache, device, config, options.host_kv_tokens),
    )
    return core, description


def _times_file(
    options: argparse.Namespace, decoder: Model, drafting: bool
) -> StepTimesFile | None:
    """Where the step times of this model and machine are kept; None for a decoder in torch."""
    if not isinstance(decoder, NativeDecoder):
        return None
    return StepTimesFile(
        default_home(),
        str(options.model.resolve()),
        options.dtype,
        options.quantize,
        options.load_format,
        options.max_running,
        drafting,
        decoder.threads,
        decoder.kernels,
        decoder.config,
    )


def _step_times(
    decoder: Model, core: Core, config: SchedulerConfig, timer: StepTimer | None, drafting: bool
) -> tuple[RowCost | None, StepCosts | None, tuple[tuple[int, float], ...]]:
    """The cost of a prompt row, those of drafts, and the profile of decode steps."""
    if timer is not None:
        times = timer.times(core.cache, config, drafts=drafting)
        return times.row, times.drafts, times.profile
    decoder.warm(core.cache)
    row = chunk_cost(decoder, core.cache, config)
    return row, None, step_profile(decoder, core.cache, config)


def _capabilities(grammars: Grammars | None) -> tuple[Capability, ...]:
    """All of them, without constraints where llguidance is missing."""
    lacks = {Capability.CONSTRAINTS} if grammars is None else set()
    return tuple(one for one in Capability if one not in lacks)


def _decoder(options: argparse.Namespace, device: ComputeDevice) -> Model:
    """The model with its weights. A terminal shows a progress bar while they are read."""
    dummy, dtype = options.load_format == "dummy", options.dtype
    quantize = str(options.quantize)
    progress = for_stream(sys.stderr) if sys.stderr.isatty() else Silent()
    with progress.stage("engine: weights", None, "bytes") as meter:
        if device.kind == "cuda":
            if quantize != "none":
                raise ModelError("quantised weights need the C kernels: give --device cpu")
            from weftline_engine.own.embedded.model.torch_decoders import load_on_device
            from weftline_engine.own.embedded.torch_device import TorchDevice

            assert isinstance(device, TorchDevice), "torch has all devices but the CPU"
            running = options.max_running
            return load_on_device(
                options.model,
                dtype,
                device,
                max_running=running,
                dummy=dummy,
                heard=meter.at,
            )
        builds = default_home() / "kernels"
        return load_decoder(
            options.model,
            dtype,
            options.block_size,
            builds,
            dummy=dummy,
            quantize=quantize,
            heard=meter.at,
        )


def announced(description: Description, cores: int, seconds: float) -> str:
    """The line that is printed when an engine has loaded: model, device, KV cache, and seconds."""
    assert description.kv_tokens and description.kv_bytes_per_token, "our engine has a KV cache"
    cache_gib = description.kv_tokens * description.kv_bytes_per_token / (1 << 30)
    where = f"{description.device}, {cores} cores" if description.device == "cpu" else (
        description.device
    )  # fmt: skip
    chats = "" if description.chat_template else "; it has no chat template: send text prompts"
    return (
        f"engine: {description.model} in {description.dtype} on {where}; KV cache of "
        f"{description.kv_tokens:,} tokens, {cache_gib:.1f} GiB; ready after {seconds:.1f} s{chats}"
    )


def _scheduling(
    options: argparse.Namespace, decoder: Model, measured: RowCost | None, per_token: int
) -> SchedulerConfig:
    """The bounds of a step, for `per_token` bytes of KV cache. Raises ModelError."""
    device = decoder.device
    chosen = budget(measured, options.max_running, options.step_tokens)
    if device.kind == "cuda" and not options.kv_tokens:
        largest_step(decoder, chosen.step_tokens, options.block_size)
    tokens = options.kv_tokens or devices.kv_tokens(device, per_token, options.kv_fraction)
    try:
        config = SchedulerConfig(
            blocks=tokens // options.block_size,
            block_size=options.block_size,
            max_running=options.max_running,
            step_tokens=chosen.step_tokens,
            beside_tokens=chosen.beside_tokens,
            ahead_beside=devices.ahead_beside(device),
            early_tokens=chosen.early_tokens,
        )
    except ValueError as reason:
        raise ModelError(str(reason)) from None
    if device.kind != "cpu":
        return config
    sizes = decoder.config
    head = per_token * options.block_size // (2 * sizes.cache_layers * sizes.kv_heads)
    bounds = window_sizes(sizes, config.blocks, head)
    try:
        return replace(
            config, blocks=bounds.blocks, window=bounds.window, window_blocks=bounds.whole
        )
    except ValueError:
        return config  # the cache is too small for windows of its own


def _byte_tokenizer(folder: Path) -> Path:
    """A tokenizer for a dummy model without one: 256 tokens, one for each byte."""
    marks = sorted(ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={mark: at for at, mark in enumerate(marks)}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def _grammars(path: Path, vocabulary: int, eos: Sequence[int]) -> Grammars | None:
    """The grammars that follow constraints. None if llguidance is not installed."""
    try:
        from weftline_engine.own.constraints.grammars import TokenGrammars
    except ModuleNotFoundError as missing:
        if missing.name != "llguidance":
            raise
        return None
    return TokenGrammars(path.read_text(encoding="utf-8"), vocabulary, eos)
