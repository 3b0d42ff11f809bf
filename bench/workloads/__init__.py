"""The papers' workloads and some of today, as the LangChain or LlamaIndex program of a user."""
