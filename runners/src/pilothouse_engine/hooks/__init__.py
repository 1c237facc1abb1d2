"""Hooks (engine.md §15): which of them fire is decided by pure functions, notifying is done off the path.

Nothing here may change the context, the prompt or the flow of a run. A plan without hooks never loads it.
"""
