"""Hosts. `envspec build --inventory inventory.py:gpu` reads the same file, as text."""

gpu = [
    "ct129",
    ("ct200", {"ssh_user": "worker"}),
]
