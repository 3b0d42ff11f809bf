"""LangChain on weftline."""
