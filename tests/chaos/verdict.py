"""What must be true of a run however its processes died; every claim is one function over what was seen.

Nothing here asks the engine what it meant: claims compare the journal with what the tool server did, with the
statuses that were published, and with how the processes ended.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from chaos.evidence import Evidence
from chaos.journals import prefix_digest
from chaos.plans import COUNTED

ORDINARY_ENDS = frozenset(
    {
        "Complete",
        "FinishedEarly",
        "Aborted",
        "FinishedWithoutAnswer",
        "BudgetExceeded",
        "MaxAttempts",
        "MaxIterations",
        "BarrierTimeout",
        "PauseDeadline",
        "Unrecoverable",
        "ToolCallLimit",
        "ToolsKeepFailing",
        "SameErrorRepeated",
    }
)
"""Reasons for which a run of these plans may end; any other one is a loss."""

PHASES_OF_ENDS = frozenset({"Succeeded", "Failed", "Aborted"})

Claim = Callable[[Evidence], Iterator[str]]


def executed(seen: Evidence) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """Return the executions on the tool server by tool and number."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for line in seen.done:
        if line["what"] == "executed":
            found[line["tool"], line["n"]].append(line)
    return found


def once_means_once(seen: Evidence) -> Iterator[str]:
    """A call with effect Once was executed once at most."""
    for (tool, number), lines in executed(seen).items():
        if seen.effects.get(tool) == "Once" and len(lines) > 1:
            yield f"{tool} {number} was executed {len(lines)} times: {lines}"


def repeats_have_their_key(seen: Evidence) -> Iterator[str]:
    """A call that was repeated has the same key each time, and that of its start in the journal; ReadOnly has none."""
    starts = {entry["key"] for entry in seen.facts("CallStarted")}
    for (tool, number), lines in executed(seen).items():
        keys = {line["key"] for line in lines}
        if seen.effects.get(tool) == "ReadOnly":
            if keys != {None}:
                yield f"{tool} {number} is ReadOnly and was sent keys: {keys}"
        elif len(keys) != 1 or None in keys:
            yield f"{tool} {number} was executed under {len(keys)} keys: {keys}"
        elif not keys <= starts:
            yield f"{tool} {number} was executed under a key of which the journal knows no start: {keys}"


def unknown_is_listed(seen: Evidence) -> Iterator[str]:
    """What may have been done and whose end was not learned stands in status.run.effects, and nothing else does."""
    finished = {entry["id"]: entry for entry in seen.facts("CallFinished")}
    want = set()
    for entry in seen.facts("CallStarted"):
        end = finished.get(entry["id"])
        if entry["effect"] != "ReadOnly" and (end is None or end.get("is_unknown")):
            want.add(entry["id"])
    # A task that its run did not wait for is aborted and listed with it.
    delivered = {entry["call"] for entry in seen.facts("ChildDelivered")}
    want |= {entry["call"] for entry in seen.facts("ChildRequested")} - delivered
    listed = [effect["callId"] for effect in (seen.final_run.get("effects") or {}).get("unknown", ())]
    if len(set(listed)) != len(listed):
        yield f"an unknown effect is listed twice: {listed}"
    is_told = seen.final.get("phase") in PHASES_OF_ENDS and bool(seen.journal) and not has_been_closed_by_operator(seen)
    if is_told and want != set(listed):
        yield f"the journal leaves {sorted(want)} unknown, status lists {sorted(listed)}"


