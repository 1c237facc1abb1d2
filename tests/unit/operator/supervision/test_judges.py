"""Verdicts in the background: one at a time, bounded, forgotten with their run."""

from __future__ import annotations

import asyncio

import pytest

from pilothouse_api.judging import JudgeAnswer, JudgeFailure, JudgeRequest, Verdict
from pilothouse_api.observation import Observation
from pilothouse_control.supervision import JudgeAsk
from pilothouse_operator.supervision import judges as judges_module
from pilothouse_operator.supervision.judges import NO_JUDGE, Judges
from pilothouse_operator.watching.cache import Key

pytestmark = pytest.mark.anyio

RUN = Key("AgentRun", "ns", "r1")
GOOD = Verdict(passed=True, reason="fine", tokens=5)


class HeldJudge:
    """Answers when it is told to."""

    def __init__(self, *models: str) -> None:
        self.table: frozenset[str] | JudgeFailure = frozenset(models)
        self.asked: list[JudgeRequest] = []
        self.may_answer = asyncio.Event()
        self.answer: JudgeAnswer = GOOD

    async def ask(self, request: JudgeRequest) -> JudgeAnswer:
        self.asked.append(request)
        await self.may_answer.wait()
        return self.answer

    async def models(self) -> frozenset[str] | JudgeFailure:
        return self.table


def ask(uid: str = "s", timeout_seconds: int = 30) -> JudgeAsk:
    seen = Observation(step="say", visit=1, turn=1, iteration=1, max_iterations=8, now="2026-03-01T12:00:00Z")
    return JudgeAsk(uid, "careful", 1, 10, "small", "Be good.", seen, timeout_seconds)


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_an_answer_wakes_the_run_and_waits_until_it_is_taken() -> None:
    judge, woken = HeldJudge("small"), list[Key]()
    judges = Judges(judge, woken.append)
    judges.ask(RUN, "u1", ask())
    judges.ask(RUN, "u1", ask())
    await turns()
    assert judges.underway("u1") == {"s"}
    assert len(judge.asked) == 1

    judge.may_answer.set()
    await turns()
    assert woken == [RUN]
    assert judges.underway("u1") == frozenset()
    answers = judges.answers("u1")
    assert answers["s"].answer == GOOD
    judges.ask(RUN, "u1", ask())  # what is answered is not asked again before somebody has read it
    await turns()
    assert len(judge.asked) == 1
    judges.take("u1", answers)
    assert judges.answers("u1") == {}
    assert judges.newest_of("s") == GOOD


async def test_no_more_are_asked_at_once_than_the_bound() -> None:
    judge = HeldJudge("small")
    judges = Judges(judge, lambda key: None, at_once=2)
    for number in range(5):
        judges.ask(RUN, f"u{number}", ask())
    await turns()
    assert len(judge.asked) == 2
    judge.may_answer.set()
    await turns(30)
    assert len(judge.asked) == 5


async def test_a_verdict_that_does_not_come_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judges_module, "SLACK_SECONDS", -0.99)
    woken = asyncio.Event()
    judges = Judges(HeldJudge("small"), lambda key: woken.set())
    judges.ask(RUN, "u1", ask(timeout_seconds=1))
    await asyncio.wait_for(woken.wait(), 30)
    answer = judges.answers("u1")["s"].answer
    assert isinstance(answer, JudgeFailure) and answer.type == "Timeout"


async def test_a_run_that_has_ended_waits_for_nothing() -> None:
    judge, woken = HeldJudge("small"), list[Key]()
    judges = Judges(judge, woken.append)
    judges.ask(RUN, "u1", ask())
    await turns()
    judges.forget("u1")
    judge.may_answer.set()
    await turns()
    assert woken == []
    assert judges.answers("u1") == {}


async def test_without_a_judge_nothing_is_askable_and_it_says_so() -> None:
    judges = Judges(None, lambda key: None)
    assert judges.is_known
    assert judges.find_problem("small") == NO_JUDGE
    judges.ask(RUN, "u1", ask())
    assert judges.underway("u1") == frozenset()


async def test_the_table_says_which_models_there_are() -> None:
    judge = HeldJudge("small")
    judges = Judges(judge, lambda key: None)
    assert not judges.is_known
    changed = asyncio.Event()
    keeping = asyncio.create_task(judges.run(changed.set))
    try:
        await asyncio.wait_for(changed.wait(), 30)
        assert judges.find_problem("small") is None
        missing = judges.find_problem("large")
        assert missing is not None and missing.type == "UnknownModel" and "small" in missing.message
    finally:
        keeping.cancel()


async def test_a_judge_that_is_away_from_the_start_is_told_of() -> None:
    judge = HeldJudge()
    judge.table = JudgeFailure(type="Unavailable", message="nobody there")
    judges = Judges(judge, lambda key: None)
    changed = asyncio.Event()
    keeping = asyncio.create_task(judges.run(changed.set))
    try:
        await asyncio.wait_for(changed.wait(), 30)
        problem = judges.find_problem("small")
        assert problem is not None and (problem.type, problem.message) == ("Unavailable", "nobody there")
    finally:
        keeping.cancel()


async def test_a_judge_that_goes_away_is_told_of_at_the_first_question_and_forgiven_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(judges_module, "TABLE_RETRY_SECONDS", 0.05)
    judge, changes = HeldJudge("small"), asyncio.Queue[None]()
    judges = Judges(judge, lambda key: None)
    keeping = asyncio.create_task(judges.run(lambda: changes.put_nowait(None)))
    try:
        await asyncio.wait_for(changes.get(), 30)
        away = JudgeFailure(type="Unavailable", message="nobody there")
        judge.table = judge.answer = away
        judge.may_answer.set()
        judges.ask(RUN, "u1", ask())
        await asyncio.wait_for(changes.get(), 30)

        assert judges.outage is not None and judges.outage.message == "nobody there"
        assert judges.find_problem("small") is None, "it is asked nevertheless: it may be back by then"
        assert judges.newest_of("s") == away

        judge.table = frozenset({"small"})
        await asyncio.wait_for(changes.get(), 30)
        assert judges.outage is None
        assert judges.newest_of("s") is None
    finally:
        keeping.cancel()


async def test_an_endpoint_that_is_away_behind_the_judge_is_held_against_it_until_it_answers() -> None:
    judge, woken = HeldJudge("small"), list[Key]()
    judges = Judges(judge, woken.append)
    keeping = asyncio.create_task(judges.run(lambda: None))
    try:
        judge.answer = JudgeFailure(type="Unavailable", message="small: the endpoint is down")
        judge.may_answer.set()
        judges.ask(RUN, "u1", ask())
        await turns()
        assert woken == [RUN]
        assert judges.outage is None
        assert judges.newest_of("s") == judge.answer
    finally:
        keeping.cancel()
