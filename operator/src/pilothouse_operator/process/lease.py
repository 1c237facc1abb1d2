"""Our own election by a Lease: one leader at a time, and a leader that cannot prove it ends its process.

It runs in a thread with an event loop and a session of its own, so that neither a busy loop nor Kopf's shutdown (which
cancels tasks and closes sessions) can keep it from renewing, or from giving the Lease back.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from pilothouse_kubernetes.client import LEASES, AlreadyExists, ApiError, Conflict, KubernetesClient, NotFound, Raw
from pilothouse_kubernetes.connection import Connection, Credentials

log = structlog.get_logger()

EXIT_LEASE_LOST = 3


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """Which Lease, who wants it, and the times in seconds."""

    namespace: str
    name: str
    identity: str
    lease_seconds: float = 15.0
    renew_seconds: float = 10.0
    retry_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class Sighting:
    """A Lease as it was seen, and when by the own monotonic clock: clocks of others are never compared."""

    holder: str
    version: str
    seen: float


def is_free(raw: Raw, last: Sighting | None, now: float, terms: LeaseTerms) -> bool:
    """Tell whether a Lease may be taken: nobody holds it, or its holder has not renewed it while we watched."""
    spec = raw.get("spec", {})
    holder = spec.get("holderIdentity") or ""
    if not holder or holder == terms.identity:
        return True
    duration = float(spec.get("leaseDurationSeconds") or terms.lease_seconds)
    return last is not None and last.version == raw["metadata"]["resourceVersion"] and now - last.seen > duration


def build_lease(raw: Raw | None, terms: LeaseTerms, now: datetime) -> dict[str, Any]:
    """Return the Lease as this process takes or renews it."""
    moment = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    old = (raw or {}).get("spec", {})
    is_ours = old.get("holderIdentity") == terms.identity
    transitions = int(old.get("leaseTransitions") or 0)
    metadata: dict[str, Any] = {"name": terms.name, "namespace": terms.namespace}
    if raw is not None:
        metadata["resourceVersion"] = raw["metadata"]["resourceVersion"]
    return {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.kind,
        "metadata": metadata,
        "spec": {
            "holderIdentity": terms.identity,
            "leaseDurationSeconds": max(int(terms.lease_seconds), 1),
            "acquireTime": old.get("acquireTime") if is_ours else moment,
            "renewTime": moment,
            "leaseTransitions": transitions if is_ours or raw is None else transitions + 1,
        },
    }


class Elector:
    """Takes the Lease, keeps it, gives it back. `on_lost` must not return where two leaders would be harmful."""

    def __init__(
        self,
        credentials: Credentials,
        terms: LeaseTerms,
        on_lost: Callable[[str], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._credentials = credentials
        self._terms = terms
        self._on_lost = on_lost or _end_process
        self._monotonic = monotonic
        self._acquired = threading.Event()
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._renewed_at = 0.0
        self._sighting: Sighting | None = None
        self._held: Raw | None = None
        """The Lease as this process wrote it last: its next renewal needs no look at it."""

    @property
    def is_leader(self) -> bool:
        """Whether the Lease is held, as far as is known."""
        return self._acquired.is_set() and not self._stopping.is_set()

    @property
    def renew_age(self) -> float:
        """Seconds since the last renewal; 0 for who does not lead."""
        return self._monotonic() - self._renewed_at if self._acquired.is_set() else 0.0

    def start(self) -> None:
        """Begin to stand for election."""
        threading.Thread(target=lambda: asyncio.run(self._elect()), name="elector", daemon=True).start()
        threading.Thread(target=self._watch, name="lease-watchdog", daemon=True).start()

    async def wait_acquired(self, stop: asyncio.Event) -> bool:
        """Return True when the Lease is held, False when `stop` is set before."""
        while not self._acquired.is_set():
            if stop.is_set():
                return False
            try:
                await asyncio.wait_for(stop.wait(), 0.1)
            except TimeoutError:
                continue
        return True

    async def release(self) -> None:
        """Give the Lease back, so that the next leader need not wait for its expiry; returns when it is done."""
        self._stopping.set()
        await asyncio.to_thread(self._stopped.wait, self._terms.renew_seconds)

    async def _elect(self) -> None:
        connection = Connection(self._credentials, limit=2)
        client = KubernetesClient(connection, timeout=max(self._terms.renew_seconds / 3, 0.5))
        try:
            while not self._stopping.is_set():
                await self._try(client)
                await asyncio.to_thread(self._stopping.wait, self._terms.retry_seconds)
            await self._give_back(client)
        finally:
            await connection.close()
            self._stopped.set()

    async def _try(self, client: KubernetesClient) -> None:
        started = self._monotonic()
        try:
            if await self._take(client):
                # From the start of the request: the API server's clock for us runs from no earlier than that.
                self._renewed_at = started
                self._acquired.set()
            elif self._acquired.is_set():
                self._on_lost("another process holds the Lease")
        except ApiError as error:
            log.warning("lease.not_renewed" if self._acquired.is_set() else "lease.not_acquired", error=str(error))

    async def _take(self, client: KubernetesClient) -> bool:
        if self._held is not None:
            try:
                self._held = await self._write(client, self._held)
                return True
            except (Conflict, NotFound):
                self._held = None  # somebody else has written it, or taken it away: look
        terms = self._terms
        try:
            raw: Raw | None = await client.get(LEASES, terms.namespace, terms.name)
        except NotFound:
            raw = None
        if raw is not None and not is_free(raw, self._sighting, self._monotonic(), terms):
            version = raw["metadata"]["resourceVersion"]
            if self._sighting is None or self._sighting.version != version:
                self._sighting = Sighting(raw["spec"]["holderIdentity"], version, self._monotonic())
            return False
        try:
            self._held = await self._write(client, raw)
        except AlreadyExists:
            return False
        return True

    async def _write(self, client: KubernetesClient, raw: Raw | None) -> Raw:
        terms = self._terms
        body = build_lease(raw, terms, datetime.now(UTC))
        if raw is None:
            return await client.create(LEASES, terms.namespace, body)
        return await client.replace(LEASES, terms.namespace, terms.name, body)

    async def _give_back(self, client: KubernetesClient) -> None:
        if not self._acquired.is_set():
            return
        terms = self._terms
        try:
            raw = await client.get(LEASES, terms.namespace, terms.name)
            if raw["spec"].get("holderIdentity") != terms.identity:
                return
            spec = {**raw["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
            await client.replace(LEASES, terms.namespace, terms.name, {**raw, "spec": spec})
        except ApiError as error:
            log.warning("lease.not_released", error=str(error))

    def _watch(self) -> None:
        """End the process when the Lease was not renewed in time, even if every event loop hangs."""
        while not self._stopping.wait(min(self._terms.retry_seconds / 2, 1.0)):
            if self._acquired.is_set() and self.renew_age > self._terms.renew_seconds:
                self._on_lost(f"the Lease was not renewed for {self.renew_age:.1f} s")


def _end_process(why: str) -> None:
    log.error("lease.lost", why=why)
    os._exit(EXIT_LEASE_LOST)  # not sys.exit: nothing may be written any more, by no handler and no finally
