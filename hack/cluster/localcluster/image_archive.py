"""Archives of images: the pause container's, written straight from its one binary, and what other archives hold."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

from .state import ClusterError

PAUSE_IMAGE = "localhost/pilothouse-pause:dev"


def write_pause_image(binary: Path, archive: Path) -> None:
    """Write a docker archive with the binary as /pause."""
    layer = _tar({"pause": binary.read_bytes()}, mode=0o755)
    config = {
        "architecture": _architecture(),
        "os": "linux",
        "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [PAUSE_IMAGE], "Layers": ["layer.tar"]}]
    files = {
        "layer.tar": layer,
        "config.json": json.dumps(config).encode(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    archive.write_bytes(_tar(files, mode=0o644))


def images_in(archive: Path) -> dict[str, str]:
    """Tag → id of the images in a docker archive; nothing of an OCI archive, which names its images otherwise."""
    try:
        with tarfile.open(archive) as tar:
            if "manifest.json" not in tar.getnames():
                return {}
            file = tar.extractfile("manifest.json")
            assert file is not None, "manifest.json is a file"
            entries = json.load(file)
    except (OSError, tarfile.TarError) as error:
        raise ClusterError(f"cannot read the image archive {archive}: {error}") from error
    ids = {
        tag: Path(entry["Config"]).name.removesuffix(".json") for entry in entries for tag in entry["RepoTags"] or ()
    }
    return {tag: f"sha256:{digest}" for tag, digest in ids.items()}


def _tar(files: dict[str, bytes], mode: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = mode
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
