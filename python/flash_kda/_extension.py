"""The compiled module, or something that says why it is not there once it is needed: the import itself never fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

__all__ = ["native"]


class _Missing:
    def __init__(self, cause: ImportError) -> None:
        self._cause = cause

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError(
            "flash_kda: the compiled module flash_kda._native cannot be imported; install the package with "
            f"`pip install .` in the root of its sources ({self._cause})"
        ) from self._cause


if TYPE_CHECKING:
    from . import _native as native
else:
    try:
        from . import _native as native
    except ImportError as error:
        native = _Missing(error)
