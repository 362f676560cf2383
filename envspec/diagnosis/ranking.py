"""How directly a cause explains a failed run: what it is about, compared with what was raised and swallowed on the way.

The first exception of the chain counts most, as the later ones came of it; then those that were swallowed in the code that failed
later; then other swallowed ones, most of which are optional imports that nobody misses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from envspec.diagnosis.telling import Telling, shown_raise, tellings_of
from envspec.traced import Raised

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envspec.diagnosis.grouping import Group
    from envspec.diagnosis.scene import Scene
    from envspec.diagnosis.symptom import Symptom

OF_CHAIN = 1.0
OF_RELATED = 0.8
OF_OTHERS = 0.3
STEP = 0.01
"""By so much an exception counts less than the one that it came of."""

DIRECT = 0.4
"""From this score on a cause explains the failure."""

SWALLOWED = 0.15
"""From this score on it does where nothing goes with what ended the run."""

_RUN_RULES = frozenset(
    {
        "machine-limit",
        "noexec",
        "stale-cache",
        "static-tls",
        "module-missing",
        "generated-code",
        "name-missing",
        "binary-interface",
        "bad-bytecode",
    }
)

_NO_ASSEMBLER = re.compile(
    r"ptxas (?:fatal|exited)|is not defined for option 'gpu-name'|Unsupported \.version", re.IGNORECASE
)
_STUB = re.compile(
    r"stub library|[Ff]orward compatibility was attempted|unsupported display driver|CUDA_ERROR_STUB_LIBRARY|cudaErrorStubLibrary"
)
_NO_DRIVER = re.compile(
    r"driver version is insufficient|[Ff]ound no NVIDIA driver|forward compatibility|no CUDA-capable device",
    re.IGNORECASE,
)
_SAID_BY = {
    "assembler-path": _NO_ASSEMBLER,
    "assembler-too-old": _NO_ASSEMBLER,
    "cuda-home": re.compile(
        r"detected CUDA version .* mismatches|nvcc (?:fatal|error)|Unsupported gpu architecture|CUDA_HOME|\bnvcc\b"
    ),
    "compiler-absent": re.compile(r"Python\.h|compiler|gcc|g\+\+|\bcc\b|clang"),
    "driver-mismatch": re.compile(r"mismatch|combination|[Ff]orward compatibility", re.IGNORECASE),
    "devices-hidden": re.compile(
        r"[Nn]o CUDA GPUs are available|no CUDA-capable device|invalid device ordinal|CUDA_ERROR_(?:NO|INVALID)_DEVICE"
    ),
    "driver-absent": _NO_DRIVER,
    "driver-too-old": _NO_DRIVER,
    "gpu-code-missing": re.compile(r"no kernel image is available|cudaErrorNoKernelImage|invalid device function"),
}
"""Check -> what is said at run time because of what it finds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """One exception of a run, and how much it counts."""

    raised: Raised
    telling: Telling
    weight: float
    in_chain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """How a cause goes with a run."""

    score: float
    """From 0 to 1."""

    exceptions: tuple[str, ...]
    """Those that it explains, in short, in the order in which they were raised."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a failed run says."""

    scene: Scene

    @cached_property
    def witnesses(self) -> tuple[Witness, ...]:
        """All exceptions; what was printed counts as one more, the last."""
        traced = self.scene.traced
        if traced is None or not traced.failed:
            return ()
        chain = [
            Witness(
                raised=raised, telling=tellings_of(raised, self.scene), weight=OF_CHAIN - STEP * number, in_chain=True
            )
            for number, raised in enumerate(traced.chain)
        ]
        if traced.messages:
            printed = Raised(type="output", message="\n".join(traced.messages))
            weight = OF_CHAIN - STEP * (len(chain) + 1) if not chain else OF_RELATED / 2
            chain.append(
                Witness(
                    raised=printed, telling=tellings_of(printed, self.scene), weight=weight, in_chain=not traced.chain
                )
            )
        swallowed = []
        for number, raised in enumerate(traced.swallowed):
            telling = tellings_of(raised, self.scene)
            base = OF_RELATED if self._is_related(raised, telling, chain) else OF_OTHERS
            swallowed.append(
                Witness(raised=raised, telling=telling, weight=max(base - STEP * number, base / 2), in_chain=False)
            )
        return (*chain, *swallowed)

    def match(self, group: Group) -> Match:
        """How a cause goes with the run: its root counts whole, what follows from it nearly so."""
        best = 0.0
        heard: list[str] = []
        swallowed: list[str] = []
        for witness in self.witnesses:
            strength = max(
                (
                    strength_of(each, witness, self.scene) * (1.0 if each is group.root else 0.95)
                    for each in group.all
                    if each.check != "run-failed"
                ),
                default=0.0,
            )
            best = max(best, strength * witness.weight)
            optional = not witness.in_chain and witness.raised.type.rpartition(".")[2] == "ModuleNotFoundError"
            if strength >= (_NAMED if optional else _HEARD) and witness.raised.type != "output":
                (heard if witness.in_chain else swallowed).append(shown_raise(witness.raised))
        return Match(score=best, exceptions=tuple(dict.fromkeys((*swallowed, *heard))))

    def _is_related(self, raised: Raised, telling: Telling, chain: Iterable[Witness]) -> bool:
        """Whether a swallowed exception has to do with the failure: in the same package, or quoted by what was raised later."""
        first = next((line.strip() for line in raised.message.splitlines() if line.strip()), "")
        for witness in chain:
            concerned = {witness.telling.raised_owner, *witness.telling.owners_of_operators} - {""}
            concerned |= {self.scene.owner_of_module(module) for module in witness.telling.missing_modules}
            if telling.raised_owner in concerned or set(telling.passed[-1:]) & concerned:
                return True
            if len(first) >= _QUOTED_CHARACTERS and first in witness.raised.message:
                return True
            if telling.sonames & witness.telling.sonames or telling.symbols & witness.telling.symbols:
                return True
        return False


