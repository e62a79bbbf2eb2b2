"""Trained models as the folders that the `transformers` library writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import EquationError

__all__ = ["read_folder"]


def read_folder(path: Path) -> Any:
    """The module that a folder holds, of the class that its `config.json` names first.

    Nothing is fetched.

    Raises:
        EquationError: the folder is none of a model, or `transformers` is not there or too old.
    """
    try:
        import transformers
    except ImportError:
        raise EquationError(
            f"{path} is a folder, and transformers is not installed", fix="pip install transformers"
        ) from None
    config = path / "config.json"
    if not config.exists():
        raise EquationError(f"{path} is no folder of a Hugging Face model", fix="one has a config.json")
    names = json.loads(config.read_text(encoding="utf-8")).get("architectures") or []
    kind = getattr(transformers, names[0], None) if names else transformers.AutoModel
    if kind is None:
        raise EquationError(f"transformers has no '{names[0]}'", fix="install the version that wrote it")
    return kind.from_pretrained(path, local_files_only=True)
