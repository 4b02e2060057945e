#!/usr/bin/env python3
"""Accuracy and speed of the CUDA backend beside its peers, in one run on one GPU.

    python bench/gpu_record.py FOLDER [--published DIR] [--no-fla]
    python bench/gpu_record.py --compile

The first writes FOLDER/accuracy/peers.json and FOLDER/benchmarks/peers.json for tools/record.py. Needs torch and this package;
fla's Triton kernel where flash-linear-attention is importable; and, with --published, the published package of the same
module name installed in DIR, which runs in a process of its own. The second compiles fla's kernels into Triton's cache, on
all cores and beside whatever else runs: it takes minutes, for which the first then does not wait.

Accuracy: rows F1 to F8 (bf16 tensors, T 1024, 4 heads, fp32 states, mean of five seeds), relative Frobenius error of output
and final state against a recurrence in fp64. Speed: device time between events around one call, median of 20 after 5, fp32
initial and final state; the floor is a device-to-device copy that reads and writes as many bytes as the call must.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ["FLA_FLASH_KDA"] = "0"  # fla would otherwise dispatch to this very package

import torch

LOWER_BOUND = -5.0
D = 128

LENGTHS = {
    "fixed8192": [8192],
    "ragged8192": [1300, 547, 2048, 963, 271, 3063],
    "8x1024": [1024] * 8,
    "fixed2048": [2048],
    "fixed65536": [65536],
}
# (heads, lengths, gate)
BENCHMARKS = [
    *((H, lengths, "random") for H in (96, 64) for lengths in ("fixed8192", "ragged8192", "8x1024")),
    *((96, "fixed8192", gate) for gate in ("slow", "mixed")),
    (32, "fixed8192", "random"),
    (16, "fixed8192", "random"),
    (12, "fixed8192", "random"),
    (12, "8x1024", "random"),
    (12, "fixed2048", "random"),
    (12, "fixed65536", "random"),
]
PATHS = ["two_kernel", "fused"]
FAMILY_OF_GATE = {"random": "F1", "slow": "F3", "mixed": "F5"}
FAMILIES = [f"F{i}" for i in range(1, 9)]
ACCURACY_TOKENS, ACCURACY_HEADS = 1024, 4


def family(name: str, tokens: int, heads: int) -> dict[str, torch.Tensor]:
    """Inputs of one accuracy row, drawn from torch's current random state."""

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda")

    z, b = normal(tokens, heads, D), normal(tokens, heads)
    A_log, dt_bias = torch.zeros(heads, device="cuda"), torch.zeros(heads, D, device="cuda")
    q, k, g = normal(tokens, heads, D), normal(tokens, heads, D), z / 2 - 8
    if name == "F1":
        g, A_log, dt_bias = z, torch.rand(heads, device="cuda"), torch.rand(heads, D, device="cuda")
    elif name == "F2":
        g = z / 2 - 4
    elif name == "F4":
        b = b - 4
    elif name == "F5":
        g, dt_bias = z / 2, torch.rand(heads, D, device="cuda") * 16 - 8
    elif name == "F6":
        one = normal(1, heads, D)
        q, k = one + 0.3 * normal(tokens, heads, D), one + 0.3 * normal(tokens, heads, D)
        g, b = z / 2 - 9, b + 3
    elif name == "F7":
        q = k = normal(1, heads, D).expand(tokens, heads, D)
        g, b = torch.full_like(z, -12.0), torch.full_like(b, 8.0)
    elif name == "F8":
        g, b = torch.full_like(z, -8.0), b - 4
    low = {"q": q, "k": k, "v": normal(tokens, heads, D), "g": g, "beta": b}
    tensors = {key: value.bfloat16().contiguous()[None] for key, value in low.items()}
    return {**tensors, "A_log": A_log, "dt_bias": dt_bias}


