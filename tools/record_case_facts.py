"""Cuts facts of real wheels down to what the cases of tests/envspec/checks/test_link_cases.py need, and writes them to tests/data/facts/links.

    python -m tools.record_case_facts FACTS...

FACTS are folders of facts as a store has them (`<store>/facts`). Of every wheel in `WHEELS` there remain:

- its shared objects with names, search paths, needs and GPU releases. torch and NVIDIA's wheels are there for what the others need: torch's own
  needs of NVIDIA's libraries other than the runtime of CUDA are left out, as a case would have to bring 3 GB of them along;
- of the symbols that an object needs, those that some recorded torch has and another has not, and a few of the rest; of the symbols that it
  offers, those that are needed by what is recorded;
- files at paths that two of the wheels have; requirements on recorded wheels; versions of symbols of the host are left out.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from envspec.binaries import BinaryFacts, GpuCode
from envspec.cuda import TOOLKIT_LIBRARY, is_torch_symbol, major_of_soname
from envspec.facts import WheelFacts, wheel_facts_from_json, wheel_facts_to_json
from envspec.layout import normalise_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from envspec.binaries import Binary

OUT = Path(__file__).resolve().parents[1] / "tests" / "data" / "facts" / "links"

WHEELS = (
    *("torch-2.9.1", "torch-2.10.0", "torch-2.11.0", "torch-2.14.1"),
    *("torchvision-0.24.1", "torchvision-0.25.0", "torchvision-0.26.0", "torchvision-0.27.0"),
    *("torchaudio-2.9.1", "torchaudio-2.11.0"),
    *("sgl-kernel-0.3.21", "sglang-kernel-0.4.0", "sglang-kernel-0.4.2", "sglang-kernel-0.4.10"),
    *("vllm-0.33.0", "torch-memory-saver-0.0.9.post1", "triton-3.6.0", "torchcodec-0.11.1"),
    *("nvidia-cuda-runtime-cu12-12.8.90", "nvidia-cuda-runtime-13.0.96", "nvidia-cuda-nvrtc-13.0.88"),
    "nvidia-cublas-13.1.0.3",
    *("nvidia-cutlass-dsl-libs-base-4.4.1", "nvidia-cutlass-dsl-libs-cu13-4.4.1"),
)
"""Name and version, as the recorded file is called."""

_OTHERS_SHOWN = 5
_INTERPRETER = re.compile(r"PyInit_\w+")


def main(folders: Iterable[str]) -> None:
    """Record."""
    facts = _find(Path(folder) for folder in folders)
    lacking = [name for name in WHEELS if name not in facts]
    if lacking:
        sys.exit(f"no facts of {', '.join(lacking)}")
    wanted = {name: facts[name] for name in WHEELS}
    needed = _needed_symbols(wanted)
    shared = Counter(file.path for each in wanted.values() for file in each.files)
    rivals = _rivals(wanted)
    OUT.mkdir(parents=True, exist_ok=True)
    for name, each in wanted.items():
        record = wheel_facts_to_json(_cut(each, needed, shared if name in rivals else Counter(), rivals))
        text = json.dumps(record, sort_keys=True, separators=(",", ":"))
        # No time and no name in the header: the same bytes in every run.
        (OUT / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def _find(folders: Iterable[Path]) -> dict[str, WheelFacts]:
    names = tuple(f'"name": "{name.rpartition("-")[0]}"' for name in WHEELS)
    found = {}
    for folder in folders:
        for path in sorted(folder.glob("*.json")):
            text = path.read_text(encoding="utf-8")
            if any(name in text or name.replace(": ", ":") in text for name in names):
                facts = wheel_facts_from_json(json.loads(text))
                found[f"{facts.name}-{facts.version.partition('+')[0]}"] = facts
    return found


def _is_torch(facts: WheelFacts) -> bool:
    return facts.name == "torch"


def _needed_symbols(wheels: Mapping[str, WheelFacts]) -> dict[str, frozenset[str]]:
    """Path of an object -> the symbols that are kept of those that it needs."""
    exported_by = [
        frozenset().union(*(binary.exported for binary in facts.binaries.binaries))
        for facts in wheels.values()
        if _is_torch(facts)
    ]
    everywhere = frozenset.intersection(*exported_by)
    kept: dict[str, frozenset[str]] = {}
    for name, facts in wheels.items():
        for binary in facts.binaries.binaries:
            strong = sorted(each.name for each in binary.undefined if not each.weak and not each.version)
            of_torch = [symbol for symbol in strong if is_torch_symbol(symbol)]
            deciding = [symbol for symbol in of_torch if symbol not in everywhere]
            others = [symbol for symbol in strong if symbol not in deciding][:_OTHERS_SHOWN]
            kept[f"{name}:{binary.path}"] = (
                frozenset() if _is_torch(facts) or name.startswith("nvidia") else frozenset((*deciding, *others))
            )
    return kept


def _rivals(wheels: Mapping[str, WheelFacts]) -> frozenset[str]:
    """The wheels that are recorded for their files too."""
    return frozenset(
        name for name in wheels if name.startswith(("sgl-kernel-", "sglang-kernel-0.4.", "nvidia-cutlass"))
    )


def _cut(
    facts: WheelFacts, needed: Mapping[str, frozenset[str]], shared: Counter[str], rivals: frozenset[str]
) -> WheelFacts:
    key = f"{facts.name}-{facts.version.partition('+')[0]}"
    of_anyone = frozenset().union(*needed.values())
    names = {name.rpartition("-")[0] for name in WHEELS}
    return replace(
        facts,
        files=tuple(
            file for file in facts.files if shared[file.path] > 1 and ".dist-info/" not in file.path and (key in rivals)
        ),
        requires_dist=tuple(
            line for line in facts.requires_dist if normalise_name(Requirement(line).name) in names and ";" not in line
        ),
        provides_extra=(),
        hooks=(),
        scripts=(),
        anomalies=(),
        binaries=BinaryFacts(
            binaries=tuple(
                _cut_binary(facts, binary, needed[f"{key}:{binary.path}"], of_anyone)
                for binary in facts.binaries.binaries
                if binary.is_loadable and not binary.damage
            ),
            labels=tuple(
                label
                for label in facts.binaries.labels
                if label.path == f"{facts.name.replace('-', '_')}/version.py" and label.key in ("cuda", "__version__")
            ),
        ),
    )


def _cut_binary(facts: WheelFacts, binary: Binary, needed: frozenset[str], of_anyone: frozenset[str]) -> Binary:
    return replace(
        binary,
        needed=tuple(
            name
            for name in binary.needed
            if not (_is_torch(facts) and TOOLKIT_LIBRARY.fullmatch(name) and not _is_runtime(name))
        ),
        undefined=tuple(
            each for each in binary.undefined if each.name in needed and not each.version and not each.weak
        ),
        exports="\n".join(
            sorted(name for name in binary.exported if name in of_anyone or _INTERPRETER.fullmatch(name))
        ),
        version_needs=(),
        version_definitions=(),
        executable_stack=False,
        gpu=GpuCode(fatbins=(), releases=binary.gpu.releases) if binary.gpu and binary.gpu.releases else None,
    )


def _is_runtime(soname: str) -> bool:
    return soname.startswith("libcudart.") and major_of_soname(soname) is not None


if __name__ == "__main__":
    main(sys.argv[1:])
