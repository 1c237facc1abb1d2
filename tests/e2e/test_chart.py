"""What the chart renders: rights enumerated, Redis with its users, wrong values refused."""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pilothouse_runner.judge.table import JudgeModel, parse_models
from support.cluster import HACK
from support.golden import Golden
from support.installation import ROOT

GOLDEN = ROOT / "tests" / "golden" / "chart"


def helm() -> Path:
    found = subprocess.run([HACK / "build", "--dir"], capture_output=True, text=True, check=True).stdout.strip()
    return Path(found) / "helm"


def render(*settings: str, chart: Path = ROOT / "charts" / "pilothouse") -> list[dict[str, Any]]:
    """Return the objects of the chart with some values set; raises AssertionError with helm's words."""
    command = [helm(), "template", "pilothouse", chart, "-n", "pilothouse-system"]
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

    # The operator API patches with its own account, and asks for both verbs of its callers.
    want = {"pilothouse-approver", "pilothouse-limiter", "pilothouse-api"}
    assert {role["metadata"]["name"] for role in deciding} == want
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
        *('redis.url="redis://user:password@redis"', 'redis.maxMemory="lots"', "redis.keepDays=0"),
        *('runner.telemetry.endpoint="collector:4318"', 'runner.telemetry.env={"PATH": "/"}'),
        *("api.replicas=0", "api.mostStreams=0", "api.mostStreamsPerUser=0", 'api.logLevel="loud"', 'api.image="x"'),
        *('judge.models=[{"name":"a"}]', 'judge.models=[{"name":"a","model":"scripted"}]', "judge.replicas=0"),
        'judge.models=[{"name":"a","model":"openai/x","script":"turns: []"}]',
        'judge.models=[{"name":"a","model":"openai/x","apiBase":"https://me:secret@x"}]',
    ],
)
def test_a_wrong_value_is_refused(setting: str) -> None:
    with pytest.raises(AssertionError, match=r"values don't meet|additional properties|got "):
        render(setting)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (('redis.loginSecret=""',), "redis.loginSecret is empty"),
        (('redis.apiLoginSecret=""',), "redis.apiLoginSecret is empty"),
        (('redis.loginSecret="a"', 'redis.apiLoginSecret="a"'), "are both a"),
    ],
)
def test_a_redis_of_the_charts_own_without_a_login_is_refused(settings: tuple[str, ...], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        render(*settings)
    own = ("redis.enabled=false", 'redis.url="redis://mine"', 'redis.loginSecret=""', 'redis.apiLoginSecret=""')
    assert render(*own)
    assert render("api.enabled=false", 'redis.apiLoginSecret=""')


OPTIONAL = {"resources", "nodeSelector", "tolerations"}
"""Values that may be absent: as many nodes, and as much of them, as there are."""


def expected(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: expected(value) if isinstance(value, dict) and value else None
        for name, value in values.items()
        if name not in OPTIONAL
    }


CHECKED = re.compile(r'define "pilothouse.expectedValues" -}}\n(.*?){{- end }}', re.DOTALL)
SINCE_THE_FIRST = ("watchNamespaces", "namespaced", "crds", "admission", "operator", "runner", "ceilings")


def test_every_value_of_the_chart_is_checked_for() -> None:
    chart = ROOT / "charts" / "pilothouse"
    checked = CHECKED.search((chart / "templates" / "_values.tpl").read_text())
    assert checked is not None
    assert yaml.safe_load(checked[1]) == expected(yaml.safe_load((chart / "values.yaml").read_text()))


def test_values_of_an_earlier_chart_are_refused_with_what_to_do(tmp_path: Path) -> None:
    """`helm upgrade --reuse-values` takes the earlier chart's for those of this one."""
    earlier = shutil.copytree(ROOT / "charts" / "pilothouse", tmp_path / "pilothouse")
    values = yaml.safe_load((earlier / "values.yaml").read_text())
    old = {name: values[name] for name in SINCE_THE_FIRST}
    for section, name in (("admission", "trustedUsers"), ("runner", "telemetry"), ("operator", "resources")):
        del old[section][name]
    (earlier / "values.yaml").write_text(yaml.safe_dump(old))
    with pytest.raises(AssertionError, match="--reset-then-reuse-values") as refused:
        render(chart=earlier)
    missing = "admission.trustedUsers, api, fleet, judge, redis, runner.telemetry. "
    assert f"values are missing: {missing}" in str(refused.value)


def test_egress_of_runners_is_denied_but_for_what_is_named() -> None:
    extra = {"to": [{"ipBlock": {"cidr": "10.9.0.0/16"}}], "ports": [{"port": 4000, "protocol": "TCP"}]}
    objects = render("runner.networkPolicy.enabled=true", f"runner.networkPolicy.egress={[extra]}".replace("'", '"'))
    everything = [found for found in objects if found["kind"] == "NetworkPolicy"]
    policies = [policy for policy in everything if policy["metadata"]["name"] == "pilothouse-runners"]

    assert {policy["metadata"]["namespace"] for policy in policies} == {"default", "pilothouse-system"}
    for policy in policies:
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        assert "ingress" not in policy["spec"]
        ports = {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}
        assert ports == {53, 443, 6443, 6379, 4000}


def named(objects: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    """Return the objects of a kind by `namespace/name`."""
    found = [one for one in objects if one["kind"] == kind]
    return {f"{one['metadata'].get('namespace', '')}/{one['metadata']['name']}": one for one in found}


def test_redis_is_the_golden_one(golden: Golden) -> None:
    """Passwords and what follows from them are new each time that Helm cannot look into a cluster."""
    objects = [found for found in render() if "redis" in found["metadata"]["name"]]
    text = yaml.safe_dump_all(objects, sort_keys=False)

    golden.check(GOLDEN / "redis.yaml", re.sub(r"#[0-9a-f]{64}|(?<=password: )\w+", "…", text))


def test_every_namespace_of_runs_has_a_user_of_redis_with_the_password_of_its_secret() -> None:
    secrets = named(render('runner.namespaces=["team-a","team-b"]'), "Secret")
    users = secrets["/pilothouse-redis-admin"]["stringData"]["users.acl"]

    assert users.splitlines()[0] == "user default off resetpass ~* &* +@all"
    for namespace in ("team-a", "team-b", "pilothouse-system"):
        login = secrets[f"{namespace}/pilothouse-redis"]["stringData"]
        hashed = hashlib.sha256(login["password"].encode()).hexdigest()
        assert f"user {login['username']} on #{hashed} resetchannels ~ns:{namespace}:* -@all" in users
    login = secrets["/pilothouse-redis-api"]["stringData"]
    hashed = hashlib.sha256(login["password"].encode()).hexdigest()
    assert f"user api on #{hashed} resetchannels %R~ns:* -@all +xrange +xrevrange +xread" in users
    assert len({secret["stringData"]["password"] for secret in secrets.values()}) == 5


def operator_environment(objects: list[dict[str, Any]]) -> dict[str, str]:
    deployment = named(objects, "Deployment")["/pilothouse-operator"]
    variables = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    return {one["name"].removeprefix("PILOTHOUSE_OPERATOR_"): one.get("value", "") for one in variables}


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ((), "redis://pilothouse-redis.pilothouse-system:6379"),
        (("redis.enabled=false", 'redis.url="rediss://redis.example:6380"'), "rediss://redis.example:6380"),
        (("redis.enabled=false",), ""),
    ],
)
def test_the_operator_tells_runners_which_redis(settings: tuple[str, ...], url: str) -> None:
    objects = render(*settings)

    assert operator_environment(objects)["REDIS_URL"] == url
    assert bool(named(objects, "StatefulSet")) == (settings == ())
    assert bool(named(objects, "Secret")) == (settings == ())


