"""Checks of single values, wherever in a spec they stand: texts, addresses, schemas, patterns, expressions."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pilothouse_api.expressions import ExpressionError, compile_expression, compile_policy_expression
from pilothouse_api.schemas import SchemaError, compile_schema
from pilothouse_api.templates import is_path, placeholders, placeholders_of
from pilothouse_api.v1alpha1.agent import AgentSpec, JsonSchemaCheck, ModelEndpoint, Outcome, RegexDeny, Tool
from pilothouse_api.v1alpha1.base import Model
from pilothouse_api.v1alpha1.common import Header, PolicyHttp, PolicyRule, Retry
from pilothouse_api.v1alpha1.steps import (
    APICall,
    Approval,
    Delegate,
    Extract,
    FunctionCall,
    McpCall,
    McpServer,
    ResourceCall,
    Response,
    Router,
    RouterCondition,
)
from pilothouse_api.v1alpha1.supervisor import ExpressionRule
from pilothouse_api.v1alpha1.workflow import InputSpec, Step
from pilothouse_control.findings import FieldPath
from pilothouse_control.supervision.rules.language import compile_rule
from pilothouse_control.texts import MissingText, TextSite, resolve_text, text_sites, wrong_type
from pilothouse_control.tree import walk
from pilothouse_control.validation.scene import Check, Problem, Scene, SpecSubject
from pilothouse_control.validation.urls import url_problem
from pilothouse_control.world import artifact_name


def _config_map_of(site: TextSite) -> str | None:
    if site.source.config_map_key_ref is not None:
        return site.source.config_map_key_ref.name
    return artifact_name(site.source.artifact)[0] if site.source.artifact is not None else None


def judge_text_not_found(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """The ConfigMap is there (or nothing else can be), but not the key or version."""
    for site in text_sites(subject.spec, subject.path):
        name = _config_map_of(site)
        if name is None or (name not in scene.config_maps and not scene.is_complete):
            continue
        missing = resolve_text(site, scene.config_maps)
        if isinstance(missing, MissingText) and missing.is_waiting:
            yield Problem(site.path, missing.message, "apply it, or refer to another")


def judge_text_elsewhere(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """The ConfigMap is not among what was given."""
    for site in text_sites(subject.spec, subject.path):
        name = _config_map_of(site)
        if name is not None and name not in scene.config_maps and not scene.is_complete:
            what = f"the ConfigMap {name} is not among what was given, so its text was not judged"
            yield Problem(site.path, what, "give its file too, or see that the cluster has it")


def judge_artifact_type(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """An artifact of a type that the field does not take."""
    for site in text_sites(subject.spec, subject.path):
        if site.source.artifact is None:
            continue
        config_map = scene.config_maps.get(artifact_name(site.source.artifact)[0])
        if not site.takes:
            yield Problem(site.path, "this field takes inline or configMapKeyRef, no artifact")
        elif config_map is not None and (wrong := wrong_type(site, config_map)) is not None:
            yield Problem(site.path, wrong)


def judge_unpinned_artifact(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """An artifact without a version."""
    for site in text_sites(subject.spec, subject.path):
        if site.source.artifact is not None and "@" not in site.source.artifact:
            what = f"the version of {site.source.artifact} is not pinned: each run takes the newest one"
            yield Problem((*site.path, site.artifact_field), what, f"write {site.source.artifact}@<version>")


def _templates(node: Model) -> Iterator[tuple[FieldPath, Any]]:
    """Yield the values of one node whose strings are templates."""
    if isinstance(node, AgentSpec):
        texts = (("system", node.system), ("prompt", node.prompt))
        yield from (((name, "inline"), text.inline) for name, text in texts if text is not None)
    elif isinstance(node, APICall):
        yield from ((("url",), node.url), (("query",), node.query), (("body",), node.body))
    elif isinstance(node, Header):
        yield ("value",), node.value
    elif isinstance(node, FunctionCall | McpCall):
        yield ("arguments",), node.arguments
    elif isinstance(node, ResourceCall):
        yield from ((("name",), node.name), (("namespace",), node.namespace), (("body",), node.body))
        yield ("labelSelector",), node.label_selector
    elif isinstance(node, Approval):
        yield ("title",), node.title
    elif isinstance(node, Delegate):
        yield ("input",), node.input


def templates_of(spec: Model, path: FieldPath) -> Iterator[tuple[FieldPath, str]]:
    """Yield place and path of every placeholder in a spec."""
    for place, node in walk(spec, path):
        for field, value in _templates(node) if isinstance(node, Model) else ():
            yield from (((*place, *field), found) for found in placeholders_of(value))


def _paths(node: Model) -> Iterator[tuple[FieldPath, str]]:
    """Yield the plain context paths of one node."""
    if isinstance(node, Response):
        yield from ((("mapping", key), path) for key, path in node.mapping.items())
    elif isinstance(node, Router) and node.match is not None:
        yield ("match",), node.match
    elif isinstance(node, Approval):
        yield from ((("show", index), path) for index, path in enumerate(node.show))
    elif isinstance(node, AgentSpec):
        yield from ((("contextInjection", index), path) for index, path in enumerate(node.context_injection))


def context_paths(spec: Model, path: FieldPath) -> Iterator[tuple[FieldPath, str]]:
    """Yield place and path of every plain path into the context."""
    for place, node in walk(spec, path):
        if isinstance(node, Model):
            yield from (((*place, *field), found) for field, found in _paths(node))


def _answer_paths(node: Model) -> Iterator[tuple[FieldPath, str]]:
    if isinstance(node, Extract):
        yield ("path",), node.path
    elif isinstance(node, Outcome):
        yield from ((("map", key), path) for key, path in (node.map or {}).items())


def judge_template_syntax(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """A placeholder that is no path can never resolve."""
    for place, found in templates_of(subject.spec, subject.path):
        if not is_path(found):
            what = f"{{{{ {found} }}}} can never resolve: a placeholder is a path and no code"
            yield Problem(place, what, "write {{ ticket.text }}")


def judge_unclosed_templates(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """Braces that look like a placeholder and stay as they are."""
    for place, node in walk(subject.spec, subject.path):
        for field, value in _templates(node) if isinstance(node, Model) else ():
            if isinstance(value, str) and value.count("{{") != sum(1 for _ in placeholders(value)):
                what = "a {{ in it is no placeholder and stays as it is"
                yield Problem((*place, *field), what, "a placeholder is written {{ a.b.c }}")


def judge_path_syntax(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """A path that is none can never resolve."""
    answers = (
        ((*place, *field), found)
        for place, node in walk(subject.spec, subject.path)
        if isinstance(node, Model)
        for field, found in _answer_paths(node)
    )
    for place, found in (*context_paths(subject.spec, subject.path), *answers):
        if not is_path(found) and not found.isdigit():
            yield Problem(place, f"{found} is no path", "write words with dots between, such as data.items.0.name")


def judge_urls(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """An address that is none, or that no run may call."""
    for place, node in walk(subject.spec, subject.path):
        field, url = "url", None
        if isinstance(node, ModelEndpoint):
            field, url = "apiBase", node.api_base
        elif isinstance(node, APICall | McpServer | PolicyHttp):
            url = node.url
        if url is not None and (problem := url_problem(url)) is not None:
            yield Problem((*place, field), problem)


def judge_schemas(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """A JSON Schema that is none."""
    for place, node in walk(subject.spec, subject.path):
        field, schema = _schema_of(node)
        if schema is None:
            continue
        try:
            compile_schema(schema)
        except SchemaError as error:
            yield Problem((*place, field), f"it is no JSON Schema: {error}")


def _schema_of(node: object) -> tuple[str, dict[str, Any] | None]:
    if isinstance(node, Tool):
        return "parameters", node.parameters
    if isinstance(node, Outcome | JsonSchemaCheck | InputSpec):
        return "schema", node.schema_
    return "", None


def judge_parameters_are_an_object(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """Arguments of a tool are an object."""
    for place, node in walk(subject.spec, subject.path):
        if isinstance(node, Tool) and node.parameters is not None and node.parameters.get("type", "object") != "object":
            what = f"the arguments of a tool are an object, and this schema says {node.parameters.get('type')}"
            yield Problem((*place, "parameters", "type"), what, "write type: object")


def judge_patterns(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """A regular expression that RE2 does not take."""
    for place, node in walk(subject.spec, subject.path):
        for index, pattern in enumerate(node.patterns) if isinstance(node, RegexDeny) else ():
            try:
                compile_expression("''.matches(pattern)", ("pattern",)).evaluate({"pattern": pattern})
            except ExpressionError as error:
                what = f"it is no regular expression of RE2: {error}"
                yield Problem((*place, "patterns", index), what, "RE2 has no look-around and no back-references")


def judge_policy_expressions(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """A policy expression that does not compile."""
    yield from _expressions(subject, PolicyRule, compile_policy_expression, lambda node: node.cel)


def judge_supervisor_expressions(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """A supervisor expression that does not compile, or uses more of CEL than a rule may."""
    yield from _expressions(subject, ExpressionRule, compile_rule, lambda node: node.cel)


def judge_router_expressions(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """A Router condition that does not compile; which names there are is another check."""
    yield from _expressions(subject, RouterCondition, compile_expression, lambda node: node.cel)


def _expressions(
    subject: SpecSubject, model: type[Any], compile_text: Callable[[str], Any], text_of: Callable[[Any], str | None]
) -> Iterator[Problem]:
    for place, node in walk(subject.spec, subject.path):
        text = text_of(node) if isinstance(node, model) else None
        if text is None:
            continue
        try:
            compile_text(text)
        except ExpressionError as error:
            yield Problem((*place, "cel"), f"it does not compile: {error}")


def judge_retry(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """Waits that contradict each other."""
    for place, node in walk(subject.spec, subject.path):
        if isinstance(node, Retry) and node.backoff_seconds > node.max_backoff_seconds:
            what = f"it is {node.backoff_seconds}, longer than maxBackoffSeconds ({node.max_backoff_seconds})"
            yield Problem((*place, "backoffSeconds"), what, "raise maxBackoffSeconds or lower it")


def judge_retry_of_once(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """A retry that can never happen."""
    for place, node in walk(subject.spec, subject.path):
        owner = node.inline_step if isinstance(node, Tool) else node if isinstance(node, Step) else None
        call = owner.api_call if owner is not None else None
        if not isinstance(node, Tool | Step) or call is None or call.retry is None or call.retry.attempts == 1:
            continue
        effect = node.effect or ("ReadOnly" if call.method in ("GET", "HEAD") else "Once")
        if effect == "Once":
            what = f"a {call.method} with effect Once runs at most once: retry does nothing once bytes were sent"
            field = ("inlineStep", "apiCall") if isinstance(node, Tool) else ("apiCall",)
            yield Problem((*place, *field, "retry"), what, "set effect: Idempotent where the server honours the key")


def judge_reserved_keys(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """Context keys of the engine's own."""
    for place, node in walk(subject.spec, subject.path):
        keys: Iterable[tuple[str, str]] = ()
        if isinstance(node, InputSpec):
            keys = (("defaults", key) for key in node.defaults)
        elif isinstance(node, Outcome):
            keys = (("map", key) for key in node.map or ())
        for field, key in keys:
            if key.startswith("_"):
                yield Problem((*place, field, key), "keys that begin with _ are the engine's own", "rename it")


