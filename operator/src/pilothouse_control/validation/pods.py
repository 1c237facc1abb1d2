"""Checks of what a runTemplate says about pods: free-form parts that the API server would refuse only with the pod."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pilothouse_api.v1alpha1.common import ResourceRequirements
from pilothouse_control.findings import FieldPath
from pilothouse_control.validation.scene import Check, Problem, Scene, WorkflowSubject
from pilothouse_control.validation.sentences import did_you_mean, show

_SECRET_NAME = re.compile(
    r"token(?!s)|secret|passw|credential|api_?key|private_?key|access_?key|(^|_)auth(_|$)", re.IGNORECASE
)
_ENV_NAME = re.compile(r"^[-._a-zA-Z][-._a-zA-Z0-9]*$")
_QUANTITY = re.compile(r"^[0-9]+(\.[0-9]*)?([eE][0-9]+|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$")
_LABEL_VALUE = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")
_LABEL_KEY = re.compile(r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
_ENV_PREFIX = "PILOTHOUSE_"

_ENV = frozenset({"name", "value", "valueFrom"})
_VALUE_FROM = frozenset({"secretKeyRef", "configMapKeyRef", "fieldRef", "resourceFieldRef"})
_ENV_FROM = frozenset({"prefix", "configMapRef", "secretRef"})
_TOLERATION = frozenset({"key", "operator", "value", "effect", "tolerationSeconds"})

_TEMPLATE: FieldPath = ("spec", "runTemplate")


def _unknown(path: FieldPath, raw: Mapping[str, Any], known: frozenset[str]) -> Iterator[Problem]:
    for key in raw:
        if key not in known:
            hint = did_you_mean(key, known) or f"the fields here are {', '.join(sorted(known))}"
            yield Problem((*path, key), "there is no such field", hint)


def judge_env(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """An entry of env that is none."""
    seen: set[str] = set()
    for index, entry in enumerate(subject.spec.run_template.env):
        path = (*_TEMPLATE, "env", index)
        yield from _unknown(path, entry, _ENV)
        name = entry.get("name")
        if not isinstance(name, str) or not _ENV_NAME.fullmatch(name):
            yield Problem((*path, "name"), f"it is {show(name)}; it must be the name of a variable")
            continue
        if name.startswith(_ENV_PREFIX):
            what = f"{name}: variables that begin with {_ENV_PREFIX} are the runner's own"
            yield Problem((*path, "name"), what, "choose another name")
        if name in seen:
            yield Problem((*path, "name"), f"{name} stands here twice", "remove one of them")
        seen.add(name)
        yield from _env_value(path, entry)


def _env_value(path: FieldPath, entry: Mapping[str, Any]) -> Iterator[Problem]:
    value, source = entry.get("value"), entry.get("valueFrom")
    if value is not None and source is not None:
        yield Problem(path, "it has both value and valueFrom", "remove one of them")
    if value is not None and not isinstance(value, str):
        yield Problem((*path, "value"), f"it is {show(value)}; it must be text", f'quote it: "{value}"')
    if source is None:
        return
    if not isinstance(source, dict) or len(source) != 1:
        yield Problem((*path, "valueFrom"), f"it must hold exactly one of {', '.join(sorted(_VALUE_FROM))}")
        return
    yield from _unknown((*path, "valueFrom"), source, _VALUE_FROM)


def judge_env_secrets(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A secret that seems to be written into Git."""
    for index, entry in enumerate(subject.spec.run_template.env):
        name = entry.get("name")
        if isinstance(name, str) and entry.get("value") and _SECRET_NAME.search(name):
            what = f"{name} looks like a secret and has a literal value, which everybody reads who reads the workflow"
            yield Problem((*_TEMPLATE, "env", index, "value"), what, "use valueFrom.secretKeyRef")


def judge_env_from(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """An entry of envFrom that is none."""
    for index, entry in enumerate(subject.spec.run_template.env_from):
        path = (*_TEMPLATE, "envFrom", index)
        yield from _unknown(path, entry, _ENV_FROM)
        if len(entry.keys() & {"configMapRef", "secretRef"}) != 1:
            yield Problem(path, "it must hold exactly one of configMapRef, secretRef")


def judge_tolerations(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A toleration that is none."""
    for index, entry in enumerate(subject.spec.run_template.tolerations):
        yield from _unknown((*_TEMPLATE, "tolerations", index), entry, _TOLERATION)


def quantity_problems(resources: ResourceRequirements | None, path: FieldPath) -> Iterator[Problem]:
    """Yield the quantities of resources that are none."""
    for field, quantities in (("requests", resources.requests), ("limits", resources.limits)) if resources else ():
        for name, quantity in (quantities or {}).items():
            is_number = isinstance(quantity, int | float) and not isinstance(quantity, bool) and quantity >= 0
            if not is_number and not (isinstance(quantity, str) and _QUANTITY.fullmatch(quantity)):
                what = f"{show(quantity)} is no quantity"
                yield Problem((*path, field, name), what, "write 500m, 2, 128Mi or 1Gi")


def judge_resources(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A quantity that is none."""
    yield from quantity_problems(subject.spec.run_template.resources, (*_TEMPLATE, "resources"))


def judge_labels(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A label that no object can have."""
    template = subject.spec.run_template
    for field, labels in (("labels", template.labels), ("nodeSelector", template.node_selector)):
        for key, value in labels.items():
            name = key.rpartition("/")[2]
            if not _LABEL_KEY.fullmatch(key) or len(name) > 63 or len(key) > 317:
                yield Problem((*_TEMPLATE, field, key), f"{show(key)} is no key of a label")
            if not _LABEL_VALUE.fullmatch(value):
                what = f"{show(value)} is no value of a label: letters, digits, -, _ and . only"
                yield Problem((*_TEMPLATE, field, key), what)


POD_CHECKS: tuple[Check[WorkflowSubject], ...] = (
    Check("EnvInvalid", "Error", judge_env),
    Check("EnvHoldsSecret", "Warning", judge_env_secrets),
    Check("EnvFromInvalid", "Error", judge_env_from),
    Check("TolerationInvalid", "Error", judge_tolerations),
    Check("QuantityInvalid", "Error", judge_resources),
    Check("LabelInvalid", "Error", judge_labels),
)