def learned_was_done(seen: Evidence) -> Iterator[str]:
    """A call whose good end is journaled was executed, and the server's answer to it was sent."""
    by_key = defaultdict(list)
    for line in seen.done:
        if line["what"] == "executed" and line["key"]:
            by_key[line["key"]].append(line)
    starts = {entry["id"]: entry for entry in seen.facts("CallStarted")}
    for entry in seen.facts("CallFinished"):
        start = starts.get(entry["id"])
        if start is None or not start["key"] or start["tool"] not in seen.effects:
            continue
        lines = by_key.get(start["key"], [])
        if entry.get("code") is None and not lines:
            yield f"{entry['id']} ({start['tool']}) has a result, but its key was never executed"
        if entry.get("code") is None and lines and all(line["how"] == "drop" for line in lines):
            yield f"{entry['id']} ({start['tool']}) has a result, but nobody ever answered it"
        if start["effect"] == "Once" and lines and lines[0]["how"] == "drop" and not entry.get("is_unknown"):
            yield f"{entry['id']} ({start['tool']}) was done and never answered, and is not unknown: {entry}"


def one_result_each(seen: Evidence) -> Iterator[str]:
    """Every call has one result, every child is delivered once, every steer and decision lands once, one run ends."""
    for kind, name in (("CallFinished", "id"), ("ChildDelivered", "call"), ("ChildRequested", "call")):
        for id, times in Counter(entry[name] for entry in seen.facts(kind)).items():
            if times > 1:
                yield f"{kind} of {id} stands {times} times in the journal"
    for kind in ("SteerAnswered", "ApprovalAnswered"):
        landed = Counter(entry["id"] for entry in seen.facts(kind) if entry.get("state", "Landed") == "Landed")
        for id, times in landed.items():
            if times > 1:
                yield f"{kind} of {id} landed {times} times"
    ends = [number for number, entry in enumerate(seen.journal) if entry["fact"] == "RunEnded"]
    if len(ends) > 1:
        yield f"RunEnded stands at {ends}"
    after = {entry["fact"] for entry in seen.journal[ends[0] + 1 :]} if ends else set()
    if after - {"AttemptStarted"}:  # an attempt that only publishes the end has to fence the others too
        yield f"after the end of the run the journal holds {sorted(after)}"
    started = Counter(entry["fact"] for entry in seen.journal)["RunStarted"]
    if seen.journal and started != 1:
        yield f"RunStarted stands {started} times in the journal"


def no_turn_is_lost(seen: Evidence) -> Iterator[str]:
    """What was published or journaled once never goes back, and the journal at the end holds all of it."""
    turn = length = attempt = fence = 0
    for sight in seen.sights:
        fence = grows(fence, sight.status.get("attempt") or 0)
        if fence < 0:
            yield f"status.attempt went back to {sight.status.get('attempt')}"
        run = sight.run
        if not run:
            continue
        for name, before, now in (
            ("turn", turn, run.get("turn", 0)),
            ("journalLength", length, run.get("journalLength", 0)),
            ("attempt", attempt, run["attempt"]),
        ):
            if now < before:
                yield f"status.run.{name} went back from {before} to {now}"
        turn, length, attempt = run.get("turn", 0), run.get("journalLength", 0), run["attempt"]
        if run["attempt"] > (sight.status.get("attempt") or 0):
            yield f"attempt {run['attempt']} published while the newest was {sight.status.get('attempt')}"
    if length > len(seen.journal):
        yield f"status says that the journal had {length} entries, it has {len(seen.journal)}"
    turns = max((entry.get("turn", 0) for entry in seen.journal), default=0)
    if turn > turns:
        yield f"turn {turn} was published, the journal knows {turns}"
    for mark in seen.marks:
        if prefix_digest(seen.journal, mark.length) != mark.digest:
            yield f"the first {mark.length} entries of the journal are not what they were"


def grows(before: int, now: int) -> int:
    return now if now >= before >= 0 else -1


CLOCKS_DIFFER = 1.0
"""Seconds between the clocks of two processes: a runner reads two at its start, and may be held up between."""


