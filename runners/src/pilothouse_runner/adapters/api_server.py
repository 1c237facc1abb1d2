"""A Kubernetes API server: where it is, what opens it, and connections to it.

A thin client of its own, because the official one costs a runner two seconds of its start.
"""

import os
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pilothouse_api import __version__, names
from pilothouse_engine.values import Value
from pilothouse_runner.adapters.connections import Connections, Reply

_HEADERS = {"Accept": "application/json", "User-Agent": f"pilothouse-runner/{__version__}"}


class ApiServer(Value):
    """Where the API server is, and the files that open it: read anew, since they are renewed while a run lives.

    `authorization` gives the header's value where there is no token file; `client_certificate` is a certificate and
    its key. `verify` false trusts whoever answers, as a kubeconfig may say.
    """

    url: str
    token_path: Path | None = None
    ca_path: Path | None = None
    authorization: Callable[[], str | None] | None = None
    client_certificate: tuple[Path, Path] | None = None
    verify: bool = True

    @staticmethod
    def in_cluster(environment: Mapping[str, str] = os.environ) -> "ApiServer":
        """Return the API server of the cluster that this pod runs in; raises KeyError outside of a pod."""
        host, port = environment["KUBERNETES_SERVICE_HOST"], environment["KUBERNETES_SERVICE_PORT"]
        host = f"[{host}]" if ":" in host else host
        folder = Path(names.TOKEN_PATH)
        return ApiServer(f"https://{host}:{port}", folder / "token", folder / "ca.crt")


class Cluster(Value):
    """An API server to act on, and the namespace of a call that names none."""

    server: ApiServer
    namespace: str


class ApiConnection:
    """Connections to one API server, opened when they are needed."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._http: Connections | None = None

    @property
    def url(self) -> str:
        """Where it is."""
        return self._server.url

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        content: bytes | None,
        extensions: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[Reply]:
        """Send a request and give its reply; raises HTTP_ERRORS, and OSError for a file that cannot be read."""
        if self._http is None:
            self._http = Connections(max_connections=8, keepalive_seconds=60, ssl_context=_ssl_context(self._server))
        sent = {**_HEADERS, **headers, **self._authorization()}
        async with self._http.stream(method, f"{self.url}{path}", sent, content, extensions) as reply:
            yield reply

    async def aclose(self) -> None:
        """Close the connections; the next request opens new ones, which read the CA anew."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    def _authorization(self) -> dict[str, str]:
        server = self._server
        if server.token_path is not None:
            return {"Authorization": f"Bearer {server.token_path.read_text().strip()}"}
        given = server.authorization() if server.authorization is not None else None
        return {"Authorization": given} if given else {}


class AnswerTooLarge(ValueError):
    """An answer is larger than may be read."""


async def read_body(reply: Reply, max_bytes: int) -> bytes:
    """Return the body of a reply; raises AnswerTooLarge as soon as it is larger than `max_bytes`."""
    pieces: list[bytes] = []
    size = 0
    async for piece in reply.pieces:
        size += len(piece)
        if size > max_bytes:
            raise AnswerTooLarge(f"an answer of more than {max_bytes:,} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def retry_after(reply: Reply) -> float | None:
    """Return how long the API server asks to wait, in seconds; it never says a date."""
    text = reply.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _ssl_context(server: ApiServer) -> ssl.SSLContext | None:
    if not server.url.startswith("https:"):
        return None
    context = ssl.create_default_context(cafile=str(server.ca_path) if server.ca_path else None)
    if server.client_certificate is not None:
        certificate, key = server.client_certificate
        context.load_cert_chain(certificate, key)
    if not server.verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
