"""The commands of `weftline`: a module each, with `add_arguments(parser)` and `run(args)`."""
