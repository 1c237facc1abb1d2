"""The pod's process: what it refuses, and how it says how it ended."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pilothouse_api import names
from pilothouse_api.digests import text_digest
from pilothouse_api.structs import Parked, Plan, RunExit, Snapshot
from pilothouse_engine.run import AttemptEnd, Finished, Lost, Released, Stop
from pilothouse_runner.process import PlanError, Sigterm, describe_end, load_plan, write_termination_message
from pilothouse_runner.settings import RunnerSettings

PLAN = {
    "format": 1,
    "run": {"namespace": "default", "name": "r1", "uid": "u-1"},
    "workflow": {"name": "w", "digest": "0"},
    "spec": {"steps": [{"id": "reply", "kind": "Response", "response": {"mapping": {"a": "b"}}}]},
    "input": {"b": 1},
}


def settings_for(path: Path, digest: str, uid: str = "u-1") -> RunnerSettings:
    return RunnerSettings("default", "r1", uid, 1, path, digest, path.parent)


def write_plan(folder: Path, **changes: object) -> tuple[Path, str]:
    text = json.dumps({**PLAN, **changes})
    path = folder / "plan.json"
    path.write_text(text)
    return path, text_digest(text)


def test_a_plan_with_the_recorded_digest_is_taken(tmp_path: Path) -> None:
    plan = load_plan(settings_for(*write_plan(tmp_path)))
    assert isinstance(plan, Plan)
    assert plan.run.uid == "u-1"


def test_a_plan_that_was_changed_is_refused(tmp_path: Path) -> None:
    path, digest = write_plan(tmp_path)
    path.write_text(path.read_text().replace('"b": 1', '"b": 2'))
    with pytest.raises(PlanError, match=f"the run's status says {digest}"):
        load_plan(settings_for(path, digest))


def test_a_plan_of_another_run_an_unknown_form_and_no_plan_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="is for the run with the uid u-1, this run's is u-2"):
        load_plan(settings_for(*write_plan(tmp_path), uid="u-2"))
    with pytest.raises(PlanError, match="format"):
        load_plan(settings_for(*write_plan(tmp_path, format=2)))
    with pytest.raises(PlanError, match="No such file"):
        load_plan(settings_for(tmp_path / "absent", "d"))


ENDS: list[tuple[AttemptEnd, int, str]] = [
    (
        Finished(RunExit(signal="resolved", reason="Complete"), None, Snapshot(attempt=1)),
        0,
        "the run ended with resolved (Complete)",
    ),
    (
        Finished(RunExit(signal="error", reason="Error", message="no key"), None, Snapshot(attempt=1)),
        0,
        "the run ended with error (Error) no key",
    ),
    (Released(Parked(reason="Paused", turn=3, since="t"), Snapshot(attempt=1)), 0, "released at turn 3: Paused"),
    (Lost("Fenced", "attempt 2 has written"), 3, "Fenced: attempt 2 has written"),
]


@pytest.mark.parametrize(("end", "code", "message"), ENDS)
def test_how_an_attempt_ended_is_a_code_and_a_sentence(end: AttemptEnd, code: int, message: str) -> None:
    assert describe_end(end) == (code, message)


def test_the_termination_message_is_short_and_needs_no_kubelet(tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    write_termination_message("x", log)
    assert not log.exists()
    log.touch()
    write_termination_message("y" * 100_000, log)
    assert len(log.read_text()) == 1000


def run_process(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pilothouse_runner"],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_a_pod_that_is_wrong_says_so_in_one_json_line_and_no_traceback() -> None:
    done = run_process({})

    [line] = map(json.loads, done.stdout.splitlines())
    assert done.returncode == 2
    assert (line["event"], line["level"], line["exitCode"]) == ("runner.exit", "error", 2)
    assert names.ENV_RUN_NAMESPACE in line["message"]
    assert done.stderr == ""


def test_outside_of_a_cluster_it_says_what_is_missing(tmp_path: Path) -> None:
    path, digest = write_plan(tmp_path)
    done = run_process(
        {
            names.ENV_RUN_NAMESPACE: "default",
            names.ENV_RUN_NAME: "r1",
            names.ENV_RUN_UID: "u-1",
            names.ENV_ATTEMPT: "1",
            names.ENV_PLAN_PATH: str(path),
            names.ENV_PLAN_DIGEST: digest,
        }
    )

    [line] = map(json.loads, done.stdout.splitlines())
    assert done.returncode == 2
    assert (line["run"], line["attempt"], line["namespace"]) == ("r1", "1", "default")
    assert "KUBERNETES_SERVICE_HOST" in line["message"]
    assert done.stderr == ""


ASKED_WHILE_LOADING = """
import os, runpy, signal, sys

