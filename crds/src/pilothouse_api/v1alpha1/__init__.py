"""Version v1alpha1 of the four kinds: their objects, and the table by kind.

The names below are loaded when they are first asked for: whoever imports one module of this package (the plan needs
agents and workflows) does not wait for the models of the others.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pilothouse_api.v1alpha1.objects import (
        KINDS,
        Agent,
        AgentRun,
        Object,
        ObjectMeta,
        Supervisor,
        Workflow,
        parse_object,
    )

__all__ = ["KINDS", "Agent", "AgentRun", "Object", "ObjectMeta", "Supervisor", "Workflow", "parse_object"]


def __getattr__(name: str) -> Any:
    """Return one of the names of `objects`."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pilothouse_api.v1alpha1 import objects

    return getattr(objects, name)
