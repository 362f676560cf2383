"""`uv run python -m benchmarks.caches --wheelhouse PATH`: builds from caches beside curl, pushes, and eight hosts beside one.

Servers are nginx on this machine. Rows:

- `build-from-cache`: the committed environment from an HTTP cache into an empty store, beside `curl` of the same files and a build from those;
- `push-unchanged`: `cache push` of the committed lock to a cache that has all of it;
- `eight-hosts`: first builds on eight hosts from a cache whose link is not limited, beside one host; each host's link and the controller's have
  one rate. sshd in namespaces (tests/support/fleet.py, as root).

Wall times need a machine with nothing else to do. The processor time of both sides is told too, and says more on one that has.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from benchmarks.commands import CannotMeasure
from benchmarks.hosts import build, median
from benchmarks.machine import describe_machine, load_average
from builder.agent.store import remove_readonly_tree
from builder.uv import find_uv
from envspec.lock_toml import parse_lock
from tests.support.cache_servers import Nginx
from tests.support.fleet import Fleet, run, why_not
from tests.support.real_subset import real_interpreter, real_subset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from envspec.lock import Lock

REPOSITORY = Path(__file__).parents[1].resolve()
RESULTS = Path(__file__).resolve().parent / "results"
HOST_LINK = "8mbit"
HOST_LINK_BYTES_A_SECOND = 1_000_000
SMALL = {"numpy": "==2.3.5", "pillow": "==12.2.0"}
"""Little to unpack and compile: with eight hosts on two cores, the links are to be what limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a run took."""

    seconds: float
    cpu_s: float
    """Of it and of every child that it waited for; not of nginx."""

    def __add__(self, other: Taken) -> Taken:
        return Taken(seconds=self.seconds + other.seconds, cpu_s=self.cpu_s + other.cpu_s)

    def to_json(self) -> dict[str, float]:
        """Rounded."""
        return {"seconds": round(self.seconds, 2), "cpu_s": round(self.cpu_s, 2)}


def main(arguments: Sequence[str]) -> int:
    """Measure, print, write the raw output.

    Returns:
        0 if every goal is met, 1 if one is missed, 2 if it cannot be measured here.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.caches", description=str(__doc__).splitlines()[0])
    parser.add_argument(
        "--wheelhouse", type=Path, required=True, help="folder with <sha256>/<file> of the committed lock"
    )
    parser.add_argument("--runs", type=int, default=5, help="of push-unchanged")
    parser.add_argument("--only", action="append", choices=list(ROWS), default=[])
    parser.add_argument("--work", type=Path, help="a folder on a disk with 14 GB of room; default: the temporary one")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    work = Path(tempfile.mkdtemp(prefix="bench-", dir=given.work))
    try:
        for name, row in ROWS.items():
            if name in given.only or not given.only:
                print(f"row {name}", file=sys.stderr, flush=True)
                load = load_average()
                rows.append(
                    {"row": name, "load_before": load, **row(work / name, given.wheelhouse.resolve(), given.runs)}
                )
                rows[-1]["load_after"] = load_average()
                print(json.dumps(rows[-1], indent=1), flush=True)
    except CannotMeasure as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        remove_readonly_tree(work)
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    machine = describe_machine(
        given.wheelhouse,
        envspec=Path(sys.executable).parent / "envspec",
        python=real_interpreter().path,
        uv=find_uv(os.environ).path,
        nix_hash=None,
    )
    said = {"version": 1, "date": date, "machine": machine, "rows": rows}
    out = given.out or RESULTS / f"{date}-caches.json"
    out.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["met"] for row in rows) else 1


def build_from_cache(work: Path, wheelhouse: Path, _runs: int) -> dict[str, Any]:
    """The committed environment, 3.7 GB of wheels, into an empty store."""
    folder = _committed(work)
    lock = _lock(folder)
    with _serving(work, wheelhouse, takes_uploads=False) as nginx:
        ours = _envspec(folder, work / "ours", ("build", "--no-verify"), cache=nginx.url)
        remove_readonly_tree(work / "ours")
        peer = work / "peer"
        config = work / "curl.cfg"
        config.write_text(
            "".join(
                f'url = "{nginx.url}/{each.sha256}/{quote(each.file)}"\noutput = "{peer}/wheels/{each.sha256}/{each.file}"\n'
                for each in lock.packages
            )
        )
        curl = _timed(
            ["curl", "-sSf", "-Z", "--parallel-max", "8", "--create-dirs", "-K", str(config)], os.environ, folder
        )
    unpacking = _envspec(folder, peer, ("build", "--no-verify"), cache="")
    remove_readonly_tree(peer)
    both = curl + unpacking
    return {
        "bytes": sum(each.size for each in lock.packages),
        "envspec": ours.to_json(),
        "curl": curl.to_json(),
        "unpacking": unpacking.to_json(),
        "ratio": round(ours.seconds / both.seconds, 3),
        "ratio_cpu": round(ours.cpu_s / both.cpu_s, 3),
        "goal": "<= 1.1 x curl + unpacking",
        "met": ours.seconds <= 1.1 * both.seconds,
    }


def push_unchanged(work: Path, wheelhouse: Path, runs: int) -> dict[str, Any]:
    """A push when nothing changed."""
    folder = _committed(work)
    root = work / "root"
    run("cp", "-al", wheelhouse, root, timeout=600)  # nothing of it is written: all is there
    with _serving(work, root, takes_uploads=True) as nginx:
        _envspec(folder, work / "store", ("cache", "push"), cache=nginx.url)
        taken = [_envspec(folder, work / "store", ("cache", "push"), cache=nginx.url) for _ in range(runs)]
        _envspec(folder, work / "store", ("cache", "check"), cache=nginx.url)
    seconds = median([each.seconds for each in taken])
    return {
        "wheels": len(_lock(folder).packages) + len(_lock(folder).overlays),
        "runs": [each.to_json() for each in taken],
        "seconds": seconds,
        "goal": "<= 1 s",
        "met": seconds <= 1,
    }


