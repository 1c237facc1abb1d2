"""The image builders: docker, podman and buildah, which agree on everything but four command lines."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


class BuildError(Exception):
    """A failure that a person can act on; its text says how."""


@dataclass(frozen=True)
class Builder:
    program: Sequence[str]
    build_verb: str = "build"
    has_image: Sequence[str] = ("image", "inspect")
    environment: Mapping[str, str] = field(default_factory=dict)

    def has(self, image: str) -> bool:
        return self._call(*self.has_image, image).returncode == 0

    def pull(self, image: str) -> bool:
        return self._call("pull", image).returncode == 0

    def build(self, image: str, containerfile: Path, context: Path, **arguments: str) -> None:
        """Build an image from a Containerfile, the files beside which lie in the context folder."""
        options = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
        words = [self.build_verb, "--tag", image, "--file", str(containerfile), *options, str(context)]
        self._must(*words)

    def save(self, image: str, archive: Path) -> None:
        """Write the image as a docker archive, which containerd, docker, podman and kind all read."""
        words = ["save", "--output", str(archive), image]
        if self.build_verb == "bud":
            words = ["push", "--quiet", image, f"docker-archive:{archive}:{image}"]
        elif self.program[0] == "podman":
            words = ["save", "--format", "docker-archive", "--output", str(archive), image]
        self._must(*words)

    def remove(self, image: str) -> None:
        self._call("rmi", image)

    def _must(self, *words: str) -> None:
        done = self._call(*words)
        if done.returncode != 0:
            raise BuildError(f"{self.program[0]} {words[0]} failed:\n{done.stdout}")

    def _call(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **self.environment}
        words = (*self.program, *words)
        output, also = subprocess.PIPE, subprocess.STDOUT
        return subprocess.run(words, stdout=output, stderr=also, env=environment, text=True, check=False)


def find_builder(cache: Path) -> Builder:
    """The first builder that works here. A docker client without its daemon does not."""
    for program in ("docker", "podman"):
        if shutil.which(program) and _works([program, "info"]):
            return Builder([program])
    if shutil.which("buildah") is None:
        raise BuildError("no image builder: want docker, podman or buildah (hack/cluster/install-deps installs one)")
    storage = cache / "storage"
    storage.mkdir(parents=True, exist_ok=True)
    buildah = ["buildah", f"--root={storage}/root", f"--runroot={storage}/run"]
    for driver in ("overlay", "vfs"):  # an overlay cannot be made on top of another one, as within a container
        whole = [*buildah, f"--storage-driver={driver}"]
        if _works([*whole, "images"]):
            # Without namespaces of its own a build works in any sandbox; our Containerfiles need no isolation.
            return Builder(whole, "bud", ("inspect", "--type", "image"), {"BUILDAH_ISOLATION": "chroot"})
    raise BuildError(f"buildah can store images in {storage} neither as overlay nor as plain copies (vfs)")


def _works(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
