"""A router: the model says what a question is about, and one of two prompts answers it."""

from __future__ import annotations

from typing import Any

from runners import App, main

from weftline import Output, semantic_function

QUESTION = "What is 17 plus 25?"
NUMBER = {"op": "contains", "value": "number"}


@semantic_function
def kind(question, said=Output(max_tokens=3, transforms=[{"op": "strip"}])):  # noqa: B008
    """Is this question about numbers or about words? Answer with one word, number or word.
    {{input:question}} {{output:said}}"""


@semantic_function
def compute(question, said=Output(max_tokens=32)):  # noqa: B008
    """Compute step by step: {{input:question}} {{output:said}}"""


@semantic_function
def explain(question, said=Output(max_tokens=32)):  # noqa: B008
    """Answer like a teacher of languages: {{input:question}} {{output:said}}"""


def run(app: App) -> Any:
    return app.branch(
        app.call(kind, QUESTION),
        NUMBER,
        lambda: app.call(compute, QUESTION),
        lambda: app.call(explain, QUESTION),
    )


if __name__ == "__main__":
    main(run)
