"""What holds of every judge: the one in this process, the one over HTTP, and the fake of tests."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from pilothouse_api.judging import Judge, JudgeFailure, JudgeRequest, Verdict
from pilothouse_engine.testing.secrets import DictSecrets
from pilothouse_operator.supervision.judge_client import HttpJudge
from pilothouse_runner.judge.local import LocalJudge
from pilothouse_runner.judge.table import parse_models
from support.judge_service import judge_service
from support.judges import FakeJudge
from support.observations import judge_request

pytestmark = pytest.mark.anyio

TABLE = """
models:
- name: careful
  model: scripted
  script: |
    turns:
    - {text: '{"passed": false, "reason": "Too many calls."}', usage: {input: 400, output: 20}}
    - {text: '{"passed": true, "reason": "Better."}', usage: {input: 1, output: 2}}
- name: slow
  model: scripted
  script: "turns: [{delaySeconds: 60, text: '{}'}]"
"""
SAYS = (
    Verdict(passed=False, reason="Too many calls.", tokens=420),
    Verdict(passed=True, reason="Better.", tokens=3),
)

MakeJudge = Callable[[], Judge]


@pytest.fixture(params=["fake", "local", "http"])
async def make_judge(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MakeJudge]:
    kind: str = request.param
    with ExitStack() as stack:
        clients: list[HttpJudge] = []

        def make() -> Judge:
            if kind == "fake":
                return FakeJudge(*SAYS, models=("careful", "slow"))
            if kind == "local":
                return LocalJudge(parse_models(TABLE), DictSecrets())
            service = stack.enter_context(judge_service(tmp_path, TABLE))
            clients.append(HttpJudge(service.url, service.token_path))
            return clients[-1]

        yield make
        for client in clients:
            await client.close()


async def test_verdicts_come_in_turn_with_their_tokens(make_judge: MakeJudge) -> None:
    judge = make_judge()

    assert [await judge.ask(judge_request()) for _ in SAYS] == list(SAYS)


async def test_the_models_are_named(make_judge: MakeJudge) -> None:
    assert await make_judge().models() == frozenset({"careful", "slow"})


async def test_a_model_that_is_not_there_is_unknown(make_judge: MakeJudge) -> None:
    answer = await make_judge().ask(judge_request(model="mine"))

    assert answer == JudgeFailure(type="UnknownModel", message="judge.models has no mine")


async def test_one_that_hangs_is_a_timeout_in_time(make_judge: MakeJudge) -> None:
    judge = make_judge()
    if isinstance(judge, FakeJudge):
        judge.hang()
    asked: JudgeRequest = judge_request(model="slow", timeout_seconds=1)

    answer = await asyncio.wait_for(judge.ask(asked), 50)

    assert isinstance(answer, JudgeFailure) and answer.type == "Timeout"


async def test_one_that_is_not_waited_for_any_more_is_left(make_judge: MakeJudge) -> None:
    judge = make_judge()
    if isinstance(judge, FakeJudge):
        judge.hang()
    asking = asyncio.create_task(judge.ask(judge_request(model="slow")))
    await asyncio.sleep(0)
    asking.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asking, 50)
