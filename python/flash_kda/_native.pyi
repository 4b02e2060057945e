"""The compiled module: the C interface over tuples of arrays in the order that _operators.py gives."""

from typing import Any

def forward(
    tensors: tuple[Any, ...],
    scale: float | None,
    lower_bound: float,
    gate: str,
    beta_form: str,
    l2norm: bool,
    batch_invariant: bool,
    check_cu_seqlens: bool,
    backend: str | None,
    num_threads: int,
    stream: int | None,
    workspace: Any | None,
    /,
) -> None: ...
def decode(
    tensors: tuple[Any, ...],
    scale: float | None,
    lower_bound: float,
    gate: str,
    beta_form: str,
    l2norm: bool,
    batch_invariant: bool,
    check_cu_seqlens: bool,
    backend: str | None,
    num_threads: int,
    stream: int | None,
    workspace: Any | None,
    /,
) -> None: ...
def forward_workspace_size(tokens: int, heads: int, sequences: int, device: int, /) -> int: ...
def info() -> str: ...
def version() -> str: ...
