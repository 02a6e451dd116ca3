"""Pickles read without running what they say: numbers, strings, containers and numpy arrays, nothing else.

A pickle is a program that may call any function of any module. Here it reaches only the stand-ins below,
which collect what an array consists of; any other name is refused before it is imported.
"""

from __future__ import annotations

import io
import pickle
import re
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.lib import format as npy

from surefoot.errors import ConfigError


def load_pickle(path: Path) -> Any:
    """What the pickle file holds.

    Raises:
        ConfigError: it is not a pickle, or asks for anything beyond plain data and arrays.
    """
    return _read(path.read_bytes(), path)


def load_npy_object(path: Path) -> Any:
    """What an `.npy` file holds: an array, or the pickled object that `np.save` wrapped in one.

    Raises:
        ConfigError: as for `load_pickle`.
    """
    with path.open("rb") as file:
        try:
            is_old = npy.read_magic(file) == (1, 0)
            _, _, dtype = (npy.read_array_header_1_0 if is_old else npy.read_array_header_2_0)(file)
            if not dtype.hasobject:
                return np.load(path, allow_pickle=False)
        except ValueError as error:
            raise ConfigError(f"{path}: not a complete .npy file: {error}") from error
        return _read(file.read(), path)


def _read(data: bytes, path: Path) -> Any:
    try:
        return _resolved(_PlainDataUnpickler(io.BytesIO(data)).load())
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    # a damaged pickle fails in as many ways as there are instructions
    except (
        pickle.UnpicklingError,
        ArithmeticError,
        ValueError,
        TypeError,
        AttributeError,
        LookupError,
        EOFError,
        MemoryError,
        RecursionError,
    ) as error:
        raise ConfigError(f"{path}: cannot be read as a pickle: {type(error).__name__}: {error}") from error


class _PlainDataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = STAND_INS.get((module.replace("numpy._core", "numpy.core"), name))  # numpy 2 renamed it
        if found is None:
            raise ConfigError(
                f"the pickle asks for {module}.{name}; only plain data and numpy arrays are read, since "
                "anything else could run code. Save the motion as .npz."
            )
        return found


class _Dtype:
    """Stands for `numpy.dtype`."""

    def __init__(self, code: str, *_: Any) -> None:
        if not re.fullmatch(r"[biufSUO]\d*", code):
            raise ConfigError(f"the pickle holds an array of type '{code}'; expected numbers or strings.")
        self.code, self.byte_order = code, "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.byte_order = {"<": "<", ">": ">"}.get(state[1], "=")

    def make(self) -> np.dtype[Any]:
        return np.dtype(self.byte_order + self.code)


class Array:
    """Stands for an array of protocols 2 to 4, and for one of objects."""

    value: np.ndarray | list[Any]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, is_fortran, content = state
        # the elements of an object array come as a list
        self.value = (
            list(content)
            if dtype.code.startswith("O")
            else _from_buffer(content, dtype, shape, "F" if is_fortran else "C")
        )


def _reconstruct(*_: Any) -> Array:
    return Array()


def _from_buffer(buffer: bytes, dtype: _Dtype, shape: tuple[int, ...], order: Any) -> np.ndarray:
    return np.frombuffer(buffer, dtype.make()).reshape(shape, order=order)


def _scalar(dtype: _Dtype, data: bytes) -> Any:
    return np.frombuffer(data, dtype.make())[0]


def _encode(text: str, _: str) -> bytes:
    """How protocol 2 writes bytes."""
    return text.encode("latin1")


def _resolved(x: Any) -> Any:
    """The same with the stand-ins replaced by their arrays."""
    if isinstance(x, Array):
        if isinstance(x.value, list):
            content = [_resolved(y) for y in x.value]
            return content[0] if len(content) == 1 else content
        return x.value
    if isinstance(x, Mapping):
        return {key: _resolved(value) for key, value in cast("Mapping[Any, Any]", x).items()}
    if isinstance(x, (list, tuple)):
        return [_resolved(y) for y in cast("list[Any]", x)]
    return x


STAND_INS: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("_codecs", "encode"): _encode,
    ("numpy", "ndarray"): Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
}
"""What a pickle may name, and what it gets for it."""
