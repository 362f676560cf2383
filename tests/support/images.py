"""Exported images as others see them: umoci unpacks, a naive walk gives the site digest, a namespace runs what is in them.

root = unpacked("out", "demo", tmp_path / "image")
assert site_of(root) == lock.site
run_inside(root, ["python", "-c", "import alpha"])
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from envspec.tree import Entry, is_host_path, manifest, tree_digest
from tests.support.projects import base_python

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

ENVIRONMENT = "opt/envspec/environment"
LIMIT_S = 600.0

_INIT = """
set -e
root=$1; python=$2; more=$3; shift 3
mount --make-rprivate /
for name in usr bin lib lib64 etc dev; do
    [ -e "/$name" ] || continue
    mkdir -p "$root/$name"
    mount --rbind "/$name" "$root/$name"
done
mkdir -p "$root/proc" "$root/tmp" "$root/more" "$root$python"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
mount --bind "$python" "$root$python"
mount --bind "$more" "$root/more"
exec chroot "$root" "$@"
"""


def need(*programs: str) -> None:
    """Skip a test where a program is missing that it is about."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


def command(*words: str | Path, environ: Mapping[str, str] | None = None) -> str:
    """Run a program, which has to succeed; what it says on stdout."""
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, check=False, timeout=LIMIT_S, env=environ
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def unpacked(layout: Path, tag: str, folder: Path) -> Path:
    """The root of an image, as umoci unpacks it."""
    need("umoci")
    command("umoci", "unpack", "--rootless", "--image", f"{layout}:{tag}", folder)
    return folder / "rootfs"


def site_of(root: Path) -> str:
    """The site digest of the environment in an image, measured file by file."""
    environment = root / ENVIRONMENT
    entries = []
    for path in environment.rglob("*"):
        place = path.relative_to(environment).as_posix()
        if is_host_path(place) or (path.is_dir() and not path.is_symlink()):
            continue
        if path.is_symlink():
            entries.append(Entry(place, "link", target=os.fspath(path.readlink())))
            continue
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        status = path.stat()
        entries.append(Entry(place, "file", sha256, status.st_size, bool(status.st_mode & 0o100)))
    return tree_digest(manifest(entries))


def run_inside(
    root: Path,
    argv: Sequence[str],
    *,
    variables: Mapping[str, str],
    python: Path | None = None,
    more: Path | None = None,
) -> str:
    """Run a program of an image in a namespace of its own, with this machine's system below it.

    Args:
        root: The unpacked image.
        argv: What to run.
        variables: Of the image's configuration.
        python: Prefix of the Python that the image names; that of the tests if None.
        more: A folder that it sees as `/more`.
    """
    prefix = python or base_python().parent.parent
    words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _INIT, "sh"]
    return command(*words, root, prefix, more or root, *argv, environ={"HOME": "/tmp", **variables})


def document(layout: Path, digest: str) -> dict[str, Any]:
    """A JSON document of a layout, by its digest."""
    value = json.loads((layout / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_bytes())
    assert isinstance(value, dict)
    return value


def image_of(layout: Path, tag: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Manifest and configuration of an image."""
    index = json.loads((layout / "index.json").read_bytes())
    (entry,) = [each for each in index["manifests"] if each["annotations"]["org.opencontainers.image.ref.name"] == tag]
    manifest_ = document(layout, entry["digest"])
    return manifest_, document(layout, manifest_["config"]["digest"])


def variables_of(config: Mapping[str, Any]) -> dict[str, str]:
    """The variables that a container gets."""
    return dict(word.split("=", 1) for word in config["config"]["Env"])