def replies_are_not_asked_again(seen: Evidence) -> Iterator[str]:
    """A reply that is journaled is the only one of its turn, and its entry of the script is played once."""
    turns: Counter[int] = Counter()
    turn = 0
    marks: Counter[int] = Counter()
    for entry in seen.journal:
        if entry["fact"] == "ModelStarted":
            turn = entry["turn"]
        elif entry["fact"] == "ReplyReceived":
            turns[turn] += 1
            if entry.get("mark") is not None:
                marks[entry["mark"]] += 1
    for what, counted in (("turn", turns), ("entry of the script", marks)):
        for number, times in counted.items():
            if times > 1:
                yield f"{what} {number} was answered {times} times"
    if any(process.was_lost for process in seen.processes):
        return  # a process that slept with a request in its hands sends it when it wakes
    replied = {entry["at"]: n for n, entry in enumerate(seen.facts("ReplyReceived"))}
    for line in seen.done:
        late = [n for at, n in replied.items() if at + CLOCKS_DIFFER < line["at"]]
        if line["what"] == "asked" and late and line["n"] < max(late) + 1:
            yield f"the model was asked for reply {line['n']} when reply {max(late)} was journaled"


def budgets_hold(seen: Evidence) -> Iterator[str]:
    """What is charged is at least what was used, and exceeds the budget by one open hold at most."""
    charged, hold, largest, calls = 0, 0, 0, 0
    lent: dict[str, int] = {}
    for entry in seen.journal:
        kind = entry["fact"]
        if kind == "ModelStarted":
            charged += hold  # the one before was never answered
            hold = entry["hold_input"] + entry["hold_output"]
            largest = max(largest, hold)
            calls += 1
        elif kind in ("ReplyReceived", "ModelFailed"):
            used = entry.get("input", 0) + entry.get("output", 0)
            charged += used if kind == "ModelFailed" or entry.get("counted") or used else hold
            hold = 0
        elif kind == "ChildRequested":
            lent[entry["call"]] = entry.get("hold_tokens") or 0
        elif kind == "ChildDelivered":
            charged += entry["input"] + entry["output"]
            del lent[entry["call"]]
    budget = seen.token_budget
    if budget is not None and charged > budget + largest:
        yield f"{charged} tokens were charged of a budget of {budget}, the largest hold was {largest}"
    shown = (seen.final_run.get("tokens") or {}).get("used")
    kept = charged + hold + sum(lent.values())  # of what was never answered nobody knows what it took
    if shown is not None and has_ended(seen) and shown != kept:
        yield f"status says that {shown} tokens are used, the journal charges {kept}"
    asked = sum(line["what"] == "asked" for line in seen.done)
    if asked > calls:
        yield f"the model was asked {asked} times, the journal has {calls} holds"
    billed = sum(line["input"] + line["output"] for line in seen.done if line["what"] == "replied")
    if billed > charged + hold:
        yield f"the model billed {billed} tokens, the journal charges {charged + hold}"


def has_ended(seen: Evidence) -> bool:
    return bool(seen.facts("RunEnded"))


def has_been_closed_by_operator(seen: Evidence) -> bool:
    """Whether the operator wrote the end, because no runner could."""
    return "exit" not in seen.final_run or not seen.final_run["exit"]


def ends_and_says_so(seen: Evidence) -> Iterator[str]:
    """The run has ended for an ordinary reason, phase and conditions agree, and the end never changed."""
    final = seen.final
    conditions = {entry["type"]: entry for entry in final.get("conditions", ())}
    if conditions.get("Finished", {}).get("status") != "True":
        yield f"the run has not ended: phase {final.get('phase')}, {dict(final.get('run') or {}).get('parked')}"
        return
    phase, reason = final["phase"], final["exit"]["reason"]
    if phase not in PHASES_OF_ENDS:
        yield f"Finished is True and the phase is {phase}"
    if reason not in ORDINARY_ENDS:
        yield f"the run ended with {reason}: {final['exit'].get('message')}"
    if (phase == "Aborted") != (reason in ("Aborted", "PauseDeadline", "BarrierTimeout", "FinishedWithoutAnswer")):
        yield f"the phase is {phase}, the reason {reason}"
    for kind, want in (("Ready", phase == "Succeeded"), ("Complete", phase == "Succeeded"), ("Reconciling", False)):
        found = conditions.get(kind)
        if found is not None and (found["status"] == "True") != want:
            yield f"{kind} is {found['status']} of a run that is {phase}"
    if has_ended(seen) and seen.facts("RunEnded")[0]["reason"] != reason and reason != "MaxAttempts":
        yield f"the journal ended with {seen.facts('RunEnded')[0]['reason']}, status with {reason}"
    unknown = (final.get("run") or {}).get("effects", {}).get("unknown")
    settled = conditions.get("EffectsSettled", {}).get("status")
    if (settled == "True") != (not unknown) and not has_been_closed_by_operator(seen):
        yield f"EffectsSettled is {settled}, unknown effects: {unknown}"
    yield from _ends_once(seen)


