"""The tokens of answers that are still generated, for streams that count them."""

from __future__ import annotations

from collections.abc import Sequence

from weftline_server.graph.primitive import Task
from weftline_server.lowering.kinds.prompt import outputs_of
from weftline_server.lowering.sampling_defaults import asked
from weftline_server.observe.view import output_step
from weftline_server.session.session import ServerSession


def usage_so_far(session: ServerSession, tasks: Sequence[Task]) -> dict[str, int]:
    """The usage of answers, of which each after the first may continue the one before.

    The usage is what the engine counts of answers that have ended, and what the engine has told of
    the last answer so far. An engine tells only at the end how much of a prompt it has continued,
    so until then the prompt of a later answer does not count.
    """
    prompt = made = 0
    for task in tasks:
        step, [output] = output_step(session, task.writes[0]), outputs_of(task)
        if step is None:
            continue
        if step.usage is not None:
            prompt, made = prompt + step.usage.prompt_tokens, made + step.usage.output_tokens
        elif task is tasks[-1]:
            made += step.made
            prompt += 0 if task is not tasks[0] else max(0, step.charged - asked(output))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
    }
