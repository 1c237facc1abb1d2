"""Fires the hooks of an attempt: each is reported, and a Notify runs its APICall beside the loop."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Literal

from pilothouse_api.digests import canonical_json, text_digest
from pilothouse_api.structs import APICall, Plan
from pilothouse_engine.alarms import Alarms, Cut
from pilothouse_engine.catalog import default_effect
from pilothouse_engine.facts import Fact
from pilothouse_engine.hooks.firings import Firing, build_payload, firings, plan_hooks
from pilothouse_engine.observers import HookEvent
from pilothouse_engine.ports import Ports
from pilothouse_engine.settings import Settings
from pilothouse_engine.snapshot import masked_text
from pilothouse_engine.state import RunState
from pilothouse_engine.steps.contract import StepCall, StepUnknown
from pilothouse_engine.steps.registry import executor_of

MAX_IN_FLIGHT = 4
"""Notifications that are sent at once."""

MAX_WAITING = 256
"""Notifications that were not answered yet; the next one is dropped and counted."""

CLOSING_SECONDS = 10.0
"""How long the end of an attempt waits for notifications."""

GRACE_SECONDS = 1.0
"""What an APICall may take beyond its own deadline, to report it itself."""

Result = Literal["Done", "Failed", "Dropped"]


class Hooks:
    """The hooks of one attempt. Nothing is sent for a fact before the journal has it."""

    def __init__(self, plan: Plan, ports: Ports, settings: Settings, report: Callable[[HookEvent], None]) -> None:
        self._plan = plan
        self._hooks = plan_hooks(plan)
        self._ports = ports
        self._settings = settings
        self._report = report
        self._alarms = Alarms(ports.clock)
        self._slots = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._observed: deque[tuple[int, Firing]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        now = ports.clock.now().timestamp()
        for artifact, why in self._hooks.unreadable.items():
            report(HookEvent(now, artifact, "", "", "", result="Failed", why=why))

    def observe(self, state: RunState, fact: Fact) -> None:
        """Note the hooks that a fact fires."""
        for firing in firings(self._hooks, state, fact):
            self._observed.append((state.length, firing))

    def journaled(self) -> None:
        """Fire what was noted."""
        while self._observed:
            number, firing = self._observed.popleft()
            if firing.hook.action != "Notify":
                self._tell(firing, "Done")
            elif len(self._tasks) >= MAX_WAITING:
                self._tell(firing, "Dropped", f"{MAX_WAITING} notifications wait to be answered")
            else:
                task = asyncio.get_running_loop().create_task(self._notify(number, firing), name="pilothouse-notify")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Wait for notifications, a bounded time; what is not answered then is cut off and reported."""
        if self._tasks:
            self._alarms.set(CLOSING_SECONDS, self._alarms.interrupt)
            await asyncio.gather(*self._tasks)
        await self._alarms.aclose()

    async def _notify(self, number: int, firing: Firing) -> None:
        async with self._slots:
            try:
                why = await self._send(number, firing)
            except Exception as error:  # a hook's fault is the hook's: it is reported, and the run goes on
                why = f"internal fault: {type(error).__name__}"
        self._tell(firing, "Failed" if why else "Done", why)

    async def _send(self, number: int, firing: Firing) -> str:
        """Run the step; return why it failed, empty where it did not."""
        try:
            step = self._plan.step(firing.hook.notify)
        except KeyError:
            return f"there is no step {firing.hook.notify}"
        params = step.api_call
        if params is None:
            return f"step {step.id} is of kind {step.kind} and not APICall"
        effect = step.effect or default_effect(step)
        key = text_digest(canonical_json([self._plan.run.uid, "hook", firing.hook.id, number]))
        call = StepCall(
            step_id=step.id,
            kind=step.kind,
            params=params,
            context=build_payload(self._plan, firing),
            namespace=self._plan.run.namespace,
            run=self._plan.run.name,
            idempotency_key=None if effect == "ReadOnly" else key,
            may_repeat=effect != "Once",
            settings=self._settings,
        )
        end = await self._alarms.bound(executor_of(step.kind)(call, self._ports), _longest(params, call.may_repeat))
        if isinstance(end, Cut):
            return f"step {step.id} was not answered in time"
        if isinstance(end, StepUnknown):
            return f"step {step.id}: {end.message}"
        said = masked_text(end.error_message or "")
        return f"step {step.id}: {said}" if end.error_type is not None else ""

    def _tell(self, firing: Firing, result: Result, why: str = "") -> None:
        hook = firing.hook
        self._report(
            HookEvent(
                firing.at,
                hook.id,
                hook.event,
                hook.action,
                firing.step,
                firing.tool,
                # A Router that runs as a tool may end with what the model gave it: only the payload may hold that.
                "" if firing.tool else firing.signal,
                firing.error_type,
                result,
                why,
            )
        )


def _longest(params: APICall, may_repeat: bool) -> float:
    deadline = params.retry.deadline_seconds if params.retry is not None and may_repeat else params.timeout_seconds
    return deadline + GRACE_SECONDS
