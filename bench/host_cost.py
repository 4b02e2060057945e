#!/usr/bin/env python3
"""Microseconds that one call costs the host from Python: arguments, validation, plan and launch.

On the CPU (NumPy, and torch where it is installed) it is flash_kda.fwd with the smallest shape there is, T = H = K = V =
1, so that what remains of the kernel is part of the host's cost. On a GPU (--device cuda, torch) it is flash_kda.forward
on each path of the CUDA backend; calls are enqueued without waiting for them. All outputs, both states and cu_seqlens
are given, and torch runs in inference mode, as a serving engine has it. The figure is the fastest of many short runs,
after a second of them: other load only ever adds, and clocks take a while to rise.

    OMP_NUM_THREADS=1 python bench/host_cost.py [--device cpu|cuda] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

import flash_kda

CALLS = 100  # a run; short enough that the queue of a GPU never fills
SECONDS = 2.0  # of runs, the warm-up included
CUDA_PATHS = ("two_kernel", "fused")


def arguments(
    T: int, H: int, K: int, convert: Callable[[np.ndarray], object], low_precision: type | str
) -> dict[str, object]:
    def tokens(*shape: int) -> object:
        return convert(np.zeros(shape, low_precision))

    state = (1, H, K, K)
    return {
        **{name: tokens(1, T, H, K) for name in ("q", "k", "v", "g", "out")},
        "beta": tokens(1, T, H),
        "scale": 1.0,
        "A_log": convert(np.zeros(H, np.float32)),
        "dt_bias": convert(np.zeros((H, K), np.float32)),
        "lower_bound": -5.0,
        "initial_state": convert(np.zeros(state, np.float32)),
        "final_state": convert(np.zeros(state, np.float32)),
        "cu_seqlens": convert(np.array([0, T], np.int64)),
    }


def microseconds(call: Callable[[], object], wait: Callable[[], None]) -> float:
    best = float("inf")
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        wait()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, time.perf_counter() - start)
    return best / CALLS * 1e6


def cpu_calls() -> dict[str, Callable[[], object]]:
    calls = {"numpy, float32": partial(flash_kda.fwd, **arguments(1, 1, 1, lambda a: a, np.float32))}
    if importlib.util.find_spec("ml_dtypes"):
        import ml_dtypes

        calls["numpy, bfloat16"] = partial(flash_kda.fwd, **arguments(1, 1, 1, lambda a: a, ml_dtypes.bfloat16))
    if importlib.util.find_spec("torch"):
        import torch

        calls["torch, float32"] = partial(flash_kda.fwd, **arguments(1, 1, 1, torch.from_numpy, np.float32))
    return calls


def cuda_calls() -> dict[str, Callable[[], object]]:
    """By path: each is asked for."""
    import torch

    def to_gpu(array: np.ndarray) -> object:
        tensor = torch.from_numpy(array).cuda()
        return tensor.bfloat16() if array.dtype == np.float16 else tensor

    values = arguments(64, 1, 128, to_gpu, np.float16)
    calls = {path: partial(flash_kda.forward, **values, backend=f"cuda/{path}") for path in CUDA_PATHS}
    if torch.cuda.get_device_capability() != (9, 0):
        print("the fused path is left out: it is for compute capability 9.0", file=sys.stderr)
        del calls["fused"]
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--record", metavar="FILE", help="write the rows host/python of a verification record")
    options = parser.parse_args()
    if options.record and options.device != "cuda":
        parser.error("--record: accepted with --device cuda")

    calls = cuda_calls() if options.device == "cuda" else cpu_calls()
    torch = sys.modules.get("torch")
    wait = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    with torch.inference_mode() if torch else contextlib.nullcontext():
        result = {name: microseconds(call, wait) for name, call in calls.items()}
    if options.record:
        rows = [{"name": "host/python", "path": path, "ms": us * 1e-3, "floor_ms": 0.0} for path, us in result.items()]
        Path(options.record).write_text(json.dumps({"benchmarks": rows}, indent=1))
    if options.json:
        print(json.dumps({"host_us": {name: round(value, 2) for name, value in result.items()}}))
    else:
        for name, value in result.items():
            print(f"{name:24s} {value:6.2f} us a call")


if __name__ == "__main__":
    main()
