"""The probe of the driver, against a driver that is played in C."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[3] / "builder" / "probes"
CUDA = r"""
#include <stdlib.h>
#include <string.h>
static int told(const char *name, int otherwise) { const char *text = getenv(name); return text ? atoi(text) : otherwise; }
int cuInit(unsigned flags) { return told("CU_INIT", 0); }
int cuGetErrorName(int code, const char **name) { *name = "CUDA_ERROR_NO_DEVICE"; return 0; }
int cuDriverGetVersion(int *out) { *out = told("CU_VERSION", 13000); return 0; }
int cuDeviceGetCount(int *out) { *out = told("CU_COUNT", 1); return 0; }
int cuDeviceGet(int *out, int index) { *out = index; return 0; }
int cuDeviceGetName(char *out, int size, int device) { strncpy(out, "NVIDIA H200", size); return 0; }
int cuDeviceTotalMem_v2(size_t *out, int device) { *out = 150000000000ULL; return 0; }
int cuDeviceGetAttribute(int *out, int attribute, int device) {
    *out = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 16 ? 132 : -1; return 0; }
int cuDeviceGetUuid_v2(unsigned char *out, int device) { for (int i = 0; i < 16; i++) out[i] = 16 * device + i; return 0; }
int cuDeviceCanAccessPeer(int *out, int one, int other) { *out = one != other; return 0; }
"""
NVML = r"""
#include <stdlib.h>
#include <string.h>
static int told(const char *name, int otherwise) { const char *text = getenv(name); return text ? atoi(text) : otherwise; }
static long long handles[8];
int nvmlInit_v2(void) { return told("NVML_INIT", 0); }
int nvmlSystemGetDriverVersion(char *out, unsigned size) { strncpy(out, "580.159.03", size); return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    if (strncmp(uuid, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", 41) == 0) { *out = &handles[0]; return 0; }
    if (strncmp(uuid, "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f", 41) == 0) { *out = &handles[1]; return 0; }
    return 6; }
int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *out) { out[0] = 3; out[1] = 2; out[2] = 1; return 0; }
int nvmlDeviceGetEccMode(void *handle, unsigned *now, unsigned *later) { *now = *later = 1; return 0; }
int nvmlDeviceGetTotalEccErrors(void *handle, int kind, int counter, unsigned long long *out) {
    if (kind != 1 || counter != 0) return 2;
    *out = told("NVML_ERRORS", 0); return 0; }
int nvmlDeviceGetRemappedRows(void *handle, unsigned *a, unsigned *b, unsigned *pending, unsigned *failed) {
    *a = 1; *b = 0; *pending = told("NVML_PENDING", 0); *failed = 0; return 0; }
int nvmlDeviceGetClockInfo(void *handle, int kind, unsigned *out) { *out = kind == 1 ? 1980 : 3201; return 0; }
int nvmlDeviceGetMaxClockInfo(void *handle, int kind, unsigned *out) { return 3; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *out) { *out = told("NVML_HELD", 1); return 0; }
int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *out) { *out = 41; return 0; }
int nvmlDeviceGetPowerUsage(void *handle, unsigned *out) { *out = 76123; return 0; }
int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *out) { if (link > 3) return 2; *out = link != 3; return 0; }
"""

compiler = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(compiler is None, reason="no C compiler")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    for name, source in (("libcuda.so.1", CUDA), ("libnvidia-ml.so.1", NVML)):
        (folder / f"{name}.c").write_text(source, encoding="ascii")
        subprocess.run(
            [str(compiler), "-shared", "-fPIC", "-w", "-o", str(folder / name), str(folder / f"{name}.c")], check=True
        )
    return folder


def run(libraries: Path, **told: int | str) -> dict[str, dict[str, Any]]:
    """The records of the probe, by case."""
    request = {"set": "quick", "mode": "run", "toolkit": told.pop("toolkit", "13.0")}
    environ = {
        **{key: str(value) for key, value in told.items()},
        "LD_LIBRARY_PATH": str(libraries),
        "PATH": os.environ["PATH"],
    }
    done = subprocess.run(
        [sys.executable, "-B", str(FOLDER / "driver.py")],
        input=json.dumps(request) + "\n",
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert records[-1] == {"end": True, "cases": len(records) - 1}
    return {record["case"]: record for record in records[:-1]}


def test_a_healthy_gpu_passes_with_what_it_says_of_itself(libraries: Path) -> None:
    records = run(libraries)
    assert {name: record["result"] for name, record in records.items()} == {"driver": "pass", "gpu-0": "pass"}
    figures = {
        name: figure["value"]
        for name, figure in {**records["driver"]["figures"], **records["gpu-0"]["figures"]}.items()
    }
    assert figures == {
        "cuda": "13.0",
        "driver": "580.159.03",
        "name": "NVIDIA H200",
        "compute": "9.0",
        "processors": 132,
        "memory": 150_000_000_000,
        "memory_free": 2,
        "ecc": "on",
        "uncorrected_errors": 0,
        "remapped_rows": 1,
        "rows_to_repair": 0,
        "rows_not_repaired": 0,
        "held_down_by": "idle",
        "temperature": 41,
        "power": 76.123,
    }


@pytest.mark.parametrize(
    ("told", "case", "reason"),
    [
        ({"NVML_ERRORS": 2}, "gpu-0", "uncorrected errors is 2, the bound 0"),
        ({"NVML_PENDING": 1}, "gpu-0", "rows to repair is 1, the bound 0"),
        ({"NVML_HELD": 0x48}, "gpu-0", "its clocks are held down: hardware slowdown, heat, by hardware"),
        ({"CU_VERSION": 12080}, "driver", "the driver serves CUDA up to 12.8, the lock's toolkit is 13.0"),
        ({"CU_INIT": 100}, "import", "Wrong: cuInit gives CUDA_ERROR_NO_DEVICE (100)"),
    ],
)
def test_what_is_not_well_is_found(libraries: Path, told: dict[str, int | str], case: str, reason: str) -> None:
    record = run(libraries, **told)[case]
    assert record["result"] == "fail"
    assert record["reason"] == reason


def test_a_newer_driver_and_mild_limits_are_no_fault(libraries: Path) -> None:
    records = run(libraries, CU_VERSION=13020, NVML_HELD=0x24, toolkit="12.8")
    assert {record["result"] for record in records.values()} == {"pass"}
    assert records["gpu-0"]["figures"]["held_down_by"]["value"] == "power limit, heat, by software"


def test_without_nvml_the_driver_is_asked_alone(libraries: Path) -> None:
    records = run(libraries, NVML_INIT=9)
    assert {record["result"] for record in records.values()} == {"pass"}
    assert records["gpu-0"]["figures"]["nvml"]["value"] == "does not know it"


def test_links_of_several_gpus_are_told(libraries: Path) -> None:
    records = run(libraries, CU_COUNT=2)
    assert set(records) == {"driver", "gpu-0", "gpu-1", "links"}
    figures = {name: figure["value"] for name, figure in records["links"]["figures"].items()}
    assert figures == {"pairs": 2, "peer_access": 2, "nvlinks_0": "3 of 4 up", "nvlinks_1": "3 of 4 up"}
