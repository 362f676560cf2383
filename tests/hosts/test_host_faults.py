"""What networks and machines do in the middle of a build, with real sshd: the old generation works, the next build succeeds, nothing is left.

`ENVSPEC_KILL_ROUNDS` says how often hosts and controllers are killed at random instants (4 each by default; 200 for a thorough look).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.hosts.test_host_builds import change_patch, hosts_of, with_agent
from tests.support.fleet import USER, USER_ID, Fleet, FleetHost, need_fleet, run
from tests.support.projects import SITE_PACKAGES, base_python

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.projects import Project

ROUNDS = int(os.environ.get("ENVSPEC_KILL_ROUNDS", "4"))
SEED = 20261130
STORE = "/opt/envspec"
ALPHA = f"{STORE}/profiles/demo/bin/alpha"


def make_large(project: Project, *, size: int = 6_000_000) -> None:
    """Give the project a wheel that takes a while to send: bytes that do not compress."""
    noise = random.Random(SEED).randbytes(size)  # noqa: S311 - no secret
    project.wheel(
        "alpha",
        "1.1",
        {"alpha/__init__.py": "import beta\ndef main():\n    print('alpha', beta.VALUE)\n", "alpha/noise.bin": noise},
        requires=["beta>=1"],
        entry_points="[console_scripts]\nalpha = alpha:main\n",
    )
    text = project.spec_path.read_text()
    project.spec_path.write_text(text.replace('alpha = "==1.0"', 'alpha = "==1.1"'))
    project.good("lock")


def leftovers(host: FleetHost) -> list[str]:
    """What is half-made on a host."""
    found = [
        path
        for folder in (".tmp", "wheels/.incoming")
        if (host.store / folder).exists()
        for path in (host.store / folder).iterdir()
    ]
    return [str(path.relative_to(host.store)) for path in found]


def half_made(host: FleetHost) -> list[str]:
    """Environments that have a name and are not whole."""
    envs = host.store / "envs"
    return [
        path.name
        for path in (envs.iterdir() if envs.exists() else ())
        if not (path / "bin" / "python").is_symlink() or path.stat().st_mode & 0o222
    ]


def wait_until_sending(host: FleetHost, process: subprocess.Popen[str], *, at_least: int = 500_000) -> None:
    """Wait until a wheel is on its way to a host."""
    while process.poll() is None:
        for partial in (host.store / "wheels" / ".incoming").glob("*"):
            with contextlib.suppress(FileNotFoundError):
                if partial.stat().st_size >= at_least:
                    return
        time.sleep(0.002)  # nothing tells
    pytest.fail("the build ended before anything was sent: " + "".join(process.communicate()))


def wait_until_gone(host: FleetHost) -> None:
    """Wait until no agent runs on a host: it has to see that its input ended."""
    deadline = time.monotonic() + 60
    while host.processes("bytes.fromhex"):
        assert time.monotonic() < deadline, "an agent outlives its controller"
        time.sleep(0.01)  # nothing tells


@pytest.fixture
def one(hosted: Project) -> Project:
    """Built on `h0` as generation 1; another patch is locked."""
    hosted.declare_hosts({"h0": {}})
    hosted.good("build", "--host", "h0")
    change_patch(hosted, 7)
    return hosted


@pytest.fixture
def wired() -> Iterator[Fleet]:
    """Two hosts with networks that can be cut."""
    need_fleet(network=True)
    with Fleet(2, network=True) as running:
        yield running


def test_power_cuts_at_random_instants_lose_nothing(one: Project, fleet: Fleet) -> None:
    host, instants = fleet.hosts[0], random.Random(SEED)  # noqa: S311 - no secret
    for number in range(ROUNDS):
        instant = instants.uniform(0.05, 1.2)
        process = one.start("build", "--host", "h0")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(instant)
        host.power_off()
        process.communicate()
        host.power_on()
        what = f"round {number}, cut after {instant:.3f} s"
        assert half_made(host) == [], what
        assert host.ssh(ALPHA).stdout in {"alpha 2\n", "alpha 7\n"}, what
        if number % 2 == 1:
            ran = one.run("build", "--host", "h0")
            assert ran.code == 0, (what, ran.text)
            assert host.ssh(ALPHA).stdout == "alpha 7\n", what
            assert leftovers(host) == [], what
            change_patch(one, 7)
            one.good("rollback", "--host", "h0")
            one.good("gc", "--host", "h0", "--keep", "0")
    one.good("build", "--host", "h0")
    one.good("status", "--host", "h0", "--deep")


def test_killed_controllers_leave_no_lock_and_no_half(one: Project, fleet: Fleet) -> None:
    host, instants = fleet.hosts[0], random.Random(SEED + 1)  # noqa: S311 - no secret
    for number in range(ROUNDS):
        instant = instants.uniform(0.05, 1.2)
        process = one.start("build", "--host", "h0")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(instant)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        what = f"round {number}, killed after {instant:.3f} s"
        wait_until_gone(host)
        assert host.ssh(ALPHA).stdout in {"alpha 2\n", "alpha 7\n"}, what
        if number % 2 == 1:
            ran = one.run("build", "--host", "h0")
            assert ran.code == 0, (what, ran.text)
            assert leftovers(host) == [], what
            one.good("rollback", "--host", "h0")
            one.good("gc", "--host", "h0", "--keep", "0")
    one.good("build", "--host", "h0")
    assert host.ssh(ALPHA).stdout == "alpha 7\n"
    assert half_made(host) == []


def test_killed_agent_is_started_again_and_goes_on(hosted: Project, fleet: Fleet) -> None:
    host = fleet.hosts[0]
    hosted.declare_hosts({"h0": {"ssh": "h0-slow"}, "h1": {}})
    make_large(hosted, size=10_000_000)
    process = hosted.start("build", "--host", "h0", "--json")
    wait_until_sending(host, process)
    for pid in host.processes("envspec-agent") or host.processes("bytes.fromhex"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert '"connections": 2' in stdout
    assert host.ssh(ALPHA).stdout == "alpha 2\n"
    assert leftovers(host) == []


def test_interrupted_build_ends_on_the_host_too(hosted: Project, fleet: Fleet) -> None:
    host = fleet.hosts[0]
    hosted.declare_hosts({"h0": {"ssh": "h0-slow"}, "h1": {}})
    make_large(hosted, size=10_000_000)
    process = hosted.start("build", "--host", "h0", "--host", "h1")
    wait_until_sending(host, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert "interrupted" in errors
    for each in fleet.hosts[:2]:
        wait_until_gone(each)
    hosted.good("build", "--host", "h0")
    assert leftovers(host) == []


def test_half_a_wheel_is_not_sent_twice(hosted: Project, fleet: Fleet) -> None:
    host, size = fleet.hosts[0], 10_000_000
    hosted.declare_hosts({"h0": {"ssh": "h0-slow"}})
    make_large(hosted, size=size)
    process = hosted.start("build", "--host", "h0")
    wait_until_sending(host, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    wait_until_gone(host)
    (partial,) = (host.store / "wheels" / ".incoming").iterdir()
    there = partial.stat().st_size
    assert there > 0
    (record,) = hosted.good("build", "--host", "h0", "--json").json()["hosts"]
    assert record["traffic"]["sent_bytes"] < size - there + 200_000
    assert leftovers(host) == []


def test_cut_network_ends_with_an_error_and_the_next_build_goes_on(locked: Project, wired: Fleet) -> None:
    host = wired.hosts[0]
    locked.environment = {"ENVSPEC_SSH_CONFIG": str(wired.ssh_config)}
    locked.declare_hosts({"h0": {}, "h1": {}})
    make_large(locked, size=8_000_000)
    host.limit("40mbit")
    process = locked.start("build", "--all", "--json")
    wait_until_sending(host, process)
    host.cut()
    stdout, stderr = process.communicate()
    assert process.returncode == 1
    assert "h0" in stderr
    assert '"host": "h1"' in stdout
    assert wired.hosts[1].ssh(ALPHA).stdout == "alpha 2\n"
    host.mend()
    for pid in host.processes("bytes.fromhex"):  # else it takes a minute until the agent gives its controller up
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    locked.good("build", "--all")
    assert host.ssh(ALPHA).stdout == "alpha 2\n"
    assert leftovers(host) == []


def test_slow_and_lossy_network_only_takes_longer(locked: Project, wired: Fleet) -> None:
    if run("nft", "--version", check=False).returncode != 0:
        pytest.skip("no nft here")
    locked.environment = {"ENVSPEC_SSH_CONFIG": str(wired.ssh_config)}
    locked.declare_hosts({"h0": {}})
    make_large(locked, size=2_000_000)
    wired.hosts[0].limit("20mbit")
    wired.hosts[0].lose(5)
    locked.good("build", "--host", "h0")
    assert wired.hosts[0].ssh(ALPHA).stdout == "alpha 2\n"


def test_changed_host_key_is_refused(hosted: Project, fleet: Fleet) -> None:
    fleet.hang_up()
    known = fleet.base / "known_hosts"
    lines = known.read_text().splitlines()
    other = lines[1].split(" ", 1)[1]
    known.write_text("\n".join([f"{lines[0].split(' ', 1)[0]} {other}", *lines[1:]]) + "\n")
    ran = hosted.run("build", "--host", "h0", "--host", "h1", "--json")
    hosts = hosts_of(ran)
    assert ran.code == 1
    assert "host key is not the one in known_hosts" in hosts["h0"]["error"]["message"]
    assert hosts["h1"]["built"]
    assert not fleet.hosts[0].store.exists()


def test_unknown_host_key_is_refused(hosted: Project, fleet: Fleet) -> None:
    fleet.hang_up()
    (fleet.base / "known_hosts").write_text("")
    ran = hosted.run("build", "--host", "h0")
    assert ran.code == 1
    assert "host key is not in known_hosts" in ran.stderr


def test_full_disk_is_said_and_nothing_stays(hosted: Project, fleet: Fleet) -> None:
    """The wheel is small, its tree is not: the preflight cannot know."""
    host = fleet.hosts[0]
    hosted.wheel("beta", "1.0", {"beta/__init__.py": "VALUE = 1\n", "beta/zeros.bin": bytes(40_000_000)})
    hosted.lock_path.unlink()
    hosted.good("lock")
    host.store.mkdir()
    host.mount("-t", "tmpfs", "-o", "size=20m", "tmpfs", "/opt/envspec")
    ran = hosted.run("build", "--host", "h0", "--json")
    assert ran.code == 1
    assert "No space left" in str(hosts_of(ran)["h0"]["error"])
    assert host.ssh("ls -A /opt/envspec/.tmp /opt/envspec/envs").stdout.split() == [
        "/opt/envspec/.tmp:",
        "/opt/envspec/envs:",
    ]
    host.mount("-o", "remount,size=200m", "/opt/envspec")
    hosted.good("build", "--host", "h0")
    host.power_off()


@pytest.mark.parametrize(
    ("options", "check"),
    [("size=64k", "host-disk"), ("size=50m,nr_inodes=20", "host-inodes"), ("size=50m,ro", "host-store")],
)
def test_host_without_room_or_right_is_refused_before_anything_is_sent(
    hosted: Project, fleet: Fleet, options: str, check: str
) -> None:
    host = fleet.hosts[1]
    make_large(hosted, size=100_000)
    host.store.mkdir()
    host.mount("-t", "tmpfs", "-o", options, "tmpfs", "/opt/envspec")
    ran = hosted.run("build", "--host", "h1", "--json")
    record = hosts_of(ran)["h1"]
    assert ran.code == 1
    assert check in [finding["check"] for finding in record["findings"] if finding["severity"] == "error"]
    assert f"[{check}]" in ran.stderr
    assert record["traffic"]["sent_bytes"] < with_agent()
    assert host.ssh("ls -A /opt/envspec").stdout == ""
    host.power_off()


def test_two_controllers_build_on_one_host(hosted: Project, fleet: Fleet, tmp_path: Path) -> None:
    """The same environment, and another one, at once."""
    from tests.support.projects import copy_tree, serve  # noqa: PLC0415 - only here

    copy_tree(hosted.folder, tmp_path / "other")
    with serve(tmp_path / "other") as other:
        other.environment = hosted.environment
        change_patch(other, 9)
        running = [project.start("build", "--host", "h0", "--json") for project in (hosted, hosted, other, other)]
        said = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0] * 4, said
    host = fleet.hosts[0]
    assert len(list((host.store / "envs").iterdir())) == 2
    assert leftovers(host) == []
    assert host.ssh(ALPHA).stdout in {"alpha 2\n", "alpha 9\n"}


def test_login_shell_that_prints_a_banner_is_no_hindrance(hosted: Project, fleet: Fleet) -> None:
    host = fleet.hosts[2]
    try:
        (host.home / ".bashrc").write_text("echo; printf 'Welcome! {\"id\": 1}\\n\\033[2Jno end'\n")
        assert "Welcome!" in host.ssh("true").stdout
        hosted.good("build", "--host", "h2")
    finally:
        (host.home / ".bashrc").unlink()
    assert host.ssh(ALPHA).stdout == "alpha 2\n"


def test_host_without_python_is_named(hosted: Project, fleet: Fleet) -> None:
    host = fleet.hosts[3]
    for python in {*Path("/usr/bin").glob("python3*"), *Path("/usr/local/bin").glob("python3*")}:
        if not python.is_symlink():
            host.mount("--bind", "/bin/false", python)
    if base_python().parent != Path("/usr/bin"):
        host.mount("-t", "tmpfs", "tmpfs", base_python().parent)
    ran = hosted.run("build", "--host", "h3")
    assert ran.code == 1
    assert "`h3` has no CPython 3.10 or later" in ran.stderr
    host.power_off()


def test_home_on_another_file_system_plays_no_part(hosted: Project, fleet: Fleet) -> None:
    """Of root, whose store lies elsewhere, and of an ordinary user, whose store lies in it."""
    host = fleet.hosts[3]
    host.mount("-t", "tmpfs", "tmpfs", "/opt/home")
    host.enter("install", "-d", "-o", str(USER_ID), f"/opt/home/{USER}")
    hosted.declare_hosts({"h3": {}, "user": {"ssh": f"h3-{USER}"}})
    hosted.good("build", "--all")
    assert host.ssh(ALPHA).stdout == "alpha 2\n"
    hosted.good("status", "--all", "--deep")
    host.power_off()


def test_file_system_that_turns_read_only_ends_the_build_with_its_reason(hosted: Project, fleet: Fleet) -> None:
    """As ext4 does when its disk fails: in the middle, so that no preflight knows."""
    host = fleet.hosts[3]
    hosted.good("build", "--host", "h3")
    hosted.declare_hosts({"h3": {"ssh": "h3-slow"}, "h1": {}})
    make_large(hosted, size=10_000_000)
    process = hosted.start("build", "--host", "h3")
    wait_until_sending(host, process)
    host.mount("--bind", STORE, STORE)
    host.mount("-o", "remount,bind,ro", STORE)
    _, errors = process.communicate()
    assert process.returncode == 1
    assert "Read-only file system" in errors
    assert host.ssh(ALPHA).stdout == "alpha 2\n"
    host.power_off()
    host.power_on()
    hosted.good("build", "--host", "h3")
    assert leftovers(host) == []


def test_inodes_that_run_out_are_said_and_nothing_stays(hosted: Project, fleet: Fleet) -> None:
    """One wheel of many files: the preflight, which counts 500 a wheel, lets it pass."""
    host = fleet.hosts[0]
    files = {f"beta/data/{number}.txt": "" for number in range(3000)}
    hosted.wheel("beta", "1.0", {"beta/__init__.py": "VALUE = 1\n", **files})
    hosted.lock_path.unlink()
    hosted.good("lock")
    host.store.mkdir()
    host.mount("-t", "tmpfs", "-o", "size=200m,nr_inodes=2500", "tmpfs", "/opt/envspec")
    ran = hosted.run("build", "--host", "h0")
    assert ran.code == 1
    assert "No space left" in ran.stderr
    assert host.ssh("ls -A /opt/envspec/.tmp /opt/envspec/envs").stdout.split() == [
        "/opt/envspec/.tmp:",
        "/opt/envspec/envs:",
    ]
    host.mount("-o", "remount,nr_inodes=50000", "/opt/envspec")
    hosted.good("build", "--host", "h0")
    host.power_off()


def move_stamps(host: FleetHost, seconds: int) -> None:
    """Let the store's stamps be of another time, as the kernel's change times that they are made from would have been."""
    for stamp in host.store.glob("*/*.proven"):
        stamp.write_text(f"{int(stamp.read_text()) + seconds * 10**9:020}\n")
    for record in host.store.glob("receipts/*/env-*.json"):
        fields = json.loads(record.read_text())
        fields["proven"] = {name: moment + seconds * 10**9 for name, moment in fields["proven"].items()}
        record.write_text(json.dumps(fields))


def test_clock_that_is_wrong_by_a_day_is_named_and_believed_nothing(hosted: Project, fleet: Fleet) -> None:
    """On one host all processes see tomorrow, on another yesterday, then the clocks are set right.

    What their kernels would have written as change times is written here: the clock of a kernel is everybody's.
    """
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
    if library is None:
        pytest.skip("no libfaketime here: install libfaketime")
    ahead, behind = fleet.hosts[2:]
    hosted.declare_hosts({"h2": {}, "h3": {}})
    for host, days in ((ahead, "+1d"), (behind, "-1d")):
        host.power_off()
        host.write_sshd_config(LD_PRELOAD=str(library), FAKETIME=days)
        host.power_on()
    began = time.strftime("%Y-%m-%dT", time.gmtime())
    records = hosts_of(hosted.good("build", "--all", "--json"))
    ended = time.strftime("%Y-%m-%dT", time.gmtime())
    for host, word in ((ahead, "ahead of"), (behind, "behind")):
        (finding,) = [each for each in records[host.name]["findings"] if each["check"] == "host-clock"]
        assert (finding["severity"], f"{word} this machine's" in finding["message"]) == ("warning", True)
        created = json.loads(host.ssh(f"cat {STORE}/generations/demo/1.json").stdout)["created"]
        assert created.startswith((began, ended))  # the controller's time, whatever the host believes
    hosted.good("status", "--all")
    for host, seconds in ((ahead, 86_400), (behind, -86_400)):
        host.power_off()
        move_stamps(host, seconds)
        host.write_sshd_config()
        host.power_on()
    hosted.good("status", "--all")
    # The size stays, and the change time is earlier than the stamps of the clock that was ahead.
    path = f"{STORE}/profiles/demo/{SITE_PACKAGES}/alpha/data.txt"
    for host in (ahead, behind):
        upper = host.ssh(f"tr a-z A-Z < {path}").stdout
        host.ssh(f"chmod u+w {path} && printf %s '{upper}' > {path} && chmod a-w {path}")
    records = hosts_of(hosted.run("status", "--all", "--json"))
    for record in records.values():
        assert [each["path"] for each in record["drift"]] == [f"{SITE_PACKAGES}/alpha/data.txt"]
    hosted.good("build", "--all", "--repair")
    hosted.good("status", "--all", "--deep")
    change_patch(hosted, 7)
    hosted.good("build", "--all")
    assert [host.ssh(ALPHA).stdout for host in (ahead, behind)] == ["alpha 7\n"] * 2


def test_agents_of_other_versions_in_the_store_are_not_used(hosted: Project, fleet: Fleet) -> None:
    """One that is older, and one that has the right name and is not it."""
    host = fleet.hosts[0]
    hosted.good("build", "--host", "h0")
    agents = host.store / "agents"
    ours = next(path for path in agents.iterdir() if len(path.stem) == 64)
    old = agents / f"{'0' * 64}.zip"
    old.write_bytes(b"an agent of last year")
    for path in agents.iterdir():
        if path != old:
            path.chmod(0o644)
            path.write_bytes(b"not an agent")
    change_patch(hosted, 7)
    hosted.good("build", "--host", "h0")
    assert host.ssh(ALPHA).stdout == "alpha 7\n"
    assert ours.stat().st_size > 50_000
    hosted.good("gc", "--host", "h0")
    assert not old.exists()


def test_agent_of_another_version_that_answers_is_named_with_both(hosted: Project, fleet: Fleet) -> None:
    """A host whose sshd always starts an agent of its own, and prints a banner of its own."""
    host = fleet.hosts[2]
    host.power_off()
    (host.root / "etc" / "banner").write_text("Authorised use only.\n")
    hello = '{"hello":{"protocol":0,"agent":"%064d","store":"/opt/envspec"}}'
    command = f"printf '\\n{hello}\\n' 0; cat >/dev/null"
    host.write_sshd_config(more=f"Banner {host.root}/etc/banner\nForceCommand {command}\n")
    host.power_on()
    ran = hosted.run("build", "--host", "h2", "--host", "h0", "--json")
    hosts = hosts_of(ran)
    assert ran.code == 1
    assert "runs the agent 0000000000000000 with protocol 0, this envspec has" in hosts["h2"]["error"]["message"]
    assert hosts["h0"]["built"]
    host.power_off()
    host.write_sshd_config(more=f"Banner {host.root}/etc/banner\n")
    host.power_on()
    hosted.good("build", "--host", "h2")
    host.power_off()
