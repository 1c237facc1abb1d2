"""A stage for executors: ports that answer what a test says, and time that passes only when something sleeps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from pilothouse_api.crossing import Written
from pilothouse_engine.ports import (
    FunctionFailure,
    FunctionReply,
    FunctionRequest,
    HttpFailure,
    HttpRequest,
    HttpResponse,
    Ports,
    SecretUnavailable,
)
from pilothouse_engine.settings import Settings
from pilothouse_engine.steps.contract import StepCall

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass
class Stage:
    """Everything that an executor may touch, scripted and recorded."""

    http_answers: list[HttpResponse | HttpFailure] = field(default_factory=list)
    function_answer: FunctionReply | FunctionFailure = field(default_factory=FunctionReply)
    secret_values: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    requests: list[HttpRequest] = field(default_factory=list)
    function_requests: list[FunctionRequest] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    seconds_per_request: float = 0.0
    elapsed: float = 0.0

    async def send(self, request: HttpRequest) -> HttpResponse | HttpFailure:
        self.requests.append(request)
        self.elapsed += self.seconds_per_request
        return self.http_answers.pop(0)

    async def run(self, request: FunctionRequest) -> FunctionReply | FunctionFailure:
        self.function_requests.append(request)
        return self.function_answer

    def read(self, name: str, key: str) -> str:
        values = self.secret_values.get((name, key))
        if not values:
            raise SecretUnavailable(f"Secret {name} has no key {key} that can be read")
        return values.pop(0) if len(values) > 1 else values[0]

    def now(self) -> datetime:
        return START + timedelta(seconds=self.elapsed)

    def monotonic(self) -> float:
        return self.elapsed

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.elapsed += seconds

    @property
    def ports(self) -> Ports:
        unused = cast(Any, None)
        return Ports(
            model=unused,
            http=self,
            functions=self,
            mcp=unused,
            resources=unused,
            secrets=self,
            journal=unused,
            store=unused,
            frames=unused,
            clock=self,
        )


@pytest.fixture
def stage() -> Stage:
    return Stage()


MakeCall = Callable[..., StepCall]


@pytest.fixture
def make_call() -> MakeCall:
    def make(
        params: Written,
        context: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        may_repeat: bool = False,
        arguments: Mapping[str, Any] | None = None,
        texts: Mapping[str, str] | None = None,
    ) -> StepCall:
        return StepCall(
            step_id="look-up",
            kind="",
            params=params,
            context=context or {},
            namespace="default",
            run="r1",
            idempotency_key=idempotency_key,
            may_repeat=may_repeat,
            settings=Settings(max_response_bytes=1000),
            arguments=arguments,
            texts=texts or {},
        )

    return make
