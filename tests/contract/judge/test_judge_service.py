"""Operator's client and judge's service together: who may ask, what is answered, and what nobody gets to see."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from pilothouse_api.judging import JudgeFailure, JudgeRequest, Verdict
from pilothouse_api.v1alpha1.agent import ModelEndpoint
from pilothouse_engine.ports import ModelFailure, ModelReply, ModelRequest, Usage
from pilothouse_operator.supervision import judge_client
from pilothouse_operator.supervision.judge_client import HttpJudge
from pilothouse_runner.judge.service import MAX_REQUEST_BYTES
from support.judge_service import TABLE, TOKEN, JudgeService, judge_service
from support.observations import judge_request, observation

pytestmark = pytest.mark.anyio

CRITERIA = "Never mention project nightingale."


@asynccontextmanager
async def client_of(service: JudgeService) -> AsyncIterator[HttpJudge]:
    client = HttpJudge(f"{service.url}/", service.token_path)
    try:
        yield client
    finally:
        await client.close()


class HeldModel:
    """Port `Model` that answers when it is let, and says when it is asked and when it is left."""

    def __init__(self) -> None:
        self.asked, self.left, self.go = threading.Event(), threading.Event(), threading.Event()
        self.fault: Exception | None = None

    async def call(self, request: ModelRequest) -> ModelReply | ModelFailure:
        self.asked.set()
        if self.fault is not None:
            raise self.fault
        try:
            await asyncio.to_thread(self.go.wait, 10)
        except asyncio.CancelledError:
            self.left.set()
            raise
        return ModelReply(text='{"passed": true, "reason": ""}', usage=Usage(1, 2))

    def price(self, endpoint: ModelEndpoint) -> tuple[float, float] | None:
        return None

    def context_window(self, endpoint: ModelEndpoint) -> int | None:
        return None


async def test_a_verdict_comes_through_and_is_counted(tmp_path: Path) -> None:
    with judge_service(tmp_path) as service:
        async with client_of(service) as client:
            assert await client.models() == frozenset({"careful"})
            answer = await client.ask(judge_request(CRITERIA))

    assert answer == Verdict(passed=False, reason="Too many calls.", tokens=420)
    assert service.metric("answers_total", model="careful", answer="Violated") == 1
    assert service.metric("tokens_total", model="careful") == 420
    assert service.metric("under_way") == 0


async def test_a_model_that_is_not_in_the_table_is_unknown_and_no_label(tmp_path: Path) -> None:
    with judge_service(tmp_path) as service:
        async with client_of(service) as client:
            answer = await client.ask(judge_request(model="mine"))

    assert answer == JudgeFailure(type="UnknownModel", message="judge.models has no mine")
    assert service.metric("answers_total", model="(unknown)", answer="UnknownModel") == 1


async def test_neither_criteria_nor_observation_nor_reason_is_logged(tmp_path: Path) -> None:
    with judge_service(tmp_path) as service:
        async with client_of(service) as client:
            await client.ask(judge_request(CRITERIA, observation=observation(step="raven", toolCalls={"swan": 1})))

    logged = service.log.getvalue()
    assert [line["event"] for line in service.lines()] == ["judge.answered"]
    assert not [word for word in ("nightingale", "raven", "swan", "Too many", TOKEN) if word in logged]


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x"])
async def test_who_does_not_hold_the_token_may_neither_ask_nor_look(tmp_path: Path, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    body = judge_request().model_dump_json(by_alias=True)
    with judge_service(tmp_path) as service:
        async with httpx.AsyncClient(base_url=service.url, headers=headers) as http:
            replies = [await http.post("/v1/verdicts", content=body), await http.get("/v1/models")]

    assert [reply.status_code for reply in replies] == [401, 401]
    assert [JudgeFailure.model_validate(reply.json()).type for reply in replies] == ["Refused", "Refused"]
    assert service.metric("answers_total", model="careful", answer="Violated") is None


async def test_without_a_token_nobody_is_let_in(tmp_path: Path) -> None:
    with judge_service(tmp_path) as service:
        service.token_path.write_text("\n")
        async with httpx.AsyncClient(base_url=service.url) as http:
            replies = [await http.get("/v1/models", headers={"authorization": one}) for one in ("Bearer", "bearer x")]

    assert [reply.status_code for reply in replies] == [401, 401]


async def test_a_token_that_was_replaced_is_taken_at_once(tmp_path: Path) -> None:
    with judge_service(tmp_path) as service:
        async with client_of(service) as client:
            before = await client.models()
            service.token_path.write_text("another")
            after = await client.models()

    assert before == after == frozenset({"careful"})


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{}", 400),
        (b"\xff", 400),
        (b"[" * 100_000, 400),
        (b'{"model": "careful", "criteria": "x", "timeoutSeconds": 0, "observation": {}}', 400),
        (json.dumps({"criteria": "y" * 70_000, "secret": "quoted?"}).encode(), 400),
        (b"x" * (MAX_REQUEST_BYTES + 1), 413),
    ],
    ids=["empty", "no fields", "no text", "nested", "wrong fields", "long criteria", "large"],
)
async def test_what_is_no_question_is_refused_and_not_quoted(tmp_path: Path, body: bytes, status: int) -> None:
    with judge_service(tmp_path) as service:
        async with httpx.AsyncClient(base_url=service.url, headers={"authorization": f"Bearer {TOKEN}"}) as http:
            reply = await http.post("/v1/verdicts", content=body)

    assert reply.status_code == status
    assert JudgeFailure.model_validate(reply.json()).type == "Unavailable"
    assert "quoted" not in reply.text and "yyy" not in reply.text
    assert service.metric("refused_requests_total", status=str(status)) == 1


async def test_a_question_of_a_newer_operator_is_answered(tmp_path: Path) -> None:
    raw = json.loads(judge_request().model_dump_json(by_alias=True))
    newer = {**raw, "new": 1, "observation": {**raw["observation"], "alsoNew": [2]}}
    with judge_service(tmp_path) as service:
        async with httpx.AsyncClient(base_url=service.url, headers={"authorization": f"Bearer {TOKEN}"}) as http:
            reply = await http.post("/v1/verdicts", json=newer)

    assert reply.json() == {"passed": False, "reason": "Too many calls.", "tokens": 420}


async def test_probes_and_metrics_need_no_token(tmp_path: Path) -> None:
    with judge_service(tmp_path) as service:
        async with httpx.AsyncClient(base_url=service.url) as http:
            replies = [await http.get(path) for path in ("/healthz", "/readyz", "/metrics")]

    assert [reply.status_code for reply in replies] == [200, 200, 200]
    assert "pilothouse_judge_under_way 0.0" in replies[2].text


async def test_a_changed_table_is_used_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    with judge_service(tmp_path) as service:
        async with client_of(service) as client:
            service.models_path.write_text(TABLE.replace("careful", "second"))
            changed = await client.models()
            service.models_path.write_text("models: [{name: third}]")
            kept, refused = await client.models(), service.metric("table_refused")
            service.models_path.unlink()
            still = await client.models()
            service.models_path.write_text(TABLE)
            mended = await client.models()

    assert changed == kept == still == frozenset({"second"})
    assert (mended, refused, service.metric("table_refused")) == (frozenset({"careful"}), 1, 0)
    assert [line["event"] for line in service.lines()] == [
        "judge.table_read",
        "judge.table_refused",
        "judge.table_refused",
        "judge.table_read",
    ]


async def test_a_table_is_swapped_as_kubernetes_swaps_it(tmp_path: Path) -> None:
    """A ConfigMap's files are links into a folder that is a link, which is replaced."""
    for name, table in (("first", TABLE), ("second", TABLE.replace("careful", "second"))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "models.yaml").write_text(table)
    with judge_service(tmp_path) as service:
        service.models_path.unlink()
        (tmp_path / "..data").symlink_to("first")
        service.models_path.symlink_to(Path("..data") / "models.yaml")
        async with client_of(service) as client:
            before = await client.models()
            (tmp_path / "..data_tmp").symlink_to("second")
            (tmp_path / "..data_tmp").rename(tmp_path / "..data")
            after = await client.models()

    assert (before, after) == (frozenset({"careful"}), frozenset({"second"}))


