"""`envspec build` on hosts: the same tree on each, with what each lacks, over real ssh."""

from __future__ import annotations

import platform
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from builder.bundle import make_bundle
from tests.builder.agent.test_reuse import make_venv
from tests.cli.conftest import fill
from tests.support.fleet import USER, Fleet, need_fleet, run
from tests.support.local_index import Fault
from tests.support.projects import PYTHON_MINOR, SITE_PACKAGES, Project, base_python, serve
from tests.support.pythons import pack_python

if TYPE_CHECKING:
    from collections.abc import Iterator

SLACK_BYTES = 64 << 10


def with_agent(more: int = SLACK_BYTES) -> int:
    """Bytes that a host is sent at most that gets the agent and little else."""
    return len(make_bundle().content) + more


def hosts_of(ran: Any) -> dict[str, dict[str, Any]]:
    """Name -> record of a `--json` run."""
    return {host["host"]: host for host in ran.json()["hosts"]}


def wheel_sizes(project: Project) -> dict[str, int]:
    """Name of a wheel's file -> its size, of all in the project's wheelhouse."""
    return {path.name: path.stat().st_size for path in (project.store / "wheels").glob("*/*.whl")}


def change_patch(project: Project, value: int) -> None:
    """Another patch, and so another environment."""
    project.write_patch("beta/__init__.py", "VALUE = 1", f"VALUE = {value}")
    project.good("lock")


def test_all_hosts_get_the_locked_environment(hosted: Project, fleet: Fleet) -> None:
    hosts = hosts_of(hosted.good("build", "--all", "--json"))
    assert list(hosts) == [host.name for host in fleet.hosts]
    (site,) = {host["site"] for host in hosts.values()}
    assert f'site = "{site}"' in hosted.lock_text()
    for host in fleet.hosts:
        assert hosts[host.name]["probes"] == [{"id": "imports", "result": "pass", "reason": ""}]
        assert host.ssh("/opt/envspec/profiles/demo/bin/alpha").stdout == "alpha 2\n"
        assert list((host.store / ".tmp").iterdir()) == []
        assert not (host.store / "wheels" / ".incoming").exists()


def test_nothing_lies_outside_of_the_store(hosted: Project, fleet: Fleet) -> None:
    host = fleet.hosts[0]
    before = {path for folder in (host.home, host.opt) for path in folder.iterdir()}
    hosted.good("build", "--host", "h0")
    after = {path for folder in (host.home, host.opt) for path in folder.iterdir()}
    assert after - before == {host.store}
    assert host.ssh("ls -A /tmp").stdout.count("envspec") == run("ls", "-A", "/tmp").stdout.count("envspec")


def test_second_build_sends_next_to_nothing(hosted: Project) -> None:
    hosted.good("build", "--host", "h0")
    (host,) = hosted.good("build", "--host", "h0", "--json").json()["hosts"]
    assert (host["built"], host["activated"], host["generation"]) == (False, False, 1)
    assert host["traffic"]["round_trips"] <= 10
    assert host["traffic"]["sent_bytes"] < 2000


def test_changed_patch_sends_one_wheel(hosted: Project, fleet: Fleet) -> None:
    hosted.good("build", "--host", "h0")
    before = wheel_sizes(hosted)
    change_patch(hosted, 7)
    (host,) = hosted.good("build", "--host", "h0", "--json").json()["hosts"]
    (patched,) = set(wheel_sizes(hosted)) - set(before)
    assert host["generation"] == 2
    assert host["traffic"]["sent_bytes"] <= wheel_sizes(hosted)[patched] + SLACK_BYTES
    assert fleet.hosts[0].ssh("/opt/envspec/profiles/demo/bin/alpha").stdout == "alpha 7\n"


def test_what_fails_on_one_host_touches_no_other(hosted: Project, fleet: Fleet) -> None:
    fleet.hosts[1].power_off()
    ran = hosted.run("build", "--all", "--json")
    hosts = hosts_of(ran)
    assert ran.code == 1
    assert "refuses connections" in hosts["h1"]["error"]["message"]
    assert [name for name, host in hosts.items() if host.get("built")] == ["h0", "h2", "h3"]
    fleet.hosts[1].power_on()
    hosts = hosts_of(hosted.good("build", "--all", "--json"))
    assert [host["built"] for host in hosts.values()] == [False, True, False, False]


