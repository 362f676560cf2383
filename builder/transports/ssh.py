"""A host over the system's OpenSSH, with the user's own configuration: aliases, jump hosts, keys, agent, known_hosts.

What is set beyond that: no prompts, strict host keys, nothing forwarded. Timeouts, signs of life and a ControlMaster are ours only where the
configuration has none; of the ciphers that it allows, the fastest goes first.
"""

from __future__ import annotations

import os
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from builder import process
from builder.transports.connection import Connection
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.bundle import Bundle

CONNECT_TIMEOUT_S = 15
ALIVE_INTERVAL_S = 5
ALIVE_COUNT = 4
MASTER_LIVES_S = 120
FAST_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
CONFIG_TIMEOUT_S = 30.0

_OPTIONS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "ClearAllForwardings=yes",
    "ForwardX11=no",
    "PermitLocalCommand=no",
    "RemoteCommand=none",
    "RequestTTY=no",
)

# Beginning of what ssh says, message, hint.
_REASONS = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is not the one in known_hosts",
        "find out why it changed; only if that is right, remove the old key with `ssh-keygen -R`",
    ),
    (
        "Host key verification failed",
        "its host key is not in known_hosts",
        "connect once with `ssh {host}`, and compare the key with what its owner says",
    ),
    ("Permission denied", "it does not let us in", "`ssh -o BatchMode=yes {host} true` has to work without a password"),
    (
        "Could not resolve hostname",
        "its name cannot be resolved",
        "is `{host}` in ssh_config? `ssh -G {host}` shows it",
    ),
    ("Connection timed out", "it does not answer", "is it switched on and reachable? try `ssh {host} true`"),
    ("Connection refused", "it refuses connections", "does sshd run there, on that port? try `ssh {host} true`"),
    ("No route to host", "there is no route to it", "try `ssh {host} true`"),
    ("Network is unreachable", "its network cannot be reached", "try `ssh {host} true`"),
    ("Bad owner or permissions", "ssh refuses its own configuration", "mend the permissions that it names"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SshTransport:
    """A host by its name in ssh_config."""

    host: str
    """For messages."""

    alias: str
    """In ssh_config."""

    user: str = ""
    """Who logs in; empty for what the configuration says. So are the next two."""

    port: int = 0
    key: str = ""
    """File of the key."""

    environ: Mapping[str, str] = field(repr=False)
    own_master: bool = True
    """Whether a master connection that stays for a while may be made, where the configuration has none."""

    forward_agent: bool = False
    """Whether the configuration decides if the host may use the user's keys, to reach another one; else it may not."""

    def start(self, bundle: Bundle, store: str) -> Connection:
        """Start the agent's bootstrap (as `Transport`)."""
        argv = [
            *self._program(),
            *self._way(),
            *self._options(),
            "-T",
            "-e",
            "none",
            "--",
            self.alias,
            bundle.command(store),
        ]
        try:
            return Connection(argv, self.environ)
        except OSError as error:
            raise EnvspecError(f"ssh does not start: {error}", hint="install OpenSSH's client") from error

    def explain(self, returncode: int | None, stderr: str) -> tuple[str, str]:
        """Message and hint for an agent that did not answer (as `Transport`)."""
        for beginning, message, hint in _REASONS:
            if beginning in stderr:
                return f"`{self.host}`: {message}", hint.format(host=self.alias)
        lines = [line for line in stderr.splitlines() if line.strip() and set(line) != {"@"}]
        said = lines[-1][:300] if lines else f"ssh ended with rc {returncode}"
        return f"`{self.host}`: the connection failed: {said}", f"try `ssh -o BatchMode=yes {self.alias} true`"

    def _program(self) -> list[str]:
        config = self.environ.get("ENVSPEC_SSH_CONFIG", "")
        return ["ssh", *(("-F", config) if config else ())]

    def _way(self) -> list[str]:
        """What an inventory says of the way; each value is one word of its own after its option, whatever it is."""
        words = ("-l", self.user), ("-p", str(self.port or "")), ("-i", self.key)
        return [word for option, value in words if value for word in (option, value)]

    def _options(self) -> list[str]:
        options = list(_OPTIONS) if self.forward_agent else [*_OPTIONS, "ForwardAgent=no"]
        effective = self._effective()
        no_master = effective.get("controlmaster", "false") in ("false", "no") or "controlpath" not in effective
        if no_master and self.own_master:
            # What may be forwarded is decided when a master begins: one for each decision.
            place = socket_folder(self.environ) / ("a%C" if self.forward_agent else "%C")
            options += ["ControlMaster=auto", f"ControlPath={place}", f"ControlPersist={MASTER_LIVES_S}"]
        if effective.get("connecttimeout", "none") in ("none", "0"):
            options.append(f"ConnectTimeout={CONNECT_TIMEOUT_S}")
        if effective.get("serveraliveinterval", "0") == "0":
            options += [f"ServerAliveInterval={ALIVE_INTERVAL_S}", f"ServerAliveCountMax={ALIVE_COUNT}"]
        ciphers = effective.get("ciphers", "").split(",")
        fast = [cipher for cipher in FAST_CIPHERS if cipher in ciphers]
        if fast:
            options.append("Ciphers=" + ",".join([*fast, *(cipher for cipher in ciphers if cipher not in fast)]))
        return [word for option in options for word in ("-o", option)]

    def _effective(self) -> dict[str, str]:
        """What the user's configuration says for this host."""
        done = process.run(
            [*self._program(), *self._way(), "-G", "--", self.alias], env=self.environ, timeout_s=CONFIG_TIMEOUT_S
        )
        if done.returncode == process.CANNOT_START:
            raise EnvspecError(f"ssh does not start: {done.stderr}", hint="install OpenSSH's client")
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or [f"rc {done.returncode}"])[-1]
            raise EnvspecError(f"`{self.host}`: ssh refuses its configuration: {said}", hint="mend ssh_config")
        pairs = (line.partition(" ") for line in done.stdout.splitlines())
        return {key: value for key, _, value in pairs}


def socket_folder(environ: Mapping[str, str]) -> Path:
    """A folder for the sockets of our master connections, for this user alone. Its path is short: a socket's may have 108 bytes.

    Raises:
        EnvspecError: Somebody else has made it.
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    folder = Path(runtime, "envspec") if runtime else Path(tempfile.gettempdir(), f"envspec-{os.geteuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise EnvspecError(f"`{folder}`, for the sockets of ssh, cannot be made: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise EnvspecError(
            f"`{folder}`, for the sockets of ssh, is not this user's alone", hint="remove it, or set XDG_RUNTIME_DIR"
        )
    return folder
