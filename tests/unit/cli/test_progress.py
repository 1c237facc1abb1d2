"""Progress on a terminal: lines of frames and hooks, and a reader that does not read."""

import threading
from typing import Any

from rich.console import Console

from pilothouse_cli.commands.running import HookLines, LineSink
from pilothouse_engine.observers import HookEvent
from pilothouse_runner.log_lines import MAX_WAITING_LINES


class StuckConsole(Console):
    """A terminal that takes nothing until it is told to."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.may_go_on = threading.Event()
        self.printed: list[str] = []

    def print(self, *objects: Any, **options: Any) -> None:
        self.may_go_on.wait(10)
        self.printed += map(str, objects)


def frame(number: int) -> dict[str, Any]:
    return {"kind": "Iteration", "iteration": number, "tokens": 1}


def test_a_terminal_that_does_not_read_loses_lines_and_never_holds_the_run() -> None:
    console = StuckConsole()
    sink = LineSink(console)
    for number in range(MAX_WAITING_LINES + 50):
        sink.emit(frame(number))
    console.may_go_on.set()
    sink.close()
    late = LineSink(console)
    late.emit(frame(9999))
    late.close()
    assert MAX_WAITING_LINES <= len(console.printed) - 1 <= MAX_WAITING_LINES + 1
    assert console.printed[0].startswith("iteration 0")
    assert console.printed[-1].startswith("iteration 9999")


def test_a_terminal_that_has_gone_is_no_fault() -> None:
    class Gone(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            raise BrokenPipeError

    sink = LineSink(Gone(quiet=True))
    sink.emit(frame(1))
    sink.close()


def test_hooks_that_log_and_hooks_that_fail_are_told_and_the_others_are_not() -> None:
    console = StuckConsole()
    console.may_go_on.set()
    sink = LineSink(console)
    hooks = HookLines(sink)
    hooks.hook_fired(HookEvent(1.0, "work/0", "AfterTool", "Log", "work", "lookup", "default"))
    hooks.hook_fired(HookEvent(1.0, "work/1", "AfterTool", "Metric", "work", "lookup", "default"))
    hooks.hook_fired(HookEvent(1.0, "work/2", "OnError", "Notify", "work", result="Failed", why="it answered 500"))
    sink.close()
    assert console.printed == [
        "hook work/0 AfterTool work lookup default",
        "hook work/2 OnError work failed: it answered 500",
    ]
