"""Hooks that are kept as an artifact: one reading of its text, for validation and for the engine.

The names that a notification's templates may use stand here too, so that both agree on what resolves.
"""

from typing import TYPE_CHECKING, Any

from pilothouse_api.artifacts import ArtifactTextError, load_artifact

if TYPE_CHECKING:
    from pilothouse_api.v1alpha1.common import Hook

MAX_ARTIFACT_HOOKS = 16

PAYLOAD_KEYS = frozenset({"hook", "event", "workflow", "run", "step", "tool", "signal", "error"})
"""What a Notify step sees instead of a context; `error` has `type` and `message`. What does not apply is empty."""


class HookTextError(ValueError):
    """The text of an artifact is no list of hooks; the message says why."""


def parse_hooks(text: str) -> "tuple[Hook, ...]":
    """Return the hooks of an artifact's text, a YAML list as it stands in `hooks`; raises HookTextError."""
    raw_hooks = _load(text)
    if not isinstance(raw_hooks, list):
        raise HookTextError(f"it is {type(raw_hooks).__name__}, and a list of hooks is wanted")
    if len(raw_hooks) > MAX_ARTIFACT_HOOKS:
        raise HookTextError(f"it has {len(raw_hooks)} hooks; the limit is {MAX_ARTIFACT_HOOKS}")
    return tuple(_parse(index, raw_hook) for index, raw_hook in enumerate(raw_hooks))


def _load(text: str) -> Any:
    try:
        return load_artifact(text)
    except ArtifactTextError as error:
        raise HookTextError(str(error)) from None


def _parse(index: int, raw_hook: Any) -> "Hook":
    # Loaded where a text is judged: most runs have no artifacts.
    from pydantic import ValidationError

    from pilothouse_api.v1alpha1.common import Hook

    try:
        hook = Hook.model_validate(raw_hook)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = "".join(f".{part}" for part in first["loc"])
        raise HookTextError(f"hook {index}{place}: {first['msg']}") from None
    if hook.artifact is not None:
        raise HookTextError(f"hook {index} names an artifact; write the hooks themselves")
    if hook.event is None or hook.action is None:
        raise HookTextError(f"hook {index} needs event and action")
    if (hook.action == "Notify") != (hook.notify is not None):
        raise HookTextError(f"hook {index}: set notify exactly when action is Notify")
    return hook
