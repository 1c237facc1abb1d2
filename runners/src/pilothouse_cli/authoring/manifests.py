"""Manifests from files: found, read, changed by `--set`, and turned into a run with its plan."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from pilothouse_api.v1alpha1 import Agent, AgentRun, Supervisor, Workflow
from pilothouse_cli.exits import EXIT_USAGE, CliError
from pilothouse_control.documents import MAX_FILE_BYTES, Document, parse_documents
from pilothouse_control.world import ConfigMap, Platform, References

SUFFIXES = frozenset({".yaml", ".yml", ".json"})
MAX_FILES = 1000
_PAIR_EXAMPLES = {
    "--set": "--set limits.tokenBudget=5000",
    "--input": "--input city=Utrecht, or --input @FILE with a YAML or JSON object",
}


def read_documents(paths: Iterable[Path]) -> list[Document]:
    """Return the documents of files and folders (searched downwards); `-` is standard input."""
    documents = [document for file in _files(paths) for document in parse_documents(_read(file), str(file))]
    if not documents:
        raise CliError("there is no manifest in " + ", ".join(map(str, paths)), "name a file or folder with YAML files")
    return documents


def _files(paths: Iterable[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            files += sorted(
                file
                for file in path.rglob("*")
                if file.suffix in SUFFIXES
                and file.is_file()
                and not any(part.startswith(".") for part in file.relative_to(path).parts)
            )
        elif path.exists() or str(path) == "-":
            files.append(path)
        else:
            raise CliError(f"{path} does not exist", "name a file or folder with manifests")
        if len(files) > MAX_FILES:
            raise CliError(f"{path} has more than {MAX_FILES} manifests", "name a smaller folder")
    return files


def _read(file: Path) -> str:
    try:
        if str(file) == "-":
            return sys.stdin.read(MAX_FILE_BYTES + 1)
        with file.open("rb") as stream:
            return stream.read(MAX_FILE_BYTES + 1).decode()
    except OSError as error:
        raise CliError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CliError(f"{file} is no UTF-8 text", "save it as UTF-8") from None


def parse_value(text: str) -> Any:
    """Return what a value on the command line means: JSON where it is JSON, YAML in brackets, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    if text[:1] not in ("[", "{"):
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def parse_pairs(pairs: Sequence[str], option: str) -> list[tuple[list[str], Any]]:
    """Return paths and values of `a.b=value`; raises CliError."""
    parsed = []
    for pair in pairs:
        path, equals, value = pair.partition("=")
        if not equals or not path or any(not part for part in path.split(".")):
            raise CliError(f"{option} {pair!r} is no path=value", _PAIR_EXAMPLES[option])
        parsed.append((path.split("."), parse_value(value)))
    return parsed


def parse_input(arguments: Sequence[str], base: Mapping[str, Any]) -> dict[str, Any]:
    """Return an input with `--input` taken in: `key=value`, `a.b=value`, or `@file` with a YAML or JSON object."""
    merged: dict[str, Any] = _deep_copy(dict(base))
    for argument in arguments:
        if argument.startswith("@"):
            merged |= _input_file(Path(argument[1:]))
        else:
            [(path, value)] = parse_pairs([argument], "--input")
            set_path(merged, path, value)
    return merged


def _input_file(file: Path) -> dict[str, Any]:
    documents = parse_documents(_read(file), str(file))
    if len(documents) != 1 or documents[0].problems:
        problem = documents[0].problems[0].what if documents and documents[0].problems else "it holds no one object"
        raise CliError(f"{file} cannot be the input: {problem}", "write one YAML or JSON object")
    return documents[0].raw


