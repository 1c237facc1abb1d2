"""The judge as pods: who it answers, what it may do, and what a run does while it is away."""

import json

from support.installation import JUDGE, SYSTEM, Installation

POD = f"deployment/{JUDGE}"

ASK = """
import pathlib, urllib.error, urllib.request
token = pathlib.Path("/var/run/pilothouse/judge/token").read_text()
for given in (token, "another"):
    asked = urllib.request.Request("http://JUDGE:8080/v1/models", headers={"Authorization": "Bearer " + given})
    try:
        print(urllib.request.urlopen(asked, timeout=10).read().decode())
    except urllib.error.HTTPError as refused:
        print(refused.code)
""".replace("JUDGE", JUDGE)

WRITE = "import pathlib; pathlib.Path('/opt/pilothouse/x').write_text('x')"
LOOK = "import os; print(os.getuid(), os.path.exists('/var/run/secrets/kubernetes.io'))"


def python_in(installation: Installation, deployment: str, program: str) -> list[str]:
    """Run a program in a pod of a Deployment and return the lines that it prints."""
    command = ("exec", deployment, "-n", SYSTEM, "--", "python3", "-c", program)
    return installation.kubectl(*command).splitlines()


def test_the_judge_answers_the_operator_alone(installation: Installation) -> None:
    known, unknown = python_in(installation, "deployment/pilothouse-operator", ASK)

    assert json.loads(known) == {"models": ["watchful"]}
    assert unknown == "401"


def test_the_judge_has_no_token_of_the_api_server_and_writes_nowhere(installation: Installation) -> None:
    assert python_in(installation, POD, LOOK) == ["65532 False"]
    refused = installation.refused("exec", POD, "-n", SYSTEM, "--", "python3", "-c", WRITE)
    assert "Read-only file system" in refused


def test_the_judge_says_what_it_has_counted(installation: Installation) -> None:
    shown = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8080/metrics').read().decode())"

    assert "pilothouse_judge_under_way 0.0" in python_in(installation, POD, shown)
