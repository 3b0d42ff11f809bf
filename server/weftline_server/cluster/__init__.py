"""Several servers that share a store: who they are, who owns what, and where a session is."""
