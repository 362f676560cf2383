"""`uv run python -m benchmarks.hosts --wheelhouse PATH`: envspec on hosts beside rsync and `nix copy`, in one run on one machine.

The hosts are sshd in namespaces of this machine (tests/support/fleet.py, as root). The environment is a real subset of the committed stack with
a patched wheel (tests/support/real_subset.py). Rows:

- `second build` of a lock on a host, with a live ControlMaster;
- `overlay change`: one line of a patch, to a host that has the rest, beside `rsync -a --link-dest` and `nix copy` of the tree;
- `flagship change`: the same with the committed environment, all 179 packages and 8.1 GB of it;
- `four hosts` with links of one rate each, at once, beside one;
- `hundred hosts`: status of 100 agents on this machine without ssh.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.commands import CannotMeasure
from benchmarks.machine import describe_machine, load_average
from benchmarks.scratch import NAME, prepare
from builder.agent.store import remove_readonly_tree
from builder.uv import find_uv
from envspec.lock_toml import parse_lock
from tests.support.fleet import Fleet, run, why_not
from tests.support.real_subset import change, real_interpreter, real_subset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.projects import Project

RESULTS = Path(__file__).resolve().parent / "results"
LINK = "80mbit"
SMALL = {"triton": "==3.6.0", "numpy": "==2.3.5", "pillow": "==12.2.0"}
"""Little to compile: with four hosts on two cores, the links are to be what limits."""

NIX = "experimental-features = nix-command\nbuild-users-group =\nsandbox = false\nsubstitute = false"


def main(arguments: Sequence[str]) -> int:
    """Measure, print, write the raw output.

    Returns:
        0 if every goal is met, 1 if one is missed.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hosts", description=str(__doc__).splitlines()[0])
    parser.add_argument("--wheelhouse", type=Path, required=True, help="folder with <sha256>/<file>")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--runs-flagship", type=int, default=2, help="each copies 8 GB twice")
    parser.add_argument("--only", action="append", choices=list(ROWS), default=[])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    if why_not(network=True):
        print(why_not(network=True), file=sys.stderr)
        return 2
    rows: list[dict[str, Any]] = []
    # On the file system of the wheelhouse, so that wheels are linked and not copied.
    work = Path(tempfile.mkdtemp(prefix=".bench-", dir=given.wheelhouse.parent))
    try:
        for name, row in ROWS.items():
            if name in given.only or not given.only:
                print(f"row {name}", file=sys.stderr, flush=True)
                load = load_average()
                runs = given.runs_flagship if name == "flagship-change" else given.runs
                rows.append({"row": name, "load_before": load, **row(work / name, given.wheelhouse, runs)})
                print(json.dumps(rows[-1], indent=1), flush=True)
    finally:
        remove_readonly_tree(work)
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    out = given.out or RESULTS / f"{date}-hosts.json"
    nix = shutil.which("nix-hash")
    machine = describe_machine(
        given.wheelhouse,
        envspec=Path(sys.executable).parent / "envspec",
        python=real_interpreter().path,
        uv=find_uv(os.environ).path,
        nix_hash=None if nix is None else Path(nix),
    )
    said = {"version": 1, "date": date, "machine": machine, "rows": rows}
    out.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["met"] for row in rows) else 1


def timed(work: Callable[[], object]) -> float:
    """How long something takes, after what came before has reached the disk."""
    os.sync()
    started = time.monotonic()
    work()
    return time.monotonic() - started


def median(values: Sequence[float]) -> float:
    """Rounded to milliseconds."""
    return round(statistics.median(values), 3)


def build(project: Project, *hosts: str) -> dict[str, Any]:
    """Build on hosts; the records by name."""
    names = [word for host in hosts for word in ("--host", host)]
    return {host["host"]: host for host in project.good("build", *names, "--json").json()["hosts"]}


def active(project: Project) -> Path:
    """The environment that is active here."""
    found = project.active()
    if found is None:
        raise CannotMeasure("nothing is active")
    return found


def second_build(work: Path, wheelhouse: Path, runs: int) -> dict[str, Any]:
    """A build of what is there."""
    python = real_interpreter().path
    with (
        Fleet(1, pythons=[python.parent.parent], folder=wheelhouse.parent) as fleet,
        real_subset(work, wheelhouse) as project,
    ):
        project.environment = {"ENVSPEC_SSH_CONFIG": str(fleet.ssh_config)}
        project.declare_hosts({"h0": {"python": str(python)}})
        build(project, "h0")
        build(project, "h0")
        seconds = [timed(lambda: build(project, "h0")) for _ in range(runs)]
        trips = build(project, "h0")["h0"]["traffic"]["round_trips"]
    return {
        "seconds": seconds,
        "median_s": median(seconds),
        "round_trips": trips,
        "goal": "<= 0.5 s, <= 10 round trips",
        "met": median(seconds) <= 0.5 and trips <= 10,
    }


