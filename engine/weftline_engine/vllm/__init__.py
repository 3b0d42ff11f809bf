"""The vllm engine: starts vLLM in its own interpreter, or connects to one that runs."""
