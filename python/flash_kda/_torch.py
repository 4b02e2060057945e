"""The operators as torch custom operators, for torch.compile and for tensors without memory of their own. Imported when
the first such call comes."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from ._extension import native


def _refuse_gradients(tensors: tuple[Tensor | None, ...], names: tuple[str, ...]) -> None:
    """Under torch.compile the operator itself no longer sees requires_grad."""
    if not torch.is_grad_enabled():
        return
    for name, tensor in zip(names, tensors):
        if tensor is not None and tensor.requires_grad:
            raise NotImplementedError(
                f"{name}: requires grad, but flash_kda has no backward pass yet; call it under torch.inference_mode() "
                f"or torch.no_grad(), or pass {name}.detach()"
            )


@torch.library.custom_op("flash_kda::forward", mutates_args=("final_state", "checkpoint_state", "out", "workspace"))
def _forward_operator(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Optional[Tensor],
    dt_bias: Optional[Tensor],
    cu_seqlens: Optional[Tensor],
    initial_state: Optional[Tensor],
    final_state: Optional[Tensor],
    read_index: Optional[Tensor],
    write_index: Optional[Tensor],
    has_initial_state: Optional[Tensor],
    checkpoints: Optional[Tensor],
    checkpoint_state: Optional[Tensor],
    checkpoint_index: Optional[Tensor],
    out: Tensor,
    scale: Optional[float],
    lower_bound: float,
    gate: str,
    beta_form: str,
    l2norm: bool,
    batch_invariant: bool,
    check_cu_seqlens: bool,
    backend: Optional[str],
    num_threads: int,
    stream: Optional[int],
    workspace: Optional[Tensor],
) -> None:
    native.forward(
        (q, k, v, g, beta, A_log, dt_bias, cu_seqlens, initial_state, final_state, read_index, write_index)
        + (has_initial_state, checkpoints, checkpoint_state, checkpoint_index, out),
        *(scale, lower_bound, gate, beta_form, l2norm, batch_invariant, check_cu_seqlens),
        *(backend, num_threads, stream, workspace),
    )


@torch.library.custom_op("flash_kda::decode", mutates_args=("state", "out", "workspace"))
def _decode_operator(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Optional[Tensor],
    dt_bias: Optional[Tensor],
    cu_seqlens: Optional[Tensor],
    state: Tensor,
    read_index: Optional[Tensor],
    write_index: Optional[Tensor],
    has_initial_state: Optional[Tensor],
    out: Tensor,
    scale: Optional[float],
    lower_bound: float,
    gate: str,
    beta_form: str,
    l2norm: bool,
    batch_invariant: bool,
    check_cu_seqlens: bool,
    backend: Optional[str],
    num_threads: int,
    stream: Optional[int],
    workspace: Optional[Tensor],
) -> None:
    native.decode(
        (q, k, v, g, beta, A_log, dt_bias, cu_seqlens, state, read_index, write_index, has_initial_state, out),
        *(scale, lower_bound, gate, beta_form, l2norm, batch_invariant, check_cu_seqlens),
        *(backend, num_threads, stream, workspace),
    )


@_forward_operator.register_fake
@_decode_operator.register_fake
def _(*arguments: Any, **options: Any) -> None:
    """Results are written into given tensors: nothing to infer."""


def forward(tensors: tuple[Tensor | None, ...], *options: Any) -> None:
    _refuse_gradients(tensors[:9], ("q", "k", "v", "g", "beta", "A_log", "dt_bias", "cu_seqlens", "initial_state"))
    torch.ops.flash_kda.forward(*tensors, *options)


def decode(tensors: tuple[Tensor | None, ...], *options: Any) -> None:
    _refuse_gradients(tensors[:9], ("q", "k", "v", "g", "beta", "A_log", "dt_bias", "cu_seqlens", "state"))
    torch.ops.flash_kda.decode(*tensors, *options)
