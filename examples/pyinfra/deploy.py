"""Builds the environment: `pyinfra inventory.py deploy.py --data spec=/srv/ddtree/ddtree.toml`.

With `--dry` nothing is changed, and the hosts where something would be are shown.
"""

from __future__ import annotations

from envspec_operation import environment
from pyinfra import host

environment(
    name="The environment of the lock",
    spec=host.data.spec,
    store=host.data.get("store", ""),
    envspec=host.data.get("envspec", "envspec"),
)
