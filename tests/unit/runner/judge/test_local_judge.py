"""What becomes of a question: a verdict, or a failure with its type, within its time and with its tokens."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, get_args

import pytest

from pilothouse_api.judging import MAX_FAILURE_CHARS, MAX_REASON_CHARS, JudgeAnswer, JudgeFailure, Verdict
from pilothouse_api.v1alpha1.agent import ModelEndpoint
from pilothouse_engine.ports import FailureKind, ModelFailure, ModelReply, ModelRequest, RequestedCall, Usage
from pilothouse_engine.testing.secrets import DictSecrets
from pilothouse_runner.judge.local import FAILURE_TYPES, LocalJudge
from pilothouse_runner.judge.table import parse_models
from support.observations import judge_request, observation

pytestmark = pytest.mark.anyio

TABLE = parse_models("""
models:
  - {name: careful, model: openai/x, maxOutputTokens: 100}
  - {name: hasty, model: openai/x, timeoutSeconds: 1}
""")
COUNTED = Usage(input=300, output=20)


class JumpingClock:
    """A clock that moves at once by what is slept."""

    def __init__(self) -> None:
        self.elapsed = 0.0
        self.slept: list[float] = []

    def now(self) -> datetime:
        return datetime(2030, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.elapsed

    async def sleep(self, seconds: float) -> None:
        self.elapsed += seconds
        self.slept.append(seconds)


@dataclass
class ListModel:
    """Port `Model` that plays outcomes, the last one for ever; None hangs."""

    outcomes: Sequence[ModelReply | ModelFailure | None]
    requests: list[ModelRequest] = field(default_factory=list)

    async def call(self, request: ModelRequest) -> ModelReply | ModelFailure:
        self.requests.append(request)
        outcome = self.outcomes[min(len(self.requests), len(self.outcomes)) - 1]
        return outcome if outcome is not None else await asyncio.Event().wait()  # type: ignore[return-value]

    def price(self, endpoint: ModelEndpoint) -> tuple[float, float] | None:
        return None

    def context_window(self, endpoint: ModelEndpoint) -> int | None:
        return None


def says(text: str, **fields: Any) -> ModelReply:
    given: dict[str, Any] = {"text": text, "usage": COUNTED}
    return ModelReply(**given | fields)


async def ask(
    *outcomes: ModelReply | ModelFailure | None, clock: JumpingClock | None = None, **asked: Any
) -> JudgeAnswer:
    judge = LocalJudge(TABLE, DictSecrets({}), clock or JumpingClock(), ListModel(outcomes))
    return await judge.ask(judge_request(**asked))


@pytest.mark.parametrize(
    "text",
    [
        '{"passed": false, "reason": "It loops."}',
        '  {"reason": "It\\nloops.", "passed": false, "more": [1]}\n',
        '```json\n{"passed": false, "reason": "It loops."}\n```',
    ],
)
async def test_a_verdict_in_its_form_is_a_verdict(text: str) -> None:
    assert await ask(says(text)) == Verdict(passed=False, reason="It loops.", tokens=320)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "passed: true",
        '{"passed": true',
        '{"passed": "true", "reason": ""}',
        '{"passed": 1, "reason": ""}',
        '{"passed": null}',
        '{"reason": "fine"}',
        '[{"passed": true}]',
        '{"passed": true, "passed": false}',
        "```json\n```json\n" + '{"passed": true, "reason": ""}' + "\n```\n```",
        'Sure! {"passed": true, "reason": ""}',
        '{"passed": true, "reason": NaN}',
        '{"passed": true, "reason": "' + "\\ud800" + '"}',
        "[" * 100_000,
        "{" * 5_000_000,
    ],
    ids=range(15),
)
async def test_an_answer_in_any_other_form_is_no_verdict(text: str) -> None:
    answer = await ask(says(text))

    assert isinstance(answer, JudgeFailure)
    assert (answer.type, answer.tokens) == ("BadAnswer", 320)


async def test_an_answer_that_was_cut_is_no_verdict_even_where_it_could_be_read() -> None:
    answer = await ask(says('{"passed": true, "reason": ""}', finish="Length"))

    assert answer == JudgeFailure(
        type="BadAnswer", message="careful: the judge's answer was cut at maxOutputTokens (100)", tokens=320
    )


async def test_a_call_of_a_tool_is_no_verdict() -> None:
    answer = await ask(says("", calls=(RequestedCall("1", "verdict", '{"passed": true}'),)))

    assert isinstance(answer, JudgeFailure) and answer.type == "BadAnswer"


@pytest.mark.parametrize("reason", [7, ["x"], None, "", "  \n ", "\u200b\ue000"])
async def test_a_run_that_fails_without_a_reason_has_failed_nevertheless(reason: Any) -> None:
    answer = await ask(says(json.dumps({"passed": False, "reason": reason})))

    assert answer == Verdict(passed=False, reason="no reason was given", tokens=320)


async def test_a_reason_is_one_short_line_without_control_characters() -> None:
    answer = await ask(says(json.dumps({"passed": False, "reason": "\x1b[31mStop\u202e\r\n" + "x" * 10_000})))

    assert isinstance(answer, Verdict)
    assert answer.reason.startswith("[31mStop xxx") and answer.reason.isprintable()
    assert len(answer.reason) <= MAX_REASON_CHARS


def test_each_failure_of_a_model_has_its_type() -> None:
    assert set(FAILURE_TYPES) == set(get_args(FailureKind))


async def test_a_refusal_is_told_from_a_fault() -> None:
    answer = await ask(ModelFailure("Refused", "not with me\x07 " + "y" * 600))

    assert isinstance(answer, JudgeFailure)
    assert answer.type == "Refused" and answer.message.startswith("careful: not with me y")
    assert len(answer.message) <= MAX_FAILURE_CHARS and answer.message.isprintable()


async def test_a_model_that_nobody_has_is_unknown() -> None:
    assert await ask(says(""), model="other") == JudgeFailure(type="UnknownModel", message="judge.models has no other")


@pytest.mark.parametrize(("model", "timeout"), [("careful", 1), ("hasty", 600)], ids=["of the request", "of the table"])
async def test_a_judge_that_hangs_is_left_after_its_time_and_charged_whole(model: str, timeout: int) -> None:
    answer = await asyncio.wait_for(ask(None, model=model, timeout_seconds=timeout), 60)

    assert isinstance(answer, JudgeFailure)
    assert (answer.type, answer.message) == ("Timeout", f"{model}: no verdict within 1 s")
    assert answer.tokens > 2000


async def test_what_may_pass_is_tried_again_and_all_attempts_are_counted() -> None:
    clock = JumpingClock()
    passed = says('{"passed": true, "reason": ""}')

    answer = await ask(
        ModelFailure("ServerError", "500", 500), ModelFailure("Connection", "cut", sent=True), passed, clock=clock
    )

    assert isinstance(answer, Verdict) and answer.passed
    assert clock.slept == [0.5, 2.0]
    assert answer.tokens > 2000 + 320


async def test_a_third_failure_is_the_answer() -> None:
    clock = JumpingClock()

    answer = await ask(ModelFailure("RateLimited", "slow down", 429), clock=clock)

    assert answer == JudgeFailure(type="Unavailable", message="careful: slow down")
    assert len(clock.slept) == 2


@pytest.mark.parametrize(
    ("failure", "timeout"),
    [(ModelFailure("RateLimited", "busy", 429, 40.0), 30), (ModelFailure("ServerError", "busy", 500), 2)],
)
async def test_nothing_is_tried_again_that_has_no_time(failure: ModelFailure, timeout: int) -> None:
    clock = JumpingClock()

    answer = await ask(failure, clock=clock, timeout_seconds=timeout)

    assert answer == JudgeFailure(type="Unavailable", message="careful: busy")
    assert sum(clock.slept) < timeout


@pytest.mark.parametrize("kind", ["Timeout", "Garbage", "Authentication", "InvalidRequest", "Refused"])
async def test_what_does_not_pass_by_itself_is_not_tried_again(kind: Any) -> None:
    model = ListModel([ModelFailure(kind, "no")])

    await LocalJudge(TABLE, DictSecrets({}), JumpingClock(), model).ask(judge_request())

    assert len(model.requests) == 1


@pytest.mark.parametrize(
    ("failure", "is_charged"),
    [
        (ModelFailure("Timeout", "late"), True),
        (ModelFailure("Garbage", "<html>"), True),
        (ModelFailure("Refused", "no", sent=True), True),
        (ModelFailure("Refused", "no"), False),
        (ModelFailure("Authentication", "who?", 401), False),
    ],
)
async def test_what_may_have_been_charged_for_is_counted(failure: ModelFailure, is_charged: bool) -> None:
    answer = await ask(failure)

    assert isinstance(answer, JudgeFailure)
    assert (answer.tokens > 2000) == is_charged
    assert (answer.tokens == 0) != is_charged


async def test_tokens_that_nobody_counted_are_bounded_from_above() -> None:
    answer = await ask(says('{"passed": true, "reason": ""}', usage=Usage(input=None, output=3)))

    assert isinstance(answer, Verdict)
    assert answer.tokens > 2000


SCRIPT = """
models:
  - name: played
    model: scripted
    script: |
      turns:
      - {match: {step: triage, turn: 3, contains: '"lookup": 2'}, text: '{"passed": false, "reason": "first"}'}
      - {text: '{"passed": false, "reason": "second"}'}
      repeat: Last
