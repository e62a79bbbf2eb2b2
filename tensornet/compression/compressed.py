"""Compressed networks as safetensors files: the factors as tensors, and the equations as JSON in the header.

Nothing in a file is executed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DtypeError, EquationError, check_arguments, optional, path_of
from ..files import whole
from ..fitting.approximating import Misfit
from ..fitting.rounding import pack, unpack
from ..graph.graph import Graph
from ..protocol import backend_of, load_backend
from ..weights.equations import CODES, formed, rounding_of
from ..weights.substitution import freeze, unfrozen
from .allocating import Allocation, Allotted

FORMAT = "tensornet.compressed.2"

PACKED = "packed"
"""The text in a header that tells the bits and the shape of each array of packed codes."""

PRETRAINED = "tensornet.safetensors"
"""The file in a folder that `save_pretrained` of a compressed or adapted network of transformers writes."""


INT8 = "int8"
"""The type that activations are rounded to where a user asks for it."""


def file_of(path: str | Path) -> Path:
    """The file of factors or adapters: the path itself, or the file in a folder that `save_pretrained` wrote."""
    found = path_of(path)
    return found / PRETRAINED if found.is_dir() else found


AGAIN = "write it again; nothing is unpickled here: save_file of safetensors writes what torch.load reads"
"""The advice for a file that is not one of safetensors."""


@dataclass(frozen=True)
class Compressed:
    """A network with factors in place of weights.

    Attributes:
        model: the graph, or the module.
        params: the parameters of the graph; None for a module, which holds its own.
        allocation: the form and rank of each weight, and why they were chosen.
        misfits: the errors of each weight that became factors.
        loss: ‖y − ŷ‖²/‖y‖² of the output y for calibration batches that were held out; None without such batches.
        activations: the type that a module may round them to; None if it computes with floats.

    Example:
        >>> import numpy as np, tensornet as tn
        >>> graph = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=64, o=64)
        >>> tn.compress(graph, {"W": np.ones((64, 64))}, parameters=0.1).allocation.parameters
        (4096, 128)
    """

    model: Any
    params: dict[str, Any] | None
    allocation: Allocation
    misfits: Mapping[str, Misfit] = field(default_factory=dict)
    loss: float | None = None
    activations: str | None = None

    def __str__(self) -> str:
        return str(self.allocation)

    def _repr_html_(self) -> str:
        return self.allocation._repr_html_()

    def save(self, path: str | Path) -> Path:
        """Writes the network to a safetensors file, atomically, with the equations in its header.

        Args:
            path: the file, such as `small.safetensors`; an existing one is not overwritten.

        Raises:
            EquationError: the file exists.
        """
        metadata, place = {"format": FORMAT, "allocation": self.allocation.to_json()}, path_of(path)
        if isinstance(self.model, Graph):
            bits = {name: each for row in self.allocation.rows for name, each in _widths(row)}
            values = {leaf.name: leaf.value for leaf in self.model.constants if leaf.name in bits}
            codes = {name: value.array() for name, value in values.items() if value is not None}
            bits = {name: bits[name] for name in codes}
            text = unfrozen(self.model, [*codes]).to_json()
            return write_arrays(place, {**(self.params or {}), **codes}, {**metadata, "graph": text}, bits)
        with _new_file(place) as half:
            from safetensors.torch import save_model

            rounds = {} if self.activations is None else {"activations": self.activations}
            save_model(self.model, str(half), {**metadata, **rounds})
        return place


def _widths(row: Allotted) -> Iterator[tuple[str, Any]]:
    """The names of the factors of codes of a weight, and the bits of each."""
    if row.level.method is not None and rounding_of(row.level.method)[1]:
        form = formed(tuple((size,) for size in row.shape), row.level.method, row.level.rank)
        for factor in form.product.factors:
            if factor.name.endswith(CODES):
                yield f"{row.path}.{factor.name}", form.widths(factor).tolist()


@contextmanager
def _new_file(path: Path) -> Iterator[Path]:
    """A new safetensors file, written atomically.

    Raises:
        EquationError: the file exists.
        TensornetError: the file cannot be written.
    """
    from safetensors import SafetensorError

    with whole(path, over=False) as half:
        try:
            yield half
        except SafetensorError as error:
            raise OSError(str(error)) from None


def write_arrays(
    path: Path, arrays: Mapping[str, Any], texts: Mapping[str, str], bits: Mapping[str, Any] | None = None
) -> Path:
    """Writes arrays of any library to a new safetensors file, atomically, with texts in its header.

    Those of `bits` are codes of so many bits, one number for all or nested lists, and written without gaps.

    Raises:
        EquationError: the file exists.
    """
    from safetensors.numpy import save_file

    found = {name: backend_of(array).numpy(array) for name, array in arrays.items()}
    packed = {name: [each, found[name].shape] for name, each in (bits or {}).items()}
    found |= {name: pack(found[name], each) for name, (each, _) in packed.items()}
    with _new_file(path) as half:
        save_file(found, half, {**texts, PACKED: json.dumps(packed)} if packed else {**texts})
    return path


def networks(*modules: Any) -> Any:
    """The part of the torch backend for networks, for what is no graph.

    Raises:
        EquationError: one is no `torch.nn.Module`.
    """
    for network in modules:
        if isinstance(network, type) or not hasattr(network, "named_modules"):
            what = repr(network) if isinstance(network, str | type) else type(network).__name__
            fix = (
                "give a torch.nn.Module, or where it may be a graph, tensornet.layer(…) or tensornet.model(…)"
            )
            raise EquationError(f"a network is expected here, not {what}", fix=fix)
    torch: Any = load_backend("torch")
    return torch.networks


@check_arguments
def load_compressed(path: str | Path, module: Any = None) -> Compressed:
    """Reads a network that `Compressed.save` wrote.

    Args:
        path: the file, or the folder that `save_pretrained` of a compressed network of transformers wrote.
        module: for a module, one with the structure before compression; its weights are not read. For a folder, it is
            `AutoModel.from_config(AutoConfig.from_pretrained(folder))`, or the same with a class that has a head.

    Returns:
        The graph with its parameters as NumPy arrays, or a module; and the allocation. Errors are not stored.

    Raises:
        EquationError: the file holds no compressed network, or it holds a module and `module` is missing or has
            another structure.

    Example:
        >>> import tempfile, numpy as np, tensornet as tn
        >>> graph = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=64, o=64)
        >>> small = tn.compress(graph, {"W": np.ones((64, 64))}, parameters=0.1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = small.save(f"{folder}/small.safetensors")
        ...     print(load_compressed(path).model == small.model)
        True
    """
    path = file_of(path)
    with _opened(path) as file:
        metadata = file.metadata() or {}
    kind = metadata.get("format", "")
    if kind != FORMAT:
        what = f"{path} holds no compressed network of format {FORMAT}, but {kind or 'none'}"
        raise EquationError(what, fix="give a file that tensornet.compress of this version wrote")
    allocation = Allocation.from_json(metadata.get("allocation", ""))
    if "graph" in metadata:
        graph, arrays = Graph.from_json(metadata["graph"]), read_arrays(path)[0]
        codes = {name: array for name, array in arrays.items() if array.dtype == np.int8}
        graph = freeze(graph, codes, [*codes]) if codes else graph
        return Compressed(graph, {leaf.name: arrays[leaf.name] for leaf in graph.parameters}, allocation)
    if module is None:
        fix = "give module=, one of the structure before, as AutoModel.from_config(config) makes it"
        raise EquationError(f"{path} holds the factors of a module", fix=fix)
    made: Compressed = networks(module).restored(module, allocation, metadata.get("activations"), str(path))
    return made


def read_checkpoint(path: Path, graph: Graph | None = None) -> tuple[Graph, dict[str, Any]]:
    """A graph and its parameters, from a file of a study's run or of `Compressed.save`.

    Args:
        path: the file.
        graph: the graph of the tensors, if the file does not hold it.

    Raises:
        EquationError: there is no graph, or its parameters have other names than the tensors.
    """
    arrays, metadata = read_arrays(path)
    if graph is None and "graph" not in metadata:
        fix = "give its equations, a run of a study (runs/*.safetensors), or a folder of a Hugging Face model"
        raise EquationError(f"{path} says nothing of the equations that its tensors belong to", fix=fix)
    graph = graph or Graph.from_json(metadata["graph"])
    names = {leaf.name for leaf in graph.parameters}
    if set(arrays) != names:
        odd = ", ".join(sorted(set(arrays) ^ names)[:4])
        fix = "write it again, or give equations with the names that the tensors have"
        raise EquationError(f"{path}: its graph and its tensors disagree about {odd}", fix=fix)
    return graph, arrays


def read_arrays(path: Path) -> tuple[dict[str, Any], Mapping[str, str]]:
    """The arrays in a safetensors file, and the texts in its header. Arrays of bfloat16 are converted to float32.

    Raises:
        EquationError: there is no such file, or it is not a safetensors file.
        DtypeError: NumPy does not have the element type of an array.
    """
    from safetensors import deserialize

    arrays = dict[str, Any]()
    with _opened(path) as file:
        metadata = file.metadata() or {}
        kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
        raw = dict(deserialize(path.read_bytes())) if "BF16" in kinds.values() else {}  # type: ignore[no-untyped-call]
        for name, kind in kinds.items():
            try:
                arrays[name] = _widened(raw[name]) if kind == "BF16" else file.get_tensor(name)
            except AttributeError:
                fix = "write it as bfloat16 or float32"
                raise DtypeError(f"'{name}' is of type {kind}", fix=fix) from None
    for name, (bits, shape) in json.loads(metadata.get(PACKED, "{}")).items():
        arrays[name] = unpack(arrays[name], bits, shape)
    return arrays, metadata


def _widened(raw: Mapping[str, Any]) -> Any:
    """An array of bfloat16 as float32: its bits become the upper 16 bits. NumPy has no bfloat16."""
    halves = np.frombuffer(raw["data"], dtype="<u2").astype(np.uint32)
    return (halves << 16).view(np.float32).reshape(raw["shape"])


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file to read.

    Raises:
        EquationError: there is no such file, or it is not a safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except FileNotFoundError:
        raise EquationError(f"there is no file {path}", fix="give one that is there") from None
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        raise EquationError(f"{path} is no safetensors file: {error}", fix=AGAIN) from None


# ---------------------------------------------------------------------------- folders of transformers


def read_folder(path: Path) -> Any:
    """The module in a folder, of the class that its `config.json` names first; `AutoModel` if it names none.

    Nothing is downloaded.

    Raises:
        EquationError: the folder holds no model or lacks values, or `transformers` is too old.
        BackendError: `transformers` is not installed.
    """
    transformers = optional("transformers")
    if not (path / "config.json").is_file():
        raise EquationError(f"{path} is no folder of a Hugging Face model", fix="one has a config.json")
    try:
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
        kind = getattr(transformers, (config.architectures or ["AutoModel"])[0])
        found, told = kind.from_pretrained(path, local_files_only=True, output_loading_info=True)
    except Exception as error:  # the library and its file readers raise many types
        reason = str(error).strip().partition("\n")[0]
        fix = "give a folder that this or an older transformers wrote, whole, with safetensors"
        raise EquationError(f"{path} cannot be loaded: {reason}", fix=fix) from None
    missing = sorted(told["missing_keys"])
    if missing:
        shown = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
        fix = "give the whole folder, or name in config.json the class that wrote it"
        raise EquationError(f"{path} has no values of {shown}, which would be random", fix=fix)
    return found
