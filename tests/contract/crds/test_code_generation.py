"""What the generator makes of models, and what it says when a committed file is not what it would make."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
import yaml
from codegen import chart, structs
from codegen.__main__ import main
from codegen.descriptions import UndescribedError
from codegen.outputs import CHART_CRDS, CHART_POLICIES, OWNED, POLICIES, outputs
from codegen.schema import UnstructuralError, described, structural
from codegen.sentences import PAGE, SOURCE
from pydantic import Field
from pydantic.alias_generators import to_camel

from pilothouse_api.v1alpha1 import KINDS
from pilothouse_api.v1alpha1.base import IntOrString, JsonObject, Model, Rule

ROOT = Path(__file__).resolve().parents[3]


class Inner(Model):
    """An inner one."""

    RULES: ClassVar = (Rule("self.a > 0", "a must be positive", field_path=".a"),)

    a: Annotated[int, Field(ge=0, le=9)] = 3
    """A number."""


class Outer(Model):
    """An outer one,
    told on two lines."""

    inner_one: Inner
    """Described where
    it is used."""
    free: JsonObject | None = None
    """Anything."""
    amount: IntOrString | None = None
    """A quantity."""
    names: Annotated[dict[str, Annotated[str, Field(max_length=3)]], Field(max_length=2)]
    """Names."""
    only: Literal["One"] = "One"
    """One word."""


def _structural(model: type[Model]) -> dict[str, Any]:
    raw = described(model)
    return structural(raw, raw.pop("$defs"))


def test_a_model_becomes_a_structural_schema() -> None:
    assert _structural(Outer) == {
        "description": "An outer one, told on two lines.",
        "type": "object",
        "properties": {
            "innerOne": {
                "description": "Described where it is used.",
                "type": "object",
                "properties": {
                    "a": {
                        "description": "A number. Default: 3.",
                        "type": "integer",
                        "format": "int64",
                        "minimum": 0,
                        "maximum": 9,
                    }
                },
                "x-kubernetes-validations": [
                    {"rule": "self.a > 0", "message": "a must be positive", "fieldPath": ".a"}
                ],
            },
            "free": {
                "description": "Anything.",
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": True,
                "x-kubernetes-map-type": "atomic",
            },
            "amount": {"description": "A quantity.", "x-kubernetes-int-or-string": True},
            "names": {
                "description": "Names.",
                "type": "object",
                "maxProperties": 2,
                "additionalProperties": {"type": "string", "maxLength": 3},
            },
            "only": {"description": "One word. Default: One.", "type": "string", "enum": ["One"]},
        },
        "required": ["innerOne", "names"],
    }


class Union(Model):
    """A union of types."""

    value: int | str
    """Two types."""


class Endless(Model):
    """Contains itself."""

    next: Endless | None = None
    """The next."""


class Exclusive(Model):
    """Has a bound that CRDs write differently."""

    value: Annotated[int, Field(gt=0)]
    """Above zero."""


@pytest.mark.parametrize(
    ("model", "want"),
    [
        (Union, ".value: a union of 2 types; use fields that name themselves"),
        (Endless, "Endless contains itself, which a CRD cannot say"),
        (Exclusive, ".value: exclusiveMinimum has no counterpart in a structural schema"),
    ],
)
def test_what_a_structural_schema_cannot_say_is_refused_by_name(model: type[Model], want: str) -> None:
    raw = described(model)
    with pytest.raises(UnstructuralError, match=re.escape(want)):
        structural(raw.get("$defs", {}).get(model.__name__, raw), raw.get("$defs", {}))


class Silent(Model):
    """Has a field that nobody described."""

    value: bool = False


def test_a_field_without_a_docstring_is_refused_by_name() -> None:
    with pytest.raises(UndescribedError, match=r"Silent\.value has no docstring below it"):
        described(Silent)


@pytest.fixture(scope="module")
def made() -> Mapping[Path, str]:
    """Every file that is generated."""
    return outputs(ROOT)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what is generated and of the policies that it is made from."""
    for folder in {folder for folder, _ in OWNED} | {POLICIES}:
        for path in (ROOT / folder).glob("*.*"):
            if path.is_file():
                (tmp_path / folder).mkdir(parents=True, exist_ok=True)
                shutil.copy(path, tmp_path / folder)
    for path in (SOURCE, PAGE, structs.PAGE):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    return tmp_path


