"""The short chaos: twenty-five kills of runners, operators, Redis and the API server, with always the same seed.

`make chaos` is the long one; what is looked for is the same (`chaos.verdict`). A machine that is slow makes it longer
and not red: every wait in it is longer than any pause of the product's own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.plane import open_plane
from chaos.play import Show
from support.cluster import LocalCluster

pytestmark = pytest.mark.anyio


@pytest.mark.timeout(900)
async def test_nothing_is_lost_and_nothing_runs_twice(control_plane: LocalCluster, tmp_path: Path) -> None:
    show = Show(seed=5, kills=25, width=6, is_brisk=True, pause=(5.0, 10.0))
    said: list[str] = []
    async with open_plane(show, control_plane, tmp_path, said.append) as play:
        result = await play.play()

    print("\n".join(said))
    assert result.violations == {}
    assert result.kills.total() >= 25
    assert result.executions > 0
