"""The command line of `hack/images/build`."""

from __future__ import annotations

import argparse
import json
import shlex
import sys

from .builders import BuildError
from .cache import exclusive
from .inputs import KINDS, REDIS
from .steps import BuiltImage, build_image, build_redis

DESCRIPTION = """Build the images of this checkout with docker, podman or buildah, and print their names and archives.
An unchanged checkout builds nothing. The base image is $PILOTHOUSE_BASE_IMAGE, or python:3.11-slim where it can be
pulled, or a Debian made by mmdebstrap; that of Redis $PILOTHOUSE_REDIS_BASE_IMAGE, redis:7.2-bookworm, or a Debian."""


def main_build() -> int:
    parser = argparse.ArgumentParser(prog="build", description=DESCRIPTION)
    names = [*(kind.name for kind in KINDS), REDIS]
    parser.add_argument("which", nargs="?", default="all", choices=[*names, "all"])
    parser.add_argument("--json", action="store_true", help="print JSON in place of shell assignments")
    arguments = parser.parse_args()
    try:
        with exclusive():
            wanted = [kind for kind in KINDS if arguments.which in (kind.name, "all")]
            images = {kind.name: build_image(kind) for kind in wanted}
            if arguments.which in (REDIS, "all"):
                images[REDIS] = build_redis()
    except BuildError as error:
        print(f"build: {error}", file=sys.stderr)
        return 1
    print(_as_json(images) if arguments.json else _as_shell(images))
    return 0


def _as_json(images: dict[str, BuiltImage]) -> str:
    return json.dumps({name: {"image": made.name, "archive": str(made.archive)} for name, made in images.items()})


def _as_shell(images: dict[str, BuiltImage]) -> str:
    lines = []
    for name, made in images.items():
        lines.append(f"PILOTHOUSE_{name.upper()}_IMAGE={shlex.quote(made.name)}")
        lines.append(f"PILOTHOUSE_{name.upper()}_ARCHIVE={shlex.quote(str(made.archive))}")
    return "\n".join(lines)
