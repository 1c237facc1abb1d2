"""Which answer a caller's rights lead to: what they may not see is not there, what they may see and not do is 403."""

from collections.abc import Collection

from pilothouse_api.names import is_dns_label
from pilothouse_console.access import Access, Caller
from pilothouse_console.answers import Rights
from pilothouse_console.picture import Entry, Picture, RunKey
from pilothouse_console.problems import Problem, away, not_found
from pilothouse_kubernetes.client import AGENTRUNS, ApiError, Forbidden, KubernetesClient, NotFound

MOST_NAMESPACES = 1000
"""Namespaces that a list without one asks about."""
VERBS_BESIDES_PATCH = {"approve": "approve", "limits": "limit"}
"""Virtual verbs that a patch needs besides, by what it changes: this process's own rights would let everything pass."""


class Guard:
    """Judges callers against runs."""

    def __init__(self, access: Access, picture: Picture, client: KubernetesClient) -> None:
        self._access = access
        self._picture = picture
        self._client = client

    async def seen(self, caller: Caller, namespace: str, name: str) -> Entry:
        """Return a run that the caller may see; raises Problem 404 for every other."""
        key = RunKey(namespace, name)
        if not _is_name(key) or not await self._access.may(caller, "get", namespace, name):
            raise not_found(namespace, name)
        entry = self._picture.get(key) or await self._look(key)
        if entry is None:
            raise not_found(namespace, name)
        return entry

    async def _look(self, key: RunKey) -> Entry | None:
        """Return a run that the watch has not told of yet: whoever has just made it asks for it."""
        try:
            return self._picture.apply(await self._client.get(AGENTRUNS, key.namespace, key.name))
        except (NotFound, Forbidden):
            return None
        except ApiError as error:
            raise away(f"the API server cannot be asked for the run ({error.status or 'no answer'})") from None

    async def steerable(self, caller: Caller, namespace: str, name: str, what: str) -> RunKey:
        """Return the key of a run that the caller may change so; raises Problem 404 or 403."""
        entry = await self.seen(caller, namespace, name)
        for verb in filter(None, ("patch", VERBS_BESIDES_PATCH.get(what))):
            if caller.is_runner or not await self._access.may(caller, verb, namespace, name):
                raise _forbidden(caller, verb, entry.key)
        return entry.key

    async def rights(self, caller: Caller, key: RunKey) -> Rights:
        """Return what the caller may do with a run."""
        if caller.is_runner:
            return Rights(steer=False, approve=False, limit=False)
        verbs = ("patch", "approve", "limit")
        patch, approve, limit = [await self._access.may(caller, verb, *key) for verb in verbs]
        return Rights(steer=patch, approve=patch and approve, limit=patch and limit)

    async def visible_namespaces(self, caller: Caller, namespace: str | None) -> Collection[str] | None:
        """Return the namespaces whose runs the caller may list, None for all.

        With a namespace: that one, or Problem 404. Without: all by a cluster-wide right, else those of the runs that
        are there, each asked for.
        """
        if namespace is not None:
            if not is_dns_label(namespace) or not await self._access.may(caller, "list", namespace):
                raise _unlisted(namespace)
            return (namespace,)
        if await self._access.may(caller, "list"):
            return None
        there = {entry.key.namespace for entry in self._picture.entries()}
        if len(there) > MOST_NAMESPACES:
            what = f"runs are in more than {MOST_NAMESPACES} namespaces: too many to ask about"
            raise Problem(403, what, "send ?namespace=NAME")
        return await self._access.may_list_in(caller, there)


def _is_name(key: RunKey) -> bool:
    """Tell whether this can be a run: what cannot be is never made part of a path."""
    return is_dns_label(key.namespace) and is_dns_label(key.name)


def _forbidden(caller: Caller, verb: str, key: RunKey) -> Problem:
    user = caller.user[:253]
    if caller.is_runner:
        return Problem(403, f"{user} is the account of a runner: an agent steers no run", "use an account of a person")
    what = f"{user} may not {verb} agentruns in namespace {key.namespace}"
    return Problem(403, what, f"kubectl auth can-i {verb} agentruns.pilothouse.dev/{key.name} -n {key.namespace}")


def _unlisted(namespace: str) -> Problem:
    what = f"there is no namespace {namespace[:63]!r}, or you may not list its runs"
    return Problem(404, what, f"kubectl auth can-i list agentruns.pilothouse.dev -n {namespace[:63]}")
