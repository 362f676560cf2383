"""envspec inside a real Slurm allocation of four nodes."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING

import pytest

from envspec.node_lists import expand_nodes
from tests.support.cache_servers import DockerRegistry, Nginx
from tests.support.engine_hosts import installed, name_cache
from tests.support.projects import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.projects import Project
    from tests.support.slurm import Slurm

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("slurm")]

ON_EVERY_NODE = ("srun", "-N4", "--ntasks-per-node=1")
EXAMPLES = REPOSITORY / "examples" / "slurm"
ENVSPEC = (sys.executable, "-m", "envspec")


def test_every_node_builds_on_its_own_disk_and_status_gathers_them(locked: Project, cluster: Slurm) -> None:
    shared = locked.folder / "receipts of nodes"
    environ = locked.environ(ENVSPEC_STORE=str(cluster.local / "store"))
    argv = (*ON_EVERY_NODE, *ENVSPEC, "build", "--line", "--receipts", str(shared))
    done = cluster.run(*argv, cwd=locked.spec_folder, environ=environ)
    lines = sorted(done.stdout.splitlines())
    assert [line.split()[0] for line in lines] == cluster.names
    assert all("  built  generation 1  env " in line for line in lines), lines
    (site,) = {line.partition("  site ")[2].split()[0] for line in lines}
    assert f'site = "{site}"' in locked.lock_text()
    assert all((cluster.local_of(name) / "store" / "profiles" / "demo").is_symlink() for name in cluster.names)

    status = locked.good("status", "--receipts", shared, "--inventory", "slurm:node[00-03]", "--json")
    hosts = status.json()["hosts"]
    assert [host["host"] for host in hosts] == cluster.names
    assert {(host["site"], host["generation"], host["drift"], host["verified"]) for host in hosts} == {
        (site, 1, None, True)
    }
    assert site[:16] in locked.good("status", "--receipts", shared).stdout

    again = cluster.run(*argv, "--json", cwd=locked.spec_folder, environ=environ)
    records = [json.loads(line)["hosts"][0] for line in again.stdout.splitlines()]
    assert sorted(record["host"] for record in records) == cluster.names
    assert not any(record["built"] or record["activated"] for record in records)

    absent = locked.run("status", "--receipts", shared, "--inventory", "slurm:node[00-04]")
    assert absent.code == 1
    assert "node04  no receipt" in absent.stdout


def test_nodes_that_share_a_store_make_an_environment_once(locked: Project, cluster: Slurm) -> None:
    """Names, process ids and mounts are the nodes' own; the folder and its locks are common."""
    shared = locked.folder / "receipts"
    argv = (*ON_EVERY_NODE, *ENVSPEC, "build", "--line", "--json", "--receipts", str(shared))
    done = cluster.run(*argv, cwd=locked.spec_folder, environ=locked.environ())
    records = [json.loads(line)["hosts"][0] for line in done.stdout.splitlines()]
    assert sorted(record["host"] for record in records) == cluster.names
    assert sum(record["built"] for record in records) == 1
    assert {(record["site"], record["generation"]) for record in records} == {(records[0]["site"], 1)}
    assert locked.leftovers() == []
    assert list(locked.store.rglob(".envspec-*")) == []
    locked.good("status")

    # A node that finds it active takes what another one has proven, and that is said; `verify` proves it on each.
    cluster.run(*argv, cwd=locked.spec_folder, environ=locked.environ())
    hosts = locked.good("status", "--receipts", shared, "--json").json()["hosts"]
    assert [host["host"] for host in hosts] == cluster.names
    (prover,) = {host["proven_on"] for host in hosts}
    rows = locked.good("status", "--receipts", shared).stdout.splitlines()[1:]
    assert [f"passed on {prover}  " in row for row in rows] == [name != prover for name in cluster.names]
    verify = (*ON_EVERY_NODE, *ENVSPEC, "verify", "--line", "--receipts", str(shared))
    cluster.run(*verify, cwd=locked.spec_folder, environ=locked.environ())
    assert "passed on" not in locked.good("status", "--receipts", shared).stdout


