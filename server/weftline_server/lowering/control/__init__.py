"""Steps that decide what runs: branch, each and loop become primitives whose end grows the graph.

The first primitive of such a step decides. The later ones give the step's values: they come after
the first, and are rewired to what it has decided on.
"""