SPEC_CHECKS: tuple[Check[SpecSubject], ...] = (
    Check("TextNotFound", "Error", judge_text_not_found),
    Check("TextElsewhere", "Warning", judge_text_elsewhere),
    Check("ArtifactType", "Error", judge_artifact_type),
    Check("ArtifactUnpinned", "Warning", judge_unpinned_artifact, is_error_when_strict=True),
    Check("TemplateSyntax", "Error", judge_template_syntax),
    Check("TemplateUnclosed", "Warning", judge_unclosed_templates),
    Check("PathSyntax", "Error", judge_path_syntax),
    Check("UrlForbidden", "Error", judge_urls),
    Check("SchemaInvalid", "Error", judge_schemas),
    Check("ParametersNotAnObject", "Error", judge_parameters_are_an_object),
    Check("PatternInvalid", "Error", judge_patterns),
    Check("PolicyExpressionInvalid", "Error", judge_policy_expressions),
    Check("SupervisorExpressionInvalid", "Error", judge_supervisor_expressions),
    Check("RouterExpressionInvalid", "Error", judge_router_expressions),
    Check("RetryInverted", "Error", judge_retry),
    Check("RetryOfOnce", "Warning", judge_retry_of_once),
    Check("ReservedKey", "Error", judge_reserved_keys),
)
