"""Host lists of Ansible and pyinfra as hosts of ours; hostile ones are refused, whole and with every reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.errors import EnvspecError
from envspec.inventories import hosts_of_ansible, hosts_of_pyinfra, merged
from envspec.spec import HostSpec

WAY = {"ansible_host": "10.0.0.7", "ansible_port": 2222, "ansible_user": "worker"}


def ansible(inventory: object, group: str = "") -> dict[str, HostSpec]:
    hosts, _ = hosts_of_ansible(inventory, group=group, input_name="hosts.json")
    return {host.name: host for host in hosts}


def of_one(**variables: Any) -> HostSpec:
    return ansible({"_meta": {"hostvars": {"n": variables}}, "all": {"hosts": ["n"]}})["n"]


def test_host_is_its_name_in_ssh_config_unless_the_inventory_says_more() -> None:
    assert of_one() == HostSpec(name="n", ssh="n")
    key = "~/.ssh/id_ed25519"
    assert of_one(
        **WAY, ansible_ssh_private_key_file=key, envspec_store="/data/e", envspec_python="/opt/py/bin/python3"
    ) == (
        HostSpec(
            name="n", ssh="10.0.0.7", user="worker", port=2222, key=key, store="/data/e", python="/opt/py/bin/python3"
        )
    )
    assert of_one(ansible_host="fd00::7", ansible_port="22") == HostSpec(name="n", ssh="fd00::7", port=22)


def test_groups_have_the_hosts_of_their_children() -> None:
    inventory = {
        "all": {"children": ["gpu", "ungrouped"]},
        "gpu": {"children": ["a", "b"]},
        "a": {"hosts": ["a1", "a2"]},
        "b": ["b1"],
        "ungrouped": {"hosts": ["lone"]},
    }
    assert list(ansible(inventory, "gpu")) == ["a1", "a2", "b1"]
    assert list(ansible(inventory, "b")) == ["b1"]
    assert list(ansible(inventory)) == ["a1", "a2", "b1", "lone"]


def test_nearer_group_counts_and_the_host_before_all_groups() -> None:
    inventory = {
        "all": {"children": ["outer"], "vars": {"ansible_user": "all", "ansible_port": 1}},
        "outer": {"children": ["inner"], "vars": {"ansible_user": "outer", "ansible_port": 2}},
        "inner": {"hosts": ["x", "y"], "vars": {"ansible_user": "inner"}},
        "_meta": {"hostvars": {"y": {"ansible_user": "host"}}},
    }
    assert {name: (host.user, host.port) for name, host in ansible(inventory).items()} == {
        "x": ("inner", 2),
        "y": ("host", 2),
    }


def test_groups_that_contain_themselves_are_no_trouble() -> None:
    inventory = {"a": {"children": ["b"], "vars": {"ansible_user": "u"}}, "b": {"children": ["a"], "hosts": ["x"]}}
    assert ansible(inventory, "a")["x"].user == "u"


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"ansible_host": "-oProxyCommand=touch x"}, "ansible_host: expected a host name"),
        ({"ansible_host": "h;touch x"}, "ansible_host: expected a host name"),
        ({"ansible_host": "{{ lookup('pipe', 'id') }}"}, "ansible_host: expected a host name"),
        ({"ansible_host": "user@h"}, "ansible_host: expected a host name"),
        ({"ansible_host": ["h"]}, "got list"),
        ({"ansible_user": "-l"}, "ansible_user: expected the name of a user"),
        ({"ansible_user": "root\nHost *"}, "ansible_user: expected the name of a user"),
        ({"ansible_user": "$(id)"}, "ansible_user: expected the name of a user"),
        ({"ansible_port": 70000}, "expected a port, got `70000`"),
        ({"ansible_port": True}, "got bool"),
        ({"ansible_port": "22 -o x"}, "ansible_port: expected a port"),
        ({"ansible_ssh_private_key_file": "-F"}, "expected the path of a key file"),
        ({"ansible_ssh_private_key_file": "%d/${HOME}"}, "expected the path of a key file"),
        ({"envspec_store": "/opt/../etc"}, "expected an absolute path"),
        ({"ansible_connection": "local"}, "it is reached by `local`, not by ssh"),
    ],
)
def test_value_that_ssh_or_a_shell_could_misread_is_refused(variables: dict[str, Any], said: str) -> None:
    with pytest.raises(EnvspecError) as caught:
        of_one(**variables)
    assert said in str(caught.value)
    assert caught.value.input_name == "hosts.json"


@pytest.mark.parametrize("name", ["-oProxyCommand=x", "a b", "../x", "a/b", "\x1b[2J", "", "a\n"])
def test_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(EnvspecError) as caught:
        ansible({"all": {"hosts": [name, "good"]}})
    assert "\x1b" not in str(caught.value)
    assert "good" not in str(caught.value)


def test_every_problem_is_told_at_once() -> None:
    hostvars = {"a": {"ansible_port": 0}, "b": {"ansible_user": "x y"}}
    with pytest.raises(EnvspecError) as caught:
        ansible({"_meta": {"hostvars": hostvars}, "all": {"hosts": ["a", "b"]}})
    assert [problem.where for problem in caught.value.problems] == ["a, ansible_port", "b, ansible_user"]


def test_options_of_ssh_and_passwords_are_noted_and_not_taken_nor_shown() -> None:
    variables = {
        "ansible_ssh_common_args": "-o ProxyCommand=evil",
        "ansible_password": "s3cr3t",
        "ansible_become": True,
    }
    hosts, notes = hosts_of_ansible(
        {"_meta": {"hostvars": {"a": variables, "b": variables}}, "all": {"hosts": ["a", "b"]}}, input_name="x"
    )
    assert hosts == (HostSpec(name="a", ssh="a"), HostSpec(name="b", ssh="b"))
    assert notes == (
        "`ansible_become` of a and 1 more hosts is not used: what is done on a host is done by the ssh user",
        "`ansible_password` of a and 1 more hosts is not used: hosts are reached with keys",
        "`ansible_ssh_common_args` of a and 1 more hosts is not used: put what they say into ssh_config",
    )


@pytest.mark.parametrize(
    "inventory",
    [
        [],
        None,
        3,
        {"_meta": []},
        {"_meta": {"hostvars": []}},
        {"g": 3},
        {"g": {"hosts": 3}},
        {"g": {"children": [1]}},
        {"g": {"vars": ["x"]}},
        {},
    ],
)
def test_what_is_no_inventory_is_refused(inventory: object) -> None:
    with pytest.raises(EnvspecError):
        ansible(inventory)


def test_unknown_group_names_the_nearest() -> None:
    with pytest.raises(EnvspecError, match="has no group `gup`") as caught:
        ansible({"gpu": ["a"]}, "gup")
    assert caught.value.hint == "did you mean `gpu`?"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["_meta", "all", "g", "h"]), json_values, max_size=4))
def test_any_json_gives_hosts_or_an_error(inventory: dict[str, Any]) -> None:
    try:
        hosts = ansible(inventory)
    except EnvspecError:
        return
    assert all(
        not word.startswith("-") for host in hosts.values() for word in (host.name, host.ssh, host.user, host.key)
    )


PYINFRA = """
from secrets import token_hex
_hidden = ["no"]
word = "text"
web = ["w1", "@ssh/w2"]
gpu: list = ([("g1", {"ssh_user": "worker", "ssh_port": 2222, "ssh_hostname": "10.0.0.7"}), "g2"], {"ssh_key": "~/.ssh/k"})
"""


def pyinfra(source: str, group: str = "") -> tuple[HostSpec, ...]:
    return hosts_of_pyinfra(source, group=group, input_name="inventory.py")[0]


def test_literals_of_a_pyinfra_inventory_are_its_hosts() -> None:
    assert pyinfra(PYINFRA, "web") == (HostSpec(name="w1", ssh="w1"), HostSpec(name="w2", ssh="w2"))
    assert pyinfra(PYINFRA, "gpu") == (
        HostSpec(name="g1", ssh="10.0.0.7", user="worker", port=2222, key="~/.ssh/k"),
        HostSpec(name="g2", ssh="g2", key="~/.ssh/k"),
    )
    assert [host.name for host in pyinfra(PYINFRA)] == ["g1", "g2", "w1", "w2"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("g = [f'n{i}' for i in range(3)]", "line 1, g: it is computed"),
        ("g = __import__('os').system('touch x')", "it is computed"),
        ("g = ['@docker/x']", "is not reached by ssh"),
        ("g = [3]", "expected names of hosts"),
        ("g = [('a', 3)]", "expected names of hosts"),
        ("g = ['-oProxyCommand=x']", "expected the name of a host"),
        ("g = [", "is no Python: line 1"),
        ("x = 'a'", "names no host"),
        ("g = ['a']\x00", "is no Python"),
        ("g = " + "[" * 500 + "]" * 500, ""),
    ],
)
def test_pyinfra_inventory_that_is_no_plain_list_is_refused(source: str, said: str) -> None:
    with pytest.raises(EnvspecError) as caught:
        pyinfra(source)
    assert said in str(caught.value)


def test_computed_group_beside_the_one_that_is_meant_is_no_hindrance() -> None:
    assert [host.name for host in pyinfra("a = ['x']\nb = [n for n in a]", "a")] == ["x"]


def test_what_the_spec_says_of_a_host_stays_and_the_way_is_the_inventorys() -> None:
    declared = HostSpec(name="n", ssh="alias", compute="9.0", gpus=8, store="/spec", groups=("gpu",))
    found = HostSpec(name="n", ssh="10.0.0.7", user="u", port=22, store="/inventory", python="/py/bin/python3")
    assert merged([found], [declared]) == (
        HostSpec(
            name="n",
            ssh="10.0.0.7",
            user="u",
            port=22,
            compute="9.0",
            gpus=8,
            store="/spec",
            python="/py/bin/python3",
            groups=("gpu",),
        ),
    )
    assert merged([HostSpec(name="n", ssh="n")], [declared])[0].ssh == "alias"
