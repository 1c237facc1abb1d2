"""Which supervisors watch a run: those that its workflow names, that select it, and that watch its ancestors."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from pydantic import ValidationError

from pilothouse_api.v1alpha1 import AgentRun, Supervisor
from pilothouse_api.v1alpha1.agentrun import Supervision, SupervisorRecord
from pilothouse_api.v1alpha1.supervisor import SupervisorSpec
from pilothouse_control.supervision.digested import digest_spec
from pilothouse_control.supervision.selectors import selects

MAX_SUPERVISORS = 16
"""How many supervisors may watch one run."""
MAX_COPIES_BYTES = 262_144
"""How large their copies in the status of a run may be together: an object of the API server has 1.5 MiB."""


@dataclass(frozen=True, slots=True)
class Binding:
    """One supervisor that watches a run, in the form that is in force: the live one, or the last copy of it."""

    uid: str
    namespace: str
    name: str
    generation: int
    spec: SupervisorSpec
    is_deleted: bool = False


@dataclass(frozen=True, slots=True)
class Bindings:
    """Who watches a run, by uid. `missing` are names that the workflow refers to and nobody has ever seen.

    Both keep a run from starting and matter no more once it has started: `problem` says what is wrong, as reason and
    sentence. `excess` are names of those that fit and are not bound, because the run has all that it may have.
    """

    bound: Mapping[str, Binding]
    missing: tuple[str, ...] = ()
    excess: tuple[str, ...] = ()

    @property
    def problem(self) -> tuple[str, str] | None:
        """Reason and sentence of what keeps a run from starting, or None."""
        if self.missing:
            return "SupervisorNotFound", f"there is no Supervisor {self.missing[0]}, which spec.supervisorRefs names"
        if self.excess:
            what = f"Supervisor {self.excess[0]} is one too many"
            limit = f"{MAX_SUPERVISORS} supervisors of {MAX_COPIES_BYTES:,} bytes together may watch a run"
            return "TooManySupervisors", f"{what}: {limit}; narrow a selector, or shorten spec.supervisorRefs"
        return None


def find_bound(
    run: AgentRun,
    refs: Iterable[str],
    supervisors: Collection[Supervisor],
    parent: Supervision | None = None,
) -> Bindings:
    """Return who watches a run.

    `refs` are the names of its plan's `supervisorRefs`, `supervisors` all live ones of its namespace, `parent` the
    record of the run that it is a child of: whoever watches that one (its own ancestors' included) watches it too. A
    binding lasts: what stands in the run's own record stays, by its last copy where the object is gone; an object
    that was made anew under the name of a deleted one takes its place.
    """
    live = {_uid(supervisor): supervisor for supervisor in supervisors if not supervisor.metadata.deletion_timestamp}
    own = run.status.supervision.supervisors if run.status.supervision is not None else {}
    names, labels = tuple(refs), run.metadata.labels
    fitting = {
        uid: _live(uid, supervisor)
        for uid, supervisor in live.items()
        if supervisor.metadata.name in names or _is_selected(supervisor, labels)
    }
    taken = {(binding.namespace, binding.name) for binding in fitting.values()}
    inherited = parent.supervisors if parent is not None else {}
    candidates: dict[str, Binding] = {}
    for uid, record in (*own.items(), *inherited.items()):
        if uid in live:
            candidates[uid] = _live(uid, live[uid])
        elif (record.namespace, record.name) not in taken and (copy := _copy(uid, record)) is not None:
            candidates[uid] = copy
    candidates |= dict(sorted(fitting.items(), key=lambda item: (item[1].name not in names, item[1].name)))
    bound, excess = _within_bounds(candidates, own)
    known = {binding.name for binding in candidates.values()}
    return Bindings(bound, tuple(name for name in names if name not in known), excess)


def _is_selected(supervisor: Supervisor, labels: Mapping[str, str]) -> bool:
    selector = supervisor.spec.selector
    return selector is not None and selects(selector, labels)


def _within_bounds(
    candidates: Mapping[str, Binding], own: Mapping[str, SupervisorRecord]
) -> tuple[dict[str, Binding], tuple[str, ...]]:
    """Return those that are within the bounds, and the names of the others.

    Who is bound stays so: where a changed one has grown too large, its copy stays in force.
    """
    if len(candidates) <= MAX_SUPERVISORS and sum(map(_size, candidates.values())) <= MAX_COPIES_BYTES:
        return dict(candidates), ()
    copies = {uid: _copy(uid, own[uid]) for uid in candidates if uid in own}
    sizes = {uid: _size(copy) for uid, copy in copies.items() if copy is not None}
    size = sum(sizes.values())
    bound: dict[str, Binding] = {}
    excess = []
    for uid, binding in candidates.items():
        grown = size - sizes.get(uid, 0) + _size(binding)
        is_kept = uid in sizes
        if grown <= MAX_COPIES_BYTES and (is_kept or len(sizes) < MAX_SUPERVISORS):
            bound[uid], size, sizes[uid] = binding, grown, _size(binding)
            continue
        excess.append(binding.name)
        if is_kept and (copy := copies[uid]) is not None:
            bound[uid] = replace(copy, is_deleted=binding.is_deleted)
    return bound, tuple(excess)


def _size(binding: Binding) -> int:
    return digest_spec(binding.spec).size


def _uid(supervisor: Supervisor) -> str:
    return supervisor.metadata.uid or f"{supervisor.metadata.namespace}/{supervisor.metadata.name}"


def _live(uid: str, supervisor: Supervisor) -> Binding:
    metadata = supervisor.metadata
    return Binding(uid, metadata.namespace or "", metadata.name, metadata.generation or 0, supervisor.spec)


def _copy(uid: str, record: SupervisorRecord) -> Binding | None:
    """Return the copy of a record; None for one that a newer version has written and this one cannot read."""
    try:
        spec = SupervisorSpec.model_validate(record.spec)
    except ValidationError:
        return None
    return Binding(uid, record.namespace, record.name, record.generation, spec, is_deleted=True)
