"""The sub-commands of `weftline`: one module each, with `add_arguments(parser)` and `run(args)`."""
