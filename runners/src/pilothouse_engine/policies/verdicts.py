"""What a policy says: a verdict, with the rule that gave it."""

from collections.abc import Iterable
from typing import Literal

from pilothouse_engine.values import Value

Verdict = Literal["Allow", "RequireApproval", "Deny"]
At = Literal["ModelCall", "ToolCall"]

STRICTNESS: dict[Verdict, int] = {"Allow": 0, "RequireApproval": 1, "Deny": 2}


class Decision(Value):
    """What became of one question; every field is a JSON value, as it is journaled.

    `rule` is empty where nothing matched. `message` is for the model and for people: the rule's own, or why it failed.
    `owner` says whose list the rule stands in (`workflow support-triage`). `is_failure`: the rule denies because it
    could not be judged.
    """

    at: At
    verdict: Verdict
    rule: str = ""
    message: str = ""
    owner: str = ""
    is_failure: bool = False


def strictest(at: At, decisions: Iterable[Decision]) -> Decision:
    """Return the strictest decision, the first of those that are alike; nothing matched: Allow."""
    return max(decisions, key=lambda decision: STRICTNESS[decision.verdict], default=Decision(at, "Allow"))
