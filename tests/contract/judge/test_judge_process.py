"""The judge as a process: it says what is wrong with its pod, serves, and ends in good order when it is told to."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from pilothouse_api import names
from support.judge_service import TABLE, TOKEN
from support.observations import judge_request

SLOW = TABLE.replace("turns: [{text", "turns: [{delaySeconds: 3, text")


def environment(folder: Path, **changes: str) -> dict[str, str]:
    (folder / "models.yaml").write_text(SLOW)
    (folder / "token").write_text(TOKEN)
    variables = {
        names.ENV_JUDGE_MODELS_PATH: str(folder / "models.yaml"),
        names.ENV_JUDGE_TOKEN_PATH: str(folder / "token"),
        names.ENV_SECRETS_PATH: str(folder / "secrets"),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    return variables | changes


@contextmanager
def judge_process(variables: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "pilothouse_runner.judge"]
    process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "content", "want"),
    [
        ("models.yaml", "models: [{name: a}]", "models.yaml: models[0].model: Field required"),
        ("models.yaml", None, "models.yaml cannot be read"),
        ("token", "", "token holds no token: nobody could ask"),
    ],
)
def test_a_pod_that_is_wrong_says_so_in_one_line(tmp_path: Path, file: str, content: str | None, want: str) -> None:
    variables = environment(tmp_path)
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_text(content)

    with judge_process(variables) as process:
        out, err = process.communicate(timeout=200)

    line = json.loads(out)
    assert (process.returncode, line["event"], err) == (2, "judge.exit", "")
    assert want in line["message"]


@pytest.mark.slow
def test_a_wrong_port_is_named(tmp_path: Path) -> None:
    with judge_process(environment(tmp_path, **{names.ENV_JUDGE_PORT: "70000"})) as process:
        out, _ = process.communicate(timeout=200)

    assert "PILOTHOUSE_JUDGE_PORT is '70000'" in json.loads(out)["message"]


@pytest.mark.slow
def test_a_verdict_that_is_under_way_at_the_end_is_given(tmp_path: Path) -> None:
    port = free_port()
    headers = {"authorization": f"Bearer {TOKEN}"}
    body = judge_request().model_dump_json(by_alias=True)
    with (
        judge_process(environment(tmp_path, **{names.ENV_JUDGE_PORT: str(port)})) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=200) as http,
        ThreadPoolExecutor() as threads,
    ):
        assert process.stdout is not None
        serving = json.loads(process.stdout.readline())
        wait_for(lambda: http.get("/readyz").status_code == 200)
        asked = threads.submit(http.post, "/v1/verdicts", content=body)
        wait_for(lambda: "pilothouse_judge_under_way 1.0" in http.get("/metrics").text)
        process.send_signal(signal.SIGTERM)
        answer = asked.result(60).json()
        code = process.wait(60)
        answered = [json.loads(line) for line in process.stdout]

    assert (serving["event"], serving["models"]) == ("judge.serving", ["careful"])
    assert answer == {"passed": False, "reason": "Too many calls.", "tokens": 420}
    assert code == 0
    assert [line["event"] for line in answered] == ["judge.answered"]


def wait_for(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if is_true():
                return
        except httpx.TransportError:
            pass  # it does not listen yet
        time.sleep(0.02)
    raise AssertionError("not true after 60 s")
