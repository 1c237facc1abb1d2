"""What the agent steps of an ended run have said, read out of its journal: the next run of the session begins with it.

Only what guardrails let pass is kept, as it passed; what none has judged yet, because the run ended before, passes the
pure checks of its gate now or is left out. System text, steers and the history that the run itself began with are not
the run's own. Second visits of a step follow the first. With it goes which tasks go on. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, field

from pilothouse_engine.catalog import Catalog, StepGates
from pilothouse_engine.facts import (
    Fact,
    NoteAdded,
    PastTask,
    ReplyRejected,
    RunEnded,
    StepFinished,
    TextJudged,
    decode_all,
)
from pilothouse_engine.ports import Message, RawEntry
from pilothouse_engine.results import pointer
from pilothouse_engine.sessions.records import Said, shortened
from pilothouse_engine.state import RunState, Visit, task_result_id


class _Marks(Struct):
    """What a visit's messages do not tell, by their index: notes to go on, and what the output gate said of answers."""

    continued: set[int] = field(default_factory=set)
    judged: dict[int, TextJudged] = field(default_factory=dict)

    def note(self, visit: Visit, fact: Fact) -> None:
        """Remember a fact that is about to be applied."""
        newest = len(visit.messages) - 1
        if isinstance(fact, NoteAdded) and fact.note == "Continue":
            self.continued.add(newest + 1)
        elif isinstance(fact, TextJudged) and fact.gate == "output":
            self.judged[newest] = fact
        elif isinstance(fact, ReplyRejected):  # takes the newest message away
            self.judged.pop(newest, None)


def read_said(catalog: Catalog, entries: Sequence[RawEntry]) -> dict[str, Said]:
    """Return what each agent step of an ended run's journal leaves to the next one; raises JournalCorrupt."""
    state, marks = RunState(context=dict(catalog.plan.input)), _Marks()
    said: dict[str, tuple[Message, ...]] = {}
    for fact in decode_all(entries):
        visit = state.visit
        if visit is not None and visit.is_agent:
            marks.note(visit, fact)
            if isinstance(fact, StepFinished | RunEnded):
                gates = catalog.gates(visit.step)
                said[visit.step] = said.get(visit.step, ()) + tuple(map(shortened, _said(visit, marks, gates)))
                marks = _Marks()
        state.apply(fact)
    left = {step: _left(catalog.plan.run.name, step, messages, state) for step, messages in said.items()}
    return {step: one for step, one in left.items() if one != Said()}


def _left(run: str, step: str, messages: tuple[Message, ...], state: RunState) -> Said:
    visits = {report.visit for report in state.reports if report.step == step}
    children = [child for child in state.children.values() if child.visit in visits]
    past = [child.past for child in children if child.past is not None and child.state == "Delivered"]
    opened = [child.request for child in children if child.past is None and child.state == "HandedOn"]
    tasks = tuple(PastTask(run, request.call, request.ref_name, request.at) for request in opened)
    return Said(messages, tasks, frozenset((task.run, task.call) for task in past))


def _said(visit: Visit, marks: _Marks, gates: StepGates) -> Iterator[Message]:
    for group in _groups(visit, marks.continued):
        messages = [visit.messages[index] for index in group]
        if messages[0].role == "assistant":
            judged = next((marks.judged[index] for index in reversed(group) if index in marks.judged), None)
            yield from _gated(messages, judged, gates)
        elif messages[0].role == "tool":
            yield _without_pointers(messages[0], visit, (visit.result_ids[group[0]],))
        elif group[0] not in visit.user_text or visit.is_input_judged or gates.input is None:
            tasks = [result_id for result_id in visit.results if result_id.endswith(task_result_id(""))]
            yield _without_pointers(messages[0], visit, tasks)


def _groups(visit: Visit, continued: set[int]) -> Iterator[list[int]]:
    """Yield which messages belong together: the parts of a reply that was cut with the notes between them."""
    group: list[int] = []
    for index, message in enumerate(visit.messages):
        if message.role == "system" or index in visit.past:
            continue
        is_next_part = bool(group) and group[-1] in continued
        if index in continued or (is_next_part and message.role == "assistant"):
            group.append(index)
        elif is_next_part:  # what a task gave came before the next part
            yield [index]
        else:
            if group:
                yield group
            group = [index]
    if group:
        yield group


def _gated(messages: list[Message], judged: TextJudged | None, gates: StepGates) -> Iterator[Message]:
    """Yield a reply as the output gate lets it go on: the parts of one that was cut are judged together."""
    if gates.output is None or (judged is not None and judged.verdict == "Passed" and judged.text is None):
        yield from messages
        return
    text: str | None = None
    if judged is None:
        from pilothouse_engine.guardrails.gates import run_pure
        from pilothouse_engine.guardrails.verdicts import Passed

        answer = "".join(message.text for message in messages if message.role == "assistant")
        verdict = run_pure(gates.output.checks, answer).verdict
        text = verdict.text if isinstance(verdict, Passed) else None
    elif judged.verdict == "Passed":
        text = judged.text
    calls = messages[-1].calls
    if text or calls:
        yield Message("assistant", text or "", calls)


def _without_pointers(message: Message, visit: Visit, ids: Iterable[str]) -> Message:
    """Return a message that does not tell how to read the rest of results: it is not kept, and ids may repeat."""
    text = message.text
    for result_id in ids:
        length = len(visit.results[result_id])
        note = f"\n[cut: this result had {length} characters; no more of it is kept]"
        text = text.replace(pointer(result_id, length), note)
    return Message(message.role, text, message.calls, message.provider_id, message.name)
