"""Host lists of other tools as hosts of ours: Ansible's JSON, and pyinfra's Python read as text.

    hosts, notes = hosts_of_ansible(json.loads(text), group="gpu", input_name="hosts.json")

An inventory is input like any other, perhaps a hostile one: a name, user, port or key that ssh or a shell could take for anything else is
refused, all of them at once. Options of ssh, passwords and ways that are not ssh are never taken over: they are noted, or refused. Nothing of an
inventory is executed: templates stay text, which is no name of a host, and of Python only literals are read.

Pure. What Ansible's formats mean is Ansible's business: `builder.inventory` has `ansible-inventory` make JSON of them.
"""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from envspec.errors import EnvspecError, Problem
from envspec.forms import RELATIVE_PATH, Form, quoted
from envspec.printable import printable
from envspec.spec import HostSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HOSTS_LIMIT = 65_536
DEPTH_LIMIT = 64
"""Of groups in groups."""

NAME = Form(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", "the name of a host")
_ADDRESS = Form(
    r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}|(?=[0-9A-Fa-f:.]*:)[0-9A-Fa-f:.]{2,45}",
    "a host name, an address, or a `Host` of ssh_config",
)
_USER = Form(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,63}", "the name of a user")
_PORT = Form(r"[1-9][0-9]{0,4}", "a port")
_KEY = Form(r"(?!-)(?:~?/)?[A-Za-z0-9._+@-]+(?:/[A-Za-z0-9._+@-]+)*", "the path of a key file")
_PATH = Form(rf"/{RELATIVE_PATH.pattern}", "an absolute path")

# Of two that are set the last one counts, as in Ansible.
_ANSIBLE = {
    "ssh": ("ansible_host", "ansible_ssh_host"),
    "user": ("ansible_user", "ansible_ssh_user"),
    "port": ("ansible_port", "ansible_ssh_port"),
    "key": ("ansible_private_key_file", "ansible_ssh_private_key_file"),
    "store": ("envspec_store",),
    "python": ("envspec_python",),
}
_PYINFRA = {
    "ssh": ("ssh_hostname",),
    "user": ("ssh_user",),
    "port": ("ssh_port",),
    "key": ("ssh_key",),
    "store": ("envspec_store",),
    "python": ("envspec_python",),
}
_FORMS = {"ssh": _ADDRESS, "user": _USER, "port": _PORT, "key": _KEY, "store": _PATH, "python": _PATH}
_NOT_USED = {
    **dict.fromkeys(
        ("ansible_ssh_common_args", "ansible_ssh_extra_args", "ansible_ssh_args", "ssh_common_args", "ssh_extra_args"),
        "put what they say into ssh_config",
    ),
    **dict.fromkeys(
        ("ansible_password", "ansible_ssh_pass", "ansible_ssh_password", "ssh_password", "ssh_key_password"),
        "hosts are reached with keys",
    ),
    **dict.fromkeys(
        ("ansible_become", "ansible_become_user", "_sudo"), "what is done on a host is done by the ssh user"
    ),
    **dict.fromkeys(("ssh_config_file", "ssh_known_hosts_file"), "ENVSPEC_SSH_CONFIG names an ssh_config"),
}
"""Variables that change how a host is reached and are not taken over, and what to do instead."""

_BY_SSH = frozenset(
    {"ssh", "smart", "paramiko", "paramiko_ssh", "libssh"}
    | {"ansible.builtin.ssh", "ansible.builtin.paramiko_ssh", "ansible.netcommon.libssh"}
)


@dataclass(slots=True)
class _Gathered:
    """What was found so far, and what is wrong with it."""

    input_name: str
    hosts: dict[str, HostSpec] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    unused: dict[str, list[str]] = field(default_factory=dict)

    def note(self, where: str, message: str, hint: str = "") -> None:
        self.problems.append(Problem(where=where, message=message, hint=hint))

    def add(self, name: str, variables: Mapping[str, Any], words: Mapping[str, tuple[str, ...]]) -> None:
        """Take a host."""
        shown = printable(name)[:80]
        if mismatch := NAME.mismatch(name):
            self.note(shown, mismatch, "give it a plain name, and its address as a variable")
            return
        connection = str(variables.get("ansible_connection") or "ssh")
        if connection not in _BY_SSH:
            self.note(shown, f"it is reached by {quoted(connection)}, not by ssh", "name a group without it")
            return
        values: dict[str, str] = {}
        for key, names in words.items():
            for variable in names:
                value = variables.get(variable)
                if value is None or value == "":
                    continue
                text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
                if not isinstance(text, str):
                    self.note(f"{shown}, {variable}", f"expected {_FORMS[key].expected}, got {type(value).__name__}")
                elif mismatch := _FORMS[key].mismatch(text):
                    self.note(f"{shown}, {variable}", mismatch)
                elif key == "port" and int(text) > 65535:
                    self.note(f"{shown}, {variable}", f"expected a port, got `{text}`")
                else:
                    values[key] = text
        for variable in variables:
            if variable in _NOT_USED and variables[variable] not in (None, "", False):
                self.unused.setdefault(variable, []).append(name)
        self.hosts[name] = HostSpec(
            name=name,
            ssh=values.get("ssh", name),
            user=values.get("user", ""),
            port=int(values.get("port", 0)),
            key=values.get("key", ""),
            store=values.get("store", ""),
            python=values.get("python", ""),
        )

    def result(self) -> tuple[tuple[HostSpec, ...], tuple[str, ...]]:
        """The hosts by name, and the notes."""
        if self.problems:
            raise EnvspecError(
                "the inventory has hosts that cannot be taken from it",
                input_name=self.input_name,
                problems=tuple(self.problems[:50]),
            )
        if not self.hosts:
            raise EnvspecError("the inventory names no host", input_name=self.input_name)
        notes = tuple(
            f"`{variable}` of {names[0]}{f' and {len(names) - 1} more hosts' if len(names) > 1 else ''} is not used: {_NOT_USED[variable]}"
            for variable, names in sorted(self.unused.items())
        )
        return tuple(self.hosts[name] for name in sorted(self.hosts)), notes


