"""A certificate that is renewed on disk is served without a restart."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pilothouse_console import host
from pilothouse_console.host import Host
from pilothouse_console.settings import ApiSettings
from pilothouse_kubernetes.connection import Credentials

pytestmark = pytest.mark.anyio


def write_certificate(folder: Path) -> None:
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=api.example"
    files = f" -keyout {folder}/tls.key -out {folder}/tls.crt"
    subprocess.run(shlex.split(command + files), check=True, capture_output=True)


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Host]:
    write_certificate(folder)
    settings = ApiSettings(
        host="127.0.0.1", port=0, tls_certificate=folder / "tls.crt", tls_key=folder / "tls.key", stop_seconds=1
    )
    running = Host(settings, Credentials("http://127.0.0.1:1"))
    tasks = [asyncio.create_task(running._serve()), asyncio.create_task(running._follow_certificate())]
    while not running.is_listening:
        assert not any(task.done() for task in tasks)
        await asyncio.sleep(0.01)
    try:
        yield running
    finally:
        running.stop()
        tasks[1].cancel()
        await asyncio.wait(tasks)


async def served(running: Host) -> str:
    return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", running.port), timeout=200)


async def test_who_connects_after_a_renewal_is_shown_the_new_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "CERTIFICATE_SECONDS", 0.02)
    async with serving(tmp_path) as running, asyncio.timeout(90):
        first = (tmp_path / "tls.crt").read_text()
        assert await served(running) == first
        renewed = tmp_path / "renewed"
        renewed.mkdir()
        write_certificate(renewed)
        shutil.copy(renewed / "tls.crt", tmp_path)
        for _ in range(3):  # half of it is there
            assert await served(running) == first
        shutil.copy(renewed / "tls.key", tmp_path)
        while (now := await served(running)) != (renewed / "tls.crt").read_text():
            assert now == first