def test_failing_import_leaves_what_was_active(hosted: Project, fleet: Fleet) -> None:
    hosted.good("build", "--host", "h0")
    hosted.write_patch("beta/__init__.py", "VALUE = 1", "raise ImportError('no driver')")
    hosted.good("lock")
    ran = hosted.run("build", "--host", "h0", "--json")
    assert ran.code == 1
    assert "no driver" in hosts_of(ran)["h0"]["error"]["message"]
    assert fleet.hosts[0].ssh("/opt/envspec/profiles/demo/bin/alpha").stdout == "alpha 2\n"


def test_groups_name_several_hosts(hosted: Project) -> None:
    hosted.declare_hosts({"h0": {"groups": ["gpu"]}, "h1": {}, "h2": {"groups": ["gpu", "lab"]}})
    assert list(hosts_of(hosted.good("build", "--group", "gpu", "--json"))) == ["h0", "h2"]
    ran = hosted.run("build", "--group", "gpus")
    assert ran.code == 2
    assert "declares no group `gpus`" in ran.stderr
    assert "did you mean `gpu`?" in ran.stderr


def test_host_that_the_spec_does_not_declare_is_refused(hosted: Project) -> None:
    ran = hosted.run("build", "--host", "h9")
    assert ran.code == 2
    assert "declares no host `h9`" in ran.stderr


def test_ordinary_user_gets_the_same_tree(hosted: Project, fleet: Fleet) -> None:
    """No root, another store, another umask, and where there is one another patch level of Python."""
    other = Path(f"/usr/bin/python{PYTHON_MINOR}")
    keys: dict[str, Any] = {"ssh": f"h0-{USER}", "store": f"/opt/home/{USER}/store"}
    if other.exists() and other.resolve() != base_python():
        keys["python"] = str(other)
    hosted.declare_hosts({"mine": keys, "default": {"ssh": f"h1-{USER}"}, "h2": {}})
    run("sh", "-c", f"echo 'umask 077' > {fleet.hosts[0].opt}/home/{USER}/.profile")
    hosts = hosts_of(hosted.good("build", "--all", "--json"))
    assert len({host["site"] for host in hosts.values()}) == 1
    assert hosts["mine"]["path"].startswith(f"/opt/home/{USER}/store/envs/")
    assert hosts["default"]["path"].startswith(f"/opt/home/{USER}/.local/share/envspec/envs/")
    if "python" in keys:
        assert hosts["mine"]["facts"]["python"]["path"] == str(other.resolve())


def test_exact_python_refuses_every_other_patch_level_before_anything_is_sent(hosted: Project, fleet: Fleet) -> None:
    other = Path(f"/usr/bin/python{PYTHON_MINOR}")
    if not other.exists() or other.resolve() == base_python():
        pytest.skip("there is one patch level of the Python here")
    text = hosted.spec_path.read_text()
    version = f'version = "{PYTHON_MINOR}"\n'
    hosted.spec_path.write_text(text.replace(version, f'{version}exact = "{platform.python_version()}"\n', 1))
    hosted.good("lock")
    hosted.declare_hosts({"h0": {"python": str(other)}, "h1": {}})
    hosts = hosts_of(hosted.run("build", "--all", "--jobs", "1", "--json"))
    (finding,) = [each for each in hosts["h0"]["findings"] if each["severity"] == "error"]
    assert finding["check"] == "host-python"
    assert f"wanted exactly {platform.python_version()}" in str(finding)
    assert not fleet.hosts[0].store.exists()
    assert hosts["h1"]["facts"]["python"]["version"] == platform.python_version()
    ran = hosted.run("build", "--all", "--jobs", "0")
    assert ran.code == 2
    assert "--jobs" in ran.stderr


