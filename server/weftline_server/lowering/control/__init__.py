"""Steps that decide what runs: branch, each and loop become primitives whose end grows the graph.

The first primitive of such a step decides. The later primitives give the step's values: they come
after the first, and are rewired to the variables that the first has decided on.
"""
