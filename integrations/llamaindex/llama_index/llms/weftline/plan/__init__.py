"""Plans: the calls that a part of LlamaIndex is about to make, as one graph."""
