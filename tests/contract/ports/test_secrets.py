from pathlib import Path

import pytest

from pilothouse_engine.ports import SecretUnavailable
from pilothouse_runner.adapters.secrets import MAX_SECRET_BYTES, FileSecrets


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "crm").mkdir()
    (tmp_path / "crm" / "token").write_text("Bearer one\n")
    (tmp_path / "outside").write_text("not a secret of the run")
    return tmp_path


def test_a_value_is_read_anew_each_time_without_the_line_break_at_its_end(folder: Path) -> None:
    secrets = FileSecrets(folder)
    assert secrets.read("crm", "token") == "Bearer one"

    (folder / "crm" / "token").write_text("Bearer two\r\n")

    assert secrets.read("crm", "token") == "Bearer two"


def test_what_kubernetes_swaps_by_a_symbolic_link_is_followed(folder: Path) -> None:
    for version in ("v1", "v2"):
        (folder / "db" / version).mkdir(parents=True)
        (folder / "db" / version / "key").write_text(version)
    (folder / "db" / "..data").symlink_to("v1")
    (folder / "db" / "key").symlink_to("..data/key")
    secrets = FileSecrets(folder)
    assert secrets.read("db", "key") == "v1"

    (folder / "db" / "..data").unlink()
    (folder / "db" / "..data").symlink_to("v2")

    assert secrets.read("db", "key") == "v2"


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("crm", "nothing"),
        ("nothing", "token"),
        ("crm", ".."),
        ("..", "outside"),
        ("crm", "../outside"),
        (".", "outside"),
        ("", "token"),
        ("crm", ""),
        ("crm/..", "outside"),
        ("crm", "a\0b"),
        ("crm", "x" * 300),
    ],
)
def test_what_cannot_be_read_is_unavailable_and_named(folder: Path, name: str, key: str) -> None:
    with pytest.raises(SecretUnavailable) as caught:
        FileSecrets(folder).read(name, key)

    assert repr(key).strip("'") in str(caught.value) and "not a secret" not in str(caught.value)


def test_a_value_that_is_no_text_or_too_large_is_unavailable(folder: Path) -> None:
    (folder / "crm" / "binary").write_bytes(b"\xff\xfe")
    (folder / "crm" / "large").write_bytes(b"x" * (MAX_SECRET_BYTES + 1))

    for key, want in (("binary", "no UTF-8"), ("large", "larger than")):
        with pytest.raises(SecretUnavailable, match=want):
            FileSecrets(folder).read("crm", key)
