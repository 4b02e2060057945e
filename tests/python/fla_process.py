"""One process of test_fla.py, since which backend fla uses is settled by the environment:

    python fla_process.py PART DEVICE FILE

runs PART ("operator" or "layer") on DEVICE and writes its results to FILE (.npz), with how often fla called
flash_kda.fwd and how often it launched a Triton kernel meanwhile.
"""

from __future__ import annotations

import sys

import flash_kda
import numpy as np
import torch
import triton

LOWER_BOUND = -5.0
SEEDS = 5


def operator_inputs(seed: int, T: int, H: int = 4, K: int = 128) -> dict[str, torch.Tensor]:
    """Row F1 of the accuracy table: bfloat16 inputs, A_log and dt_bias uniform in 0 to 1, a float32 initial state."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    x = {name: normal(1, T, H, K).bfloat16() for name in ("q", "k", "v", "g")}
    x["beta"] = normal(1, T, H).bfloat16()
    x["A_log"] = torch.rand(H, generator=generator)
    x["dt_bias"] = torch.rand(H * K, generator=generator)
    x["initial_state"] = normal(1, H, K, K)
    return x


def run_operator(device: str) -> dict[str, torch.Tensor]:
    from fla.ops.kda import chunk_kda

    results = {}
    for seed in range(SEEDS):
        x = {name: value.to(device) for name, value in operator_inputs(seed, tokens_on(device)).items()}
        out, state = chunk_kda(
            **x,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
            use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            safe_gate=True,
            lower_bound=LOWER_BOUND,
            state_v_first=True,
        )
        results |= {f"out{seed}": out, f"state{seed}": state}
    return results


def tokens_on(device: str) -> int:
    return 1024 if device == "cuda" else 100


def run_layer(device: str) -> dict[str, torch.Tensor]:
    from fla.layers.kda import KimiDeltaAttention

    torch.manual_seed(0)
    layer = KimiDeltaAttention(
        hidden_size=512, head_dim=128, num_heads=4, safe_gate=True, lower_bound=LOWER_BOUND, layer_idx=0
    )
    layer = layer.to(device, torch.bfloat16).eval()
    layer.A_log.data, layer.dt_bias.data = layer.A_log.data.float(), layer.dt_bias.data.float()
    hidden = torch.randn(2, 300, 512, generator=torch.Generator().manual_seed(1)).to(device, torch.bfloat16)
    return {"out": layer(hidden)[0]}


def main() -> None:
    part, device, path = sys.argv[1:]
    counts = {"fwd": 0, "triton": 0}

    def counted(name, function):
        def wrapper(*arguments, **options):
            counts[name] += 1
            return function(*arguments, **options)

        return wrapper

    flash_kda.fwd = counted("fwd", flash_kda.fwd)
    triton.JITFunction.run = counted("triton", triton.JITFunction.run)
    with torch.inference_mode():
        results = {"operator": run_operator, "layer": run_layer}[part](device)
    np.savez(path, **counts, **{name: value.float().cpu().numpy() for name, value in results.items()})


if __name__ == "__main__":
    main()
