"""The one entry: judge documents, each by its shape and then by the table of checks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, assert_never

from pilothouse_api.names import LABEL_ARTIFACT
from pilothouse_api.v1alpha1 import Agent, AgentRun, Supervisor, Workflow
from pilothouse_control.documents import Document
from pilothouse_control.findings import Finding, Severity
from pilothouse_control.standalone import workflow_of_agent
from pilothouse_control.texts import ARTIFACT_TYPES
from pilothouse_control.validation.registry import (
    CHECKS_OF_AGENTS,
    CHECKS_OF_RUNS,
    CHECKS_OF_SPECS,
    CHECKS_OF_SUPERVISORS,
    CHECKS_OF_WORKFLOWS,
)
from pilothouse_control.validation.scene import (
    AgentSubject,
    Check,
    KnownPrice,
    RunSubject,
    Scene,
    SpecSubject,
    SupervisorSubject,
    WorkflowSubject,
    used_agents,
)
from pilothouse_control.validation.sentences import did_you_mean
from pilothouse_control.validation.shape import Known, is_ours, parse
from pilothouse_control.world import ConfigMap, References, has_stated_price

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sources:
    """What is judged, and what else is there.

    `documents` are judged, in their order; `known` are objects that they may refer to. `is_complete`: nothing else
    exists, so that what is not among them is missing (an Error); otherwise it may be elsewhere (a Warning).
    """

    documents: Sequence[Document]
    known: References = field(default_factory=References)
    is_complete: bool = False


def validate(
    sources: Sources,
    *,
    durable_journal: bool,
    strict: bool = False,
    known_price: KnownPrice = has_stated_price,
) -> list[Finding]:
    """Return everything that is wrong or unwise with the documents, in the order of documents and places.

    `durable_journal`: whether the journal outlives a pod. `strict`: unpinned artifacts are errors. `known_price`:
    whether the price of a model is known, from the manifest or from a table. Documents of other projects are left
    alone; nothing that is written in a document raises.
    """
    parsed = [(document, *_parse(document)) for document in sources.documents]
    scene = replace(
        _scene(sources, [obj for _, obj, _ in parsed if obj is not None], durable_journal, known_price),
        refused=frozenset((document.kind, document.name) for document, obj, _ in parsed if obj is None),
    )
    findings: list[Finding] = []
    seen: set[tuple[str, str]] = set()
    for document, obj, problems in parsed:
        found = [*document.problems, *problems, *_repeated(document, seen)]
        if obj is not None:
            found += _judge(document, obj, scene, strict)
        findings += sorted(dict.fromkeys(found), key=lambda finding: (finding.line, finding.column))
    return findings


def _parse(document: Document) -> tuple[Known | None, list[Finding]]:
    if is_ours(document):
        return parse(document)
    return None, list(_config_map_findings(document)) if document.kind == "ConfigMap" else []


def _scene(sources: Sources, objects: Sequence[Known], durable_journal: bool, known_price: KnownPrice) -> Scene:
    config_maps = [ConfigMap.of_raw(document.raw) for document in sources.documents if document.kind == "ConfigMap"]
    supervisors = [obj.metadata.name for obj in objects if isinstance(obj, Supervisor)]
    return Scene(
        workflows={**sources.known.workflows, **_named(obj for obj in objects if isinstance(obj, Workflow))},
        agents={**sources.known.agents, **_named(obj for obj in objects if isinstance(obj, Agent))},
        config_maps={**sources.known.config_maps, **{config_map.name: config_map for config_map in config_maps}},
        supervisors={*(sources.known.supervisors or ()), *supervisors},
        knows_supervisors=sources.known.supervisors is not None,
        is_complete=sources.is_complete,
        durable_journal=durable_journal,
        known_price=known_price,
    )


Named = TypeVar("Named", Workflow, Agent)


def _named(objects: Iterable[Named]) -> Mapping[str, Named]:
    return {obj.metadata.name: obj for obj in objects}


def _repeated(document: Document, seen: set[tuple[str, str]]) -> Iterator[Finding]:
    metadata = document.raw.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        return
    if not is_ours(document) and document.kind != "ConfigMap":
        return
    key = document.kind, f"{metadata.get('namespace', '')}/{document.name}"
    if key in seen:
        what = f"another {document.kind} of this name was given before"
        yield document.find("Error", "ObjectRepeated", ("metadata", "name"), what, "rename or remove one of them")
    seen.add(key)


def _config_map_findings(document: Document) -> Iterator[Finding]:
    """Judge a ConfigMap that is an artifact."""
    metadata = document.raw.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    kind = labels.get(LABEL_ARTIFACT) if isinstance(labels, dict) else None
    if kind is None:
        return
    if kind not in ARTIFACT_TYPES:
        path = ("metadata", "labels", LABEL_ARTIFACT)
        hint = did_you_mean(str(kind), ARTIFACT_TYPES) or f"the types are {', '.join(sorted(ARTIFACT_TYPES))}"
        yield document.find("Error", "ArtifactTypeUnknown", path, f"{kind} is no type of an artifact", hint)
    data = document.raw.get("data")
    for key in data if isinstance(data, dict) else ():
        if not key.isascii() or not key.isdigit() or key.startswith("0"):
            what = f"{key} is no version: the keys of an artifact are whole numbers from 1"
            yield document.find("Error", "ArtifactVersion", ("data", key), what, "rename it")


def _judge(document: Document, obj: Known, scene: Scene, strict: bool) -> Iterator[Finding]:
    yield from _apply(document, CHECKS_OF_SPECS, scene, SpecSubject(document.kind, obj.spec), strict)
    match obj:
        case Agent():
            subject = AgentSubject(obj.metadata.name, obj.spec, ("spec",))
            yield from _apply(document, CHECKS_OF_AGENTS, scene, subject, strict)
        case Workflow():
            yield from _judge_workflow(document, obj, scene, strict)
        case AgentRun():
            run = RunSubject(obj, _workflow_of(obj, scene))
            yield from _apply(document, CHECKS_OF_RUNS, scene, run, strict)
        case Supervisor():
            yield from _apply(document, CHECKS_OF_SUPERVISORS, scene, SupervisorSubject(obj), strict)
        case _:
            assert_never(obj)


def _judge_workflow(document: Document, workflow: Workflow, scene: Scene, strict: bool) -> Iterator[Finding]:
    subject = WorkflowSubject(workflow, used_agents(workflow.spec, scene.agents))
    for used in subject.used:
        if used.is_inline:
            agent = AgentSubject(used.name, used.spec, used.path)
            yield from _apply(document, CHECKS_OF_AGENTS, scene, agent, strict)
    yield from _apply(document, CHECKS_OF_WORKFLOWS, scene, subject, strict)


def _workflow_of(run: AgentRun, scene: Scene) -> WorkflowSubject | None:
    workflow = scene.workflows.get(run.spec.workflow_ref.name) if run.spec.workflow_ref is not None else None
    if run.spec.agent_ref is not None and run.spec.agent_ref.name in scene.agents:
        agent = scene.agents[run.spec.agent_ref.name]
        workflow = Workflow(spec=workflow_of_agent(agent.metadata.name, agent.spec))
    return WorkflowSubject(workflow, used_agents(workflow.spec, scene.agents)) if workflow is not None else None


def _apply(document: Document, checks: Iterable[Check[T]], scene: Scene, subject: T, strict: bool) -> Iterator[Finding]:
    for check in checks:
        severity: Severity = "Error" if strict and check.is_error_when_strict else check.severity
        for path, what, hint in check.judge(scene, subject):
            yield document.find(severity, check.name, path, what, hint)


def as_document(raw: Mapping[str, Any], file: str = "") -> Document:
    """Return a document of an object that was not read from a text, such as one of the API server."""
    return Document(dict(raw), file)
