"""Renders prompts, tokenises them, and reads and writes each model's tool-call syntax."""
