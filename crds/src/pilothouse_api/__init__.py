"""The contract: the four kinds, names that cross processes, and values that operator and runner share.

Belongs here: pydantic models of the custom resources, the plan, the snapshot, and small pure functions over
them that more than one process needs (names, digests, templates, wake-up of parked runs).
Does not belong here: decisions of the operator (`pilothouse_control`), the loop (`pilothouse_engine`), any I/O.
"""

__version__ = "0.1.0"
"""Version of the whole distribution; images have no package metadata to ask."""
