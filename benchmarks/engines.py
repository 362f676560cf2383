"""`uv run python -m benchmarks.engines --wheelhouse PATH`: real packages on four nodes of a Slurm allocation, brought in three ways.

Four slurmd on this machine (tests/support/slurm.py, as root), each with a local disk; the batch scripts of `examples/slurm`; nginx,
docker-registry and sbcast bring the wheels. What the jobs print is printed, with how long each took. Exit code 1 if the three did not give one
site digest on all nodes. It takes 6 GB of disk. Nothing is compared with a peer: no other program does this.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from builder.agent.store import remove_readonly_tree
from tests.support.cache_servers import DockerRegistry, Nginx
from tests.support.engine_hosts import installed, name_cache
from tests.support.real_subset import real_interpreter, real_subset
from tests.support.slurm import Slurm, why_not

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.projects import Project

SCRIPTS = Path(__file__).parents[1].resolve() / "examples" / "slurm"
NO_INDEX = "http://127.0.0.1:1/simple"
LIMIT_S = 1800.0


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
    chosen = parser.parse_args(arguments)
    if why_not():
        print(why_not(), file=sys.stderr)
        return 2
    work = Path(tempfile.mkdtemp(prefix="envspec-engines.", dir=chosen.work))
    try:
        with Slurm(4) as cluster, real_subset(work / "project", chosen.wheelhouse) as project:
            return _three_ways(cluster, project, work)
    finally:
        remove_readonly_tree(work)


def _three_ways(cluster: Slurm, project: Project, work: Path) -> int:
    plain = project.spec_path.read_text(encoding="utf-8")
    sites: set[str] = set()
    with Nginx(work / "nginx", root=project.store / "wheels", takes_uploads=False) as nginx:
        name_cache(project, nginx.url)
        sites |= _job(cluster, project, "http", "build.sbatch", "demo.toml")
    project.spec_path.write_text(plain, encoding="utf-8")
    with DockerRegistry(work / "registry") as registry:
        name_cache(project, registry.url)
        print(project.good("cache", "push").text)
        sites |= _job(cluster, project, "oci", "build.sbatch", "demo.toml")
    project.spec_path.write_text(plain, encoding="utf-8")
    bundle = work / "demo.tar"
    project.good("export", "--format", "bundle", "--out", bundle)
    sites |= _job(cluster, project, "sbcast", "bundle.sbatch", bundle, "demo.toml")
    print(f"site digests: {', '.join(sorted(sites))}")
    return 0 if len(sites) == 1 else 1


def _job(cluster: Slurm, project: Project, way: str, script: str, *arguments: str | Path) -> set[str]:
    """Run one batch script; the site digests that its nodes report."""
    installed(project)
    python = real_interpreter().path.parent
    environ = project.environ(
        PATH=f"{python}:{project.folder / 'bin'}:/usr/bin:/bin",
        ENVSPEC_STORE=str(cluster.local / way),
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
        folder = cluster.local_of(name) / way
        if folder.exists():
            remove_readonly_tree(folder)
            shutil.rmtree(folder, ignore_errors=True)
    return set(re.findall(r"  site ([0-9a-f]{64})", text)) if code == 0 else {f"none: {way} failed"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
