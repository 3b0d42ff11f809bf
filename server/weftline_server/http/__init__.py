"""The routes: HTTP in, calls of the runtime, HTTP and server-sent events out."""
