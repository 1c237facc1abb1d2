"""What the installation sets of a fleet."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from pilothouse_console.settings import ApiSettings


def test_a_cluster_is_alone_unless_it_is_told_of_a_fleet() -> None:
    assert ApiSettings().fleet_redis_url == ""


@pytest.mark.parametrize(
    "settings",
    [
        {"fleet_redis_url": "redis://r:6379"},
        {"fleet_redis_url": "redis://r:6379", "fleet_cluster": "a"},
        {"fleet_redis_url": "redis://r:6379", "fleet_key": Path("k")},
        {"fleet_redis_url": "redis://:secret@r:6379", "fleet_cluster": "a", "fleet_key": Path("k")},
        {"fleet_redis_url": "http://r", "fleet_cluster": "a", "fleet_key": Path("k")},
        {"fleet_redis_url": "redis://r:6379", "fleet_cluster": "A/b", "fleet_key": Path("k")},
    ],
)
def test_a_fleet_needs_an_address_without_a_password_a_name_and_a_key(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ApiSettings(**settings)  # type: ignore[arg-type]
