"""Files that hold what is right: compared, and rewritten by `--update-golden`, to be reviewed as a diff."""

from pathlib import Path

OPTION = "--update-golden"


class Golden:
    """Compares with golden files, or writes them."""

    def __init__(self, *, is_update: bool) -> None:
        self._is_update = is_update

    def check(self, path: Path, text: str) -> None:
        """Fail where the file holds something else, or is missing."""
        if self._is_update:
            path.write_text(text)
            return
        assert path.exists(), f"{path} is missing: write it with {OPTION}"
        assert text == path.read_text(), f"{path.name} is another; if this is meant, write it with {OPTION}"
