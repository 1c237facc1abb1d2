"""Criteria of judges: read from where a Supervisor says they stand, and kept for a while."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from pilothouse_api.judging import MAX_CRITERIA_CHARS
from pilothouse_api.v1alpha1.common import TextSource
from pilothouse_api.v1alpha1.supervisor import Judge
from pilothouse_control.supervision import Binding, JudgeUnavailable
from pilothouse_control.supervisors import read_criteria
from pilothouse_control.texts import MissingText
from pilothouse_control.world import ConfigMap, artifact_name
from pilothouse_kubernetes.client import CONFIGMAPS, KubernetesClient, NotFound
from pilothouse_operator.watching.cache import Cache, Key

KEPT_SECONDS = 30.0
"""How long what was read is good: ConfigMaps that are no artifacts are not watched."""
REMEMBERED = 512


@dataclass(frozen=True, slots=True)
class _Read:
    """What stood there, and until when it is taken for granted."""

    criteria: str | JudgeUnavailable
    until: float


class Criteria:
    """Reads criteria. A supervisor that is deleted has its criteria read as its last copy says."""

    def __init__(self, cache: Cache, client: KubernetesClient) -> None:
        self._cache = cache
        self._client = client
        self._known: OrderedDict[tuple[str, int], _Read] = OrderedDict()

    async def read(self, binding: Binding, judge: Judge) -> str | JudgeUnavailable:
        """Return the criteria of a judge, or why there are none."""
        if judge.criteria.inline is not None:
            return judge.criteria.inline
        key, now = (binding.uid, binding.generation), asyncio.get_running_loop().time()
        known = self._known.get(key)
        if known is None or known.until <= now:
            known = self._known[key] = _Read(await self._read(binding.namespace, judge), now + KEPT_SECONDS)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return known.criteria

    async def _read(self, namespace: str, judge: Judge) -> str | JudgeUnavailable:
        name = _config_map_of(judge.criteria)
        found = await self._find(namespace, name)
        criteria = read_criteria(judge, {name: found} if found is not None else {})
        if isinstance(criteria, MissingText):
            return JudgeUnavailable("CriteriaMissing", criteria.message)
        if len(criteria) > MAX_CRITERIA_CHARS:
            what = f"the criteria have {len(criteria):,} characters; the limit is {MAX_CRITERIA_CHARS:,}: shorten them"
            return JudgeUnavailable("CriteriaMissing", what)
        return criteria

    async def _find(self, namespace: str, name: str) -> ConfigMap | None:
        raw = self._cache.get(Key("ConfigMap", namespace, name))
        if raw is None or "data" not in raw:
            try:
                raw = await self._client.get(CONFIGMAPS, namespace, name)
            except NotFound:
                return None
        return ConfigMap.of_raw(raw)


def _config_map_of(source: TextSource) -> str:
    if source.config_map_key_ref is not None:
        return source.config_map_key_ref.name
    return artifact_name(source.artifact or "")[0]
