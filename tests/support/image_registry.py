"""A registry on a free port of 127.0.0.1, and a wire to it that counts what goes over.

with Registry(tmp_path / "registry") as registry:
    registry.push(layout, "demo")
    print(registry.sent_bytes)
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

from tests.support.cache_servers import DockerRegistry
from tests.support.images import command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType


class Registry:
    """Debian's docker-registry behind a wire."""

    def __init__(self, folder: Path) -> None:
        """Prepare.

        Args:
            folder: Where its files lie; of its own.
        """
        self._server = DockerRegistry(folder)
        self._wire = socket.create_server(("127.0.0.1", 0))
        self.authority = f"127.0.0.1:{self._wire.getsockname()[1]}"
        self.sent_bytes = 0
        """What clients sent so far."""

    def __enter__(self) -> Registry:  # noqa: PYI034 - as everywhere here
        self._server.__enter__()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wire.close()
        self._server.power_off()

    def push(self, layout: Path, tag: str) -> int:
        """Copy an image of a layout to the registry with skopeo.

        Returns:
            How many bytes went over the wire.
        """
        before = self.sent_bytes
        command(
            "skopeo", "copy", "--quiet", "--dest-tls-verify=false", "--preserve-digests",
            f"oci:{layout}:{tag}", f"docker://{self.authority}/demo:{tag}",
        )  # fmt: skip
        return self.sent_bytes - before

    def digest(self, tag: str) -> str:
        """The digest of an image as the registry has it."""
        reference = f"docker://{self.authority}/demo:{tag}"
        return command("skopeo", "inspect", "--tls-verify=false", "--format", "{{.Digest}}", reference).strip()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._wire.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._server.port)) as server:
            back = threading.Thread(target=_pass, args=(server, client), daemon=True)
            back.start()
            for count in _passed(client, server):
                self.sent_bytes += count
            back.join()


def _pass(source: socket.socket, target: socket.socket) -> None:
    for _ in _passed(source, target):
        pass


def _passed(source: socket.socket, target: socket.socket) -> Iterator[int]:
    """Pass bytes on until there are no more, and tell how many."""
    with contextlib.suppress(OSError):
        while raw := source.recv(1 << 18):
            target.sendall(raw)
            yield len(raw)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
