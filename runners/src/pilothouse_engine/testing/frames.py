"""A sink that keeps frames."""

from pilothouse_engine.ports import Frame


class ListFrameSink:
    """Keeps every frame."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def emit(self, frame: Frame) -> None:
        """Take a frame."""
        self.frames.append(frame)
