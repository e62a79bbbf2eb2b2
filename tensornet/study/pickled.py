"""Bytes and lists in a pickle, read without unpickling: no name in the file is looked up, nothing is called.

A pickle is a program for a stack machine. Only the few instructions that dictionaries, lists, texts, numbers
and NumPy arrays of bytes need are executed here; any other instruction is an error.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["read_pickle"]


@dataclass(frozen=True)
class _Name:
    """The name of a function or a class in the file."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass
class _Array:
    """An array; the file gives its contents after its first mention."""

    value: Any = None


_BYTES = object()
"""The element type of arrays; only this one is supported."""


def read_pickle(content: bytes) -> Any:
    """The value of a pickle that consists of dictionaries, lists, texts, whole numbers and arrays of bytes.

    Texts of Python 2 are returned as bytes, keys of dictionaries always as texts. Arrays are converted
    only if they are the whole value, or values of the outermost dictionary.

    Raises:
        ValueError: it is damaged, or holds something else; the error says what.

    Example:
        >>> import pickle
        >>> read_pickle(pickle.dumps({b"labels": [6, 9]}))
        {'labels': [6, 9]}
    """
    machine = _Machine()
    try:
        for instruction, argument in _instructions(content):
            machine.follow(instruction, argument)
    except (IndexError, KeyError):
        raise ValueError("it is damaged") from None
    if len(machine.stack) != 1:
        raise ValueError("it is damaged")
    found = machine.stack[0]
    return (
        {key: _settled(value) for key, value in found.items()} if isinstance(found, dict) else _settled(found)
    )


def _settled(value: Any) -> Any:
    return value.value if isinstance(value, _Array) else value


CODES = {opcode.code.encode("latin-1"): opcode for opcode in pickletools.opcodes}

ESCAPED = ("STRING", "INST", "PERSID")
"""Refused instructions: quoted texts of Python 2's protocol 0, in which no batch was published."""


def _instructions(content: bytes) -> Iterator[tuple[str, Any]]:
    """The name and the argument of each instruction, up to the one that stops."""
    file, name = io.BytesIO(content), ""
    while name != "STOP":
        code = file.read(1)
        if code not in CODES:
            raise ValueError("it is damaged" if code else "it is cut off")
        name, reader = CODES[code].name, CODES[code].arg
        if name in ESCAPED:
            raise ValueError(_refused(name))
        if name == "GLOBAL":
            yield name, _Name(*(file.readline()[:-1].decode("ascii") for _ in range(2)))
        else:
            yield name, reader.reader(file) if reader else None


def _refused(instruction: str) -> str:
    return f"it holds more than texts, lists and bytes: {instruction}"


@dataclass
class _Machine:
    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def follow(self, instruction: str, argument: Any) -> None:
        stack = self.stack
        match instruction:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[instruction])
            case "INT" | "BININT" | "BININT1" | "BININT2" | "LONG" | "LONG1" | "LONG4":
                stack.append(argument)
            case "GLOBAL" | "UNICODE" | "SHORT_BINUNICODE" | "BINUNICODE" | "BINUNICODE8":
                stack.append(argument)
            case "SHORT_BINSTRING" | "BINSTRING":
                stack.append(argument.encode("latin-1"))
            case "SHORT_BINBYTES" | "BINBYTES" | "BINBYTES8" | "BYTEARRAY8":
                stack.append(bytes(argument))
            case "MARK":
                self.marks.append(len(stack))
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(self.memo[argument])
            case "STACK_GLOBAL":
                module, name = self.pop(2)
                stack.append(_Name(str(module), str(name)))
            case "REDUCE":
                stack.append(_called(*self.pop(2)))
            case "BUILD":
                state = stack.pop()
                _build(stack[-1], state)
            case _:
                self.collect(instruction)

    def collect(self, instruction: str) -> None:
        """Follows the instructions that create or fill tuples, lists and dictionaries."""
        match instruction:
            case "EMPTY_TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = 0 if instruction == "EMPTY_TUPLE" else int(instruction[-1])
                self.stack.append(tuple(self.pop(count)))
            case "TUPLE":
                self.stack.append(tuple(self.marked()))
            case "EMPTY_LIST":
                self.stack.append([])
            case "LIST":
                self.stack.append(self.marked())
            case "APPEND" | "APPENDS":
                items = self.pop(1) if instruction == "APPEND" else self.marked()
                _expect(self.stack[-1], list).extend(items)
            case "EMPTY_DICT":
                self.stack.append({})
            case "DICT":
                self.stack.append(_pairs(self.marked()))
            case "SETITEM" | "SETITEMS":
                items = self.pop(2) if instruction == "SETITEM" else self.marked()
                _expect(self.stack[-1], dict).update(_pairs(items))
            case _:
                raise ValueError(_refused(instruction))

    def pop(self, count: int) -> list[Any]:
        """Removes the topmost `count` values; a list of them."""
        if count > len(self.stack):
            raise IndexError
        start = len(self.stack) - count
        taken = self.stack[start:]
        del self.stack[start:]
        return taken

    def marked(self) -> list[Any]:
        """Removes the values that were pushed since the last mark; a list of them."""
        start = self.marks.pop()
        if start > len(self.stack):
            raise IndexError
        return self.pop(len(self.stack) - start)


def _expect(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"a {kind.__name__} is expected where there is a {type(value).__name__}")
    return value


def _pairs(items: list[Any]) -> dict[str, Any]:
    if len(items) % 2:
        raise IndexError
    return {_text(key): value for key, value in zip(items[::2], items[1::2], strict=True)}


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(_expect(value, str))


def _called(name: Any, arguments: Any) -> Any:
    """The value of a call in the pickle of an array."""
    if not isinstance(name, _Name):
        raise ValueError("it calls what has no name")
    match str(name).replace("numpy._core.", "numpy.core."), arguments:
        case "numpy.core.multiarray._reconstruct", (_Name("numpy", "ndarray"), (0,), _):
            return _Array()
        case "numpy.core.numeric._frombuffer", (bytes(data), element, shape, order):
            return _Array(_array(data, element, shape, _text(order) == "F"))
        case "numpy.dtype", (str() | bytes() as element, *_):
            if _text(element) != "u1":
                raise ValueError(f"it holds an array of '{_text(element)}', not of bytes, 'u1'")
            return _BYTES
        case "_codecs.encode", (str(text), "latin1" | b"latin1"):
            return text.encode("latin-1")
    raise ValueError(f"it asks for {name}, which is not an array of bytes")


def _build(target: Any, state: Any) -> None:
    """Sets the contents of an array; the element type needs no state."""
    if target is _BYTES:
        return
    match target, state:
        case _Array(), (_, shape, element, order, bytes(data)):
            target.value = _array(data, element, shape, bool(order))
        case _:
            raise ValueError("it is not an array of bytes")


def _array(data: bytes, element: Any, shape: Any, columns_first: bool) -> Any:
    if element is not _BYTES or not all(type(size) is int and size >= 0 for size in _expect(shape, tuple)):
        raise ValueError("it holds an array that is not one of bytes")
    try:
        return np.frombuffer(data, np.uint8).reshape(shape, order="F" if columns_first else "C")
    except (ValueError, OverflowError):
        raise ValueError(f"{len(data):,} bytes are not an array of {shape}") from None