def test_failing_node_is_named_on_every_line_and_srun_fails(locked: Project, cluster: Slurm) -> None:
    """One node has no Python of the environment; the others are built."""
    shared = locked.folder / "receipts"
    script = 'if [ "$SLURMD_NODENAME" = node02 ]; then export ENVSPEC_STORE=/proc/none; fi; exec "$@"'
    argv = (*ON_EVERY_NODE, "sh", "-c", script, "sh", *ENVSPEC, "build", "--line", "--receipts", str(shared))
    environ = locked.environ(ENVSPEC_STORE=str(cluster.local / "failing"))
    done = cluster.run(*argv, cwd=locked.spec_folder, environ=environ, check=False)
    assert done.returncode == 2
    assert sorted(line.split()[0] for line in done.stdout.splitlines()) == ["node00", "node01", "node03"]
    said = [line for line in done.stderr.splitlines() if not line.startswith("srun: ")]
    assert said
    assert all(line.startswith("node02: ") for line in said), done.stderr
    status = locked.run("status", "--receipts", shared, "--inventory", "slurm:node[00-03]")
    assert status.code == 1
    assert "node02  no receipt" in status.stdout


def test_node_of_an_allocation_is_told_by_slurm(locked: Project, cluster: Slurm) -> None:
    """`slurm:` alone is the allocation that it runs in."""
    argv = ("srun", "-N1", "-w", "node01", *ENVSPEC, "status", "--receipts", "/none", "--inventory", "slurm:")
    done = cluster.run(*argv, cwd=locked.spec_folder, environ=locked.environ(), check=False)
    assert "there is no folder `/none`" in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a,b",
        "n[1-3]",
        "n[001-010]",
        "n[9-11]",
        "n[1,3,5-7],login",
        "a[1-2]b[3-4]",
        "n[08-10],n9",
        "r0n[0-1],r1n[0,2]",
    ],
)
def test_lists_mean_what_scontrol_says(cluster: Slurm, text: str) -> None:
    said = cluster.run("scontrol", "show", "hostnames", text).stdout.split()
    assert list(expand_nodes(text)) == said


def batch(project: Project, cluster: Slurm, script: str, *arguments: str | Path, store: str) -> str:
    """Run a batch script of the examples to its end; no index can be reached from it."""
    installed(project)
    environ = project.environ(
        ENVSPEC_STORE=str(cluster.local / store),
        UV_DEFAULT_INDEX="http://127.0.0.1:1/simple",
        TMPDIR=str(cluster.local),
        RECEIPTS=str(project.folder / store),
        UV=None,
    )
    out = project.folder / "out"
    code = cluster.batch(EXAMPLES / script, *arguments, out=out, cwd=project.spec_folder, environ=environ)
    assert code == 0, out.read_text()
    return out.read_text()


def check_table(project: Project, said: str, names: list[str]) -> None:
    """Every node has built, and the table that ends the job shows one site digest, the lock's."""
    (site,) = re.findall(r'^site = "([0-9a-f]{64})"$', project.lock_text(), re.MULTILINE)
    built = [line for line in said.splitlines() if "  built  generation 1  " in line]
    assert sorted(line.split()[0] for line in built) == names, said
    rows = [line.split() for line in said.splitlines() if line.split()[2:3] == [site[:16]]]
    assert [row[0] for row in rows] == names, said


def test_batch_script_builds_every_node_from_an_http_cache(locked: Project, cluster: Slurm, tmp_path: Path) -> None:
    with Nginx(tmp_path / "nginx", root=locked.store / "wheels", takes_uploads=False) as nginx:
        name_cache(locked, nginx.url)
        check_table(locked, batch(locked, cluster, "build.sbatch", "demo.toml", store="http"), cluster.names)
        assert sum(line.startswith("GET /") for line in nginx.requests()) >= len(cluster.names)


def test_batch_script_builds_every_node_from_a_registry(locked: Project, cluster: Slurm, tmp_path: Path) -> None:
    with DockerRegistry(tmp_path / "registry") as registry:
        name_cache(locked, f"oci://{registry.authority}/envs/demo")
        locked.good("cache", "push")
        check_table(locked, batch(locked, cluster, "build.sbatch", "demo.toml", store="oci"), cluster.names)


def test_batch_scripts_build_every_node_from_a_bundle_by_sbcast_and_run_a_job(locked: Project, cluster: Slurm) -> None:
    bundle = locked.folder / "demo.tar"
    locked.good("export", "--format", "bundle", "--out", bundle)
    said = batch(locked, cluster, "bundle.sbatch", bundle, "demo.toml", store="sbcast")
    check_table(locked, said, cluster.names)
    assert [path for name in cluster.names for path in cluster.local_of(name).glob("envspec-bundle-*")] == []

    said = batch(locked, cluster, "serve.sbatch", "demo.toml", "alpha", "one two", store="sbcast")
    assert said.count("  as it was  ") == 4, said
    assert said.count("alpha 2 one two\n") == 4, said
