"""Executors of the step kinds that are no agents, one module a kind; `registry.EXECUTORS` is the table."""
