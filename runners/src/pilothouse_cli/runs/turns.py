"""The turns of a run as rows: from the journal of a local run, from the trace of one in a cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pilothouse_engine import facts
from pilothouse_engine.ports import RawEntry
from pilothouse_engine.state import BARRIER

NANO_DOLLARS = 1_000_000_000
BEFORE_MODEL_CALL = frozenset({"ModelCall", "input"})
"""Where policy and guardrails stand before the model is called (engine.md §1)."""


@dataclass(frozen=True, slots=True)
class CallRow:
    """One tool call; `code` is None where it went well, `cut` the characters of a result of which a part is shown."""

    tool: str
    code: str | None = None
    seconds: float | None = None
    is_done: bool = True
    cut: int | None = None


@dataclass(frozen=True, slots=True)
class TurnRow:
    """One turn. `ends` is the signal that it ended its step with, `why` the cause of an abnormal end and what it said;
    `notes` are directives, parks, verdicts on the turn, and visits that ended at their boundary, before it; `gates` are
    verdicts on its calls and texts."""

    turn: int
    step: str
    kind: str = "Agent"
    iteration: int = 0
    calls: tuple[CallRow, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    cost: int | None = None
    finish: str = ""
    ends: str = ""
    why: str = ""
    notes: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Input and output."""
        return self.input_tokens + self.output_tokens


@dataclass(slots=True)
class _Fold:
    rows: list[TurnRow] = field(default_factory=list)
    step: str = ""
    kind: str = ""
    notes: tuple[str, ...] = ()
    tools: dict[str, str] = field(default_factory=dict)

    def begin(self, turn: int, iteration: int = 0) -> None:
        if self.rows and self.rows[-1].turn == turn:
            return
        self.rows.append(TurnRow(turn, self.step, self.kind, iteration, notes=self.notes))
        self.notes = ()

    def change(self, **changes: Any) -> None:
        if self.rows:
            self.rows[-1] = replace(self.rows[-1], **changes)

    def end(self, signal: str, why: str = "") -> None:
        """Note the signal at the visit's last turn; a visit without one (ended at its boundary) has no row."""
        if self.rows and self.rows[-1].step == self.step and not self.rows[-1].ends:
            self.change(ends=signal, why=why)
        elif why:
            self.notes += (f"{self.step} ended with {signal}: {why}",)

    def spend(self, input_tokens: int, output_tokens: int, cost: int | None) -> None:
        if self.rows:
            row = self.rows[-1]
            known = cost if row.cost is None else row.cost + (cost or 0)
            self.change(
                input_tokens=row.input_tokens + input_tokens,
                output_tokens=row.output_tokens + output_tokens,
                cost=known,
            )

    def note(self, text: str, turn: int) -> None:
        """Note what happened in a turn: in its row where it has one, else before the next."""
        if self.rows and self.rows[-1].turn == turn:
            self.change(notes=(*self.rows[-1].notes, text))
        else:
            self.notes += (text,)

    def sent_at(self, level: str) -> None:
        """Note that a turn's prompt was cut."""
        if level != "full" and self.rows:
            self.note(f"prompt cut: level {level}", self.rows[-1].turn)

    def call(self, tool: str, code: str | None, seconds: float | None, cut: int | None) -> None:
        if self.rows:
            self.change(calls=(*self.rows[-1].calls, CallRow(tool, code, seconds, cut=cut)))

    def judge(self, place: str, said: str) -> None:
        """Note a verdict: on the turn that begins where it stands before its model call, else on the one under way."""
        if place in BEFORE_MODEL_CALL or not self.rows:
            self.notes += (said,)
        else:
            self.change(gates=(*self.rows[-1].gates, said))


def turns_of_journal(entries: Sequence[RawEntry]) -> list[TurnRow]:
    """Return the turns that a journal tells of; raises JournalCorrupt."""
    fold = _Fold()
    for fact in facts.decode_all(entries):
        _take(fold, fact)
    return fold.rows


