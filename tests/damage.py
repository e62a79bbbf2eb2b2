"""Damage to files, as disks, crashes, people and other programs do it; for tests of whatever reads a file."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

Damage = Callable[[bytes, random.Random], bytes]
"""Content to damaged content."""

STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 10**400, 1e308, float("nan"), float("inf"), "", "many", "\x1b[2J", [], {}, [[]], {"": None},
)  # fmt: skip
"""What may stand where something else was."""


def damaged(path: Path, rng: random.Random) -> str:
    """Damages a file in one of the ways that its content allows, and says which."""
    content = path.read_bytes()
    ways = {**BYTES, **(DOCUMENTS if _document(content) is not None else {})}
    name = rng.choice([*ways, "a folder", "gone"])
    if name in ways:
        path.write_bytes(ways[name](content, rng))
        return name
    path.unlink()
    if name == "a folder":
        path.mkdir()
        (path / "mine").write_text("not to be lost", encoding="utf-8")
    return name


def damaged_value(document: Any, rng: random.Random) -> Any:
    """A document of JSON with one value replaced, removed, or doubled, wherever in it."""
    if isinstance(document, dict) and document and rng.random() < 0.9:
        name = rng.choice(list(document))
        way = rng.random()
        if way < 0.2:
            return {key: value for key, value in document.items() if key != name}
        return {**document, name: damaged_value(document[name], rng)}
    if isinstance(document, list) and document and rng.random() < 0.9:
        place = rng.randrange(len(document))
        if rng.random() < 0.2:
            return document[:place] + document[place + 1 :] * rng.randint(1, 2)
        return [*document[:place], damaged_value(document[place], rng), *document[place + 1 :]]
    if isinstance(document, str) and rng.random() < 0.9:
        try:
            return json.dumps(damaged_value(json.loads(document), rng))  # a document inside a document
        except ValueError:
            pass
    if isinstance(document, (int, float)) and rng.random() < 0.5:
        return rng.choice([-document, document + 1, 2 * document, 0.5, str(document)])
    return rng.choice(STRANGE)


def applied(content: bytes, change: Callable[[Any], Any]) -> bytes:
    """A JSON file, or the header of a safetensors file, with its document changed."""
    document = _document(content)
    if document is None:
        raise ValueError("there is no document in it")
    written = json.dumps(change(document)).encode()
    if not _has_header(content):
        return written
    (length,) = struct.unpack("<Q", content[:8])
    return struct.pack("<Q", len(written)) + written + content[8 + length :]


def _has_header(content: bytes) -> bool:
    """Whether it is of safetensors: the length of a JSON document, that document, then numbers."""
    return len(content) > 8 and struct.unpack("<Q", content[:8])[0] <= len(content) - 8


def _document(content: bytes) -> Any:
    text = content[8 : 8 + struct.unpack("<Q", content[:8])[0]] if _has_header(content) else content
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _flipped(content: bytes, rng: random.Random) -> bytes:
    found = bytearray(content or b"\0")
    for _ in range(rng.randint(1, 3)):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found) if bytes(found) != content else b""


def _spliced(content: bytes, rng: random.Random) -> bytes:
    start, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return content[:start] + content[end:] if rng.random() < 0.5 else content[:end] + content[start:] + b" "


BYTES: dict[str, Damage] = {
    "empty": lambda content, rng: b"",
    "cut": lambda content, rng: content[: rng.randrange(max(1, len(content)))],
    "bits": _flipped,
    "spliced": _spliced,
    "zeros at the end": lambda content, rng: (
        content[: len(content) // 2] + bytes(len(content) - len(content) // 2)
    ),
    "noise": lambda content, rng: rng.randbytes(rng.randint(1, 300)),
    "text": lambda content, rng: b"<html>not found</html>",
    "nested": lambda content, rng: b"[" * 100_000,
}
"""Ways to damage any file."""

DOCUMENTS: dict[str, Damage] = {
    "a value": lambda content, rng: applied(content, lambda document: damaged_value(document, rng)),
    "values": lambda content, rng: applied(
        content, lambda document: damaged_value(damaged_value(damaged_value(document, rng), rng), rng)
    ),
    "another kind": lambda content, rng: json.dumps(rng.choice(STRANGE)).encode(),
}
"""Ways to damage one that holds a document of JSON."""
