"""`uv run python -m benchmarks.engines --wheelhouse PATH`: real packages on four nodes of a Slurm allocation, brought in three ways.

Four slurmd on this machine (tests/support/slurm.py, as root), each with a local disk; the batch scripts of `examples/slurm`; nginx,
docker-registry and sbcast bring the wheels. What the jobs print is printed, with how long each took. Exit code 1 if a way did not give the
lock's site digest on all nodes. It takes 6 GB of disk. Nothing is compared with a peer: no other program does this.

With `--whole` the committed environment (benchmarks/engines_whole.py), which takes 40 GB.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.engines_whole import committed_project, whole_way, why_not_whole
from builder.agent.store import remove_readonly_tree
from envspec.lock_toml import parse_lock
from tests.support.cache_servers import DockerRegistry, Nginx
from tests.support.engine_hosts import installed, name_cache
from tests.support.real_subset import real_interpreter, real_subset
from tests.support.slurm import Slurm, why_not

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.projects import Project

SCRIPTS = Path(__file__).parents[1].resolve() / "examples" / "slurm"
NO_INDEX = "http://127.0.0.1:1/simple"
LIMIT_S = 3600.0
WAYS = ("http", "oci", "sbcast")


def main(arguments: Sequence[str]) -> int:
    """Run it.

    Args:
        arguments: Of the command line.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=__doc__)
    parser.add_argument("--wheelhouse", type=Path, required=True, help="has the wheels of the committed lock")
    parser.add_argument("--work", type=Path, help="where files go, on the file system of the wheelhouse")
    parser.add_argument("--whole", action="store_true", help="the committed environment, and not a part of it")
    parser.add_argument("--way", choices=WAYS, action="append", help="only this one; may be given several times")
    chosen = parser.parse_args(arguments)
    reason = why_not() or (why_not_whole() if chosen.whole else "")
    if reason:
        print(reason, file=sys.stderr)
        return 2
    work = Path(tempfile.mkdtemp(prefix="envspec-engines.", dir=chosen.work))
    try:
        if chosen.whole:
            project = committed_project(work / "project", chosen.wheelhouse)
            good = [_whole(project, way, work) for way in chosen.way or WAYS]
            return 0 if all(good) else 1
        with Slurm(4) as cluster, real_subset(work / "project", chosen.wheelhouse) as project:
            good = [_way(cluster, project, way, work) for way in chosen.way or WAYS]
            return 0 if all(good) else 1
    finally:
        remove_readonly_tree(work)


def _whole(project: Project, way: str, work: Path) -> bool:
    with whole_way(way, work) as (cluster, store):
        return _way(cluster, project, way, work, store=store)


def _way(cluster: Slurm, project: Project, way: str, work: Path, *, store: Path | None = None) -> bool:
    """Build on all nodes in one way; whether each has the lock's site digest."""
    place = store or cluster.local / way
    plain = project.spec_path.read_text(encoding="utf-8")
    spec = project.spec_path.name
    try:
        if way == "http":
            with Nginx(work / "nginx", root=project.store / "wheels", takes_uploads=False) as nginx:
                name_cache(project, nginx.url)
                good = _job(cluster, project, way, place, "build.sbatch", spec)
                served = [line for line in nginx.requests() if line.startswith("GET ")]
                print(f"nginx answered {len(served)} times for {len(set(served))} wheels\n", flush=True)
                return good
        if way == "oci":
            with DockerRegistry(work / "registry") as registry:
                name_cache(project, registry.url)
                print(project.good("cache", "push", limit_s=LIMIT_S).text, flush=True)
                return _job(cluster, project, way, place, "build.sbatch", spec)
        bundle = work / "bundle.tar"
        project.good("export", "--format", "bundle", "--out", bundle, limit_s=LIMIT_S)
        print(f"the bundle has {bundle.stat().st_size / 1e9:.2f} GB\n", flush=True)
        return _job(cluster, project, way, place, "bundle.sbatch", bundle, spec)
    finally:
        project.spec_path.write_text(plain, encoding="utf-8")
        for left in ("nginx", "registry", "bundle.tar"):
            remove_readonly_tree(work / left)


def _job(cluster: Slurm, project: Project, way: str, store: Path, script: str, *arguments: str | Path) -> bool:
    """Run one batch script; whether it went well and every node reports the lock's site digest."""
    installed(project)
    python = real_interpreter().path.parent
    environ = project.environ(
        PATH=f"{python}:{project.folder / 'bin'}:/usr/bin:/bin",
        ENVSPEC_STORE=str(store),
        UV_DEFAULT_INDEX=NO_INDEX,
        TMPDIR=str(cluster.local),
        RECEIPTS=str(project.folder / way),
    )
    out = project.folder / f"{way}.out"
    started = time.monotonic()
    code = cluster.batch(
        SCRIPTS / script, *arguments, out=out, cwd=project.spec_folder, environ=environ, limit_s=LIMIT_S
    )
    text = out.read_text(encoding="utf-8")
    print(f"== {script}, {way}: exit code {code}, {time.monotonic() - started:.1f} s\n{text}", flush=True)
    for name in cluster.names:
        remove_readonly_tree(cluster.local_of(name) / way)
    lock = parse_lock(project.lock_text(), input_name=project.lock_path.name)
    sites = re.findall(r"^(\S+)  .*  site ([0-9a-f]{64})", text, re.MULTILINE)
    good = code == 0 and sorted(sites) == [(name, lock.site) for name in cluster.names]
    print(f"{way}: {'every node has the site digest of the lock' if good else 'FAILED'}\n", flush=True)
    return good


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
