"""Where the prompts of a program part, so that their KV cache is not shared, and what to do."""
