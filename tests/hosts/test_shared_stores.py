"""One store for several ordinary users of a group: what each may do, what is kept from him, and what others may read."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from tests.hosts.test_host_builds import change_patch, hosts_of
from tests.support.fleet import GROUP_ID, GUEST, MATE, USER, USERS, run
from tests.support.projects import REPOSITORY, SITE_PACKAGES, base_python

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fleet import Fleet, FleetHost
    from tests.support.projects import Project

STORE = "/opt/shared"
ALPHA = f"{STORE}/profiles/demo/bin/alpha"


def as_user(host: FleetHost, user: str, command: str, *, check: bool = True) -> str:
    """Run a command on a host as an ordinary user, over ssh; what it printed."""
    done = run("ssh", "-F", host.fleet.ssh_config, f"{host.name}-{user}", command, check=check)
    return done.stdout + done.stderr


@pytest.fixture
def shared(hosted: Project, fleet: Fleet) -> Project:
    """A project whose hosts are three users of one machine; the first two are of the group that the store belongs to."""
    host = fleet.hosts[0]
    folder = host.opt / "shared"
    folder.mkdir()
    os.chown(folder, 0, GROUP_ID)
    folder.chmod(0o2775)
    for user, umask in ((USER, "077"), (MATE, "002")):
        (host.opt / "home" / user / ".profile").write_text(f"umask {umask}\n")
    hosted.declare_hosts({user: {"ssh": f"h0-{user}", "store": STORE} for user in USERS})
    return hosted


def owners(folder: Path) -> set[int]:
    """Whose the files of a tree are."""
    return {path.lstat().st_uid for path in folder.rglob("*")}


def test_members_of_a_group_build_into_one_store_and_others_read_it(shared: Project, fleet: Fleet) -> None:
    host = fleet.hosts[0]
    first = hosts_of(shared.good("build", "--host", USER, "--json"))[USER]
    assert (first["built"], first["path"].rpartition("/")[0]) == (True, f"{STORE}/envs")
    again = hosts_of(shared.good("build", "--host", MATE, "--json"))[MATE]
    assert (again["built"], again["generation"]) == (False, 1)
    change_patch(shared, 7)
    second = hosts_of(shared.good("build", "--host", MATE, "--json"))[MATE]
    assert second["traffic"]["sent_bytes"] < 200_000  # what is in the wheelhouse is not sent again
    assert as_user(host, GUEST, ALPHA) == "alpha 7\n"
    shared.good("status", "--all", "--deep")
    # No user's environment has a file that another one could change.
    envs = {path.name: path for path in (host.opt / "shared" / "envs").iterdir()}
    assert owners(envs[f"{first['env']}-demo"]) == {USERS[USER]}
    assert owners(envs[f"{second['env']}-demo"]) == {USERS[MATE]}
    for path in (host.opt / "shared").rglob("*"):
        status = path.lstat()
        assert path.is_symlink() or not status.st_mode & 0o002, path
        assert status.st_gid == GROUP_ID, path
    shared.good("rollback", "--host", USER)
    assert as_user(host, MATE, ALPHA) == "alpha 2\n"
    ran = shared.run("build", "--host", GUEST, "--json")
    (finding,) = [each for each in hosts_of(ran)[GUEST]["findings"] if each["check"] == "host-store"]
    assert "Permission denied" in finding["message"]
    ran = shared.run("rollback", "--host", GUEST)
    assert ran.code == 1
    assert "Permission denied" in ran.stderr
    assert as_user(host, GUEST, ALPHA) == "alpha 2\n"


def test_what_another_user_made_is_his_to_mend_and_roots_to_collect(shared: Project, fleet: Fleet) -> None:
    host = fleet.hosts[0]
    shared.good("build", "--host", USER)
    target = f"{STORE}/profiles/demo/{SITE_PACKAGES}/beta/__init__.py"
    assert "Permission denied" in as_user(host, MATE, f"echo 'x = 1' >> {target}", check=False)
    as_user(host, USER, f"chmod u+w {target} && echo 'x = 1' >> {target}")
    change_patch(shared, 2)  # so that the build looks
    shared.run("status", "--host", MATE)
    ran = shared.run("build", "--host", MATE, "--repair")
    assert ran.code == 1
    assert f"was made by {USER}, and this is {MATE}" in ran.stderr
    shared.good("build", "--host", USER, "--repair")
    change_patch(shared, 7)
    shared.good("build", "--host", MATE)
    ran = shared.run("gc", "--host", USER, "--keep", "0")
    assert ran.code == 1
    assert "only root sees which environments its users run" in ran.stderr
    shared.good("gc", "--host", USER, "--keep", "0", "--dry-run")
    shared.declare_hosts({"root": {"ssh": "h0", "store": STORE}, USER: {"ssh": f"h0-{USER}", "store": STORE}})
    shared.good("gc", "--host", "root", "--keep", "0")
    assert len(list((host.opt / "shared" / "envs").iterdir())) == 1
    shared.good("build", "--host", USER)
    shared.good("status", "--all", "--deep")


def test_users_build_at_once_and_nobodys_leftovers_are_in_the_way(shared: Project, fleet: Fleet) -> None:
    host = fleet.hosts[0]
    shared.good("build", "--host", USER)
    change_patch(shared, 7)
    # Halves as a kill leaves them: of an environment, and of every wheel.
    made = f"mkdir -p {STORE}/.tmp/env-x.1/a && chmod 555 {STORE}/.tmp/env-x.1/a && touch {STORE}/.tmp/env-x.1/b"
    halves = " ".join(path.name for path in (shared.store / "wheels").iterdir() if len(path.name) == 64)
    incoming = f"mkdir -m 2775 {STORE}/wheels/.incoming && cd {STORE}/wheels/.incoming && umask 022 && touch {halves}"
    as_user(host, USER, f"{made} && {incoming}")
    running = [shared.start("build", "--host", user) for user in (USER, MATE)]
    said = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    assert as_user(host, MATE, ALPHA) == "alpha 7\n"
    assert {path.name for path in (host.opt / "shared" / ".tmp").iterdir()} <= {"env-x.1"}
    change_patch(shared, 9)
    shared.good("build", "--host", USER)
    assert list((host.opt / "shared" / ".tmp").iterdir()) == []


def test_store_that_everybody_may_write_is_refused(shared: Project, fleet: Fleet) -> None:
    (fleet.hosts[0].opt / "shared").chmod(0o2777)
    ran = shared.run("build", "--host", USER)
    assert ran.code == 1
    assert "everybody may write into the store" in ran.stderr


def test_users_of_one_machine_lock_and_build_there_in_one_store(shared: Project, fleet: Fleet) -> None:
    """The command line itself, run as one user and then as another: resolving, fetching, patching, building."""
    host = fleet.hosts[0]
    packages = os.pathsep.join([str(REPOSITORY), *(each for each in sys.path if each.endswith("site-packages"))])
    for user in (USER, MATE):
        home = host.opt / "home" / user
        shutil.copytree(shared.spec_folder, home / "spec")
        run("chown", "-R", str(USERS[user]), home / "spec")
        (home / ".profile").write_text("")
        variables = {**shared.environ(), "HOME": f"/opt/home/{user}", "ENVSPEC_STORE": STORE, "PYTHONPATH": packages}
        variables["PATH"] = f"{base_python().parent}:{variables['PATH']}"
        words = shlex.join(f"{name}={value}" for name, value in variables.items())
        program = f"env -i {words} {base_python()} -m envspec"
        umask = {USER: "077", MATE: "002"}[user]
        command = f"umask {umask} && cd spec && {program} lock --quiet && {program} build --quiet"
        if user == MATE:  # another patch: the base wheel is the other's, the patched one his own
            patch = home / "spec" / "overlays" / "0001-change.patch"
            patch.write_text(patch.read_text().replace("+VALUE = 2", "+VALUE = 7"))
        assert "error" not in as_user(host, user, command)
    assert as_user(host, GUEST, ALPHA) == "alpha 7\n"
    assert owners(host.opt / "shared" / "wheels") == {USERS[USER], USERS[MATE]}
    for cache in (host.opt / "shared" / "cache").iterdir():
        assert cache.name == f"uv-{cache.stat().st_uid}"
