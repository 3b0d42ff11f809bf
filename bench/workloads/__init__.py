"""The papers' workloads, each written as the LangChain program that a user would write."""
