"""The HTTP routes: they read requests, call the runtime's service, and write answers or events."""
