"""OpenAI's API: its routes, its requests as calls of a session, and its responses."""
