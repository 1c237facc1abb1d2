"""What a run does as events in the runner's log (engine.md §17): an observer over the JSON lines."""

from pilothouse_engine.facts import Fact
from pilothouse_engine.observers import HookEvent
from pilothouse_engine.state import RunState
from pilothouse_runner.log_lines import LogLines


class LogEvents:
    """Writes a line for each event. No values, arguments, results, or names that a model chose."""

    def __init__(self, lines: LogLines) -> None:
        self._lines = lines

    def observe(self, state: RunState, fact: Fact) -> None:
        """Take a fact."""

    def hook_fired(self, event: HookEvent) -> None:
        """Write a hook whose action is Log, and every one that failed."""
        if event.action != "Log" and event.result == "Done":
            return
        self._lines.say(
            "hook",
            "info" if event.result == "Done" else "warning",
            hook=event.hook,
            hookEvent=event.event or None,
            action=event.action or None,
            step=event.step or None,
            tool=event.tool or None,
            signal=event.signal or None,
            error=event.error or None,
            result=event.result,
            message=event.why or None,
        )
