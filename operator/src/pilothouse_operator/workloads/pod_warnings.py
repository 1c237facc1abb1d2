"""What events say about pods that do not start: listed for a whole namespace at once, and kept for a few seconds.

The API server keeps events in no cache: each list reads and decodes all of a namespace, whatever it selects. A hundred
pods that wait for one node would each have that done, again at each look.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pilothouse_kubernetes.client import EVENTS, KubernetesClient, Raw

KEPT_SECONDS = 10.0
"""As often as a pod that gives no reason for not starting is looked at."""


@dataclass(slots=True)
class _Listing:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    taken_at: float = float("-inf")
    by_pod: Mapping[str, list[Raw]] = field(default_factory=dict)


class PodWarnings:
    """Warnings about pods, by namespace and the pod's uid."""

    def __init__(self, client: KubernetesClient, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._monotonic = monotonic
        self._listings: dict[str, _Listing] = {}

    async def of_pod(self, namespace: str, uid: str) -> list[Raw]:
        """Return the warnings about a pod as they were some seconds ago at most; raises ApiError."""
        self._forget_old()
        listing = self._listings.setdefault(namespace, _Listing())
        async with listing.lock:
            if not self._is_new(listing):
                listing.by_pod = await self._list(namespace)
                listing.taken_at = self._monotonic()
            return listing.by_pod.get(uid, [])

    def _is_new(self, listing: _Listing) -> bool:
        return self._monotonic() - listing.taken_at < KEPT_SECONDS

    def _forget_old(self) -> None:
        """Keep nothing of namespaces where every pod has started."""
        kept = {name: it for name, it in self._listings.items() if self._is_new(it) or it.lock.locked()}
        self._listings = kept

    async def _list(self, namespace: str) -> Mapping[str, list[Raw]]:
        found: dict[str, list[Raw]] = defaultdict(list)
        selector = "involvedObject.kind=Pod,type=Warning"
        async for page in self._client.list_pages(EVENTS, namespace, field_selector=selector):
            for event in page:
                found[event.get("involvedObject", {}).get("uid", "")].append(event)
        return found