def test_users_of_your_own_are_used_and_no_login_is_made() -> None:
    objects = render('redis.existingSecret="mine"')
    volumes = named(objects, "StatefulSet")["/pilothouse-redis"]["spec"]["template"]["spec"]["volumes"]

    assert named(objects, "Secret") == {}
    assert volumes[0]["secret"]["secretName"] == "mine"


def test_redis_without_a_volume_is_on_an_emptydir() -> None:
    redis = named(render("redis.persistence.enabled=false"), "StatefulSet")["/pilothouse-redis"]["spec"]

    assert "volumeClaimTemplates" not in redis
    assert {"name": "data", "emptyDir": {"sizeLimit": "8Gi"}} in redis["template"]["spec"]["volumes"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (('runner.journalClaim="journals"',), "a journal lies in one place"),
        (('redis.url="redis://mine"',), "set redis.enabled=false too"),
    ],
)
def test_two_places_for_journals_are_refused(settings: tuple[str, ...], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        render(*settings)


def test_the_operator_api_is_the_golden_one(golden: Golden) -> None:
    objects = render("api.networkPolicy.enabled=true", 'api.tlsSecret="api-tls"', "api.podMonitor.enabled=true")
    text = yaml.safe_dump_all([one for one in objects if one["metadata"]["name"].startswith("pilothouse-api")])

    golden.check(GOLDEN / "api.yaml", text)


def test_the_operator_api_may_not_write_redis_and_has_the_users_own_login() -> None:
    pod = pod_of(render(), "pilothouse-api")

    assert {volume["name"]: volume.get("secret") for volume in pod["volumes"]} == {
        "tmp": None,
        "redis": {"secretName": "pilothouse-redis-api"},
    }
    assert "redis" not in str(pod_of(render("redis.enabled=false"), "pilothouse-api")["volumes"])


def test_a_fleet_gives_the_operator_api_its_redis_its_name_and_its_key() -> None:
    fleet = ('fleet.redisUrl="rediss://fleet.example:7000"', 'fleet.cluster="a"', 'fleet.loginSecret="fleet-login"')
    objects = render(*fleet, "api.networkPolicy.enabled=true")
    pod = pod_of(objects, "pilothouse-api")
    (container,) = pod["containers"]
    env = {one["name"]: one["value"] for one in container["env"] if "_FLEET_" in one["name"]}
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    secrets = {one["name"]: one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one}
    assert env == {
        "PILOTHOUSE_API_FLEET_REDIS_URL": "rediss://fleet.example:7000",
        "PILOTHOUSE_API_FLEET_CLUSTER": "a",
        "PILOTHOUSE_API_FLEET_KEY": f"{mounts['fleet']}/key",
        "PILOTHOUSE_API_FLEET_REDIS_LOGIN": mounts["fleet-redis"],
    }
    assert (secrets["fleet"], secrets["fleet-redis"]) == ("pilothouse-fleet", "fleet-login")
    (policy,) = [
        one for one in objects if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == "pilothouse-api"
    ]
    assert {"ports": [{"port": 7000, "protocol": "TCP"}]} in policy["spec"]["egress"]
    assert "fleet" not in str(pod_of(render(), "pilothouse-api"))


@pytest.mark.parametrize(
    "settings",
    [
        ('fleet.redisUrl="redis://r:6379"',),
        ('fleet.redisUrl="redis://r:6379"', 'fleet.cluster="a"', 'fleet.keySecret=""'),
        ('fleet.redisUrl="redis://me:secret@r:6379"', 'fleet.cluster="a"'),
        ('fleet.cluster="A"',),
    ],
)
def test_a_fleet_without_a_name_or_a_key_is_refused(settings: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError, match="schema"):
        render(*settings)


@pytest.mark.parametrize("setting", ["api.enabled=false", "namespaced=true"])
def test_a_fleet_without_an_operator_api_is_refused(setting: str) -> None:
    with pytest.raises(AssertionError, match="the operator API, which is what joins a fleet, is not installed"):
        render('fleet.redisUrl="redis://r:6379"', 'fleet.cluster="a"', setting)


@pytest.mark.parametrize(
    ("settings", "is_installed"),
    [
        ((), True),
        (("api.enabled=false",), False),
        (("namespaced=true",), False),
        (("namespaced=true", "api.reviewRights=false"), True),
    ],
)
def test_the_operator_api_is_installed_where_it_can_know_its_callers(
    settings: tuple[str, ...], is_installed: bool
) -> None:
    objects = render(*settings)

    assert ("/pilothouse-api" in named(objects, "Deployment")) is is_installed
    assert ("/pilothouse-redis-api" in named(objects, "Secret")) is is_installed
    if "namespaced=true" in settings:
        assert not [
            one for one in objects if "api" in one["metadata"]["name"] and one["kind"].startswith("ClusterRole")
        ]


KEY = '"apiKeySecretRef":{"name":"judge-key","key":"token"}'
PLAYED = """{"name":"played","model":"scripted","script":"turns: [{text: '{}'}]\\nrepeat: Last\\n"}"""
JUDGE_MODELS = (
    'judge.models=[{"name":"careful","model":"openai/gpt-4.1-mini","apiBase":"https://models.example/v1",'
    f'"temperature":0,"timeoutSeconds":20,"answerFormat":"JsonObject",{KEY}}},'
    f'{{"name":"other","model":"openai/o",{KEY}}},{PLAYED}]'
)


def pod_of(objects: list[dict[str, Any]], deployment: str) -> dict[str, Any]:
    found: dict[str, Any] = named(objects, "Deployment")[f"/{deployment}"]["spec"]["template"]["spec"]
    return found


def test_without_models_there_is_no_judge_and_the_operator_knows_of_none() -> None:
    objects = render()

    assert not [found for found in objects if "judge" in found["metadata"]["name"]]
    assert operator_environment(objects)["JUDGE_URL"] == ""
    assert [volume["name"] for volume in pod_of(objects, "pilothouse-operator")["volumes"]] == ["tmp"]


def test_the_judge_is_the_golden_one(golden: Golden) -> None:
    objects = [found for found in render(JUDGE_MODELS) if "judge" in found["metadata"]["name"]]
    text = yaml.safe_dump_all(objects, sort_keys=False)

    golden.check(GOLDEN / "judge.yaml", re.sub(r"(?<=token: )\w{48}", "…", text))


def test_the_judge_reads_the_table_that_the_chart_writes() -> None:
    table = named(render(JUDGE_MODELS), "ConfigMap")["/pilothouse-judge-models"]["data"]["models.yaml"]
    models = parse_models(table)

    assert list(models) == ["careful", "other", "played"]
    assert (models["careful"].temperature, models["careful"].timeout_seconds) == (0, 20)
    assert models["played"].script == "turns: [{text: '{}'}]\nrepeat: Last\n"


def test_every_field_of_the_table_can_be_set_by_the_chart_and_none_besides() -> None:
    schema = json.loads((ROOT / "charts" / "pilothouse" / "values.schema.json").read_text())
    stated = schema["properties"]["judge"]["properties"]["models"]["items"]["properties"]

    assert set(stated) == {field.alias for field in JudgeModel.model_fields.values()}


def test_the_judge_has_no_right_and_no_token_of_the_api_server() -> None:
    objects = render(JUDGE_MODELS)
    pod = pod_of(objects, "pilothouse-judge")

    assert rights(objects) == rights(render())
    assert pod["automountServiceAccountToken"] is False
    assert "judge" not in str([found.get("subjects") for found in objects])


def test_operator_and_judge_share_one_token_and_only_the_judge_sees_keys_of_models() -> None:
    objects = render(JUDGE_MODELS)
    volumes = {
        name: {volume["name"]: volume for volume in pod_of(objects, f"pilothouse-{name}")["volumes"]}
        for name in ("operator", "judge")
    }

    assert operator_environment(objects)["JUDGE_URL"] == "http://pilothouse-judge.pilothouse-system:8080"
    assert volumes["operator"]["judge-token"]["secret"]["secretName"] == "pilothouse-judge-token"
    assert volumes["judge"]["token"]["secret"]["secretName"] == "pilothouse-judge-token"
    assert volumes["judge"]["secrets"]["projected"]["sources"] == [
        {"secret": {"name": "judge-key", "items": [{"key": "token", "path": "judge-key/token"}], "optional": True}}
    ]
    assert "judge-key" not in str(volumes["operator"])


def test_a_token_of_your_own_is_used_and_none_is_made() -> None:
    objects = render(JUDGE_MODELS, 'judge.tokenSecret="mine"')

    assert "/pilothouse-judge-token" not in named(objects, "Secret")
    assert str(objects).count("'secretName': 'mine'") == 2


def test_the_judge_reaches_what_is_named_where_its_egress_is_bounded() -> None:
    extra = '[{"to": [{"ipBlock": {"cidr": "10.9.0.0/16"}}], "ports": [{"port": 443, "protocol": "TCP"}]}]'
    policy = named(render(JUDGE_MODELS, f"judge.networkPolicy.egress={extra}"), "NetworkPolicy")["/pilothouse-judge"]

    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert [port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]] == [53, 53, 443]
