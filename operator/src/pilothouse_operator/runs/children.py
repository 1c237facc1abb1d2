"""Children of runs, as status shows them: what they ask of people stands on the run that asked for them. Pure."""

from pilothouse_control.children import asked_of_people
from pilothouse_operator.conditions import Draft
from pilothouse_operator.runs.situation import Ended, Parked, Settling, Situation
from pilothouse_operator.runs.view import RunView

CHILD_ASKS = "ChildAwaitingApproval"
AWAITING_CHILD = "AwaitingChild"


def has_children(view: RunView) -> bool:
    """Tell whether a run has asked for children, or has some."""
    return bool(view.children) or (view.snapshot is not None and bool(view.snapshot.children))


def after_children(view: RunView, situation: Situation) -> Situation:
    """Return the situation of a run whose children may still run: it has ended when all of them have."""
    if isinstance(situation, Ended) and view.open_children:
        return Settling("Exit", situation.reason)
    return situation


def question_of_child(view: RunView) -> str | None:
    """Return what a child asks of a person, with the command that answers it; None where none asks."""
    asked = next(asked_of_people(view.children), None)
    if asked is None:
        return None
    until = f" until {asked.expires_at}" if asked.expires_at else ""
    what = f"the child {asked.run} waits{until} for a decision on {asked.tool} ({asked.call_id})"
    return f"{what}: pilothouse approve {asked.run} {asked.call_id}"


def is_held_by_question(view: RunView, situation: Situation) -> bool:
    """Tell whether a run waits for nothing but a person's answer to a child of it."""
    is_waiting = isinstance(situation, Parked) and situation.reason == AWAITING_CHILD and not situation.is_due
    return is_waiting and question_of_child(view) is not None


def draft_question(view: RunView, situation: Situation) -> Draft | None:
    """Return AwaitingApproval for a child that asks, None where none does."""
    asked = None if isinstance(situation, Ended) else question_of_child(view)
    return None if asked is None else Draft("AwaitingApproval", "True", CHILD_ASKS, asked)
