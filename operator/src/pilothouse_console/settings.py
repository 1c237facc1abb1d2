"""What the installation sets: environment variables PILOTHOUSE_API_*, checked at start."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from pilothouse_console.letters import CLUSTER_NAME


def _split(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


class ApiSettings(BaseSettings):
    """Settings of one process of the operator API."""

    model_config = SettingsConfigDict(env_prefix="PILOTHOUSE_API_", frozen=True)

    watch_namespaces: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)] = ()
    """Namespaces whose runs are shown, by commas; empty: all."""
    host: str = "0.0.0.0"
    """Where it listens."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8443
    """Port of the API."""
    probe_port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Port of /livez, /readyz and /metrics."""
    tls_certificate: Path | None = None
    """Certificate of the API; without one it speaks plain HTTP."""
    tls_key: Path | None = None
    """Its key."""
    redis_url: Annotated[str, Field(max_length=2048, pattern=r"^(((rediss?)|(unix))://[^@\s]+)?$")] = ""
    """Redis with frames and large results, without user and password; empty: there is none."""
    redis_login: Path | None = None
    """Folder with `username`, `password` and perhaps `ca.crt`."""
    most_streams: Annotated[int, Field(ge=1, le=100_000)] = 5000
    """Event streams that are open at once."""
    most_streams_per_user: Annotated[int, Field(ge=1, le=100_000)] = 250
    """Those of one user, by the name that the API server knows; a program that looks for many people may need more."""
    heartbeat_seconds: Annotated[float, Field(gt=0, le=60)] = 15
    """Time between two signs of life of a stream, at which the viewer's rights are looked at again."""
    fleet_redis_url: Annotated[str, Field(max_length=2048, pattern=r"^(((rediss?)|(unix))://[^@\s]+)?$")] = ""
    """Redis of the fleet, without user and password; empty: this cluster is alone."""
    fleet_redis_login: Path | None = None
    """Folder with `username`, `password` and perhaps `ca.crt`."""
    fleet_cluster: Annotated[str, Field(pattern=rf"{CLUSTER_NAME}|^$")] = ""
    """Name of this cluster in the fleet."""
    fleet_key: Path | None = None
    """File with the keys of the fleet, one a line: the first seals, all open."""
    stop_seconds: Annotated[int, Field(ge=1, le=600)] = 10
    """How long requests may take to end once the process is asked to."""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(str.lower)] = "info"
    """Least severe lines that are written."""

    def model_post_init(self, context: Any, /) -> None:
        """Refuse a fleet without a name of its own or without a key."""
        if self.fleet_redis_url and not (self.fleet_cluster and self.fleet_key):
            raise ValueError("fleet_redis_url needs fleet_cluster (this cluster's name) and fleet_key (a file) too")
