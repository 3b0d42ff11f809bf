"""Anthropic's API: POST /v1/messages and /v1/messages/count_tokens over the same submission."""
