"""The vllm engine: vLLM in an interpreter of its own, or one that runs already."""
