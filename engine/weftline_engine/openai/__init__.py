"""Engines behind HTTP: any endpoint that speaks OpenAI's chat/completions or completions."""
