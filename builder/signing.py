"""Signatures of receipts: made and checked by OpenSSH's `ssh-keygen -Y`, with the keys that people have.

A signature is a file beside the receipt, `<receipt>.sig`. Who may sign stands in an allowed_signers file, as ssh-keygen(1) describes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder import process
from envspec.errors import COULD_NOT_LOOK, EnvspecError
from envspec.printable import printable
from envspec.receipt import NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT_S = 60.0
SIGNATURE_LIMIT_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What became of looking at a signature."""

    good: bool
    signer: str = ""
    """The principal of allowed_signers that it is by."""

    key: str = ""
    """Kind and fingerprint of the key."""

    reason: str = ""
    """Why it is not good."""


def sign(receipt: Path, key: Path, environ: Mapping[str, str]) -> Path:
    """Sign a receipt.

    Args:
        receipt: Its file.
        key: A private key without a passphrase, or the public half of one that ssh-agent has.
        environ: This process's environment: where the agent is.

    Returns:
        The file of the signature.

    Raises:
        EnvspecError: It cannot be signed.
    """
    signature = receipt.with_name(f"{receipt.name}.sig")
    # Into a pipe, not beside the file: a signature that is there already would be asked about.
    done = process.run_bytes(
        ["ssh-keygen", "-q", "-Y", "sign", "-f", os.fspath(key), "-n", NAMESPACE],
        env={**environ, "SSH_ASKPASS_REQUIRE": "never", "LC_ALL": "C"},
        input_bytes=receipt.read_bytes(),
    )
    if done.returncode != 0 or not done.stdout.startswith(b"-----BEGIN SSH SIGNATURE-----"):
        said = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it printed nothing"])[-1]
        raise EnvspecError(
            f"`{key}` cannot sign: {printable(said[:200])}",
            input_name="--sign",
            hint="a key with a passphrase has to be in ssh-agent (`ssh-add`); then give its public half: `--sign KEY.pub`",
            exit_code=COULD_NOT_LOOK,
        )
    signature.write_bytes(done.stdout)
    return signature


def check(content: bytes, signature: bytes, signers: Path, environ: Mapping[str, str]) -> Signature:
    """Check a signature.

    Args:
        content: Bytes of the receipt.
        signature: Bytes of the signature's file.
        signers: The allowed_signers file.
        environ: This process's environment.

    Raises:
        EnvspecError: ssh-keygen cannot be run, or the list of signers cannot be read.
    """
    if not signers.is_file():
        raise EnvspecError(
            f"there is no list of signers at `{signers}`",
            hint="write one as ssh-keygen(1) says under ALLOWED SIGNERS (`you@example.org ssh-ed25519 AAAA...`), or name it with `--signers`",
        )
    if len(signature) > SIGNATURE_LIMIT_BYTES:
        return Signature(good=False, reason=f"it has {len(signature)} bytes")
    clean = {"PATH": environ.get("PATH", os.defpath), "LC_ALL": "C"}
    handle, name = tempfile.mkstemp(prefix="envspec-", suffix=".sig")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(signature)
        found = process.run(
            ["ssh-keygen", "-Y", "find-principals", "-s", name, "-f", os.fspath(signers)],
            env=clean,
            timeout_s=TIMEOUT_S,
        )
        if found.returncode == process.CANNOT_START:
            raise EnvspecError(f"`ssh-keygen` cannot be run: {found.stderr}", hint="install OpenSSH's client")
        principals = found.stdout.split("\n")[0].strip()
        if found.returncode != 0 or not principals:
            return Signature(good=False, reason=_unknown_signer(content, name, clean))
        principal = principals.split(",")[0]
        done = process.run_bytes(
            ["ssh-keygen", "-Y", "verify", "-f", os.fspath(signers), "-I", principal, "-n", NAMESPACE, "-s", name],
            env=clean,
            input_bytes=content,
        )
    finally:
        with contextlib.suppress(OSError):
            Path(name).unlink()
    text = (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace")
    key = re.search(r"with (\S+) key (SHA256:\S+)", text)
    if done.returncode == 0 and key is not None:
        return Signature(good=True, signer=printable(principal), key=f"{key[1]} {key[2]}")
    return Signature(good=False, signer=printable(principal), reason=_last_line(text))


def _unknown_signer(content: bytes, signature: str, environ: Mapping[str, str]) -> str:
    """Why nobody is found: a signature that is right, by a key that is not in the list, or none at all."""
    done = process.run_bytes(
        ["ssh-keygen", "-Y", "check-novalidate", "-n", NAMESPACE, "-s", signature], env=environ, input_bytes=content
    )
    text = (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace")
    key = re.search(r"with (\S+) key (SHA256:\S+)", text)
    if done.returncode == 0 and key is not None:
        return f"the {key[1]} key {key[2]} is not among the signers"
    return _last_line(text)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["ssh-keygen refuses it"]
    return printable(lines[0][:200])
