"""Many runs in memory, as the verbs see them."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pilothouse_api.patches import merge_patch
from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_cli.exits import EXIT_NOT_FOUND, CliError
from pilothouse_cli.runs.fleets import RunKey, key_of
from pilothouse_cli.runs.pending import matches
from pilothouse_control.directives import Directive


class MemoryFleet:
    """A `Fleet`: each directive is answered as `answer` says, unless `refuse` says otherwise or `is_slow`.

    `script` are changes that happen one look after the other; when it is used up, the looks show nothing new.
    """

    where = "namespace support"

    def __init__(self, *runs: AgentRun, is_slow: bool = False, is_advancing: bool = True) -> None:
        self.runs = {run.metadata.name: run for run in runs}
        self.patches: list[tuple[str, Any]] = []
        self.refuse: dict[str, Callable[[], CliError]] = {}
        self.script: list[Callable[[], Any]] = []
        self.is_slow = is_slow
        self._is_advancing = is_advancing
        self._lock = threading.Lock()

    def answer(self, raw: dict[str, Any]) -> None:
        """Change a run that was patched as its runner would."""

    def called(self, run: AgentRun) -> str:
        return run.metadata.name

    def addressed(self, run: AgentRun) -> str:
        return f"{run.metadata.name} -n {run.metadata.namespace}"

    def select(self, selector: str | None = None) -> Sequence[AgentRun]:
        return [run for run in self.runs.values() if selector is None or matches(run.metadata.labels, selector)]

    def reread(self, run: AgentRun) -> AgentRun:
        if run.metadata.name not in self.runs:
            raise CliError(f"there is no run {run.metadata.name}", "", EXIT_NOT_FOUND)
        return self.runs[run.metadata.name]

    def direct(self, run: AgentRun, directive: Directive) -> AgentRun:
        name = run.metadata.name
        with self._lock:
            if name in self.refuse:
                raise self.refuse.pop(name)()
            self.patches.append((name, directive.patch))
            raw = merge_patch(self.reread(run).to_raw(), {"spec": directive.patch})
            raw["metadata"]["generation"] += 1
            if not self.is_slow:
                self.answer(raw)
            self.runs[name] = AgentRun.model_validate(raw)
            return self.runs[name]

    def change(self, name: str, **status: Any) -> AgentRun:
        """Merge something into a run's status."""
        self.runs[name] = AgentRun.model_validate(merge_patch(self.runs[name].to_raw(), {"status": status}))
        return self.runs[name]

    def looks(self, open_runs: Mapping[RunKey, AgentRun], selector: str | None) -> Iterator[AgentRun | RunKey | None]:
        while True:
            if self.script:
                self.script.pop(0)()
            for run in list(open_runs.values()):
                yield self.runs.get(run.metadata.name, key_of(run))
            yield None

    def is_advancing(self, run: AgentRun) -> bool:
        return self._is_advancing

    def land(self, run: AgentRun) -> AgentRun:
        return self.change(run.metadata.name, phase="Aborted")
