"""Measures what drafts are worth: output tokens a second with drafts over those without.

    python -m bench.micro.drafting [--part refine] [--repeat 5] [--threads 2]

Two engines of one process share the weights and take turns, the first one alternating. The time is
that from the first output token to the last, as the process's CPU seconds by default: on a machine
with neighbours these vary least. The outputs must be equal. It prints medians and quartiles.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from tokenizers import Tokenizer

from bench.micro.engine import quartiles
from weftline_engine.api import Finished, Kind, Op, Part, SamplingParams
from weftline_engine.bookkeeping.schedule.scheduler import SchedulerConfig
from weftline_engine.detokenizer import ByteDetokenizer
from weftline_engine.embedded.engine import Core
from weftline_engine.embedded.model.decoders import load_decoder
from weftline_engine.embedded.model.native import NativeDecoder
from weftline_engine.embedded.step import step_costs
from weftline_engine.grammars import TokenGrammars
from weftline_engine.models import DEFAULT_MODEL, resolve
from weftline_engine.models.cache import default_home

OUTPUT = 64
_FACTS = (
    "The harbour of Port Elin was dredged in 1954 to a depth of eleven metres, and again in 1988.",
    "Its lighthouse, built of granite from the island of Hask, was lit for the first time in 1871.",
    "The ferry to Hask leaves at seven, at noon and at six, and takes an hour and ten minutes.",
    "Since 2003 the old customs house holds a museum of nets, with four thousand pieces.",
    "The town council meets in the hall of the rope makers, which survived the fire of 1902.",
    "Herring was the town's trade until 1968; today most families live from the shipyard.",
)
_CITIES = ("Lisbon", "Oslo", "Kyoto", "Quito", "Accra", "Turin", "Perth", "Lima")
_CHATS = (
    "Tell me a short story about a lighthouse keeper.",
    "Why is the sky blue?",
    "Give me some advice on learning to cook.",
    "What makes a good friend?",
    "Explain how a bicycle stays upright.",
    "Write a poem about autumn rain.",
    "How do I prepare for a job interview?",
    "Describe a market in the early morning.",
)
_TOOL = {
    "type": "object",
    "properties": {
        "name": {"const": "get_weather_forecast"},
        "arguments": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "temperature_unit": {"enum": ["celsius", "fahrenheit"]},
                "number_of_days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "temperature_unit", "number_of_days"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "arguments"],
    "additionalProperties": False,
}


@dataclass(slots=True)
class Run:
    """The outputs of a load and what they took."""

    outputs: list[list[int]] = field(default_factory=list)
    tokens: int = 0  # behind the first ones
    seconds: float = 0.0
    drafted: int = 0
    accepted: int = 0


class Engine:
    """A core with or without drafts."""

    def __init__(self, core: Core, tokenizer: Tokenizer, clock: Callable[[], float]) -> None:
        self.core = core
        self._tokenizer = tokenizer
        self._clock = clock
        self._count = 0
        self.run = Run()

    def ask(self, prompts: Sequence[str], constraint: str | None = None) -> list[str]:
        """Generate for all of these chats together, and return the answers."""
        ops = []
        for prompt in prompts:
            self._count += 1
            text = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
            ops.append(
                Op(
                    id=f"op{self._count}",
                    kind=Kind.GENERATE,
                    context=f"op{self._count}",
                    tokens=tuple(self._tokenizer.encode(text).ids),
                    references=tuple(f"op{i}" for i in range(self._count - 4, self._count)),
                    sampling=SamplingParams(
                        max_tokens=OUTPUT, temperature=0.0, constraint=constraint
                    ),
                )
            )
            self.core.submit(ops[-1])
        said: dict[str, list[int]] = {op.id: [] for op in ops}
        began: float | None = None
        before = 0
        while self.core.busy:
            for event in self.core.step():
                if isinstance(event, Part):
                    said[event.op] += event.tokens
                if isinstance(event, Finished):
                    self.run.drafted += event.usage.drafted_tokens
                    self.run.accepted += event.usage.accepted_tokens
            if began is None and all(said.values()):
                began, before = self._clock(), sum(map(len, said.values()))
        assert began is not None, "an answer is empty"
        self.run.seconds += self._clock() - began
        self.run.tokens += sum(map(len, said.values())) - before
        self.run.outputs += said.values()
        for op in ops:
            self.core.free(op.context)
        return [self._tokenizer.decode(one) for one in said.values()]


def refine(engine: Engine) -> None:
    """A summary is carried through three pieces of a text; each call repeats most of the last."""
    summary = " ".join(_FACTS[:2])
    for piece in _FACTS[2:5]:
        [summary] = engine.ask(
            [
                f"Here is a summary: {summary}\nHere is a new fact: {piece}\n"
                "Repeat the summary word by word, and add the new fact at its end."
            ]
        )


def rag(engine: Engine) -> None:
    """Answers from retrieved texts, which they quote."""
    texts = "\n".join(f"[{number}] {fact}" for number, fact in enumerate(_FACTS, 1))
    for question in ("When was the lighthouse lit?", "When does the ferry to Hask leave?"):
        engine.ask([f"{texts}\nAnswer with the sentence of the text that says it. {question}"])


def tool(engine: Engine) -> None:
    """Calls of one tool, one after the other."""
    for city in _CITIES[:4]:
        engine.ask(
            [f"What will the weather be like in {city} for the next three days?"],
            json.dumps({"json_schema": _TOOL}),
        )


def chat(streams: int) -> Callable[[Engine], None]:
    """Answers to questions that give nothing to repeat."""

    def load(engine: Engine) -> None:
        engine.ask([_CHATS[i % len(_CHATS)] for i in range(streams)])

    return load


LOADS: Mapping[str, Callable[[Engine], None]] = {
    "refine": refine,
    "rag": rag,
    "tool": tool,
    **{f"chat_{streams}": chat(streams) for streams in (1, 8, 32, 64)},
}


def main() -> None:
    """Measure, compare and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--part", choices=tuple(LOADS))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--wall", action="store_true", help="measure wall time, not CPU time")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    directory = resolve(options.model)
    decoder = load_decoder(directory, "bfloat16", 16, default_home() / "kernels")
    assert isinstance(decoder, NativeDecoder), "drafts need the C decoder"
    path = directory / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    clock = time.perf_counter if options.wall else time.process_time
    costs = None
    print("load        tokens/s on     off   ratio   quartiles      drafted accepted", flush=True)
    for name, load in LOADS.items():
        if options.part not in (None, name):
            continue
        rates: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(options.repeat):
            runs = {}
            for drafts in (True, False) if turn % 2 else (False, True):
                config = SchedulerConfig(blocks=2048)
                grammars = TokenGrammars(
                    path.read_text(encoding="utf-8"), decoder.config.vocabulary, decoder.config.eos
                )
                core = Core(decoder, config, ByteDetokenizer(tokenizer), grammars=grammars)
                costs = costs or step_costs(decoder, core.cache, config, clock)
                core.draft(costs if drafts else None)
                engine = Engine(core, tokenizer, clock)
                load(engine)
                runs[drafts] = engine.run
                rates[drafts].append(engine.run.tokens / engine.run.seconds)
            assert runs[True].outputs == runs[False].outputs, "drafts changed an output"
        ratio = quartiles([on / off for on, off in zip(rates[True], rates[False], strict=True)])
        on, off = (quartiles(rates[drafts])["median"] for drafts in (True, False))
        print(
            f"{name:12}{on:11.1f}{off:8.1f}{ratio['median']:8.2f}   {ratio['q1']:.2f} to "
            f"{ratio['q3']:.2f}{runs[True].drafted:12}{runs[True].accepted:9}",
            flush=True,
        )
    print(f"costs {costs}")


if __name__ == "__main__":
    main()
