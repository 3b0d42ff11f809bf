"""A program for vLLM's interpreter: what our scheduler plans, in vLLM's own classes.

`python plans.py MODEL` prints the stories as JSON. No model is loaded. They share one process,
because importing vLLM takes 12 s.
"""

from __future__ import annotations

import json
import sys

from tests.vllm.asynchronous_plan import asynchronous_steps
from tests.vllm.gpu_paths import on_a_gpu
from tests.vllm.pool_story import stories_of_a_pool
from tests.vllm.state_plan import computed_with_states
from tests.vllm.window_plan import computed_with_windows


def main(model: str) -> None:
    found = {
        "pool": stories_of_a_pool(),
        "asynchronous": asynchronous_steps(model),
        "states": computed_with_states(model),
        "windows": computed_with_windows(model),
        "gpu": on_a_gpu(model),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
