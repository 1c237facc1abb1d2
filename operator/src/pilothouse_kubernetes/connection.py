"""Where the API server is and how to be known to it: in a cluster or by kubeconfig; one session for everybody.

The session is shared with Kopf, so that its requests and the operator's own stay under one connection limit. Kopf
closes the session when it is told 401 and when it ends; whoever asks next gets a new one.
"""

import base64
import os
import ssl
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_REREAD_SECONDS = 60.0
CONNECTION_LIMIT = 64
"""Most requests under way at once, besides watches: a storm of ours must not be one for the API server."""


READABLE_FRAMES = 12_000
"""Recursion of Python that reads what the API server takes: JSON nested 10,000 deep; it needs 2 MiB of stack.

Python's own limit is 1,000: one deeper object, of whoever may make a run anywhere, would end every list of runs."""


class LoginError(Exception):
    """There is no way to reach or to be known to an API server; the message says what to set."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to reach an API server: `token_path` wins over `token`, since bound tokens are replaced on disk."""

    server: str
    namespace: str = "default"
    ca_data: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    token_path: Path | None = None
    client_certificate: str | None = field(default=None, repr=False)
    client_key: str | None = field(default=None, repr=False)

    def ssl_context(self) -> ssl.SSLContext | bool:
        """Return the TLS settings; True means the system's own for a server without a CA of its own."""
        if not self.server.startswith("https"):
            return True
        context = ssl.create_default_context(cadata=self.ca_data)
        if self.client_certificate is not None:
            # OpenSSL loads a certificate and its key from files only.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as both:
                both.write(f"{self.client_certificate}\n{self.client_key or ''}\n")
                both.flush()
                context.load_cert_chain(both.name)
        return context


def find_credentials(kubeconfig: str | None = None) -> Credentials:
    """Return the credentials of the pod, else of a kubeconfig (the argument, KUBECONFIG, ~/.kube/config)."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    chosen = kubeconfig or os.environ.get("KUBECONFIG")
    if host and not chosen and (SERVICE_ACCOUNT / "token").exists():
        return _in_cluster(host, os.environ.get("KUBERNETES_SERVICE_PORT", "443"))
    path = Path(chosen.split(":")[0]) if chosen else Path.home() / ".kube" / "config"
    if not path.is_file():
        raise LoginError(f"no API server: not in a pod, and {path} does not exist; set KUBECONFIG")
    return _from_kubeconfig(path)


def _in_cluster(host: str, port: str) -> Credentials:
    address = f"[{host}]" if ":" in host else host
    return Credentials(
        server=f"https://{address}:{port}",
        namespace=(SERVICE_ACCOUNT / "namespace").read_text().strip(),
        ca_data=(SERVICE_ACCOUNT / "ca.crt").read_text(),
        token_path=SERVICE_ACCOUNT / "token",
    )


def _from_kubeconfig(path: Path) -> Credentials:
    try:
        config = yaml.safe_load(path.read_text())
        context = _named(config, "contexts", config["current-context"])["context"]
        cluster = _named(config, "clusters", context["cluster"])["cluster"]
        user = _named(config, "users", context["user"])["user"]
    except (KeyError, TypeError, yaml.YAMLError) as error:
        raise LoginError(f"{path} is no kubeconfig with a current context: {error}") from error
    if "exec" in user or "auth-provider" in user:
        raise LoginError(f"{path}: the user {context['user']} logs in by a plug-in; use a token or a certificate")
    return Credentials(
        server=str(cluster["server"]).rstrip("/"),
        namespace=context.get("namespace", "default"),
        ca_data=_inline(cluster, "certificate-authority", path),
        token=user.get("token"),
        token_path=path.parent / user["tokenFile"] if "tokenFile" in user else None,
        client_certificate=_inline(user, "client-certificate", path),
        client_key=_inline(user, "client-key", path),
    )


def _named(config: dict[str, Any], section: str, name: str) -> dict[str, Any]:
    for entry in config[section]:
        if entry["name"] == name:
            found: dict[str, Any] = entry
            return found
    raise KeyError(f"{name} is not among the {section}")


def _inline(entry: dict[str, Any], name: str, path: Path) -> str | None:
    if f"{name}-data" in entry:
        return base64.b64decode(entry[f"{name}-data"]).decode()
    return (path.parent / entry[name]).read_text() if name in entry else None


class Connection:
    """The one session to the API server."""

    def __init__(
        self,
        credentials: Credentials,
        tracing: aiohttp.TraceConfig | None = None,
        limit: int = CONNECTION_LIMIT,
        user_agent: str = "pilothouse-operator",
    ) -> None:
        sys.setrecursionlimit(max(sys.getrecursionlimit(), READABLE_FRAMES))
        self.credentials = credentials
        self._tracing = tracing
        self._limit = limit
        self._user_agent = user_agent
        self._session: aiohttp.ClientSession | None = None
        self._token = _Token(credentials, time.monotonic)

    def session(self) -> aiohttp.ClientSession:
        """Return the open session, a new one where somebody has closed it. Needs a running event loop."""
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._limit, ssl=self.credentials.ssl_context(), keepalive_timeout=30
                ),
                headers={"User-Agent": self._user_agent},
                middlewares=(self._authorize,),
                trace_configs=[self._tracing] if self._tracing else [],
            )
        return self._session

    async def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()

    async def _authorize(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        token = self._token.read()
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        return await handler(request)


class _Token:
    """A token that is read again every minute, since the kubelet replaces the file."""

    def __init__(self, credentials: Credentials, monotonic: Callable[[], float]) -> None:
        self._credentials = credentials
        self._monotonic = monotonic
        self._value = credentials.token
        self._read_at: float | None = None

    def read(self) -> str | None:
        path = self._credentials.token_path
        if path is None:
            return self._value
        now = self._monotonic()
        if self._read_at is None or now - self._read_at >= TOKEN_REREAD_SECONDS:
            self._value, self._read_at = path.read_text().strip(), now
        return self._value