def overlay_change(work: Path, wheelhouse: Path, runs: int) -> dict[str, Any]:
    """One line of a patch, beside rsync and nix copy of the tree, to a host that has the version before."""
    python = real_interpreter().path
    ours: list[float] = []
    realised: list[float] = []
    imports: list[float] = []
    rsync: list[float] = []
    nix: list[float] = []
    extra: list[int] = []
    with (
        Fleet(1, pythons=[python.parent.parent], folder=wheelhouse.parent) as fleet,
        real_subset(work, wheelhouse) as project,
    ):
        project.environment = {"ENVSPEC_SSH_CONFIG": str(fleet.ssh_config)}
        project.declare_hosts({"h0": {"python": str(python)}})
        build(project, "h0")
        project.good("build", PATH=f"{python.parent}:/usr/bin:/bin")  # the same tree here, for the peers
        tree = active(project)
        peers = _Peers(fleet, work)
        peers.rsync(tree, 0)
        peers.nix(tree, 0)
        for number in range(1, runs + 1):
            change(project, work / "wheels", f"run {number}")
            project.good("lock")
            record: dict[str, Any] = {}
            ours.append(timed(lambda record=record: record.update(build(project, "h0"))))  # type: ignore[misc]
            realised.append(record["h0"]["seconds"]["realise"])
            imports.append(record["h0"]["seconds"]["imports"])
            (overlay,) = parse_lock(project.lock_text(), input_name="demo.lock").overlays
            extra.append(record["h0"]["traffic"]["sent_bytes"] - overlay.size)
            project.good("build", PATH=f"{python.parent}:/usr/bin:/bin")
            tree = active(project)
            rsync.append(timed(lambda tree=tree, number=number: peers.rsync(tree, number)))  # type: ignore[misc]
            nix.append(peers.nix(tree, number))
    # The peers copy; envspec also imports what the spec names, which is no part of copying.
    without = [value - taken for value, taken in zip(ours, imports, strict=True)]
    return {"envspec_s": ours, **_change_row(without, realised, extra, rsync, nix)}


def _change_row(
    without: Sequence[float],
    realised: Sequence[float],
    extra: Sequence[int],
    rsync: Sequence[float],
    nix: Sequence[float],
) -> dict[str, Any]:
    """The figures of a change beside its peers, judged."""
    return {
        "envspec_without_imports_s": without,
        "realise_s": realised,
        "bytes_beyond_the_wheel": extra,
        "rsync_link_dest_s": rsync,
        "nix_copy_s": nix,
        "ratio_nix": round(median(nix) / median(without), 2),
        "ratio_rsync": round(median(rsync) / median(without), 2),
        "goal": "<= wheel + 64 KiB; 5 x faster than nix copy, faster than rsync; <= 2 s + transfer; imports left out",
        "met": max(extra) <= 64 << 10
        and median(nix) >= 5 * median(without)
        and median(rsync) > median(without)
        and median(without) <= 2.0,
    }


