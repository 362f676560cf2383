"""Reads host lists of Slurm, Ansible and pyinfra. Of an inventory nothing is run: neither its scripts nor its Python.

    read_inventory("hosts.ini:gpu", environ, stdin=sys.stdin.buffer)

| source | what it is |
|---|---|
| `slurm:LIST` | a host list as Slurm writes it; without LIST the nodes of the allocation that this runs in |
| `-` | JSON as `ansible-inventory --list` prints it, on stdin |
| `FILE.json` | the same in a file |
| `FILE.py` | a pyinfra inventory, read as text |
| any other | an Ansible inventory, INI or YAML, file or folder: `ansible-inventory` reads it, with no plugin that runs programs |

All but Slurm's may end in `:GROUP`.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from builder import process
from envspec.errors import EnvspecError
from envspec.inventories import hosts_of_ansible, hosts_of_pyinfra
from envspec.node_lists import expand_nodes
from envspec.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envspec.spec import HostSpec

SIZE_LIMIT_BYTES = 64 << 20
ANSIBLE_TIMEOUT_S = 120.0
SLURM = "slurm:"

_READING_ONLY = {
    "ANSIBLE_INVENTORY_ENABLED": "ini,yaml",
    "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1",  # else what is not understood would be no host, without a word
    "ANSIBLE_NOCOLOR": "1",
    "ANSIBLE_FORCE_COLOR": "0",
    "ANSIBLE_LOCALHOST_WARNING": "0",
}


def read_inventory(
    given: str, environ: Mapping[str, str], stdin: BinaryIO
) -> tuple[tuple[HostSpec, ...], tuple[str, ...]]:
    """The hosts of an inventory.

    Args:
        given: As in the table above.
        environ: This process's environment.
        stdin: Read for `-`.

    Returns:
        The hosts, and notes about what is not taken over.

    Raises:
        EnvspecError: It cannot be read, or has hosts that cannot be taken from it.
    """
    if given.startswith(SLURM):
        return _of_slurm(given[len(SLURM) :], environ), ()
    source, group = _split(given)
    if source == "-":
        return hosts_of_ansible(_json(stdin.read(SIZE_LIMIT_BYTES + 1), "stdin"), group=group, input_name="stdin")
    path = Path(source)
    try:
        status = path.stat()
    except OSError as error:
        raise EnvspecError(
            f"the inventory `{printable(source)}` cannot be read: {error.strerror}",
            hint="give a file, `slurm:LIST`, or `-` for JSON on stdin; a group comes after a colon: `hosts.ini:gpu`",
        ) from error
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise EnvspecError(f"`{path}` is no ordinary file or folder", hint="give JSON on stdin: `--inventory -`")
    if path.suffix == ".py":
        try:
            text = _content(path).decode()
        except UnicodeDecodeError as error:
            raise EnvspecError(f"byte {error.start} is not UTF-8", input_name=path.name) from error
        return hosts_of_pyinfra(text, group=group, input_name=path.name)
    if path.suffix == ".json":
        return hosts_of_ansible(_json(_content(path), path.name), group=group, input_name=path.name)
    if stat.S_ISREG(status.st_mode) and status.st_mode & 0o111:
        raise EnvspecError(
            f"`{path}` is a program, and an inventory is read, not run",
            hint=f"run it and give what it prints: `{path} --list | envspec ... --inventory -`",
        )
    return hosts_of_ansible(_of_ansible(path, environ), group=group, input_name=path.name)


def _split(given: str) -> tuple[str, str]:
    """Source and group: `hosts.ini:gpu`. A file that is called so is that file."""
    source, colon, group = given.rpartition(":")
    if not colon or not source or os.path.lexists(given):
        return given, ""
    return source, group


def _of_slurm(text: str, environ: Mapping[str, str]) -> tuple[HostSpec, ...]:
    name = "--inventory slurm:"
    if not text:
        name = "SLURM_JOB_NODELIST"
        text = environ.get(name, "")
        if not text:
            raise EnvspecError(
                "there is no Slurm allocation here: SLURM_JOB_NODELIST is not set",
                hint="name the nodes: `--inventory 'slurm:node[001-004]'`",
            )
    nodes = expand_nodes(text, input_name=name)
    empty: dict[str, Any] = {"_meta": {"hostvars": {node: {} for node in nodes}}}
    hosts, _ = hosts_of_ansible(empty, input_name=name)  # the same forms
    by_name = {host.name: host for host in hosts}
    return tuple(by_name[node] for node in nodes)


def _of_ansible(path: Path, environ: Mapping[str, str]) -> object:
    # The path is absolute: one that begins with a dash, or has a comma, would be something else to Ansible.
    argv = ["ansible-inventory", "--list", "--inventory", f"{path.absolute()}"]
    if "," in argv[-1]:
        raise EnvspecError(
            f"the path `{path}` has a comma, which is a list of hosts to Ansible", hint="give another path"
        )
    done = process.run(argv, env={**environ, **_READING_ONLY}, timeout_s=ANSIBLE_TIMEOUT_S)
    said = printable(done.stderr).strip()
    if done.returncode == process.CANNOT_START:
        raise EnvspecError(
            f"`{path}` is an inventory of Ansible, and `ansible-inventory` is not here to read it",
            hint="install ansible-core, or give what `ansible-inventory --list` prints where it is: `--inventory hosts.json`",
        )
    if done.returncode != 0:
        raise EnvspecError(
            f"`ansible-inventory` cannot read the inventory (rc {done.returncode})",
            input_name=os.fspath(path),
            detail="\n".join(said.splitlines()[-8:])[:2000],
            hint="`ansible-inventory --list -i` with it has to work; a dynamic inventory is given as JSON: `--inventory hosts.json`",
        )
    return _json(done.stdout.encode(), path.name)


def _content(path: Path) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise EnvspecError(f"`{path}` is no ordinary file")
            return file.read(SIZE_LIMIT_BYTES + 1)
    except OSError as error:
        raise EnvspecError(f"the inventory `{path}` cannot be read: {error.strerror}") from error


def _json(raw: bytes, name: str) -> object:
    if len(raw) > SIZE_LIMIT_BYTES:
        raise EnvspecError(f"the inventory has more than {SIZE_LIMIT_BYTES} bytes", input_name=name)
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        why = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise EnvspecError(
            f"the inventory is no JSON: {why}", input_name=name, hint="give what `ansible-inventory --list` prints"
        ) from error