def recurrence(x: dict[str, torch.Tensor], state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The operator in fp64, token by token: (out [T, H, V], state [H, V, K])."""
    q, k, v, g, beta = (x[name][0].double() for name in ("q", "k", "v", "g", "beta"))
    q, k = (y * torch.rsqrt((y * y).sum(-1, keepdim=True) + 1e-6) for y in (q, k))
    gate = LOWER_BOUND * torch.sigmoid(x["A_log"].double().exp()[:, None] * (g + x["dt_bias"].double()))
    decay, b, s = gate.exp(), torch.sigmoid(beta), state.double()
    out = torch.empty_like(v)
    for t in range(q.shape[0]):
        s = s * decay[t][:, None, :]
        u = (v[t] - (s @ k[t][..., None])[..., 0]) * b[t][:, None]
        s = s + u[..., None] * k[t][:, None, :]
        out[t] = (s @ q[t][..., None])[..., 0] * D**-0.5
    return out, s


Call = Callable[[dict[str, torch.Tensor], torch.Tensor, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor]]


def paths_here() -> list[str]:
    """The paths of the CUDA backend that this GPU has: it would refuse the others."""
    if torch.cuda.get_device_capability() == (9, 0):
        return PATHS
    print("the fused path is left out: it is for compute capability 9.0", file=sys.stderr)
    return ["two_kernel"]


def this_package(path: str) -> Call:
    import flash_kda

    def call(x: dict[str, torch.Tensor], state: torch.Tensor, cu: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        out, final = torch.empty_like(x["v"]), torch.empty_like(state)
        flash_kda.forward(
            x["q"], x["k"], x["v"], x["g"], x["beta"], A_log=x["A_log"], dt_bias=x["dt_bias"], lower_bound=LOWER_BOUND,
            initial_state=state, final_state=final, cu_seqlens=cu, out=out, backend=f"cuda/{path}",
        )  # fmt: skip
        return out, final

    return call


def published_package() -> Call:
    import flash_kda

    def call(x: dict[str, torch.Tensor], state: torch.Tensor, cu: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        out, final = torch.empty_like(x["v"]), torch.empty_like(state)
        flash_kda.fwd(
            x["q"], x["k"], x["v"], x["g"], x["beta"], D**-0.5, out, x["A_log"], x["dt_bias"], LOWER_BOUND,
            initial_state=state, final_state=final, cu_seqlens=cu,
        )
        return out, final

    return call


def fla_triton() -> Call | None:
    try:
        from fla.ops.kda import chunk_kda
    except ImportError as error:
        print(f"fla left out: {error}", file=sys.stderr)
        return None

    def call(x: dict[str, torch.Tensor], state: torch.Tensor, cu: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.inference_mode():
            return chunk_kda(
                q=x["q"], k=x["k"], v=x["v"], g=x["g"], beta=x["beta"], scale=D**-0.5, A_log=x["A_log"],
                dt_bias=x["dt_bias"].reshape(-1), initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True,
                use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True, safe_gate=True, lower_bound=LOWER_BOUND,
                state_v_first=True, cu_seqlens=cu,
            )  # fmt: skip

    return call


def assert_independent(fla: Call) -> None:
    """fla must compute by itself: its call must not reach this package."""
    import flash_kda

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("fla dispatched to this package")

    original, flash_kda.fwd = flash_kda.fwd, refuse
    try:
        fla(family("F1", 128, 2), torch.zeros(1, 2, D, D, device="cuda"), None)
    finally:
        flash_kda.fwd = original


def relative(x: torch.Tensor, reference: torch.Tensor) -> float:
    error = float((x.double() - reference).norm() / reference.norm())
    return error if error == error else float("inf")


def accuracy(calls: dict[str, Call], seeds: int) -> list[dict[str, Any]]:
    rows = []
    for name in FAMILIES:
        sums: dict[str, list[float]] = {peer: [0.0, 0.0] for peer in calls}
        for seed in range(seeds):
            torch.manual_seed(seed)
            x = family(name, ACCURACY_TOKENS, ACCURACY_HEADS)
            state = torch.randn(1, ACCURACY_HEADS, D, D, device="cuda")
            out, final = recurrence(x, state[0])
            for peer, call in calls.items():
                got_out, got_final = call(x, state, None)
                sums[peer][0] += relative(got_out[0], out) / seeds
                sums[peer][1] += relative(got_final[0], final) / seeds
        for path in (path for path in PATHS if path in calls):
            row: dict[str, Any] = {"name": f"forward/{name}", "path": path}
            row["output"], row["state"] = sums[path]
            for peer in calls.keys() - set(PATHS):
                row[f"{peer}_output"], row[f"{peer}_state"] = sums[peer]
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def time_ms(call: Callable[[], Any], repeats: int = 20, warm_up: int = 5) -> float:
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for _ in range(warm_up):
        call()
    for begin, end in events:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return sorted(begin.elapsed_time(end) for begin, end in events)[repeats // 2]


def captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """The same inside a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return graph.replay


def moved_bytes(x: dict[str, torch.Tensor], state: torch.Tensor) -> int:
    """Read once: inputs and initial state. Written once: out, as large as v, and the final state."""
    tensors = [x["q"], x["k"], x["v"], x["g"], x["v"], x["beta"], state, state]
    return sum(t.numel() * t.element_size() for t in tensors)


Problem = tuple[str, dict[str, torch.Tensor], torch.Tensor, torch.Tensor | None, int]


def problems(heads: int | None = None) -> Iterator[Problem]:
    """(name, inputs, initial state, cu_seqlens, bytes that the call must move), of all numbers of heads or of one."""
    for H, lengths_name, gate in BENCHMARKS:
        if heads not in (None, H):
            continue
        lengths = LENGTHS[lengths_name]
        torch.manual_seed(0)
        x = family(FAMILY_OF_GATE[gate], sum(lengths), H)
        state = torch.randn(len(lengths), H, D, D, device="cuda") * 0.1
        cu = None
        if len(lengths) > 1:
            cu = torch.tensor([0, *lengths], device="cuda").cumsum(0)
        yield f"forward/H{H}/{lengths_name}/{gate}", x, state, cu, moved_bytes(x, state)


def copy_call(size: int) -> Callable[[], Any]:
    source, target = (torch.empty(size // 2, dtype=torch.uint8, device="cuda") for _ in range(2))
    return lambda: target.copy_(source)


def benchmark(calls: dict[str, Call], published: dict[str, float], write: Callable[[list[Any]], None]) -> None:
    """Writes after every row: a run that is cut short keeps what it measured."""
    rows: list[dict[str, Any]] = []
    for name, x, state, cu, size in problems():
        floor_ms = time_ms(copy_call(size))
        peers_ms = {peer: time_ms(lambda: calls[peer](x, state, cu), 10, 3) for peer in calls.keys() - set(PATHS)}
        if name in published:
            peers_ms["published"] = published[name]
        for path in (path for path in PATHS if path in calls):
            row: dict[str, Any] = {"name": name, "path": path}
            row["ms"] = time_ms(lambda: calls[path](x, state, cu))
            row["graph_ms"] = time_ms(captured(lambda: calls[path](x, state, cu)))
            row["floor_ms"], row["peers_ms"] = floor_ms, peers_ms
            rows.append(row)
            print(json.dumps(row), flush=True)
        write(rows)


def compile_fla(heads: int) -> None:
    """fla's kernels for problems of one number of heads, which is a constant of theirs."""
    fla = fla_triton()
    if fla is None:
        return
    fla(family("F1", ACCURACY_TOKENS, heads), torch.zeros(1, heads, D, D, device="cuda"), None)
    for _, x, state, cu, _ in problems(heads):
        fla(x, state, cu)
    torch.cuda.synchronize()


def compile_all_fla() -> None:
    # What runs beside this would mislead fla's choice of block sizes: it is not kept.
    os.environ["FLA_CACHE_RESULTS"] = "0"
    heads = sorted({ACCURACY_HEADS, *(H for H, _, _ in BENCHMARKS)})
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_fla, heads))


def versions(published: str | None) -> dict[str, str]:
    """Of what runs beside this package, as far as it is installed: by the name of the distribution."""
    names = {"torch", "triton", "flash-linear-attention"}
    found = {d.name: d.version for d in importlib.metadata.distributions() if d.name in names}
    if published:
        found |= {d.name: d.version for d in importlib.metadata.distributions(path=[published])}
    return found


def published_times(folder: str) -> dict[str, float]:
    """This script in a process whose flash_kda is the one in `folder`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(Path(__file__).resolve()), "--as-published"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"the published package failed and is left out:\n{done.stderr}", file=sys.stderr)
        return {}
    return json.loads(done.stdout.splitlines()[-1])


def run_as_published() -> None:
    call = published_package()
    print(json.dumps({name: time_ms(lambda: call(x, state, cu), 10, 3) for name, x, state, cu, _ in problems()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--published", metavar="DIR", help="where the published package of the same module name is installed")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--no-fla", action="store_true", help="leave fla out, whose kernels take minutes to compile")
    parser.add_argument("--compile", action="store_true", help="only compile fla's kernels")
    parser.add_argument("--as-published", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_published:
        run_as_published()
        return
    if options.compile:
        compile_all_fla()
        return
    if options.folder is None:
        parser.error("FOLDER: required")

    calls = {path: this_package(path) for path in paths_here()}
    fla = None if options.no_fla else fla_triton()
    if fla is not None:
        assert_independent(fla)
        calls["fla"] = fla

    def write(section: str, content: dict[str, Any]) -> None:
        target = options.folder / section
        target.mkdir(parents=True, exist_ok=True)
        (target / "peers.json").write_text(json.dumps(content, indent=1))

    write("accuracy", {"accuracy": accuracy(calls, options.seeds)})
    published = published_times(options.published) if options.published else {}
    size = 1 << 32
    copy_tb_s = size / time_ms(copy_call(size)) * 1e-9
    run = {"copy_tb_s": copy_tb_s, "versions": versions(options.published)}
    benchmark(calls, published, lambda rows: write("benchmarks", run | {"benchmarks": rows}))


if __name__ == "__main__":
    main()