def _take(fold: _Fold, fact: facts.Fact) -> None:
    match fact:
        case facts.StepEntered():
            fold.step, fold.kind = fact.step, fact.kind
            if fact.turn:
                fold.begin(fact.turn)
        case facts.ModelStarted():
            fold.begin(fact.turn, fact.iteration)
        case facts.ModelFailed():
            fold.spend(fact.input, fact.output, fact.cost or None)
            fold.change(finish=fact.kind)
        case facts.ReplyReceived():
            fold.tools = {call.id: call.name for call in fact.calls}
            fold.spend(fact.input, fact.output, fact.cost)
            fold.change(finish="ToolCalls" if fact.calls else fact.finish)
            fold.sent_at(fact.level)
        case facts.CallFinished() if fold.kind == "Agent":
            fold.call(fold.tools.get(fact.id, fold.step), fact.code, fact.seconds or None, fact.cut_from)
        case facts.PolicyJudged():
            fold.judge(fact.at_gate, _policy_line(fact.rule, fact.verdict))
        case facts.TextJudged() if fact.check:
            fold.judge(fact.gate, _guardrail_line(fact.gate, fact.check, fact.said))
        case facts.StepFinished():
            fold.end(fact.signal, ": ".join(filter(None, (fact.error_type, fact.error_message))))
        case facts.ToolSurface():
            fold.notes += fact.warnings
        case facts.ModeAnswered() | facts.SteerAnswered() | facts.LimitsLanded():
            fold.notes += (_note(fact),)
        case facts.BarrierTimedOut():
            fold.note(_not_judged(fact.verdict), fact.turn)
        case facts.ParkBegan() if fact.reason == BARRIER:  # each turn has one
            return
        case facts.ParkBegan() | facts.ApprovalAnswered():
            fold.note(_note(fact), fact.turn)
        case _:
            return


_Noted = facts.ModeAnswered | facts.SteerAnswered | facts.LimitsLanded | facts.ParkBegan | facts.ApprovalAnswered


def _note(fact: _Noted) -> str:
    match fact:
        case facts.ApprovalAnswered():
            what = f"{fact.decision or 'decision on'} {fact.id}"
            return what if fact.state == "Landed" else f"{what}: {fact.state}"
        case facts.ModeAnswered():
            return fact.mode if fact.state == "Landed" else f"{fact.mode}: {fact.state}"
        case facts.SteerAnswered():
            return f"steer {fact.id}" if fact.state == "Landed" else f"steer {fact.id}: {fact.state}"
        case facts.LimitsLanded():
            return "limits"
        case facts.ParkBegan():
            return f"parked: {fact.reason}"


def turns_of_trace(frames: Sequence[Mapping[str, Any]]) -> list[TurnRow]:
    """Return the turns that the newest frames of a run tell of (engine.md §16).

    Frames count the tokens of the whole run: a turn's own are the difference to the frame before, so they are not
    known for the first one that is kept, unless it is the run's first.
    """
    fold = _Fold()
    used: int | None = 0
    for number, frame in enumerate(frames):
        turn, kind = int(frame.get("turn") or 0), frame.get("kind")
        if number == 0 and turn > 0:
            used = None
        if kind == "Step":
            fold.step, fold.kind = str(frame.get("step", "")), str(frame.get("stepKind", ""))
            if frame.get("event") == "Finished":
                if fold.kind != "Agent":
                    fold.begin(turn)
                fold.end(str(frame.get("signal", "")))
        elif kind == "Iteration":
            fold.step, total = str(frame.get("step", fold.step)), int(frame.get("tokens") or 0)
            fold.begin(turn, int(frame.get("iteration") or 0))
            fold.spend(0 if used is None else total - used, 0, None)
            fold.change(finish="ToolCalls" if frame.get("toolCalls") else "Stop")
            fold.sent_at(str(frame.get("level") or "full"))
            used = total
        elif kind == "ToolCall":
            code = frame.get("code")
            tool, seconds, cut = str(frame.get("tool", "")), frame.get("seconds"), frame.get("cutFrom")
            fold.call(tool, None if code == "ok" else str(code), seconds, cut)
        elif kind == "Policy":
            fold.judge(str(frame.get("at")), _policy_line(str(frame.get("rule")), str(frame.get("verdict"))))
        elif kind == "Guardrail":
            gate, verdict = str(frame.get("gate")), str(frame.get("verdict"))
            fold.judge(gate, _guardrail_line(gate, str(frame.get("check")), verdict))
        else:
            fold.notes += _notes_of_frame(frame)
    return fold.rows


def _not_judged(verdict: str) -> str:
    return f"not judged in time: {verdict}"


def _policy_line(rule: str, verdict: str) -> str:
    return f"policy {rule}: {verdict}"


def _guardrail_line(gate: str, check: str, verdict: str) -> str:
    return f"guardrail {gate}, {check}: {verdict}"


def _notes_of_frame(frame: Mapping[str, Any]) -> tuple[str, ...]:
    if frame.get("kind") == "Control":
        name = f"{frame.get('directive', '')} {frame.get('id', '')}".strip()
        name = name[:1].lower() + name[1:] if name.startswith(("Steer", "Limits")) else name
        return (name if frame.get("landing") == "Landed" else f"{name}: {frame.get('landing')}",)
    if frame.get("kind") == "Tools" and frame.get("leftOut"):
        return (f"without {', '.join(map(str, frame['leftOut']))}",)
    if frame.get("kind") == "Park" and frame.get("event") == "TimedOut":
        return (_not_judged(str(frame.get("verdict", ""))),)
    if frame.get("kind") == "Park" and frame.get("event") == "Began":
        return (f"parked: {frame.get('reason', '')}",)
    return ()