def hosts_of_ansible(
    inventory: object, *, group: str = "", input_name: str
) -> tuple[tuple[HostSpec, ...], tuple[str, ...]]:
    """The hosts of an inventory in JSON, as `ansible-inventory --list` and dynamic inventories print it.

    Args:
        inventory: JSON.
        group: Whose hosts, with those of its child groups; empty for all.
        input_name: Of the inventory, for messages.

    Returns:
        The hosts by name, and notes about variables that are not taken over.

    Raises:
        EnvspecError: It is no such JSON, has no such group, or has hosts that cannot be taken; all are listed.
    """
    gathered = _Gathered(input_name)
    if not isinstance(inventory, dict):
        raise _shapeless("it is no JSON object", input_name)
    meta = inventory.get("_meta") or {}
    hostvars = meta.get("hostvars") or {} if isinstance(meta, dict) else None
    if not isinstance(hostvars, dict):
        raise _shapeless("`_meta` has another shape", input_name)
    groups = {
        str(name): _AnsibleGroup.of(str(name), raw, input_name) for name, raw in inventory.items() if name != "_meta"
    }
    if group and group not in groups:
        raise _no_group(group, groups, input_name)
    chosen = (
        _hosts_below(group, groups)
        if group
        else {host for each in groups.values() for host in each.hosts} | set(hostvars)
    )
    if len(chosen) > HOSTS_LIMIT:
        raise _shapeless(f"it has more than {HOSTS_LIMIT} hosts", input_name)
    order = _by_depth(groups)
    memberships = {name: _hosts_below(name, groups) for name in order if groups[name].variables}
    for host in sorted(chosen):
        own = hostvars.get(host) or {}
        if not isinstance(own, dict):
            gathered.note(printable(host)[:80], "its variables are no JSON object")
            continue
        variables: dict[str, Any] = {}
        for name in order:  # the nearer group counts, and the host before any group
            if groups[name].variables and (name == "all" or host in memberships[name]):
                variables.update(groups[name].variables)
        gathered.add(host, {**variables, **own}, _ANSIBLE)
    return gathered.result()


@dataclass(frozen=True, slots=True)
class _AnsibleGroup:
    hosts: tuple[str, ...]
    children: tuple[str, ...]
    variables: Mapping[str, Any]

    @classmethod
    def of(cls, name: str, raw: object, input_name: str) -> _AnsibleGroup:
        if isinstance(raw, list):  # dynamic inventories may say just the hosts
            raw = {"hosts": raw}
        if isinstance(raw, dict):
            hosts, children, variables = raw.get("hosts") or [], raw.get("children") or [], raw.get("vars") or {}
            names_only = isinstance(hosts, (list, dict)) and isinstance(children, (list, dict))
            if (
                names_only
                and all(isinstance(each, str) for each in (*hosts, *children))
                and isinstance(variables, dict)
            ):
                return cls(tuple(hosts), tuple(children), variables)
        raise _shapeless(f"the group {quoted(name)} has another shape", input_name)


def _hosts_below(name: str, groups: Mapping[str, _AnsibleGroup]) -> set[str]:
    """The hosts of a group and of all groups below it; groups that contain themselves are no trouble."""
    found: set[str] = set()
    seen, pending = {name}, [name]
    while pending:
        here = groups.get(pending.pop())
        if here is not None:
            found.update(here.hosts)
            pending += [child for child in here.children if child not in seen]
            seen.update(here.children)
    return found


