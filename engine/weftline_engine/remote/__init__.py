"""Engines that are servers of others: vLLM, llama-server, SGLang, an OpenAI-compatible endpoint."""
