#!/usr/bin/env python3
"""The paths of the CUDA backend over random shapes, and over calls as a serving engine makes them.

    python bench/gpu_shapes.py FOLDER

writes FOLDER/benchmarks/shapes.json for tools/record.py: shapes/INDEX/N*/H*/T*, a row for each path of each of 200 shapes,
and calls/H*/LENGTHS/VARIATION, a row for each path of each way to make one call. Needs torch and this package.

Shapes, the same in every run: N from 1 to 64 and H from 1 to 128 with uniform logarithms, each length 0 (one in 16) or
uniform up to 20,000. Where tokens times heads would be more than 132 * 16384, all lengths shrink by one factor, so that
a shape takes under 4 GB and a few milliseconds.

Device time between events around one call, median of rounds in which all calls of a shape take turns; the floor is a
copy of as many bytes as the call must move. Before each call memory of several times the L2 is read: no call finds its
inputs in the cache, and each is enqueued before the device gets to it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import gpu_record  # before this package: it settles which one fla would use
import torch
from gpu_record import LENGTHS, LOWER_BOUND, D, captured, copy_call, family, moved_bytes

import flash_kda

SHAPES = 200
MOST_SEQUENCES, MOST_HEADS, MOST_TOKENS = 64, 128, 20_000
MOST_TOKEN_HEADS = 132 * 16384
CALL_SHAPES = [(96, "ragged8192"), (96, "fixed8192"), (12, "fixed8192")]  # without helping CTAs, with few, and with many
CAPTURED = ["plain", "slow gates", "mixed gates"]  # what is timed inside a CUDA graph too

Call = Callable[[], Any]


def random_shapes() -> Iterator[tuple[int, list[int]]]:
    """(heads, lengths)"""
    random = Random(0)
    for _ in range(SHAPES):
        sequences, heads = (round(most ** random.random()) for most in (MOST_SEQUENCES, MOST_HEADS))
        lengths = [
            0 if random.random() < 1 / 16 else int(random.random() * (MOST_TOKENS + 1)) for _ in range(sequences)
        ]
        token_heads = sum(lengths) * heads
        if token_heads > MOST_TOKEN_HEADS:
            lengths = [length * MOST_TOKEN_HEADS // token_heads for length in lengths]
        yield heads, lengths


def times_ms(calls: dict[str, Call], rounds: int, warm_up: int = 3) -> dict[str, float]:
    """Median of each."""
    cold = torch.ones(1 << 26, device="cuda")
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in calls}
    for _ in range(warm_up + rounds):
        for name, call in calls.items():
            cold.sum()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            events[name].append((begin, end))
    torch.cuda.synchronize()
    return {
        name: sorted(begin.elapsed_time(end) for begin, end in pairs[warm_up:])[rounds // 2]
        for name, pairs in events.items()
    }


def rows_of(name: str, times: dict[str, float], paths: list[str], floor_ms: float) -> list[dict[str, Any]]:
    return [{"name": name, "path": path, "ms": times[path], "floor_ms": floor_ms} for path in paths]


def time_shapes(paths: list[str]) -> Iterator[dict[str, Any]]:
    """Every shape takes the beginning of the same buffers."""

    def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(*shape, dtype=dtype, device="cuda")

    wide = {name: normal(MOST_TOKEN_HEADS * D) for name in ("q", "k", "v", "g", "out")}
    logits = normal(MOST_TOKEN_HEADS)
    A_log, dt_bias = torch.rand(MOST_HEADS, device="cuda"), torch.rand(MOST_HEADS, D, device="cuda")
    initial = normal(MOST_SEQUENCES * MOST_HEADS * D * D, dtype=torch.float32) * 0.1
    final = torch.empty_like(initial)
    for index, (heads, lengths) in enumerate(random_shapes()):
        tokens, states = sum(lengths), (len(lengths), heads, D, D)
        x = {name: t[: tokens * heads * D].view(1, tokens, heads, D) for name, t in wide.items()}
        x |= {"beta": logits[: tokens * heads].view(1, tokens, heads), "A_log": A_log[:heads], "dt_bias": dt_bias[:heads]}
        x |= {"initial_state": initial[: prod(states)].view(states), "final_state": final[: prod(states)].view(states)}
        x["cu_seqlens"] = torch.tensor([0, *lengths], device="cuda").cumsum(0)
        calls = {path: forward(x, path) for path in paths}
        times = times_ms({**calls, "floor": copy_call(moved_bytes(x, x["initial_state"]))}, rounds=15)
        yield from rows_of(f"shapes/{index}/N{len(lengths)}/H{heads}/T{tokens}", times, paths, times["floor"])


def forward(x: dict[str, torch.Tensor | None], path: str) -> Call:
    return lambda: flash_kda.forward(**x, lower_bound=LOWER_BOUND, backend=f"cuda/{path}")


def variations(heads: int, lengths: list[int]) -> dict[str, dict[str, torch.Tensor | None]]:
    """Ways to make one call, each as arguments of flash_kda.forward."""
    torch.manual_seed(0)
    T, N = sum(lengths), len(lengths)
    cu = torch.tensor([0, *lengths], device="cuda").cumsum(0)
    states = {"initial_state": torch.randn(N, heads, D, D, device="cuda") * 0.1}
    states["final_state"] = torch.empty_like(states["initial_state"])
    plain = {**family("F1", T, heads), **states, "cu_seqlens": cu}
    plain["out"] = torch.empty_like(plain["v"])

    fused = torch.cat([plain[name].flatten(2) for name in ("q", "k", "v")], dim=-1)
    strided = {name: part.unflatten(-1, (heads, D)) for name, part in zip("qkv", fused.chunk(3, -1), strict=True)}
    strided["beta"] = torch.cat([plain["beta"], fused[..., : 3 * heads]], dim=-1)[..., :heads]
    pool = torch.randn(2 * N, heads, D, D, device="cuda") * 0.1
    slots = torch.randperm(2 * N, device="cuda")[:N].int()
    in_pool = {"initial_state": pool, "final_state": pool, "read_index": slots, "write_index": slots}
    narrow, flat, no_A_log = {"cu_seqlens": cu.int()}, {"dt_bias": plain["dt_bias"].flatten()}, {"A_log": None}
    changes = {
        "plain": {},
        "slow gates": family("F3", T, heads),
        "mixed gates": family("F5", T, heads),
        "pool indices": in_pool,
        "int32 cu_seqlens": narrow,
        "strided q, k, v, beta": strided,
        "flat dt_bias": flat,
        "no dt_bias": {"dt_bias": None},
        "no A_log": no_A_log,
        "as served": {**in_pool, **narrow, **strided, **flat, **no_A_log},
    }
    return {name: {**plain, **change} for name, change in changes.items()}


def time_calls(paths: list[str]) -> Iterator[dict[str, Any]]:
    for heads, lengths_name in CALL_SHAPES:
        arguments = variations(heads, LENGTHS[lengths_name])
        plain = arguments["plain"]
        calls = {(name, path): forward(x, path) for name, x in arguments.items() for path in paths}
        in_graph = {f"{name}, in a CUDA graph": arguments[name] for name in CAPTURED}
        calls |= {(name, path): captured(forward(x, path)) for name, x in in_graph.items() for path in paths}
        calls["floor", ""] = copy_call(moved_bytes(plain, plain["initial_state"]))
        times = times_ms(calls, rounds=31)
        for variation in [*arguments, *in_graph]:
            of_paths = {path: times[variation, path] for path in paths}
            yield from rows_of(f"calls/H{heads}/{lengths_name}/{variation}", of_paths, paths, times["floor", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    paths, rows = gpu_record.paths_here(), []
    for part in (time_calls, time_shapes):  # written after each: a run that is cut short keeps what it measured
        rows += part(paths)
        (folder / "shapes.json").write_text(json.dumps({"benchmarks": rows}, indent=1))


if __name__ == "__main__":
    main()
