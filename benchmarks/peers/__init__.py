"""The other tools: one module each, run inside an environment of its own.

A module's top imports nothing but the standard library: it is loaded by the harness (`prepare`)
and by the worker in the peer's environment (`start`, `run`). `run` must load all rows; the harness
counts and sums the target after every run.
"""
