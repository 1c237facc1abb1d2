"""`python -m pilothouse_runner`: one attempt of one run.

Before anything else is imported, libraries are told to leave out what a runner never uses: what is not there is not
imported, and each of them can do without. Measured: 45 modules; a start loads 330 in all.
"""

import gc
import os
import signal
import sys
from types import ModuleType
from typing import Any

# Process 1 of a container does not hear a signal that it has no handler for: one that came while modules load was lost.
_asked: list[int] = []
signal.signal(signal.SIGTERM, lambda number, frame: _asked.append(number))

# Runs with LiteLLM or MCP servers load pydantic, which would look through all packages for plugins.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
# httpx looks for its own command line (click, rich, pygments), httpcore for HTTP/2 and for other event loops.
for _absent in ("httpx._main", "h2", "sniffio"):
    sys.modules.setdefault(_absent, None)  # type: ignore[arg-type]


def _find_authorities() -> str:
    import certifi

    return certifi.where()


# The public authorities are asked for by whoever first verifies a server by them: many runs never do, and the way to
# their file loads importlib.resources, tempfile, shutil, random and four compressors.
_certifi = ModuleType("certifi")
_certifi.where = _find_authorities  # type: ignore[attr-defined]
_IS_STAND_IN = sys.modules.setdefault("certifi", _certifi) is _certifi


def _describe(*arguments: Any, **options: Any) -> Any:
    from msgspec import _json_schema

    return _json_schema.schema(*arguments, **options)


def _describe_all(*arguments: Any, **options: Any) -> Any:
    from msgspec import _json_schema

    return _json_schema.schema_components(*arguments, **options)


# msgspec loads all that it can do. A runner needs its Structs and JSON: no other forms of text, and no JSON schemas.
_schemas = ModuleType("msgspec._json_schema")
_schemas.schema, _schemas.schema_components = _describe, _describe_all  # type: ignore[attr-defined]
_unused = [_schemas, *(ModuleType(f"msgspec.{name}") for name in ("inspect", "toml", "yaml"))]
_stood_in = [module for module in _unused if sys.modules.setdefault(module.__name__, module) is module]

# Modules are no garbage: looking for some while they load is an eighth of a start, and freezing spares later looks.
gc.disable()
from pilothouse_runner.process import main  # noqa: E402

if _IS_STAND_IN:
    del sys.modules["certifi"]
for _module in _stood_in:  # who imports one of them later gets the real one
    _package, _, _name = _module.__name__.partition(".")
    del sys.modules[_module.__name__]
    if hasattr(sys.modules[_package], _name):
        delattr(sys.modules[_package], _name)
gc.freeze()
gc.enable()

if __name__ == "__main__":
    main(_asked)
