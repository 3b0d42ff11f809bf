"""Our own engine: the model, its weights, and how it is loaded."""
