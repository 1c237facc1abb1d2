"""What a server is shown of who asks: headers from Secrets and a projected token, read anew for each request."""

from pathlib import Path

from msgspec import field

from pilothouse_api.mcp import is_clients_own
from pilothouse_api.names import audience_token_file
from pilothouse_api.structs import McpServer
from pilothouse_engine.ports import Secrets, SecretUnavailable
from pilothouse_engine.values import Value

MAX_TOKEN_BYTES = 65_536
SHORTEST_MASKED = 6
MASK = "[credential]"


class CredentialsUnavailable(Exception):
    """The headers of a server cannot be made; the message holds no value."""


class ServerHeaders(Value):
    """Headers of one request, and which texts in them must not be shown."""

    headers: tuple[tuple[str, str], ...] = ()
    secrets: frozenset[str] = field(default_factory=frozenset)


class CredentialReader:
    """Reads what a server's entry names; `tokens` is the folder of projected tokens, None where there are none."""

    def __init__(self, secrets: Secrets, tokens: Path | None) -> None:
        self._secrets = secrets
        self._tokens = tokens

    def read(self, server: McpServer) -> ServerHeaders:
        """Return the headers; raises CredentialsUnavailable."""
        headers: list[tuple[str, str]] = []
        secrets: set[str] = set()
        for header in server.headers:
            if is_clients_own(header.name):
                raise CredentialsUnavailable(f"the header {header.name} is set by the client; remove it")
            if header.value_from is not None:
                ref = header.value_from.secret_key_ref
                value = self._secret(ref.name, ref.key)
                secrets |= _parts(value)
            else:
                value = header.value or ""
                if "{{" in value:
                    raise CredentialsUnavailable(f"the header {header.name} is a template; here values are sent as is")
            _check_value(header.name, value)
            headers.append((header.name, value.strip()))
        if server.auth is not None:
            if any(name.lower() == "authorization" for name, _ in headers):
                raise CredentialsUnavailable("auth and headers both set Authorization; remove one of them")
            token = self._token(server.auth.service_account_token.audience)
            _check_value("Authorization", token)
            headers.append(("Authorization", f"Bearer {token}"))
            secrets |= _parts(token)
        return ServerHeaders(tuple(headers), frozenset(secrets))

    def _secret(self, name: str, key: str) -> str:
        try:
            return self._secrets.read(name, key)
        except SecretUnavailable as unavailable:
            raise CredentialsUnavailable(str(unavailable)) from None

    def _token(self, audience: str) -> str:
        if self._tokens is None:
            raise CredentialsUnavailable(
                "auth.serviceAccountToken needs a ServiceAccount, and a local run has none: run it in a cluster, or use"
                " headers with valueFrom.secretKeyRef"
            )
        try:
            with (self._tokens / audience_token_file(audience)).open("rb") as file:
                raw = file.read(MAX_TOKEN_BYTES + 1)
        except OSError as error:
            raise CredentialsUnavailable(f"the token for {audience} cannot be read: {error.strerror}") from None
        token = raw.decode("ascii", "replace").strip()
        if not token or len(raw) > MAX_TOKEN_BYTES or not token.isascii():
            raise CredentialsUnavailable(f"the token for {audience} is no token")
        return token


def mask(text: str, secrets: set[str]) -> str:
    """Return a text of a server without the credentials that it was sent."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def _parts(value: str) -> set[str]:
    """Return what must not be shown of a value: all of it and each word, since a scheme may be cut off."""
    return {part for part in (value.strip(), *value.split()) if len(part) >= SHORTEST_MASKED and part != "Bearer"}


def _check_value(name: str, value: str) -> None:
    if not value.strip():
        raise CredentialsUnavailable(f"the value of the header {name} is empty")
    if not value.isascii() or any(char != "\t" and not char.isprintable() for char in value):
        raise CredentialsUnavailable(f"the value of the header {name} has a line break or a character that is no ASCII")
