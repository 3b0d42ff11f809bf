"""Sub-questions: a question is split, each part is searched for and answered, and all joined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runners import App, main

from weftline import Input, Output, semantic_function

QUESTION = "How do sessions, variables, criteria and engines work together?"
PARTS = {"transforms": [{"op": "line_list"}]}
TEXTS = Input(transforms=[{"op": "texts"}])
LINES = Input(transforms=[{"op": "join", "separator": "\n"}])


@semantic_function
def split(question, parts=Output(max_tokens=64, **PARTS)):  # noqa: B008
    """Write four short questions, one a line, that together answer: {{input:question}}
    {{output:parts}}"""


@semantic_function
def answer(part, texts=TEXTS, said=Output(max_tokens=32)):  # noqa: B008
    """By this text: {{input:texts}}
    In one sentence, {{input:part}} {{output:said}}"""


@semantic_function
def join(
    question,
    answers=LINES,
    text=Output(max_tokens=64),  # noqa: B008
):
    """{{input:answers}}
    From these, answer in two sentences: {{input:question}} {{output:text}}"""


def documents() -> list[str]:
    """The paragraphs of this repository's page of concepts."""
    page = Path(__file__).resolve().parents[2] / "docs" / "concepts.md"
    return [part for part in page.read_text().split("\n\n") if len(part) > 80]


def run(app: App) -> Any:
    indexed = app.ingest(documents())

    def answered(part: Any) -> Any:
        return app.call(answer, part, app.search(part, 2, after=[indexed]))

    return app.call(join, QUESTION, app.each(app.call(split, QUESTION), answered))


if __name__ == "__main__":
    main(run)
