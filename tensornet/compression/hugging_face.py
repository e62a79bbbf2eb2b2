"""Trained models from folders that the `transformers` library writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import EquationError

__all__ = ["read_folder"]


def read_folder(path: Path) -> Any:
    """The module in a folder, of the class that its `config.json` names first; `AutoModel` if it names none.

    Nothing is downloaded.

    Raises:
        EquationError: the folder holds no model or lacks values, or `transformers` is missing or too old.
    """
    try:
        import transformers
    except ImportError:
        raise EquationError(
            f"{path} is a folder, and transformers is not installed", fix="pip install transformers"
        ) from None
    config = path / "config.json"
    if not config.is_file():
        raise EquationError(f"{path} is no folder of a Hugging Face model", fix="one has a config.json")
    kind = _class_of(config, transformers)
    try:
        found, told = kind.from_pretrained(path, local_files_only=True, output_loading_info=True)
    except Exception as error:  # the library and its file readers raise many types
        reason = str(error).strip().partition("\n")[0]
        fix = "give a folder that save_pretrained wrote, whole, with safetensors"
        raise EquationError(f"{path} cannot be loaded: {reason}", fix=fix) from None
    missing = sorted(told["missing_keys"])
    if missing:
        shown = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
        fix = "give the whole folder, or name in config.json the class that wrote it"
        raise EquationError(f"{path} has no values of {shown}, which would be random", fix=fix)
    return found


def _class_of(config: Path, transformers: Any) -> Any:
    """The class that a `config.json` names first, or `AutoModel`.

    Raises:
        EquationError: the file is invalid, or `transformers` has no such class.
    """
    try:
        document = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EquationError(f"{config} is no JSON: {error}", fix="write it anew") from None
    names = (document.get("architectures") or ["AutoModel"]) if isinstance(document, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        fix = 'write it anew, with "architectures": ["BertModel"] or the like'
        raise EquationError(f"{config} names no class", fix=fix)
    kind = getattr(transformers, names[0], None)
    if not hasattr(kind, "from_pretrained"):
        raise EquationError(f"transformers has no '{names[0]}'", fix="install the version that wrote it")
    return kind
