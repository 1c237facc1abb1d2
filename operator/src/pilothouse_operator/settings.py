"""What the installation sets: environment variables PILOTHOUSE_OPERATOR_*, checked at start."""

import os
import socket
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from pilothouse_api import names
from pilothouse_control.world import Ceilings, Platform
from pilothouse_operator.workloads.manifests import PodSettings, RedisForPods


def _split(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


class CeilingSettings(BaseModel):
    """Upper bounds of what manifests may ask for; 0 is no bound."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")

    tool_timeout_seconds: Annotated[int, Field(ge=0)] = 0
    pause_seconds: Annotated[int, Field(ge=0)] = 0
    approval_expires_seconds: Annotated[int, Field(ge=0)] = 0
    token_budget: Annotated[int, Field(ge=0)] = 0
    cost_budget_usd: Annotated[str, Field(alias="costBudgetUSD", pattern=r"^[0-9]{1,12}(\.[0-9]{1,9})?$")] = "0"

    def to_ceilings(self) -> Ceilings:
        """Return the ceilings as decisions read them: None is no ceiling."""
        return Ceilings(
            tool_timeout_seconds=self.tool_timeout_seconds or None,
            pause_seconds=self.pause_seconds or None,
            approval_expires_seconds=self.approval_expires_seconds or None,
            token_budget=self.token_budget or None,
            cost_budget_usd=self.cost_budget_usd if self.cost_budget_usd.strip("0.") else None,
        )


class OperatorSettings(BaseSettings):
    """Settings of one operator process."""

    model_config = SettingsConfigDict(env_prefix="PILOTHOUSE_OPERATOR_", frozen=True)

    namespace: str = "pilothouse-system"
    """Where the Lease lies."""
    identity: str = Field(default_factory=socket.gethostname)
    """Name of this process among the candidates for the Lease."""
    lease_name: str = names.LEASE_NAME
    """Name of the Lease."""
    watch_namespaces: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)] = ()
    """Namespaces that are watched, by commas; empty: all."""
    runner_image: Annotated[str, Field(min_length=1)] = "localhost/pilothouse-runner:dev"
    """Image of runner pods whose workflow names none."""
    runner_image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When it is pulled."""
    journal_claim: Annotated[str, Field(max_length=253)] = ""
    """PersistentVolumeClaim, in each namespace of runs, that keeps journals; empty: an emptyDir per pod."""
    redis_url: Annotated[str, Field(max_length=2048, pattern=r"^(rediss?://[^@\s]+)?$")] = ""
    """Redis that keeps journals, without user and password; empty: they are kept on the claim, or with the pod."""
    redis_secret: Annotated[str, Field(max_length=253)] = ""
    """Secret, in each namespace of runs, with `username`, `password` and perhaps `ca.crt`; empty: it asks for none."""
    redis_keep_seconds: Annotated[int, Field(ge=86400, le=10_000 * 86400)] = 365 * 86400
    """How long a run's keys stay to which nothing is added."""
    redis_keep_finished_seconds: Annotated[int, Field(ge=60, le=10_000 * 86400)] = 7 * 86400
    """How long they stay after its end."""
    judge_url: Annotated[str, Field(max_length=2048, pattern=r"^(https?://[^@\s]+)?$")] = ""
    """Base address of the judge; empty: this installation has none."""
    judge_token_path: Path = Path(names.JUDGE_TOKEN_PATH)
    """File with the token that makes the operator known to it."""
    abort_grace_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
    """How long an Abort may take to land before the pod is ended."""
    runner_telemetry_endpoint: Annotated[str, Field(max_length=2048, pattern=r"^(https?://\S+)?$")] = ""
    """OTLP/HTTP endpoint of runners, without the path of a signal; empty: no telemetry."""
    runner_telemetry_env: dict[Annotated[str, Field(pattern=r"^OTEL_[A-Z0-9_]+$")], str] = {}
    """Further OTEL_ variables of runners, as JSON; read where there is an endpoint."""
    termination_grace_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
    """How long a runner that is asked to end may take."""
    finished_pod_seconds: Annotated[int, Field(ge=0, le=86400)] = 300
    """How long the pods of a finished run are kept for their logs."""
    sweep_seconds: Annotated[float, Field(ge=1, le=86400)] = 300
    """Time between two sweeps for what the watches missed."""
    workers: Annotated[int, Field(ge=1, le=64)] = 8
    """Reconcilers."""
    deletes_per_second: Annotated[float, Field(gt=0, le=1000)] = 10
    """Most deletions a second by TTL and history."""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(str.lower)] = "info"
    """Least severe lines that are written."""
    http_host: str = "0.0.0.0"
    """Where /metrics, /livez and /readyz are served."""
    http_port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Port of these."""
    lease_seconds: Annotated[float, Field(ge=1, le=600)] = 15
    """How long a Lease holds that is not renewed."""
    renew_seconds: Annotated[float, Field(gt=0, le=600)] = 10
    """How long a leader tries to renew before it gives up and ends."""
    retry_seconds: Annotated[float, Field(gt=0, le=60)] = 2
    """Time between two tries."""
    ceilings: CeilingSettings = CeilingSettings()
    """Upper bounds of what manifests may ask for, as JSON."""

    def model_post_init(self, context: Any, /) -> None:
        """Refuse elector times under which two could lead."""
        if not self.retry_seconds < self.renew_seconds < self.lease_seconds:
            raise ValueError(
                f"retry_seconds ({self.retry_seconds}) < renew_seconds ({self.renew_seconds}) < lease_seconds "
                f"({self.lease_seconds}) does not hold: two operators could lead"
            )
        if self.redis_url and self.journal_claim:
            raise ValueError(
                f"redis_url ({self.redis_url}) and journal_claim ({self.journal_claim}) are both set: a journal lies "
                "in one place; unset one of them"
            )

    @property
    def is_journal_durable(self) -> bool:
        """Whether journals outlive pods."""
        return bool(self.redis_url or self.journal_claim)

    def pods(self) -> PodSettings:
        """Return what pods of runners are built with."""
        return PodSettings(
            image_pull_policy=self.runner_image_pull_policy,
            journal_claim=self.journal_claim,
            redis=self._redis() if self.redis_url else None,
            termination_grace_seconds=self.termination_grace_seconds,
            abort_grace_seconds=self.abort_grace_seconds,
            telemetry_endpoint=self.runner_telemetry_endpoint,
            telemetry_env=self.runner_telemetry_env,
        )

    def _redis(self) -> RedisForPods:
        return RedisForPods(
            self.redis_url, self.redis_secret, self.redis_keep_seconds, self.redis_keep_finished_seconds
        )

    def platform(self) -> Platform:
        """Return what plans are resolved with."""
        return Platform(
            runner_image=self.runner_image,
            durable_journal=self.is_journal_durable,
            ceilings=self.ceilings.to_ceilings(),
        )


def process_identity(settings: OperatorSettings) -> str:
    """Return a name for the Lease that no other process, not even this one restarted, has."""
    return f"{settings.identity}_{os.getpid()}_{os.urandom(4).hex()}"