async def test_a_question_too_many_is_refused_and_the_others_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_client, "RETRY_PAUSES", ())
    model = HeldModel()
    with judge_service(tmp_path, model=model, max_under_way=1) as service:
        async with client_of(service) as client:
            first = asyncio.create_task(client.ask(judge_request()))
            await asyncio.to_thread(model.asked.wait, 10)
            second = await client.ask(judge_request())
            model.go.set()
            answer = await first

    assert isinstance(second, JudgeFailure) and second.type == "Unavailable"
    assert second.message == "1 questions are being answered, which is all that the judge takes"
    assert answer == Verdict(passed=True, reason="", tokens=3)


async def test_a_client_that_leaves_takes_its_question_with_it(tmp_path: Path) -> None:
    model = HeldModel()
    with judge_service(tmp_path, model=model) as service:
        async with client_of(service) as client:
            asking = asyncio.create_task(client.ask(judge_request()))
            await asyncio.to_thread(model.asked.wait, 10)
            asking.cancel()
            left = await asyncio.to_thread(model.left.wait, 10)
            model.go.set()

    assert left


async def test_a_fault_is_one_questions_and_is_not_quoted(tmp_path: Path) -> None:
    model = HeldModel()
    model.fault = RuntimeError(CRITERIA)
    with judge_service(tmp_path, model=model) as service:
        async with client_of(service) as client:
            answer = await client.ask(judge_request(CRITERIA))

    assert answer == JudgeFailure(type="Unavailable", message="internal fault: RuntimeError")
    assert "nightingale" not in service.log.getvalue()
    assert service.lines()[0]["event"] == "judge.fault"


def test_a_question_holds_nothing_but_what_the_contract_names() -> None:
    assert set(JudgeRequest.model_fields) == {"model", "criteria", "observation", "timeout_seconds"}
