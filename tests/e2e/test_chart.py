"""What the chart renders: rights enumerated, wrong values refused."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.cluster import HACK
from support.golden import Golden
from support.installation import ROOT

GOLDEN = ROOT / "tests" / "golden" / "chart"


def helm() -> Path:
    found = subprocess.run([HACK / "build", "--dir"], capture_output=True, text=True, check=True).stdout.strip()
    return Path(found) / "helm"


def render(*settings: str) -> list[dict[str, Any]]:
    """Return the objects of the chart with some values set; raises AssertionError with helm's words."""
    command = [helm(), "template", "pilothouse", ROOT / "charts" / "pilothouse", "-n", "pilothouse-system"]
    sets = [word for setting in settings for word in ("--set-json", setting)]
    done = subprocess.run([*command, "--kube-version", "1.34.4", *sets], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def rights(objects: list[dict[str, Any]]) -> str:
    """Return every rule of every role as one line, sorted."""
    lines = []
    for role in objects:
        for rule in role.get("rules", []) if role["kind"] in ("Role", "ClusterRole") else []:
            where = role["metadata"].get("namespace", "pilothouse-system" if role["kind"] == "Role" else "*")
            names = f" named {','.join(rule['resourceNames'])}" if "resourceNames" in rule else ""
            for resource in rule["resources"]:
                group = ",".join(rule["apiGroups"]) or "core"
                verbs = ",".join(rule["verbs"])
                lines.append(f"{where} {role['metadata']['name']}: {verbs} {group}/{resource}{names}")
    return "\n".join(sorted(lines)) + "\n"


@pytest.mark.parametrize("name", ["cluster-wide", "namespaced"])
def test_the_rights_are_those_of_the_golden_file(name: str, golden: Golden) -> None:
    settings = ["namespaced=true"] if name == "namespaced" else []

    golden.check(GOLDEN / f"rights-{name}.txt", rights(render(*settings)))


def test_nobody_reads_secrets_and_nothing_is_granted_by_a_star() -> None:
    for role in render():
        for rule in role.get("rules", []) if role["kind"] in ("Role", "ClusterRole") else []:
            assert "secrets" not in rule["resources"]
            assert "*" not in (*rule["resources"], *rule["verbs"], *rule["apiGroups"])


def test_who_approves_and_limits_is_bound_by_name_and_nothing_else_can_do_so() -> None:
    roles = [found for found in render() if found["kind"] in ("Role", "ClusterRole")]
    deciding = [
        role for role in roles if any({"approve", "limit"} & set(rule["verbs"]) for rule in role.get("rules", []))
    ]
    aggregated = {
        role["metadata"]["name"]: [
            label.rpartition("-")[2] for label in role["metadata"]["labels"] if "aggregate" in label
        ]
        for role in roles
    }

    assert {role["metadata"]["name"] for role in deciding} == {"pilothouse-approver", "pilothouse-limiter"}
    assert {name: to for name, to in aggregated.items() if to} == {
        f"pilothouse-{to}": [to] for to in ("view", "edit", "admin")
    }


def test_a_namespaced_install_has_no_cluster_wide_role_and_keeps_to_its_namespace() -> None:
    kinds = {found["kind"] for found in render("namespaced=true", "crds.enabled=false", "admission.enabled=false")}

    assert not {kind for kind in kinds if kind.startswith(("Cluster", "Validating", "Custom", "Flow"))}


def test_crds_are_kept_when_the_release_is_removed() -> None:
    crds = [found for found in render() if found["kind"] == "CustomResourceDefinition"]

    assert len(crds) == 4
    assert all(crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for crd in crds)


@pytest.mark.parametrize(
    "setting",
    [
        *("operator.replicas=9", 'operator.imgae="x"', "ceilings.costBudgetUSD=0.5", 'watchNamespaces="default"'),
        *('runner.telemetry.endpoint="collector:4318"', 'runner.telemetry.env={"PATH": "/"}'),
    ],
)
def test_a_wrong_value_is_refused(setting: str) -> None:
    with pytest.raises(AssertionError, match=r"values don't meet|additional properties|got "):
        render(setting)


def test_egress_of_runners_is_denied_but_for_what_is_named() -> None:
    extra = {"to": [{"ipBlock": {"cidr": "10.9.0.0/16"}}], "ports": [{"port": 4000, "protocol": "TCP"}]}
    objects = render("runner.networkPolicy.enabled=true", f"runner.networkPolicy.egress={[extra]}".replace("'", '"'))
    policies = [found for found in objects if found["kind"] == "NetworkPolicy"]

    assert {policy["metadata"]["namespace"] for policy in policies} == {"default", "pilothouse-system"}
    for policy in policies:
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        assert "ingress" not in policy["spec"]
        ports = {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}
        assert ports == {53, 443, 6443, 4000}