def flagship_change(work: Path, wheelhouse: Path, runs: int) -> dict[str, Any]:
    """One comment of a patch of the committed environment. The imports are left out of the spec, as in the other benchmarks."""
    work.mkdir()
    repository = Path(__file__).resolve().parents[1]
    scratch = prepare(work, repository=repository, wheelhouse=wheelhouse)
    scratch.copy_spec(scratch.patched)
    scratch.store.ensure()
    for package in scratch.lock.packages:  # the controller has the wheels; it builds nothing for itself
        target = scratch.store.wheel(package.sha256, package.file)
        target.parent.mkdir()
        os.link(wheelhouse / package.sha256 / package.file, target)
    ours: list[float] = []
    realised: list[float] = []
    extra: list[int] = []
    rsync: list[float] = []
    nix: list[float] = []
    with Fleet(1, pythons=[scratch.python.parent.parent], folder=wheelhouse.parent) as fleet:
        scratch = replace(scratch, environ={**scratch.environ, "ENVSPEC_SSH_CONFIG": str(fleet.ssh_config)})
        spec_path = scratch.patched / f"{NAME}.toml"
        host = f'\n[hosts.h0]\nssh = "h0"\npython = "{scratch.python}"\n'
        spec_path.write_text(spec_path.read_text(encoding="utf-8") + host, encoding="utf-8")
        command = scratch.envspec("build", "--host", "h0", "--json", folder=scratch.patched)

        def deliver() -> dict[str, Any]:
            done = subprocess.run(
                command.argv, env=command.environ, cwd=command.cwd, capture_output=True, encoding="utf-8", check=False
            )
            if done.returncode != 0:
                raise CannotMeasure(done.stderr)
            (record,) = json.loads(done.stdout)["hosts"]
            return dict(record)

        def tree(record: dict[str, Any]) -> Path:
            """Where the host's environment lies for us: the peers' source."""
            return fleet.hosts[0].store / Path(record["path"]).relative_to("/opt/envspec")

        scratch.edit_patch()
        record: dict[str, Any] = {}
        first = timed(lambda: record.update(deliver()))
        sent = record["traffic"]["sent_bytes"]
        peers = _Peers(fleet, work)
        peers.rsync(tree(record), 0)
        for number in range(1, runs + 1):
            scratch.edit_patch()
            ours.append(timed(lambda: record.update(deliver())))
            realised.append(record["seconds"]["realise"])
            (overlay,) = scratch.read_lock(scratch.patched).overlays
            extra.append(record["traffic"]["sent_bytes"] - overlay.size)
            rsync.append(timed(lambda number=number: peers.rsync(tree(record), number)))  # type: ignore[misc]
        fleet.hosts[0].ssh("rm -rf /opt/rsync", timeout=600)
        for number in range(1, runs + 1):
            nix.append(peers.nix(tree(record), number))
            peers.forget_nix()
    row = _change_row(ours, realised, extra, rsync, nix)
    return {"first_delivery_s": round(first, 1), "first_delivery_bytes": sent, **row}


class _Peers:
    """rsync and nix to the same host over the same ssh."""

    def __init__(self, fleet: Fleet, work: Path) -> None:
        self.fleet = fleet
        self.root = work / "nix"
        self.environ = {
            "PATH": "/usr/bin:/bin:/usr/sbin",
            "HOME": os.fspath(work / "nix-home"),
            "NIX_CONFIG": NIX,
            "NIX_SSHOPTS": f"-F {fleet.ssh_config}",
        }
        fleet.hosts[0].ssh("mkdir -p /opt/rsync /opt/nix")

    def rsync(self, tree: Path, number: int) -> None:
        """Copy a tree beside the one before."""
        before = [f"--link-dest=/opt/rsync/{number - 1}"] if number else []
        ssh = f"ssh -F {self.fleet.ssh_config}"
        run("rsync", "-a", *before, "-e", ssh, f"{tree}/", f"h0:/opt/rsync/{number}/", timeout=600)

    def nix(self, tree: Path, number: int) -> float:
        """Copy a tree as a store path; adding it to the store here is not timed."""
        store = ("nix", "--store", self.root)
        path = self._run(*store, "store", "add-path", tree, "--name", f"tree-{number}")
        to = "ssh://h0?remote-store=/opt/nix"
        return timed(lambda: self._run(*store, "copy", "--no-check-sigs", "--to", to, path))

    def forget_nix(self) -> None:
        """Remove what nix copied, on both sides: 8 GB each."""
        for folder in (self.root, self.fleet.hosts[0].opt / "nix"):
            remove_readonly_tree(folder)
        self.fleet.hosts[0].ssh("mkdir -p /opt/nix")

    def _run(self, *argv: str | Path) -> str:
        done = subprocess.run(
            [str(each) for each in argv], env=self.environ, capture_output=True, encoding="utf-8", check=False
        )
        if done.returncode != 0:
            raise CannotMeasure(done.stderr)
        return done.stdout.strip()


def four_hosts(work: Path, wheelhouse: Path, _runs: int) -> dict[str, Any]:
    """First builds over links of one rate."""
    python = real_interpreter().path
    with (
        Fleet(5, network=True, pythons=[python.parent.parent], folder=wheelhouse.parent) as fleet,
        real_subset(work, wheelhouse, packages=SMALL, imports=["numpy", "PIL.Image", "triton"]) as project,
    ):
        project.environment = {"ENVSPEC_SSH_CONFIG": str(fleet.ssh_config)}
        project.declare_hosts({host.name: {"python": str(python)} for host in fleet.hosts})
        for host in fleet.hosts:
            host.limit(LINK)
        records: dict[str, Any] = {}
        one = timed(lambda: records.update(build(project, "h4")))
        four = timed(lambda: records.update(build(project, "h0", "h1", "h2", "h3")))
    return {
        "link": LINK,
        "bytes_each": records["h4"]["traffic"]["sent_bytes"],
        "one_s": round(one, 2),
        "four_s": round(four, 2),
        "ratio": round(four / one, 3),
        "goal": "<= 1.15 x the time of one",
        "met": four <= 1.15 * one,
    }