class AsksToEnd:
    def find_spec(self, name, path=None, target=None):
        if name == "pilothouse_runner.process":
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, AsksToEnd())
runpy.run_module("pilothouse_runner", run_name="__main__", alter_sys=True)
"""


def test_a_signal_to_end_that_comes_while_modules_load_is_heard() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASKED_WHILE_LOADING], capture_output=True, text=True, timeout=200, check=False
    )

    assert done.returncode == 2, "it was not ended by the signal, and went on to say that its pod is wrong"


def test_a_signal_that_came_before_releases_the_attempt_at_once() -> None:
    async def released() -> bool:
        stop = Stop()
        Sigterm([signal.SIGTERM]).release(stop)
        return stop.is_asked

    before = signal.getsignal(signal.SIGTERM)
    try:
        assert asyncio.run(released())
    finally:
        signal.signal(signal.SIGTERM, before)


MOST_MODULES = 330
"""`make bench-start` counts a whole run and allows 400; this start lacks what a run loads beside its requests."""

PACKAGES_OF_A_START = {
    *("pilothouse_api", "pilothouse_engine", "pilothouse_runner"),
    *("httpcore", "h11", "anyio", "hiredis", "msgspec", "typing_extensions"),
}
"""Whatever else is installed is loaded where it is needed: yaml, httpx, idna, jsonschema, CEL, MCP, LiteLLM…"""

START = """
import asyncio, sys
import pilothouse_runner.__main__
import pilothouse_runner.adapters.models.openai
import pilothouse_runner.adapters.redis_run
from pilothouse_runner.adapters.connections import HTTP_ERRORS, Connections

async def request():
    try:
        async with Connections(max_connections=1, keepalive_seconds=1).stream("GET", "http://127.0.0.1:9", {}):
            pass
    except HTTP_ERRORS:
        pass  # nobody listens there; what a request loads is loaded

asyncio.run(request())
print(*(name for name, module in sys.modules.items() if module is not None))
"""


AUTHORITIES = """
import pilothouse_runner.__main__, httpcore, httpcore._ssl, sys
assert "certifi" not in sys.modules
httpcore._ssl.default_ssl_context()
import certifi
print(certifi.__file__)
"""


def test_public_authorities_are_loaded_when_they_are_first_asked_for() -> None:
    done = subprocess.run([sys.executable, "-c", AUTHORITIES], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout.rstrip().endswith("certifi/__init__.py")


OTHER_FORMS = """
import pilothouse_runner.__main__, sys
assert "msgspec._json_schema" not in sys.modules and "msgspec.inspect" not in sys.modules
import msgspec.json
print(msgspec.json.schema(int), msgspec.json.schema_components([int]))
from msgspec import inspect
print(inspect.type_info(int))
"""


def test_what_a_start_leaves_out_of_msgspec_is_loaded_by_whoever_needs_it() -> None:
    done = subprocess.run([sys.executable, "-c", OTHER_FORMS], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split("\n")[:2] == [
        "{'type': 'integer'} (({'type': 'integer'},), {})",
        "IntType(gt=None, ge=None, lt=None, le=None, multiple_of=None)",
    ]


def test_a_start_loads_few_modules_and_no_other_packages() -> None:
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, timeout=200, check=True)

    loaded = done.stdout.split()
    packages = Counter(name.partition(".")[0] for name in loaded)
    # Names with an underscore belong to the interpreter and to how it was installed.
    other = {name for name in packages if name not in sys.stdlib_module_names and not name.startswith("_")}
    assert other == PACKAGES_OF_A_START
    assert not [name for name in loaded if name.startswith("pilothouse_runner.judge")]
    assert len(loaded) <= MOST_MODULES, packages.most_common()
