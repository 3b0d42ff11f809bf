"""Engines whose contexts are prefixes in the cache of another server: vLLM and SGLang."""