def test_what_is_committed_is_what_the_models_say(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", "--root", str(checkout)]) == 0, capsys.readouterr().out


def test_the_check_says_which_file_differs_how_and_what_to_run(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crd = checkout / "crds" / "agents.pilothouse.dev.yaml"
    crd.write_text(crd.read_text().replace("maximum: 2", "maximum: 3"))
    (checkout / "docs/spec/v1alpha1/agent.md").unlink()
    (checkout / CHART_CRDS / "pilots.yaml").write_text("{}")

    code = main(["--check", "--root", str(checkout)])
    said = capsys.readouterr().out

    assert code == 1
    assert "crds/agents.pilothouse.dev.yaml differs from what the models say:" in said
    assert "docs/spec/v1alpha1/agent.md is missing" in said
    assert "charts/pilothouse/templates/crds/pilots.yaml is made by nothing any more" in said
    assert "run `make generate`" in said


@pytest.mark.slow
def test_generating_repairs_what_the_check_found(checkout: Path) -> None:
    (checkout / "crds" / "agents.pilothouse.dev.yaml").write_text("{}")
    (checkout / CHART_CRDS / "pilots.yaml").write_text("{}")

    assert main(["--root", str(checkout)]) == 0
    assert main(["--check", "--root", str(checkout)]) == 0


def test_what_looks_like_a_template_in_a_description_is_escaped_for_helm() -> None:
    assert chart.escape("a {{ path }} b") == 'a {{ "{{" }} path }} b'


def _rendered(text: str) -> list[dict[str, Any]]:
    """What Helm makes of a template in the namespace and under the release name of the raw policies."""
    values = {
        "{{ .Release.Namespace }}": "pilothouse-system",
        '{{ include "pilothouse.operatorName" . }}': "pilothouse-operator",
        "{{ .Release.Name }}": "pilothouse",
        "{{ range .Values.admission.trustedUsers }}, '{{ . }}'{{ end }}": "",
        '{{ "{{" }}': "{{",
    }
    for template, value in values.items():
        text = text.replace(template, value)
    lines = [line for line in text.splitlines() if not line.startswith("{{-")]
    assert "{{ ." not in text
    return list(yaml.safe_load_all("\n".join(lines)))


@pytest.mark.parametrize("path", sorted((ROOT / POLICIES).glob("*.yaml")), ids=lambda path: path.name)
def test_the_charts_policy_for_the_default_release_is_the_raw_one(made: Mapping[Path, str], path: Path) -> None:
    text = made[CHART_POLICIES / path.name]

    assert text.splitlines()[1] == "{{- if .Values.admission.enabled }}"
    assert text.endswith("{{- end }}\n")
    assert _rendered(text) == list(yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize("kind", KINDS)
def test_the_charts_crd_is_the_raw_one_with_an_annotation_that_keeps_it(made: Mapping[Path, str], kind: str) -> None:
    name = f"{KINDS[kind].PLURAL}.pilothouse.dev.yaml"

    [want] = yaml.safe_load_all(made[Path("crds") / name])
    [got] = _rendered(made[CHART_CRDS / name])

    assert got["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert got == want
    assert made[CHART_CRDS / name].splitlines()[1] == "{{- if .Values.crds.enabled }}"


@pytest.mark.parametrize("kind", KINDS)
def test_every_link_of_a_reference_page_leads_to_a_section_of_it(made: Mapping[Path, str], kind: str) -> None:
    page = made[Path("docs/spec/v1alpha1") / f"{kind.lower()}.md"]
    anchors = re.findall(r"^## (\w+)$", page, re.MULTILINE)

    assert len(anchors) == len(set(anchors))
    assert set(re.findall(r"\]\(#(\w+)\)", page)) <= {anchor.lower() for anchor in anchors}


def test_the_page_of_runs_describes_the_snapshot_too(made: Mapping[Path, str]) -> None:
    page = made[Path("docs/spec/v1alpha1/agentrun.md")]

    assert "## Snapshot" in page
    assert "| `journalLength` | integer |" in page


def test_the_plan_loads_no_model_that_it_does_not_need() -> None:
    """A runner's start is the user's waiting time."""
    program = (
        "import sys, pilothouse_api.plan; print(*sorted(m for m in sys.modules if m.startswith('pilothouse_api')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    loaded = set(done.stdout.split())
    assert "pilothouse_api.v1alpha1.workflow" in loaded
    assert loaded.isdisjoint({"pilothouse_api.v1alpha1.agentrun", "pilothouse_api.v1alpha1.supervisor"})


def test_the_package_offers_the_kinds_although_it_loads_them_late() -> None:
    import pilothouse_api.v1alpha1 as package

    assert {name: getattr(package, name) for name in KINDS} == dict(KINDS)
    with pytest.raises(AttributeError, match="has no attribute 'Pilot'"):
        package.Pilot  # noqa: B018  # the access is what is tested


def test_the_readme_names_the_writer_of_every_field_of_a_run() -> None:
    readme = (ROOT / "crds" / "README.md").read_text()
    spec, status = (KINDS["AgentRun"].model_fields[part].annotation for part in ("spec", "status"))

    want = {f"`spec.{to_camel(name)}`" for name in spec.model_fields}
    want |= {f"`status.{to_camel(name)}`" for name in status.model_fields}

    assert {field for field in want if field not in readme} == set()