def set_path(target: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set a value deep in an object; lists are entered by index, or by `id` or `name` of their entries."""
    node: Any = target
    for position, part in enumerate(path[:-1]):
        if isinstance(node, dict):
            node = node.setdefault(part, {})
        else:
            node = _entry(node, part, ".".join(path[: position + 1]))
    if not isinstance(node, dict):
        raise CliError(f"{'.'.join(path[:-1])} is no object, so {path[-1]} cannot be set in it")
    node[path[-1]] = value


def _entry(node: Any, part: str, path: str) -> Any:
    if isinstance(node, list):
        if part.isdigit() and int(part) < len(node):
            return node[int(part)]
        for item in node:
            if isinstance(item, dict) and part in (item.get("id"), item.get("name")):
                return item
    raise CliError(f"{path} is not there, so nothing in it can be set")


def apply_settings(documents: Sequence[Document], settings: Sequence[str]) -> list[Document]:
    """Return the documents with `--set` applied to Workflow and Agents.

    `workflow.<field>` is in the spec of the Workflow, `agents.<name>.<field>` in that of an Agent; what begins
    otherwise belongs to the run and is left to `run_settings`.
    """
    changed = list(documents)
    for path, value in parse_pairs(settings, "--set"):
        kind, name, rest = _target(path)
        if kind is None:
            continue
        hits = [n for n, d in enumerate(changed) if d.kind == kind and name in (None, d.name)]
        if not hits:
            raise CliError(f"--set {'.'.join(path)}: there is no {kind} {name or ''} among the manifests")
        for hit in hits:
            raw = _deep_copy(changed[hit].raw)
            set_path(raw, ["spec", *rest], value)
            changed[hit] = replace(changed[hit], raw=raw)
    return changed


def run_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Return what `--set` changes in the spec of the run itself."""
    spec: dict[str, Any] = {}
    for path, value in parse_pairs(settings, "--set"):
        if _target(path)[0] is None:
            if path[0] not in ("limits", "overrides", "control"):
                known = "workflow.…, agents.NAME.…, limits.…, overrides.…"
                raise CliError(f"--set {'.'.join(path)} is not a path that can be set", f"begin with one of {known}")
            set_path(spec, path, value)
    return spec


def _target(path: Sequence[str]) -> tuple[str | None, str | None, Sequence[str]]:
    if path[0] == "workflow" and len(path) > 1:
        return "Workflow", None, path[1:]
    if path[0] == "agents" and len(path) > 2:
        return "Agent", path[1], path[2:]
    return None, None, path


def _deep_copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _deep_copy(item) for key, item in value.items()}
    return [_deep_copy(item) for item in value] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Manifests:
    """The objects of some documents, by kind and name."""

    workflows: Mapping[str, Workflow] = field(default_factory=dict)
    agents: Mapping[str, Agent] = field(default_factory=dict)
    config_maps: Mapping[str, ConfigMap] = field(default_factory=dict)
    runs: tuple[AgentRun, ...] = ()
    supervisors: Mapping[str, Supervisor] = field(default_factory=dict)

    @staticmethod
    def of(documents: Iterable[Document]) -> "Manifests":
        """Return the objects of documents that were found valid; what is of another kind is left out."""
        workflows: dict[str, Workflow] = {}
        agents: dict[str, Agent] = {}
        config_maps: dict[str, ConfigMap] = {}
        supervisors: dict[str, Supervisor] = {}
        runs: list[AgentRun] = []
        for document in documents:
            try:
                match document.kind:
                    case "Workflow":
                        workflows[document.name] = Workflow.model_validate(document.raw)
                    case "Agent":
                        agents[document.name] = Agent.model_validate(document.raw)
                    case "ConfigMap":
                        config_maps[document.name] = ConfigMap.of_raw(document.raw)
                    case "Supervisor":
                        supervisors[document.name] = Supervisor.model_validate(document.raw)
                    case "AgentRun":
                        runs.append(AgentRun.model_validate(document.raw))
                    case _:
                        continue
            except ValidationError as error:
                raise CliError(
                    f"{document.file}: {document.kind} {document.name}: {error.errors()[0]['msg']}"
                ) from None
        return Manifests(workflows, agents, config_maps, tuple(runs), supervisors)

    def references(self, platform: Platform) -> References:
        """Return them as plans are resolved from them."""
        return References(self.workflows, self.agents, self.config_maps, platform=platform)

    def template(self, workflow: str | None) -> AgentRun:
        """Return the run that a person means: of the named Workflow or Agent, else of the only one there is."""
        fitting = [run for run in self.runs if workflow in (None, _target_of(run))]
        if len(fitting) == 1:
            return fitting[0]
        if workflow is None:
            workflow = self._only_one()
        if workflow in self.workflows:
            return _run_of("workflowRef", workflow)
        if workflow in self.agents:
            return _run_of("agentRef", workflow)
        known = ", ".join([*self.workflows, *self.agents]) or "none"
        raise CliError(f"there is no Workflow or Agent {workflow} among the manifests", f"there are: {known}")

    def _only_one(self) -> str:
        choice = list(self.workflows) or list(self.agents)
        if len(choice) == 1:
            return choice[0]
        if not choice:
            raise CliError("there is no Workflow among the manifests", "pilothouse init makes one", EXIT_USAGE)
        raise CliError(f"there are {len(choice)} to choose from: {', '.join(choice)}", f"--workflow {choice[0]}")


def _target_of(run: AgentRun) -> str | None:
    ref = run.spec.workflow_ref or run.spec.agent_ref
    return ref.name if ref else None


def _run_of(field_name: str, name: str) -> AgentRun:
    return AgentRun.model_validate({"kind": "AgentRun", "spec": {field_name: {"name": name}}})
