#!/usr/bin/env python3
"""Microseconds that one flash_kda.fwd call costs the host from Python: arguments, validation, plan and launch.

On the CPU (NumPy, and torch where it is installed) the shape is the smallest there is, T = H = K = V = 1, so that what
remains of the kernel is part of the host's cost. On a GPU (--device cuda, torch) calls are enqueued without waiting for
them. Both states and cu_seqlens are given, and torch runs in inference mode, as a serving engine has it. The figure is
the fastest of many short runs, after a second of them: other load only ever adds, and clocks take a while to rise.

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


def microseconds(call: Callable[[], None], wait: Callable[[], None]) -> float:
    best = float("inf")
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        wait()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, time.perf_counter() - start)
    return best / CALLS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--record", metavar="FILE", help="write the row host/python of a verification record")
    parser.add_argument("--path", help="for --record: the path that the calls take, as `flashkda info` names it")
    options = parser.parse_args()
    if options.record and not (options.path and options.device == "cuda"):
        parser.error("--record: accepted with --device cuda and --path")

    cases: dict[str, tuple[dict[str, object], Callable[[], None]]] = {}
    if options.device == "cuda":
        import torch

        def to_gpu(array: np.ndarray) -> object:
            tensor = torch.from_numpy(array).cuda()
            return tensor.bfloat16() if array.dtype == np.float16 else tensor

        cases["torch, bfloat16, cuda"] = (arguments(64, 1, 128, to_gpu, np.float16), torch.cuda.synchronize)
    else:
        cases["numpy, float32"] = (arguments(1, 1, 1, lambda a: a, np.float32), lambda: None)
        if importlib.util.find_spec("ml_dtypes"):
            import ml_dtypes

            cases["numpy, bfloat16"] = (arguments(1, 1, 1, lambda a: a, ml_dtypes.bfloat16), lambda: None)
        if importlib.util.find_spec("torch"):
            import torch

            cases["torch, float32"] = (arguments(1, 1, 1, torch.from_numpy, np.float32), lambda: None)

    torch_module = sys.modules.get("torch")
    with torch_module.inference_mode() if torch_module else contextlib.nullcontext():
        result = {name: microseconds(partial(flash_kda.fwd, **values), wait) for name, (values, wait) in cases.items()}
    if options.record:
        row = {"name": "host/python", "path": options.path, "ms": min(result.values()) * 1e-3, "floor_ms": 0.0}
        Path(options.record).write_text(json.dumps({"benchmarks": [row]}, indent=1))
    if options.json:
        print(json.dumps({"host_us": {name: round(value, 2) for name, value in result.items()}}))
    else:
        for name, value in result.items():
            print(f"{name:24s} {value:6.2f} us per fwd")


if __name__ == "__main__":
    main()
