"""An evaluator loop: one call improves a text and another judges it, until it is good."""

from __future__ import annotations

from typing import Any

from runners import App, main

from weftline import Output, semantic_function

TOPIC = "how a loom makes cloth"
GOOD = {"op": "contains", "value": "GOOD"}
MOST = 3  # rounds


@semantic_function
def write(topic, text=Output(max_tokens=32)):  # noqa: B008
    """Write one sentence that explains {{input:topic}} to a child. {{output:text}}"""


@semantic_function
def improve(text, better=Output(max_tokens=32)):  # noqa: B008
    """Write this sentence again, so that a child finds it clear.
    {{input:text}} {{output:better}}"""


@semantic_function
def judge(text, verdict=Output(max_tokens=8)):  # noqa: B008
    """Is this sentence clear to a child? Say GOOD, or what to change.
    {{input:text}} {{output:verdict}}"""


def run(app: App) -> Any:
    def better(text: Any) -> tuple[Any, Any]:
        improved = app.call(improve, text)
        return improved, app.call(judge, improved)

    return app.loop(app.call(write, TOPIC), better, GOOD, MOST)


if __name__ == "__main__":
    main(run)
