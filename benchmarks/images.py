"""`uv run python -m benchmarks.images --wheelhouse PATH --tree PATH`: the image of the committed environment, beside tar and gzip of its tree.

The wheels are there, and measured by `lock`. Rows:

- `image`: `envspec export --format oci --no-bytecode` into an empty folder, beside `tar | gzip` (levels 6 and 1) of the tree without bytecode;
- `image, bytecode`: the same with bytecode, into the layout that has the first;
- `image again`: when nothing changed;
- `image, other patch`: after one comment of a patch changed;
- `push`: bytes that `skopeo copy` sends to docker-registry for the first image, and for that with the other patch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.commands import Command, Usage, run
from benchmarks.machine import describe_machine, load_average
from benchmarks.scratch import prepare, remove_work
from builder.uv import find_uv
from tests.support.image_registry import Registry
from tests.support.real_subset import real_interpreter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.scratch import Scratch

RESULTS = Path(__file__).resolve().parent / "results"
REPOSITORY = Path(__file__).resolve().parents[1]
TAR = "tar --sort=name --mtime=@0 --owner=0 --group=0 --exclude=__pycache__ -C TREE -c ."
SLACK_BYTES = 1 << 20
"""Configuration, manifest, last layer and what HTTP adds."""


def main(arguments: Sequence[str]) -> int:
    """Measure, print, write the raw output.

    Returns:
        0 if every goal is met, 1 if one is missed.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.images", description=str(__doc__).splitlines()[0])
    parser.add_argument("--wheelhouse", type=Path, required=True, help="folder with <sha256>/<file>")
    parser.add_argument("--tree", type=Path, required=True, help="the committed environment, built: <store>/envs/...")
    parser.add_argument("--work", type=Path, help="folder for 12 GB; on the file system of the wheelhouse by default")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    work = Path(tempfile.mkdtemp(prefix=".bench-", dir=given.work or given.wheelhouse.parent))
    try:
        scratch = prepare(work, repository=REPOSITORY, wheelhouse=given.wheelhouse)
        scratch.copy_spec(scratch.patched)
        scratch.edit_patch()
        rows = _rows(scratch, work, given.tree)
    finally:
        remove_work(work)
    print(json.dumps(rows, indent=1))
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    machine = describe_machine(
        given.wheelhouse,
        envspec=Path(sys.executable).parent / "envspec",
        python=real_interpreter().path,
        uv=find_uv(os.environ).path,
        nix_hash=None,
    )
    out = given.out or RESULTS / f"{date}-images.json"
    out.write_text(json.dumps({"version": 1, "date": date, "machine": machine, "rows": rows}, indent=1) + "\n", "utf-8")
    return 0 if all(row["met"] for row in rows) else 1


def _rows(scratch: Scratch, work: Path, tree: Path) -> list[dict[str, Any]]:
    out, load = work / "out", load_average()
    export = scratch.envspec("export", "--format", "oci", "--out", str(out), "--tag", "first", folder=scratch.patched)
    plain = scratch.envspec(
        *("export", "--format", "oci", "--out", str(out), "--tag", "plain", "--no-bytecode"), folder=scratch.patched
    )
    other = scratch.envspec("export", "--format", "oci", "--out", str(out), "--tag", "other", folder=scratch.patched)
    first = _timed(plain)
    rows = [_row("image", first, load, bytes=_size(out))]
    for level in ("6", "1"):
        load, peer = load_average(), _timed(_piped(tree, work / "peer.tar.gz", level, scratch.environ, work))
        rows[0][f"tar_gzip_{level}"] = {**_figures(peer), "bytes": _size(work / "peer.tar.gz"), "load_before": load}
        (work / "peer.tar.gz").unlink()
    rows[0]["met"] = first.seconds < rows[0]["tar_gzip_1"]["seconds"]
    before, load = _size(out), load_average()
    compiled = _timed(export)
    rows.append({**_row("image, bytecode", compiled, load, more_bytes=_size(out) - before), "met": True})
    rows.append({**_row("image again", _timed(export), load_average()), "met": True})
    before = _size(out)
    scratch.edit_patch()
    rows.append(
        {**_row("image, other patch", _timed(other), load_average(), more_bytes=_size(out) - before), "met": True}
    )
    with Registry(work / "registry") as registry:
        sent = registry.push(out, "first")
        more = registry.push(out, "other")
        agrees = registry.digest("other")
    changed = _size(out) - before
    rows.append(
        {
            "row": "push",
            "first_bytes": sent,
            "other_patch_bytes": more,
            "new_in_the_layout_bytes": changed,
            "digest": agrees,
        }
    )
    rows[-1]["met"] = more <= changed + SLACK_BYTES
    return rows


def _timed(command: Command) -> Usage:
    os.sync()
    return run(command)


def _row(name: str, usage: Usage, load: Sequence[float], **more: object) -> dict[str, Any]:
    return {"row": name, **_figures(usage), "load_before": load, **more}


def _figures(usage: Usage) -> dict[str, Any]:
    peak = round(usage.largest_process_bytes / 1e6)
    seconds = {
        "seconds": round(usage.seconds, 2),
        "user_s": round(usage.user_s, 2),
        "system_s": round(usage.system_s, 2),
    }
    return {**seconds, "largest_process_mb": peak}


def _piped(tree: Path, target: Path, level: str, environ: Mapping[str, str], work: Path) -> Command:
    words = TAR.replace("TREE", '"$1"') + f' | gzip -n -{level} > "$2"'
    argv = ("/bin/sh", "-c", words, "sh", str(tree), str(target))
    return Command(shown=f"{TAR} | gzip -n -{level}", argv=argv, environ=environ, cwd=work)


def _size(path: Path) -> int:
    return sum(each.stat().st_size for each in [path, *path.rglob("*")] if each.is_file())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
