"""`python -m pilothouse_runner`: one attempt of one run.

Before anything else is imported, two libraries are told to leave out what a runner never uses; measured, it is a
quarter of the modules that a start loads.
"""

import os
import sys

# pydantic looks for plugins of other packages: importlib.metadata, zipfile, csv and what they load.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
# httpx looks for its own command line: click, rich, pygments, where somebody has installed them.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

from pilothouse_runner.process import main  # noqa: E402

if __name__ == "__main__":
    main()
