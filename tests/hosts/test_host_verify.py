"""Probes on hosts: they travel with the agent, gate activation there, and leave receipts there and here."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.hosts.test_host_builds import hosts_of
from tests.support.fake_probes import PASSES, repository_with, script, write_probes

if TYPE_CHECKING:
    from tests.support.fleet import Fleet, FleetHost
    from tests.support.projects import Project

FAILS_ON_H1 = 'import platform\nsay("one", "fail" if platform.node() == "h1" else "pass", "error 0.5")\nend()'
HANGS = 'say("one")\nimport time\ntime.sleep(600)'


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository_with(tmp_path_factory.mktemp("repository"), {})


@pytest.fixture
def probed(hosted: Project, repository: Path) -> Project:
    """Two hosts; the spec names a probe that passes, and one that needs a GPU."""
    hosted.environment["PYTHONPATH"] = str(repository)
    write_probes(repository, {"good.py": script("good", PASSES), "gpu.py": script("gpu", PASSES, gpus=1)})
    text = hosted.spec_path.read_text().replace("[verify]\n", '[verify]\nkernels = ["good", "gpu"]\n')
    hosted.spec_path.write_text(text)
    hosted.declare_hosts({"h0": {}, "h1": {}})
    return hosted


def active(host: FleetHost) -> str:
    return host.ssh("readlink -f /opt/envspec/profiles/demo", check=False).stdout.strip()


def test_a_host_whose_probe_fails_keeps_what_it_has_and_the_other_goes_live(
    probed: Project, repository: Path, fleet: Fleet
) -> None:
    hosts = hosts_of(probed.good("build", "--all", "--json"))
    assert {probe["id"]: probe["result"] for probe in hosts["h0"]["probes"]} == {
        "imports": "pass",
        "good": "pass",
        "gpu": "skip",
    }
    before = {host.name: active(host) for host in fleet.hosts[:2]}
    write_probes(repository, {"good.py": script("good", FAILS_ON_H1), "gpu.py": script("gpu", PASSES, gpus=1)})
    probed.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 7")
    probed.good("lock")
    ran = probed.run("build", "--all")
    assert ran.code == 1
    assert active(fleet.hosts[0]) != before["h0"]
    assert active(fleet.hosts[1]) == before["h1"]
    assert "error: h1: the environment does not pass its probes: `good`, one: error 0.5" in ran.stderr
    command = next(line for line in ran.stderr.splitlines() if "to repeat it:" in line).partition("envspec ")[2]
    assert command.startswith("verify --host h1 --env ")
    again = probed.run(*command.split(), "--json")
    assert again.code == 1
    (run,) = hosts_of(again)["h1"]["runs"]
    assert (run["id"], run["result"]) == ("good", "fail")
    # What was built once is only proven again, and then active.
    write_probes(repository, {"good.py": script("good", PASSES), "gpu.py": script("gpu", PASSES, gpus=1)})
    hosts = hosts_of(probed.good("build", "--all", "--json"))
    assert (hosts["h1"]["built"], hosts["h1"]["activated"], hosts["h0"]["activated"]) == (False, True, False)
    assert active(fleet.hosts[1]) == active(fleet.hosts[0])


def test_no_verify_on_hosts_is_shown_by_status(probed: Project, repository: Path) -> None:
    write_probes(repository, {"good.py": script("good", FAILS_ON_H1), "gpu.py": script("gpu", PASSES, gpus=1)})
    ran = probed.good("build", "--all", "--no-verify")
    assert ran.stdout.count("not verified") == 2
    assert probed.run("build", "--all").code == 1
    text = probed.good("status", "--all").stdout
    assert "h0  verified" not in text
    assert "h1  verified no: good failed at " in text
    verification = hosts_of(probed.good("status", "--all", "--json"))["h0"]["verification"]
    assert (verification["verified"], verification["results"]["pass"]) == (True, 2)


def test_receipts_of_hosts_lie_there_and_here(probed: Project, fleet: Fleet) -> None:
    probed.good("build", "--all")
    ran = probed.good("verify", "--all", "--save", "--json")
    for name, host in hosts_of(ran).items():
        receipt = json.loads((probed.spec_folder / host["receipt"]).read_bytes())
        assert receipt["host"]["hostname"] == name
        assert host["receipt"].endswith(f"-verify-{name}.json")
        (there,) = fleet.hosts[int(name[1])].store.glob("receipts/*/*Z-verify.json")
        seen = receipt.pop("seen")
        assert receipt == json.loads(there.read_bytes())
        assert (seen["host"], seen["generation"]) == (name, 1)
        (here,) = probed.store.glob(f"receipts/*/demo@{name}.verify.json")
        assert here.read_bytes() == (probed.spec_folder / host["receipt"]).read_bytes()
    assert "h0, h1  claims" not in probed.good("verify", "--compare", "h0", "h1").stdout
    assert "TFLOP/s" in probed.good("verify", "--compare", "h0", "h1").stdout


def runs(script_name: str) -> bool:
    """Whether any process of this machine, and so of its hosts, runs a script."""
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            with contextlib.suppress(OSError):
                if f"/probes/{script_name}\0".encode() in (place / "cmdline").read_bytes():
                    return True
    return False


def test_a_controller_that_is_gone_leaves_no_probe_behind(probed: Project, repository: Path, fleet: Fleet) -> None:
    name = f"hang{os.getpid()}"
    write_probes(repository, {f"{name}.py": script(name, HANGS)})
    text = probed.spec_path.read_text()
    probed.spec_path.write_text(text.replace('kernels = ["good", "gpu"]', f'kernels = ["{name}"]'))
    probed.declare_hosts({"h0": {}})
    host = fleet.hosts[0]
    running = probed.start("build", "--host", "h0")
    try:
        while not runs(f"{name}.py"):
            assert running.poll() is None, running.communicate()
    finally:
        running.kill()
        running.communicate()
    while runs(f"{name}.py"):
        pass  # the agent ends when its input does
    assert active(host) in {"", "/opt/envspec/profiles/demo"}
    write_probes(repository, {f"{name}.py": script(name, PASSES)})
    probed.good("build", "--host", "h0")
    assert list((host.store / ".tmp").iterdir()) == []


def test_a_host_that_lies_about_its_receipt_is_found_out(probed: Project, repository: Path) -> None:
    """The agent's code is ours, but a host may run another: here one that claims what its runs do not show."""
    (repository / "builder" / "agent" / "evidence.py").write_text(
        (repository / "builder" / "agent" / "evidence.py")
        .read_text()
        .replace('"left_out": [', '"lies": (self.runs and self.runs[0].to_json()), "left_out": [')
        .replace("[run.to_json() for run in self.runs]", '[{**run.to_json(), "cases": []} for run in self.runs]')
    )
    try:
        ran = probed.run("build", "--host", "h0")
        assert ran.code == 1
        assert "the receipt of h0` is refused as a receipt" in ran.stderr
        assert "it passes, and its cases do not" in ran.stderr
    finally:
        repository_with(repository, {})