def hundred_hosts(work: Path, wheelhouse: Path, _runs: int) -> dict[str, Any]:
    """Status of 100 agents, each with a store of its own, without ssh."""
    with real_subset(work, wheelhouse, packages={"numpy": "==2.3.5", "pillow": "==12.2.0"}, imports=[]) as project:
        python = real_interpreter().path
        project.good("build", PATH=f"{python.parent}:/usr/bin:/bin")
        stores = work / "stores"
        stores.mkdir()
        first = stores / "0"
        shutil.move(project.store, first)
        _leave_agent(first)
        for number in range(1, 100):
            # Built, not copied or linked: a status has to read again whatever has a later change time than its own build knows of.
            store = stores / str(number)
            (store / "wheels").mkdir(parents=True)
            run("cp", "-al", *first.glob("wheels/*"), store / "wheels")
            project.good("build", "--store", store, PATH=f"{python.parent}:/usr/bin:/bin")
            run("cp", "-a", *first.glob("agents/*"), store / "agents")
        code = [sys.executable, "-m", "benchmarks.hosts", "--hundred", os.fspath(stores), os.fspath(project.spec_path)]
        started = time.monotonic()
        done = subprocess.run(code, capture_output=True, encoding="utf-8", check=False)
        seconds = time.monotonic() - started
        if done.returncode != 0:
            raise CannotMeasure(done.stderr)
        answer = json.loads(done.stdout)
    return {
        "seconds": round(seconds, 2),
        "hosts": answer["good"],
        "controller_bytes": answer["bytes"],
        "goal": "<= 10 s, <= 300 MB",
        "met": seconds <= 10 and answer["bytes"] <= 300_000_000 and answer["good"] == 100,
    }


def _leave_agent(store: Path) -> None:
    """Let an agent leave its file in a store, as it does on every host that something was built on."""
    from builder.bundle import make_bundle  # noqa: PLC0415 - as below
    from builder.session import Session  # noqa: PLC0415
    from builder.transports.local import LocalTransport  # noqa: PLC0415

    transport = LocalTransport(host="first", environ={"PATH": "/usr/bin:/bin", "HOME": os.fspath(store.parent)})
    with Session(transport, make_bundle(), store=os.fspath(store)) as session:
        session.call("gc", {"keep": 1000, "dry_run": False})


def status_of_hundred(stores: Path, spec_path: Path) -> None:
    """The controller of the row `hundred hosts`, in a process of its own."""
    from builder.bundle import make_bundle  # noqa: PLC0415 - what the command line loads
    from builder.host_verbs import status_of  # noqa: PLC0415
    from builder.hosts import Target, on_hosts  # noqa: PLC0415
    from builder.progress import SilentFleet  # noqa: PLC0415
    from builder.transports.local import LocalTransport  # noqa: PLC0415
    from envspec.cli.options import read_inputs  # noqa: PLC0415
    from envspec.spec import HostSpec  # noqa: PLC0415

    inputs = read_inputs(spec_path)
    environ = {"PATH": "/usr/bin:/bin", "HOME": os.fspath(stores)}
    targets = [
        Target(
            spec=HostSpec(name=folder.name, ssh=folder.name, store=os.fspath(folder)),
            transport=LocalTransport(host=folder.name, environ=environ),
        )
        for folder in sorted(stores.iterdir())
    ]
    work = status_of(inputs.parse_spec(), inputs.parse_lock(), deep=False)
    results = on_hosts(targets, work, bundle=make_bundle(), jobs=16, reporter=SilentFleet())
    good = sum(1 for result in results if result.value is not None and result.value.generation is not None)
    # Not ru_maxrss: that of the process before exec counts in it.
    (peak,) = re.findall(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    print(json.dumps({"good": good, "bytes": int(peak) * 1024}))


ROWS: dict[str, Callable[[Path, Path, int], dict[str, Any]]] = {
    "second-build": second_build,
    "overlay-change": overlay_change,
    "flagship-change": flagship_change,
    "four-hosts": four_hosts,
    "hundred-hosts": hundred_hosts,
}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--hundred"]:
        status_of_hundred(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        sys.exit(main(sys.argv[1:]))
