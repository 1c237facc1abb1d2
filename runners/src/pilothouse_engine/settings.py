"""Bounds that the platform sets. A module of its own because the steps need it and the loop imports the steps."""

from pilothouse_engine.values import Value


class Settings(Value):
    """Bounds that the platform sets; seconds, bytes, and the messages of earlier runs that a session brings."""

    control_grace_seconds: float = 60.0
    abort_grace_seconds: float = 30.0
    publish_interval_seconds: float = 1.0
    max_response_bytes: int = 1_048_576
    max_context_bytes: int = 262_144
    max_snapshot_bytes: int = 32_768
    max_result_bytes: int = 8_192
    max_session_messages: int = 200
