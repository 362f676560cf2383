"""Several real SSH hosts on one machine: each has namespaces, an sshd with keys, a store, a home and ordinary users of its own.

    with Fleet(3) as fleet:
        fleet.hosts[0].ssh("hostname")            # `h0`
        project.run("build", "--host", "h0", ENVSPEC_SSH_CONFIG=fleet.ssh_config)
        fleet.hosts[0].power_off()                # every process of the host is killed; the disk stays

`h0-slow` is the same host over a slow line, so that a test can do something while a wheel is on its way.

By default the hosts listen on loopback addresses. With `network=True` each has a network of its own behind a veth pair, without a route to
anywhere else: it can be cut, slowed down, and made to lose packets. `/opt` of a host is `<root>/opt` here, so `host.store` shows its store.

Needs root, unshare, ip, and sshd: `why_not()` says what is missing.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.projects import base_python

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

SSHD = "/usr/sbin/sshd"
START_LIMIT_S = 10.0
USER = "worker"
USER_ID = 47110
MATE = "mate"
"""Another ordinary user, in one group with the first."""
GUEST = "guest"
"""A third, who is not."""
USERS = {USER: USER_ID, MATE: USER_ID + 1, GUEST: USER_ID + 2}
GROUP = "builders"
GROUP_ID = 47120
PORT = 2222
SLOW_BYTES_A_SECOND = 8e6
_FLEETS = itertools.count()

# A ProxyCommand of ssh: what goes to the host goes slowly.
_SLOW = f"""
import os, socket, sys, threading, time
line = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def back():
    while data := line.recv(65536):
        while data:
            data = data[os.write(1, data):]
    os._exit(0)
threading.Thread(target=back, daemon=True).start()
while data := os.read(0, 32768):
    line.sendall(data)
    time.sleep(len(data) / {SLOW_BYTES_A_SECOND})
