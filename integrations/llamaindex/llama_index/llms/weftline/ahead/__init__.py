"""What was sent ahead for a part of LlamaIndex, and how its requests find the results."""
