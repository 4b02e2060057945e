"""The operators as torch custom operators, for torch.compile, torch.export and tensors without memory of their own.
Imported with the package where torch is there already, elsewhere when the first such call comes."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from . import _arrays
from ._extension import native


def _refuse_gradients(tensors: tuple[Tensor | None, ...], names: tuple[str, ...]) -> None:
    """The operators themselves see neither requires_grad nor a tangent. torch.compile refuses tangents by itself."""
    for name, tensor in zip(names, tensors):
        if tensor is None:
            continue
        if torch.is_grad_enabled() and tensor.requires_grad:
            _arrays.refuse_requires_grad(name)
        if not torch.compiler.is_compiling():
            _arrays.refuse_tangent(name, tensor)


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