def _ends_once(seen: Evidence) -> Iterator[str]:
    ended: Mapping[str, Any] | None = None
    for sight in seen.sights:
        if ended is not None and (sight.status.get("exit"), sight.status.get("result")) != (
            ended.get("exit"),
            ended.get("result"),
        ):
            yield f"the end changed from {ended.get('exit')} to {sight.status.get('exit')}"
        if sight.status.get("phase") in PHASES_OF_ENDS:
            alive = [] if ended is not None else [pod for pod in sight.alive if pod != _may_live_on(sight.status)]
            if alive:
                yield f"the run was {sight.status['phase']} while {', '.join(alive)} lived"
            ended = sight.status
        elif ended is not None:
            yield f"the run was {ended['phase']} and became {sight.status.get('phase')}"


def _may_live_on(status: Mapping[str, Any]) -> str | None:
    """Return the pod of a run that has ended by its runner's word; an end that proves something waits for it too."""
    unknown = (status.get("run") or {}).get("effects", {}).get("unknown")
    is_told = status["phase"] != "Aborted" and not unknown and (status.get("run") or {}).get("exit") is not None
    return (status.get("pod") or {}).get("name") if is_told else None


def only_crashes_count(seen: Evidence) -> Iterator[str]:
    """attempts.crashes is at most the number of blows that are crashes, and attempts are made for a reason."""
    crashes = (seen.final.get("attempts") or {}).get("crashes", 0)
    blows = sum(process.blow in COUNTED for process in seen.processes)
    if crashes > blows:
        yield f"{crashes} crashes are counted, {blows} happened"
    if seen.final.get("exit", {}).get("reason") == "MaxAttempts" and crashes < seen.max_attempts:
        yield f"MaxAttempts after {crashes} crashes of {seen.max_attempts}"


def processes_end_well(seen: Evidence) -> Iterator[str]:
    """No runner failed by itself, and none is left."""
    for process in seen.processes:
        if process.code is None:
            yield f"attempt {process.attempt} still runs"
        for line in process.lines:
            if line.get("event") == "runner.fault":
                yield f"attempt {process.attempt}: {line}"
        is_killed = process.code is not None and process.code < 0
        allowed = (0, 3) if not is_killed else (process.code,)
        if process.code == -9 and not process.blow:
            yield f"attempt {process.attempt} did not end within its grace"
        if process.code is not None and process.code not in allowed:
            yield f"attempt {process.attempt} ended with {process.code}: {process.lines[-1] if process.lines else ''}"


CLAIMS: tuple[Claim, ...] = (
    once_means_once,
    repeats_have_their_key,
    unknown_is_listed,
    learned_was_done,
    one_result_each,
    no_turn_is_lost,
    replies_are_not_asked_again,
    budgets_hold,
    ends_and_says_so,
    only_crashes_count,
    processes_end_well,
)


def judge(seen: Evidence) -> list[str]:
    """Return every claim that does not hold, as `claim: what was seen`."""
    return [f"{claim.__name__}: {what}" for claim in CLAIMS for what in claim(seen)]