"""


def run(
    *argv: str | Path, check: bool = True, timeout: float = 60, **options: object
) -> subprocess.CompletedProcess[str]:
    """Run a program and keep what it prints."""
    done: subprocess.CompletedProcess[str] = subprocess.run(  # type: ignore[call-overload]
        [str(each) for each in argv],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
        timeout=timeout,
        **options,
    )
    assert not check or done.returncode == 0, (argv, done.stdout, done.stderr)
    return done


@functools.cache
def why_not(*, network: bool = False) -> str:
    """Why there can be no fleet on this machine; empty if there can."""
    if os.geteuid() != 0:
        return "hosts of a test need root, for namespaces and mounts"
    programs = [SSHD, "ssh", "ssh-keygen", "unshare", "nsenter", "mount", *(("ip", "tc") if network else ())]
    missing = [program for program in programs if shutil.which(program, path=f"{os.defpath}:/usr/sbin:/sbin") is None]
    if missing:
        return (
            f"hosts of a test need {', '.join(missing)}: install openssh-server, openssh-client, util-linux, iproute2"
        )
    if run("unshare", "--mount", "--pid", "--uts", "--fork", "true", check=False).returncode != 0:
        return "this machine allows no namespaces"
    if network and run("unshare", "--net", "ip", "link", "add", "x0", "type", "veth", check=False).returncode != 0:
        return "this machine allows no virtual networks"
    return ""


def need_fleet(*, network: bool = False) -> None:
    """Skip the test, with the reason, where there can be no fleet."""
    reason = why_not(network=network)
    if reason:
        pytest.skip(reason)


class FleetHost:
    """One host of a fleet."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.fleet = fleet
        self.number = number
        self.name = f"h{number}"
        """As root."""
        self.user_name = f"h{number}-{USER}"
        """As an ordinary user."""
        self.root = fleet.base / self.name
        self.opt = self.root / "opt"
        self.store = self.opt / "envspec"
        self.home = self.root / "home"
        self.namespace = f"{fleet.tag}n{number}"
        self.link = f"{fleet.tag}v{number}"
        last = 10 + number
        self.address = f"10.{fleet.net}.{last}" if fleet.network else f"127.{fleet.net}.{last}"
        self.process: subprocess.Popen[bytes] | None = None

    def ssh(self, *command: str, check: bool = True, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command on the host as root, over ssh."""
        return run("ssh", "-F", self.fleet.ssh_config, self.name, *command, check=check, timeout=timeout)

    def enter(self, *command: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command in the host's namespaces, without ssh."""
        assert self.process is not None
        (child,) = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        net = ["--net"] if self.fleet.network else []
        return run("nsenter", "-t", child, "--mount", "--pid", "--uts", *net, *command, check=check)

    def power_off(self) -> None:
        """Kill every process of the host at once; its disk stays."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def power_on(self) -> None:
        """Start the host and wait until it answers."""
        argv = ["unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child=SIGKILL", "--mount-proc"]
        argv += ["sh", str(self.root / "etc" / "init.sh")]
        if self.fleet.network:
            argv = ["ip", "netns", "exec", self.namespace, *argv]
        with (self.root / "sshd.log").open("ab") as log:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_LIMIT_S
        while not self._answers():
            log_text = (self.root / "sshd.log").read_text(errors="replace")
            assert self.process.poll() is None, log_text
            assert time.monotonic() < deadline, log_text
            time.sleep(0.01)  # nothing tells when sshd listens

    def wipe(self) -> None:
        """Remove the host's store, and the ordinary user's."""
        for folder in (self.store, self.opt / "shared", *(self.opt / "home" / user for user in USERS)):
            run("chmod", "-R", "u+w", folder, check=False)
            shutil.rmtree(folder, ignore_errors=True)
        self.make_home()

    def make_home(self) -> None:
        """The homes of the ordinary users, empty."""
        for user, number in USERS.items():
            home = self.opt / "home" / user
            home.mkdir(parents=True, exist_ok=True)
            os.chown(home, number, number)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((self.address, PORT), timeout=0.3) as connection:
            return connection.recv(4) == b"SSH-"
        return False

    def mount(self, *arguments: str | Path) -> None:
        """Mount something on the host; it goes away when the host is switched off."""
        self.enter("mount", *arguments)

    def processes(self, word: str) -> list[int]:
        """Ids (of this machine) of the host's processes whose command line has a word."""
        assert self.process is not None
        pending, found = [self.process.pid], []
        while pending:
            pid = pending.pop()
            with contextlib.suppress(OSError):
                pending += [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if word in command:
                    found.append(pid)
        return found

    # The network, where there is one.

    def cut(self) -> None:
        """Let no packet through any more, without a word to either side."""
        run("ip", "link", "set", self.link, "down")

    def mend(self) -> None:
        """Let packets through again."""
        run("ip", "link", "set", self.link, "up")

    def limit(self, rate: str) -> None:
        """Limit what the host can receive: `80mbit`."""
        run(
            "tc",
            "qdisc",
            "replace",
            "dev",
            self.link,
            "root",
            "tbf",
            "rate",
            rate,
            "burst",
            "256kb",
            "latency",
            "200ms",
        )

    def lose(self, percent: int) -> None:
        """Let the host lose packets that come in."""
        for line in (
            "add table inet lossy",
            "add chain inet lossy in { type filter hook input priority 0 ; }",
            f"add rule inet lossy in numgen random mod 100 < {percent} drop",
        ):
            run("ip", "netns", "exec", self.namespace, "nft", line)

    def write_config(self) -> None:
        """Everything that the host starts from."""
        for folder in (self.opt / "etc", self.home, self.root / "etc"):
            folder.mkdir(parents=True, exist_ok=True)
        self.make_home()
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.root / "etc" / "hostkey")
        shutil.copy(self.fleet.base / "id.pub", self.opt / "etc" / "authorized_keys")
        etc = self.root / "etc"
        accounts = Path("/etc/passwd").read_text(encoding="utf-8")
        accounts += "".join(f"{user}:*:{number}:{number}::/opt/home/{user}:/bin/sh\n" for user, number in USERS.items())
        (etc / "passwd").write_text(accounts, encoding="utf-8")
        groups = Path("/etc/group").read_text(encoding="utf-8")
        (etc / "group").write_text(f"{groups}{GROUP}:*:{GROUP_ID}:{USER},{MATE}\n", encoding="utf-8")
        self.write_sshd_config()
        (etc / "init.sh").write_text(
            f"set -e\nmount --make-rprivate /\n{self._keep_pythons()}mount --rbind {self.opt} /opt\n"
            f"mount --bind {etc}/passwd /etc/passwd\nmount --bind {etc}/group /etc/group\n"
            f"mount --rbind {self.home} /root\nhostname {self.name}\n"
            f"exec {SSHD} -D -e -f {etc}/sshd_config\n"
        )

    def write_sshd_config(self, *, more: str = "", **variables: str) -> None:
        """What sshd starts from the next time.

        Args:
            more: Further lines.
            variables: Of the environment of whoever logs in.
        """
        path = f"{base_python().parent}:/usr/local/bin:/usr/bin:/bin"
        words = " ".join(f"{name}={value}" for name, value in {"PATH": path, **variables}.items())
        etc = self.root / "etc"
        (etc / "sshd_config").write_text(
            f"Port {PORT}\nListenAddress {self.address}\nHostKey {etc}/hostkey\n"
            "AuthorizedKeysFile /opt/etc/authorized_keys\nPidFile none\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nMaxSessions 64\nMaxStartups 200\nLogLevel ERROR\nUseDNS no\n"
            f"SetEnv {words}\n{more}"
        )

    def _keep_pythons(self) -> str:
        """The Pythons lie on the host where they lie here, also if that is in a folder that the host has of its own."""
        lines = []
        for prefix in dict.fromkeys((base_python().parent.parent, *self.fleet.pythons)):
            for hidden, instead in (("/root", self.home), ("/opt", self.opt)):
                if prefix.is_relative_to(hidden):
                    place = instead / prefix.relative_to(hidden)
                    place.mkdir(parents=True, exist_ok=True)
                    lines.append(f"mount --bind {prefix} {place}\n")
        return "".join(lines)

    def known_hosts(self) -> str:
        """The host's line of known_hosts."""
        key = (self.root / "etc" / "hostkey.pub").read_text().split()[:2]
        return f"[{self.address}]:{PORT} {' '.join(key)}\n"


class Fleet:
    """See the module's docstring."""

    def __init__(
        self, count: int, *, network: bool = False, pythons: Sequence[Path] = (), folder: Path = Path("/tmp")
    ) -> None:
        """Prepare.

        Args:
            count: Of hosts.
            network: Whether each has a network of its own.
            pythons: Prefixes of further Pythons that the hosts have.
            folder: Where their files lie; its path has to be short.
        """
        self.network = network
        self.pythons = tuple(pythons)
        # Parallel runs of the tests have other numbers, and so other addresses and names.
        number = os.getpid() + 7919 * next(_FLEETS)
        self.tag = f"ef{number % 100000}"
        self.net = f"{16 + number // 250 % 200}.{1 + number % 250}"
        self.bridge = f"{self.tag}b"
        self.base = Path(tempfile.mkdtemp(prefix="fleet.", dir=folder))  # paths of sockets must be short
        self.ssh_config = self.base / "ssh_config"
        self.hosts = [FleetHost(self, number) for number in range(count)]

    def __enter__(self) -> Fleet:  # noqa: PYI034 - typing.Self would be a third way to say it
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _start(self) -> None:
        Path("/run/sshd").mkdir(exist_ok=True)
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.base / "id")
        if self.network:
            run("ip", "link", "add", self.bridge, "type", "bridge")
            run("ip", "addr", "add", f"10.{self.net}.1/24", "dev", self.bridge)
            run("ip", "link", "set", self.bridge, "up")
        for host in self.hosts:
            host.write_config()
            if self.network:
                self._connect(host)
            host.power_on()
        self.write_known_hosts()
        names = [
            f"Host {name}\n  HostName {host.address}\n  User {user}\n"
            for host in self.hosts
            for name, user in ((host.name, "root"), *((f"{host.name}-{user}", user) for user in USERS))
        ]
        (self.base / "slow.py").write_text(_SLOW)
        names += [
            f"Host {host.name}-slow\n  HostName {host.address}\n  User root\n  ControlPath none\n"
            f"  ProxyCommand {sys.executable} -IS {self.base}/slow.py %h %p\n"
            for host in self.hosts
        ]
        self.ssh_config.write_text(
            "\n".join(names) + f"\nHost *\n  Port {PORT}\n  IdentityFile {self.base}/id\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.base}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
            f"  ControlMaster auto\n  ControlPath {self.base}/cm-%C\n  ControlPersist 20\n"
            "  ServerAliveInterval 1\n  ServerAliveCountMax 2\n  ConnectTimeout 3\n"
        )

    def write_known_hosts(self) -> None:
        """Trust the keys that the hosts have now."""
        (self.base / "known_hosts").write_text("".join(host.known_hosts() for host in self.hosts))

    def _connect(self, host: FleetHost) -> None:
        run("ip", "netns", "add", host.namespace)
        run("ip", "link", "add", host.link, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
        run("ip", "link", "set", host.link, "master", self.bridge, "up")
        inside = ("ip", "-n", host.namespace)
        run(*inside, "addr", "add", f"{host.address}/24", "dev", "eth0")
        run(*inside, "link", "set", "eth0", "up")
        run(*inside, "link", "set", "lo", "up")

    def hang_up(self) -> None:
        """End the master connections that ssh keeps."""
        for host in self.hosts:
            for name in (host.name, *(f"{host.name}-{user}" for user in USERS)):
                run("ssh", "-F", self.ssh_config, "-O", "exit", name, check=False)

    def _stop(self) -> None:
        if self.ssh_config.exists():
            self.hang_up()
        for host in self.hosts:
            host.power_off()
            if self.network:
                run("ip", "link", "del", host.link, check=False)
                run("ip", "netns", "del", host.namespace, check=False)
        if self.network:
            run("ip", "link", "del", self.bridge, check=False)
        run("chmod", "-R", "u+w", self.base, check=False)
        shutil.rmtree(self.base, ignore_errors=True)
