"""Parsing of weight equations as users write them."""

from __future__ import annotations

import re
import textwrap

from ..graph.leaves import Leaf
from ..graph.shape_inference import index_of
from ..language.equation import Declaration, Equation
from ..language.expression import fresh, show_index
from ..language.parser import parse_block

__all__ = ["WeightText", "declared_as", "read_as"]


def read_as(name: str, leaf: Leaf) -> str:
    """The text of a tensor with the axes of a leaf."""
    return f"{name}[{show_index(index_of(leaf.dims)) or '()'}]"


def declared_as(declared: Declaration, leaf: Leaf, shown: bool) -> str:
    """An input as `layer` takes it, with the axes of the leaf unless it is declared or read with others."""
    if declared.dims is None:
        return declared.name if shown else read_as(declared.name, leaf)
    index = tuple(dim[0][0] if len(dim) == 1 else tuple(axis for axis, _ in dim) for dim in declared.dims)
    return f"{declared.name}[{show_index(index) or '()'}]"


class WeightText:
    """The equations of a weight, as a user writes them.

    Attributes:
        words: every name in the text.
        inputs: the inputs that it declares.
        shown: the tensors that it reads with axes.
        target: the last line, if that is an equation. It defines the weight.
    """

    def __init__(self, text: str) -> None:
        statements = parse_block(text)
        self.text = textwrap.dedent(text)
        self.words = set(re.findall(r"[^\W\d]\w*(?:\.\w+)*", text))
        self.declared = [each for each in statements if isinstance(each, Declaration)]
        self.inputs = [each for each in self.declared if each.kind == "input"]
        lines = [each for each in statements if isinstance(each, Equation)]
        self.read = [ref for line in lines for ref in line.references]
        self.shown = {ref.name for ref in self.read if ref.index}
        self.target = lines[-1] if lines and lines[-1] is statements[-1] else None

    @property
    def target_names(self) -> set[str]:
        """The name of the weight in the text; empty if no equation defines it."""
        return {self.target.name} if self.target else set()

    @property
    def reads_itself(self) -> bool:
        """Whether the text reads the original weight, by the weight's own name."""
        return bool(
            self.target_names & {ref.name for ref in self.read} - {each.name for each in self.declared}
        )

    def targeted(self, leaf: Leaf) -> str:
        """The text with axes on the left of its last line, and a new name there if it reads the original weight."""
        if self.target is None:
            return self.text
        place, name = self.target.place, self.target.name
        assert place is not None
        lines = re.split(r"\r\n|\r|\n", self.text)
        line = lines[place.number - 1]
        called = fresh(name, self.words) if self.reads_itself else name
        brackets = "" if self.target.left else _brackets(self.target, leaf)
        lines[place.number - 1] = (
            f"{line[: place.column]}{called}{brackets}{line[place.column + len(name) :]}"
        )
        return "\n".join(lines)


def _brackets(target: Equation, leaf: Leaf) -> str:
    """The axes of a left side without any: as the line reads the original weight, else as the weight is declared."""
    read = (ref.index for ref in target.references if ref.name == target.name and ref.index)
    index = next(read, index_of(leaf.dims))
    return f"[{show_index(index)}]" if index else ""