_HEARD = 0.55
_NAMED = 0.85
"""A module that was tried and given up comes of a cause only if that is about the module: most are of other systems."""

_QUOTED_CHARACTERS = 12


def strength_of(symptom: Symptom, witness: Witness, scene: Scene) -> float:
    """How well a symptom goes with an exception, from 0 to 1."""
    telling, finding = witness.telling, symptom.finding
    if symptom.check in _RUN_RULES:
        return 0.9 if finding.evidence[:1] == (shown_raise(witness.raised),) else 0.0
    packages = set(finding.packages)
    to_mend = finding.packages[0] if finding.packages else ""
    named = {path for path in telling.paths if path}
    if symptom.symbols & telling.symbols or symptom.sonames & telling.sonames:
        return 1.0
    if any(path in symptom.paths for path in named):
        return 1.0
    if symptom.modules & set(telling.missing_modules):
        return 1.0
    if telling.missing_projects & packages or telling.owners_of_operators & packages:
        return 1.0 if to_mend in telling.missing_projects | telling.owners_of_operators else 0.9
    if telling.raised_path and telling.raised_path in symptom.paths:
        return 0.95
    if symptom.check == "library-path" and telling.symbols and scene.takes_from(named, symptom.sonames):
        return 0.85
    if symptom.check == "requires-dist" and witness.raised.name.partition(".")[0] in symptom.modules:
        return 0.85
    if symptom.check in ("outside-package", "shadowed-module"):
        ran = [any(_is_within(frame.file, path) for path in symptom.paths) for frame in witness.raised.frames]
        if any(ran):
            return 0.8 if ran[-1] else 0.6
    if symptom.check == "library-path" and "libcuda.so.1" in symptom.sonames and _STUB.search(witness.raised.message):
        return 0.9
    known = _SAID_BY.get(symptom.check)
    if known is not None and known.search(witness.raised.message):
        return 0.9
    if symptom.check in _ONLY_BY_FILE:
        return 0.0
    tops = {module.partition(".")[0] for module in telling.missing_modules}
    if tops & {module.partition(".")[0] for module in symptom.modules}:
        return 0.9
    owners = {scene.owner_of(path) for path in named if not path.startswith("/")}
    if to_mend and to_mend in owners:
        return 0.8
    if to_mend and to_mend == telling.raised_owner:
        return 0.7
    if to_mend and to_mend == (telling.passed[-1] if telling.passed else ""):
        return 0.6
    if to_mend and (
        to_mend in telling.words or any(module.lower() in telling.words for module in scene.modules_of_project(to_mend))
    ):
        return 0.5
    if packages & {telling.raised_owner, *telling.passed[-1:]}:
        return 0.3
    if to_mend in telling.passed:
        return 0.2
    return 0.0


def _is_within(file: str, path: str) -> bool:
    """Whether a file is the one that a path names, or lies below the folder that it names."""
    return file == path or (path.endswith("/") and file.startswith(path))


_ONLY_BY_FILE = frozenset(
    {
        "edited-file",
        "drift",
        "poisoned-file",
        "stray-code",
        "stray-module",
        "startup-hook",
        "record-hash",
        "driver-absent",
        "no-record",
    }
    | {
        "library-path",
        "cuda-home",
        "assembler-path",
        "moved-venv",
        "gpu-code-missing",
        "assembler-too-old",
        "compiler-absent",
        "devices-hidden",
        "driver-mismatch",
        "outside-package",
        "two-versions",
    }
)
"""What explains a failure only where the very file, library or module is named: such things are noticed in many venvs that work."""