def eight_hosts(work: Path, wheelhouse: Path, _runs: int) -> dict[str, Any]:
    """First builds over links of one rate, the controller's too; the cache's has none."""
    if why_not(network=True):
        raise CannotMeasure(why_not(network=True))
    python = real_interpreter().path
    work.mkdir()
    with (
        Fleet(9, network=True, pythons=[python.parent.parent]) as fleet,
        real_subset(
            work / "project", _linked(work, wheelhouse), packages=SMALL, imports=["numpy", "PIL.Image"]
        ) as project,
        Nginx(work / "nginx", address=f"10.{fleet.net}.1") as nginx,
        _limited_controller(fleet),
    ):
        project.environment = {"ENVSPEC_SSH_CONFIG": str(fleet.ssh_config)}
        cache = f'[[caches]]\nname = "near"\nurl = "{nginx.url}"\n'
        project.spec_path.write_text(project.spec_path.read_text(encoding="utf-8") + cache, encoding="utf-8")
        project.good("cache", "push")
        project.declare_hosts({host.name: {"python": str(python)} for host in fleet.hosts})
        for host in fleet.hosts:
            host.limit(HOST_LINK)
        records: dict[str, Any] = {}
        started = time.monotonic()
        records.update(build(project, "h8"))
        one = time.monotonic() - started
        started = time.monotonic()
        records.update(build(project, *(f"h{number}" for number in range(8))))
        eight = time.monotonic() - started
        wheels = sum(path.stat().st_size for path in (project.store / "wheels").glob("*/*.whl"))
    return {
        "link": HOST_LINK,
        "wheels_bytes": wheels,
        "sent_by_controller_bytes": {name: record["traffic"]["sent_bytes"] for name, record in records.items()},
        "one_s": round(one, 2),
        "eight_s": round(eight, 2),
        "ratio": round(eight / one, 3),
        "goal": "<= 1.3 x the time of one",
        "met": eight <= 1.3 * one,
    }


def _committed(work: Path) -> Path:
    """A copy of the committed spec without what is imported and probed, on which no lock depends."""
    folder = work / "spec"
    folder.mkdir(parents=True)
    spec = (REPOSITORY / "ddtree.toml").read_text(encoding="utf-8")
    kept, skipping = [], False
    for line in spec.splitlines():
        if line.startswith("["):
            skipping = line.strip() == "[verify]"
        if not skipping:
            kept.append(line)
    (folder / "ddtree.toml").write_text("\n".join(kept) + "\n", encoding="utf-8")
    shutil.copy(REPOSITORY / "ddtree.lock", folder / "ddtree.lock")
    shutil.copytree(REPOSITORY / "overlays", folder / "overlays")
    return folder


def _lock(folder: Path) -> Lock:
    return parse_lock((folder / "ddtree.lock").read_text(encoding="utf-8"), input_name="ddtree.lock")


def _linked(work: Path, wheelhouse: Path) -> Path:
    """The wheelhouse on the file system of the work folder, where its wheels can be linked."""
    linked = work / "linked"
    run("cp", "-al", wheelhouse, linked, timeout=600)
    return linked


@contextmanager
def _serving(work: Path, root: Path, *, takes_uploads: bool) -> Iterator[Nginx]:
    if shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        raise CannotMeasure("nginx is not installed")
    with Nginx(work / "nginx", root=root, takes_uploads=takes_uploads) as nginx:
        yield nginx


@contextmanager
def _limited_controller(fleet: Fleet) -> Iterator[None]:
    """What goes to all hosts over ssh has one rate together."""
    table = f"{fleet.tag}bench"
    rate = f"limit rate over {HOST_LINK_BYTES_A_SECOND // 1000} kbytes/second burst 256 kbytes drop"
    run("nft", f"add table inet {table}")
    try:
        run("nft", f"add chain inet {table} out {{ type filter hook output priority 0 ; }}")
        run("nft", f"add rule inet {table} out ip daddr 10.{fleet.net}.0/24 tcp dport 2222 {rate}")
        yield
    finally:
        run("nft", f"delete table inet {table}")


def _envspec(folder: Path, store: Path, arguments: Sequence[str], *, cache: str) -> Taken:
    """Run a verb on the committed spec, with one cache in the configuration or none."""
    configuration = store.with_name("configuration")
    (configuration / "envspec").mkdir(parents=True, exist_ok=True)
    text = f'[[caches]]\nname = "near"\nurl = "{cache}"\n' if cache else ""
    (configuration / "envspec" / "config.toml").write_text(text, encoding="utf-8")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environ |= {"XDG_CONFIG_HOME": str(configuration), "ENVSPEC_STORE": str(store)}
    return _timed([str(Path(sys.executable).parent / "envspec"), *arguments, "--quiet"], environ, folder)


def _timed(argv: Sequence[str], environ: Mapping[str, str], folder: Path) -> Taken:
    os.sync()
    before = os.times()
    started = time.monotonic()
    done = subprocess.run(argv, env=environ, cwd=folder, capture_output=True, encoding="utf-8", check=False)
    seconds = time.monotonic() - started
    after = os.times()
    if done.returncode != 0:
        raise CannotMeasure(done.stderr[-2000:])
    cpu = after.children_user - before.children_user + after.children_system - before.children_system
    return Taken(seconds=seconds, cpu_s=cpu)


ROWS: dict[str, Callable[[Path, Path, int], dict[str, Any]]] = {
    "build-from-cache": build_from_cache,
    "push-unchanged": push_unchanged,
    "eight-hosts": eight_hosts,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