def _by_depth(groups: Mapping[str, _AnsibleGroup]) -> list[str]:
    """The groups, outer ones first: what a nearer one says of a host counts."""
    depth = dict.fromkeys(groups, 0)
    for _ in range(DEPTH_LIMIT):  # more than any real inventory has; one that contains itself ends too
        changed = False
        for name, group in groups.items():
            for child in group.children:
                if child in depth and depth[child] < depth[name] + 1 <= DEPTH_LIMIT:
                    depth[child], changed = depth[name] + 1, True
        if not changed:
            break
    return sorted(groups, key=lambda name: (name != "all", depth[name], name))


def hosts_of_pyinfra(source: str, *, group: str = "", input_name: str) -> tuple[tuple[HostSpec, ...], tuple[str, ...]]:
    """The hosts of a pyinfra inventory, read as text: its groups have to be literals.

    Args:
        source: Python: `gpu = ["h0", ("h1", {"ssh_user": "worker"})]`.
        group: Whose hosts; empty for all.
        input_name: Of the inventory, for messages.

    Returns:
        The hosts by name, and notes about variables that are not taken over.

    Raises:
        EnvspecError: It is no Python, has no such group, computes a group, or has hosts that cannot be taken; all are listed.
    """
    gathered = _Gathered(input_name)
    groups = dict(_assignments(source, input_name))
    if group and group not in groups:
        raise _no_group(group, groups, input_name)
    for name, node in groups.items():
        if group and name != group:
            continue
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            gathered.note(
                f"line {node.lineno}, {name}",
                "it is computed, and an inventory is read, not run",
                "write its hosts out, or name a group that is a list",
            )
            continue
        for host, data in _pyinfra_hosts(value):
            if host is None or not isinstance(data, dict):
                gathered.note(f"line {node.lineno}, {name}", "expected names of hosts, or pairs of a name and its data")
                break
            connector, _, rest = host.rpartition("/")
            if connector not in ("", "@ssh"):
                gathered.note(f"line {node.lineno}, {name}", f"{quoted(host)} is not reached by ssh")
            else:
                gathered.add(rest, {str(key): each for key, each in data.items()}, _PYINFRA)
    return gathered.result()


def _assignments(source: str, input_name: str) -> Iterator[tuple[str, ast.expr]]:
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        line = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
        raise EnvspecError(
            f"the inventory is no Python: {line}{type(error).__name__}", input_name=input_name
        ) from error
    for statement in body:
        targets = (
            statement.targets
            if isinstance(statement, ast.Assign)
            else [statement.target]
            if isinstance(statement, ast.AnnAssign)
            else []
        )
        value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
        for target in targets:
            # As pyinfra has it: lists and tuples are groups. What is computed might be one.
            plain = isinstance(value, (ast.Constant, ast.Dict, ast.Set, ast.JoinedStr, ast.Lambda))
            if isinstance(target, ast.Name) and not target.id.startswith("_") and value is not None and not plain:
                yield target.id, value


def _pyinfra_hosts(value: object) -> Iterator[tuple[str | None, object]]:
    """Name and data of each host; the name is None where something else stands."""
    common: object = {}
    if (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[0], (list, tuple))
        and isinstance(value[1], dict)
    ):
        value, common = value
    for each in value if isinstance(value, (list, tuple)) else (None,):
        name, data = each if isinstance(each, tuple) and len(each) == 2 else (each, {})
        whole = {**common, **data} if isinstance(common, dict) and isinstance(data, dict) else None
        yield (name if isinstance(name, str) else None), whole


def _no_group(group: str, groups: Mapping[str, object] | Sequence[str], input_name: str) -> EnvspecError:
    near = difflib.get_close_matches(group, list(groups), 1)
    listed = ", ".join(quoted(each) for each in sorted(groups)[:20]) or "none"
    return EnvspecError(
        f"the inventory has no group {quoted(group)}",
        input_name=input_name,
        hint=f"did you mean `{near[0]}`?" if near else f"it has {listed}",
    )


def _shapeless(why: str, input_name: str) -> EnvspecError:
    return EnvspecError(
        f"this is no inventory: {why}",
        input_name=input_name,
        hint="give what `ansible-inventory --list` prints",
    )


def merged(hosts: Sequence[HostSpec], declared: Sequence[HostSpec]) -> tuple[HostSpec, ...]:
    """Hosts of an inventory with what the spec says of those that it declares: GPUs, store, Python, groups and all that is not the way there.

    Args:
        hosts: Of the inventory.
        declared: Of the spec.
    """
    by_name = {each.name: each for each in declared}
    found = []
    for host in hosts:
        known = by_name.get(host.name)
        if known is not None:
            found.append(
                replace(
                    known,
                    ssh=host.ssh if host.ssh != host.name else known.ssh,
                    user=host.user,
                    port=host.port,
                    key=host.key,
                    store=known.store or host.store,
                    python=known.python or host.python,
                )
            )
        else:
            found.append(host)
    return tuple(found)
