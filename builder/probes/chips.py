"""What chips can do, so that a figure says something: dense matrix rates in TFLOP/s, memory in GB/s, by NVIDIA's data sheets.

The data sheets of Hopper and Blackwell state most matrix rates with sparsity, which is twice the dense rate that stands here. Rates are with
accumulation in float32. Of the RTX cards the sheets state one rate, that of FP4 with sparsity; the dense rates of the 16-bit formats are an
eighth of it, of fp8 a quarter, of tf32 a sixteenth. A name that is not here (an unknown chip, a slice of one) gives a figure without judgement.
"""

from __future__ import annotations

_HOPPER_SXM = {"bf16": 989.0, "fp16": 989.0, "fp8": 1979.0, "tf32": 494.0}
_HOPPER_NVL = {"bf16": 835.0, "fp16": 835.0, "fp8": 1671.0, "tf32": 417.0}
_HOPPER_PCIE = {"bf16": 756.0, "fp16": 756.0, "fp8": 1513.0, "tf32": 378.0}
_BLACKWELL_HGX = {"bf16": 2250.0, "fp16": 2250.0, "fp8": 4500.0, "tf32": 1100.0, "memory": 7700.0}
_BLACKWELL_GRACE = {"bf16": 2500.0, "fp16": 2500.0, "fp8": 5000.0, "tf32": 1250.0, "memory": 8000.0}
_AMPERE = {"bf16": 312.0, "fp16": 312.0, "tf32": 156.0}


def _rtx(fp4_sparse: float, memory: float) -> dict[str, float]:
    return {
        "bf16": fp4_sparse / 8,
        "fp16": fp4_sparse / 8,
        "fp8": fp4_sparse / 4,
        "tf32": fp4_sparse / 16,
        "memory": memory,
    }


CHIPS: dict[str, dict[str, float]] = {
    "NVIDIA H200": {**_HOPPER_SXM, "memory": 4800.0},
    "NVIDIA H200 NVL": {**_HOPPER_NVL, "memory": 4800.0},
    "NVIDIA H100 80GB HBM3": {**_HOPPER_SXM, "memory": 3350.0},
    "NVIDIA H100 NVL": {**_HOPPER_NVL, "memory": 3900.0},
    "NVIDIA H100 PCIe": {**_HOPPER_PCIE, "memory": 2000.0},
    "NVIDIA GH200 480GB": {**_HOPPER_SXM, "memory": 4000.0},
    "NVIDIA B200": _BLACKWELL_HGX,
    "NVIDIA B300 SXM6 AC": {**_BLACKWELL_HGX, "memory": 8000.0},
    "NVIDIA GB200": _BLACKWELL_GRACE,
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": _rtx(4000.0, 1792.0),
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": _rtx(3511.0, 1792.0),
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": _rtx(3700.0, 1597.0),
    "NVIDIA A100-SXM4-80GB": {**_AMPERE, "memory": 2039.0},
    "NVIDIA A100-SXM4-40GB": {**_AMPERE, "memory": 1555.0},
    "NVIDIA A100 80GB PCIe": {**_AMPERE, "memory": 1935.0},
    "NVIDIA L40S": {"bf16": 362.0, "fp16": 362.0, "fp8": 733.0, "tf32": 183.0, "memory": 864.0},
    "NVIDIA L4": {"bf16": 121.0, "fp16": 121.0, "fp8": 242.0, "tf32": 60.0, "memory": 300.0},
}


def can_do(gpu_name: str, what: str) -> float | None:
    """What a chip can do; None if it is not known.

    Args:
        gpu_name: As its driver names it.
        what: `bf16`, `fp16`, `fp8`, `tf32` (TFLOP/s) or `memory` (GB/s).
    """
    return CHIPS.get(gpu_name, {}).get(what)
