"""The contract of client, server and engines: the wire's types, their checks, and the errors."""