def test_wheel_damaged_here_is_fetched_again(hosted: Project, fleet: Fleet) -> None:
    wheel = next((hosted.store / "wheels").glob("*/alpha-*.whl"))
    wheel.chmod(0o644)
    raw = bytearray(wheel.read_bytes())
    raw[len(raw) // 2] ^= 1
    wheel.write_bytes(raw)
    hosted.good("build", "--host", "h0")
    assert fleet.hosts[0].ssh("/opt/envspec/profiles/demo/bin/alpha").stdout == "alpha 2\n"


def test_wheel_damaged_there_is_sent_again(hosted: Project, fleet: Fleet) -> None:
    hosted.good("build", "--host", "h0")
    host = fleet.hosts[0]
    wheel = next((host.store / "wheels").glob("*/alpha-*.whl"))
    run("sh", "-c", f"chmod -R u+w {host.store}/trees {host.store}/envs {host.store}/bytecode")
    for folder in ("trees", "envs", "bytecode", "profiles", "generations", "receipts"):
        shutil.rmtree(host.store / folder)
    wheel.chmod(0o644)
    wheel.write_bytes(bytes(reversed(wheel.read_bytes())))
    hosted.good("build", "--host", "h0")
    assert host.ssh("/opt/envspec/profiles/demo/bin/alpha").stdout == "alpha 2\n"


def test_locked_wheels_are_fetched_here_for_hosts(hosted: Project, fleet: Fleet) -> None:
    """The wheelhouse of this machine is empty: what hosts lack is fetched once, and patched here."""
    shutil.rmtree(hosted.store / "wheels")
    hosted.good("build", "--host", "h0", "--host", "h1")
    assert hosted.index is not None
    fetched = [each.path for each in hosted.index.requests if each.path.endswith(".whl")]
    assert len(fetched) == len(set(fetched)) == 2
    assert fleet.hosts[1].ssh("/opt/envspec/profiles/demo/bin/alpha").stdout == "alpha 2\n"


def test_what_cannot_be_fetched_here_fails_there(hosted: Project) -> None:
    shutil.rmtree(hosted.store / "wheels")
    shutil.rmtree(hosted.wheels)
    ran = hosted.run("build", "--host", "h0")
    assert ran.code == 1
    assert "error: h0: " in ran.stderr


@pytest.fixture
def offline() -> Iterator[Fleet]:
    """Two hosts with a network of their own that leads nowhere."""
    need_fleet(network=True)
    with Fleet(2, network=True) as running:
        yield running


def test_host_without_any_network_is_built(locked: Project, offline: Fleet) -> None:
    locked.environment = {"ENVSPEC_SSH_CONFIG": str(offline.ssh_config)}
    locked.declare_hosts({"h0": {}, "h1": {}})
    host = offline.hosts[0]
    assert (
        "unreachable"
        in host.ssh("python3 -c \"import socket; socket.create_connection(('192.0.2.1', 80))\"", check=False).stderr
    )
    locked.good("build", "--all")
    assert host.ssh("/opt/envspec/profiles/demo/bin/alpha").stdout == "alpha 2\n"


def test_what_a_venv_on_the_host_has_is_not_sent(hosted: Project, fleet: Fleet) -> None:
    """`alpha` is taken from there, `beta` was edited there (and is patched here anyway), `gamma` was edited and is named."""
    noise = random.Random(1).randbytes(400_000)  # noqa: S311 - no secret
    hosted.wheel(
        "alpha",
        "2.0",
        {"alpha/__init__.py": "def main():\n    print('alpha 2.0')\n", "alpha/noise.bin": noise},
        requires=["gamma"],
        entry_points="[console_scripts]\nalpha = alpha:main\n",
    )
    hosted.wheel("gamma", "1.0", {"gamma/__init__.py": "x = 1\n"})
    hosted.write_spec({"alpha": "==2.0"}, imports=["alpha"])
    hosted.good("lock")
    hosted.declare_hosts({"h0": {"reuse": ["/opt/venv"]}, "h1": {}})
    for host in fleet.hosts[:2]:
        make_venv(hosted.folder / host.name, *hosted.wheels.glob("alpha-2.0*"), *hosted.wheels.glob("gamma*"))
        shutil.move(hosted.folder / host.name / "venv", host.opt / "venv")
        gamma = host.opt / "venv" / SITE_PACKAGES / "gamma" / "__init__.py"
        gamma.unlink()
        gamma.write_text("x = 2\n")
    try:
        ran = hosted.good("build", "--host", "h0", "--json")
        record = hosts_of(ran)["h0"]
        assert record["reused"] == ["alpha"]
        assert record["traffic"]["sent_bytes"] < with_agent()
        (finding,) = [finding for finding in record["findings"] if finding["check"] == "host-reuse"]
        assert finding["evidence"] == [f"{SITE_PACKAGES}/gamma/__init__.py"]
        assert fleet.hosts[0].ssh("/opt/envspec/profiles/demo/bin/alpha").stdout == "alpha 2.0\n"
        ran = hosted.good("build", "--host", "h1", "--reuse", "/opt/venv", "--json")
        assert hosts_of(ran)["h1"]["reused"] == ["alpha"]
        assert hosts_of(ran)["h1"]["site"] == record["site"]
        hosted.good("status", "--all", "--deep")
    finally:
        for host in fleet.hosts[:2]:
            shutil.rmtree(host.opt / "venv")


@pytest.fixture
def public(fleet: Fleet, tmp_path: Path) -> Iterator[Project]:
    """A locked project whose index asks for no credentials, and which has a wheelhouse without wheels."""
    with serve(tmp_path / "public", credentials=None) as project:
        fill(project)
        project.environment = {"ENVSPEC_SSH_CONFIG": str(fleet.ssh_config)}
        project.good("lock")
        shutil.rmtree(project.store / "wheels")
        project.declare_hosts({"h0": {"fetch": "host"}})
        assert project.index is not None
        project.index.requests.clear()
        yield project


def test_host_that_may_fetches_wheels_itself(public: Project, fleet: Fleet) -> None:
    (record,) = public.good("build", "--host", "h0", "--json").json()["hosts"]
    assert fleet.hosts[0].ssh("/opt/envspec/profiles/demo/bin/alpha").stdout == "alpha 2\n"
    # `alpha` was fetched there; `beta` is patched, and so was fetched, patched and sent from here.
    assert [path.name for path in (public.store / "wheels").glob("*/alpha-*")] == []
    assert record["traffic"]["sent_bytes"] < with_agent()
    assert not (fleet.hosts[0].store / "wheels" / ".incoming").exists()


@pytest.mark.parametrize("kind", ["status", "cut", "corrupt", "endless"])
def test_what_the_host_cannot_fetch_is_sent(
    public: Project, fleet: Fleet, kind: Literal["status", "cut", "corrupt", "endless"]
) -> None:
    assert public.index is not None
    name = next(public.wheels.glob("alpha-*")).name
    public.index.faults[name] = Fault(kind=kind, times=1, after=100)
    public.good("build", "--host", "h0")
    assert fleet.hosts[0].ssh("/opt/envspec/profiles/demo/bin/alpha").stdout == "alpha 2\n"
    # An answer without an end is cut off at the locked size, and has another digest.
    assert len(list((public.store / "wheels").glob("*/alpha-*"))) == 1


def test_credentials_of_an_index_never_reach_a_host(hosted: Project, fleet: Fleet) -> None:
    shutil.rmtree(hosted.store / "wheels")
    hosted.declare_hosts({"h0": {"fetch": "host"}})
    hosted.good("build", "--host", "h0")
    assert fleet.hosts[0].ssh("/opt/envspec/profiles/demo/bin/alpha").stdout == "alpha 2\n"
    assert len(list((hosted.store / "wheels").glob("*/alpha-*"))) == 1
    everything = run("grep", "-rl", "s3cr3t", fleet.hosts[0].store, check=False)
    assert everything.stdout == ""


def test_host_without_the_python_gets_the_pinned_one(hosted: Project, fleet: Fleet) -> None:
    version = platform.python_version()
    host = fleet.hosts[0]
    if base_python().parent == Path("/usr/bin"):
        pytest.skip("the Python of the tests is the system's: a host cannot be without it")
    sha256 = pack_python(hosted.spec_folder / "python.tar.gz")
    text = hosted.spec_path.read_text()
    wanted = f'version = "{PYTHON_MINOR}"\nexact = "{version}"\n'
    hosted.spec_path.write_text(text.replace(f'version = "{PYTHON_MINOR}"\n', wanted, 1))
    hosted.good("lock")
    hosted.declare_hosts({"h0": {}})
    host.mount("-t", "tmpfs", "tmpfs", base_python().parent)
    try:
        ran = hosted.run("build", "--host", "h0")
        assert ran.code == 1
        assert "[host-python]" in ran.stderr
        pinned = f'{wanted}archive = "python.tar.gz"\narchive-sha256 = "{sha256}"\n'
        hosted.spec_path.write_text(hosted.spec_path.read_text().replace(wanted, pinned, 1))
        (record,) = hosted.good("build", "--host", "h0", "--json").json()["hosts"]  # the lock is still that of the spec
        assert record["facts"]["python"]["path"].startswith(f"/opt/envspec/pythons/{sha256}/")
        assert host.ssh("/opt/envspec/profiles/demo/bin/alpha").stdout == "alpha 2\n"
        hosted.good("gc", "--host", "h0", "--keep", "0")
        change_patch(hosted, 7)
        (record,) = hosted.good("build", "--host", "h0", "--json").json()["hosts"]
        assert record["traffic"]["sent_bytes"] < 200_000  # the archive is there
        assert host.ssh("/opt/envspec/profiles/demo/bin/alpha").stdout == "alpha 7\n"
        hosted.spec_path.write_text(hosted.spec_path.read_text().replace(sha256, "0" * 64, 1))
        host.wipe()
        ran = hosted.run("build", "--host", "h0")
        assert ran.code == 1
        assert f"has sha256 {sha256}, the spec has 0000" in ran.stderr
    finally:
        host.power_off()
