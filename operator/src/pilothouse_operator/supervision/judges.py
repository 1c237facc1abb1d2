"""Verdicts: asked for in the background, so many at once, and kept until a look at the run has written them down.

Nothing here outlives the process: a record that says that a verdict is awaited has it asked for again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from pilothouse_api.judging import Judge, JudgeAnswer, JudgeFailure, JudgeRequest
from pilothouse_control.supervision import JudgeAsk, JudgeUnavailable, NewVerdict
from pilothouse_operator.watching.cache import Key

VERDICTS_AT_ONCE = 64
"""Most verdicts that this process waits for; what comes on top waits within its own timeout."""
TABLE_SECONDS = 30.0
TABLE_RETRY_SECONDS = 3.0
SLACK_SECONDS = 2.0
"""How long after its timeout an answer may come that the judge gives itself."""
REMEMBERED = 4096

NO_JUDGE = JudgeUnavailable("UnknownModel", "this installation has no judge: set the chart value judge.models")

log = structlog.get_logger()


@dataclass(slots=True)
class _RunVerdicts:
    """What is asked about one run, and what was answered, by the supervisor's uid."""

    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    answers: dict[str, NewVerdict] = field(default_factory=dict)


class Judges:
    """Asks the platform's judge. `wake` has a run (or a Supervisor) looked at again; it must not raise."""

    def __init__(self, judge: Judge | None, wake: Callable[[Key], None], at_once: int = VERDICTS_AT_ONCE) -> None:
        self._judge = judge
        self._wake = wake
        self._slots = asyncio.Semaphore(at_once)
        self._table: frozenset[str] | None = None
        self._problem: JudgeUnavailable | None = None if judge is not None else NO_JUDGE
        self._runs: dict[str, _RunVerdicts] = {}
        self._newest: OrderedDict[str, JudgeAnswer] = OrderedDict()
        self._look_now = asyncio.Event()

    @property
    def outage(self) -> JudgeUnavailable | None:
        """Why the service cannot be asked just now; what its table has is known from before nevertheless."""
        return self._problem

    @property
    def is_known(self) -> bool:
        """Whether it is known by now which models can be asked."""
        return self._table is not None or self._problem is not None

    def find_problem(self, model: str) -> JudgeUnavailable | None:
        """Return why a model cannot be asked; None where it can, or where nobody knows yet (`is_known`)."""
        if self._table is None:
            return self._problem
        if model in self._table:
            return None
        known = ", ".join(sorted(self._table)[:10]) or "none"
        return JudgeUnavailable("UnknownModel", f"the platform's table (chart value judge.models) has {known}")

    def newest_of(self, supervisor_uid: str) -> JudgeAnswer | None:
        """Return the newest answer that any run of a supervisor got from this process, None where there was none."""
        return self._newest.get(supervisor_uid)

    def underway(self, run_uid: str) -> frozenset[str]:
        """Return the supervisors whose verdict on a run is awaited."""
        known = self._runs.get(run_uid)
        return frozenset(known.tasks) if known is not None else frozenset()

    def answers(self, run_uid: str) -> Mapping[str, NewVerdict]:
        """Return the answers about a run that nobody has taken yet."""
        known = self._runs.get(run_uid)
        return dict(known.answers) if known is not None else {}

    def ask(self, key: Key, run_uid: str, ask: JudgeAsk) -> None:
        """Have a verdict given in the background; one that is under way already is not asked for twice."""
        known = self._runs.setdefault(run_uid, _RunVerdicts())
        if self._judge is None or ask.uid in known.tasks or ask.uid in known.answers:
            return
        known.tasks[ask.uid] = asyncio.create_task(self._give(self._judge, key, run_uid, ask), name=f"judge {key.name}")

    def take(self, run_uid: str, verdicts: Mapping[str, NewVerdict]) -> None:
        """Forget answers that are written down."""
        known = self._runs.get(run_uid)
        if known is None:
            return
        for uid, verdict in verdicts.items():
            if known.answers.get(uid) is verdict:
                del known.answers[uid]

    def forget(self, run_uid: str) -> None:
        """Forget a run that has ended: nobody waits for its verdicts any more."""
        known = self._runs.pop(run_uid, None)
        for task in known.tasks.values() if known is not None else ():
            task.cancel()

    def close(self) -> None:
        """Wait for nothing any more."""
        for run_uid in list(self._runs):
            self.forget(run_uid)

    async def _give(self, judge: Judge, key: Key, run_uid: str, ask: JudgeAsk) -> None:
        try:
            answer = await self._wait(judge, ask)
        finally:
            known = self._runs.get(run_uid)
            if known is not None:
                known.tasks.pop(ask.uid, None)
        if _is_outage(answer):
            self._look_now.set()  # is it the service, or an endpoint behind it?
        self._newest[ask.uid] = answer
        self._newest.move_to_end(ask.uid)
        if len(self._newest) > REMEMBERED:
            self._newest.popitem(last=False)
        if known is not None:
            known.answers[ask.uid] = NewVerdict(ask, answer)
            self._wake(key)

    async def _wait(self, judge: Judge, ask: JudgeAsk) -> JudgeAnswer:
        request = JudgeRequest(
            model=ask.model,
            criteria=ask.criteria,
            observation=ask.observation,
            timeout_seconds=ask.timeout_seconds,
        )
        try:
            async with asyncio.timeout(ask.timeout_seconds + SLACK_SECONDS), self._slots:
                return await judge.ask(request)
        except TimeoutError:
            return JudgeFailure(type="Timeout", message=f"no verdict within {ask.timeout_seconds} s")

    # ------------------------------------------------------------ the platform's table

    async def run(self, on_change: Callable[[], None]) -> None:
        """Keep the table of models, for ever; `on_change` is called when what can be asked has changed."""
        while True:
            before = (self._table, self._problem)
            await self._read_table()
            if (self._table, self._problem) != before:
                on_change()
            await self._wait_for_a_look(TABLE_SECONDS if self._problem is None else TABLE_RETRY_SECONDS)

    async def _wait_for_a_look(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._look_now.wait(), seconds)
        except TimeoutError:
            return
        self._look_now.clear()

    async def _read_table(self) -> None:
        """A table that was read once stays: a service that is away says so in each verdict."""
        if self._judge is None:
            return
        found = await self._judge.models()
        if isinstance(found, JudgeFailure):
            problem = JudgeUnavailable("Unavailable", found.message)
            if problem != self._problem:
                log.warning("judge.unavailable", error=found.message)
            self._problem = problem
            return
        if self._problem is not None:  # it is back: that it was away is said of nobody any more
            self._newest = OrderedDict((uid, one) for uid, one in self._newest.items() if not _is_outage(one))
        self._table, self._problem = found, None


def _is_outage(answer: JudgeAnswer) -> bool:
    return isinstance(answer, JudgeFailure) and answer.type == "Unavailable"