"""


async def test_a_script_is_played_in_order_and_anew_only_where_it_has_changed() -> None:
    judge = LocalJudge(parse_models(SCRIPT), DictSecrets({}))
    asked = judge_request(model="played")

    first, second = await judge.ask(asked), await judge.ask(asked)
    judge.use(parse_models(SCRIPT))
    third = await judge.ask(asked)
    judge.use(parse_models(SCRIPT.replace('"first"', '"new"')))
    fourth = await judge.ask(asked)

    reasons = [answer.reason for answer in (first, second, third, fourth) if isinstance(answer, Verdict)]
    assert reasons == ["first", "second", "second", "new"]


async def test_a_question_outlives_the_table_that_it_was_asked_of() -> None:
    table = parse_models(
        SCRIPT.replace("turns:\n", "turns:\n      - {delaySeconds: 0.05, text: '{\"passed\": true}'}\n")
    )
    judge = LocalJudge(table, DictSecrets({}))

    asked = asyncio.create_task(judge.ask(judge_request(model="played")))
    await asyncio.sleep(0)
    judge.use({})
    answer = await asked
    judge.use(table)

    assert isinstance(answer, Verdict) and answer.passed
    assert await judge.models() == {"played"}


async def test_a_spent_script_says_so() -> None:
    judge = LocalJudge(parse_models(SCRIPT.replace("      repeat: Last\n", "")), DictSecrets({}))
    asked = judge_request(model="played", observation=observation(turn=9))

    await judge.ask(asked)
    answer = await judge.ask(asked)

    assert isinstance(answer, JudgeFailure) and answer.type == "Unavailable"
    assert "no turn of the script matches" in answer.message


async def test_the_names_of_the_table_are_told() -> None:
    assert await LocalJudge(TABLE, DictSecrets({})).models() == {"careful", "hasty"}
