"""The HTTP routes: they read requests, call the runtime's service, and send responses or events."""
