"""Models, eager and with `--compile` under torch.compile: tensornet, and `transformers` with the same weights.

    python -m benchmarks.models

Nothing is downloaded: the weights are random, and converted by `tensornet.models.from_transformers`.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import tensornet as tn

from .report import run
from .suite import EVERY, OURS, Case, Contestant, Place, Suite, on_cupy, ours

__all__ = ["SUITE"]

logging.getLogger("transformers").setLevel(logging.ERROR)  # it says of each model what is not installed

Make = Callable[..., tuple[Any, tuple[torch.Tensor, ...]]]


def image(kind: str, config: str, batch: int, side: int, settings: dict[str, Any], place: Place) -> Any:
    """A model of images of transformers, and images."""
    return _made(kind, config, settings), (place.drawn(batch, 3, side, side),)


def text(kind: str, config: str, batch: int, tokens: int, settings: dict[str, Any], place: Place) -> Any:
    """A model of texts of transformers, and tokens."""
    draw = torch.Generator().manual_seed(0)
    words = torch.randint(settings["vocab_size"], (batch, tokens), generator=draw)
    return _made(kind, config, settings), (words.to(place.device),)


def _made(kind: str, config: str, settings: dict[str, Any]) -> Any:
    """A model with random weights; positions and biases, which start as 0, are drawn too."""
    import transformers

    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.02)
    return model


def contestants(make: Make, place: Place) -> dict[str, Contestant]:
    """Ours and theirs, on the same weights."""
    model, inputs = make(place)
    graph, parameters = tn.models.from_transformers(model)
    mine = ours(graph, parameters, inputs, place)
    model = model.to(place.device, place.dtype)
    result = operator.attrgetter("logits" if "For" in type(model).__name__ else "last_hidden_state")

    def theirs(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = result(model(x))
        return found

    elsewhere = on_cupy(graph, parameters, inputs, place)
    return {OURS: mine, **elsewhere, "transformers": Contestant(theirs, inputs, tuple(model.parameters()))}


def vit(
    width: int, heads: int, depth: int = 12, image_size: int = 224, patch_size: int = 16
) -> dict[str, Any]:
    """The settings of a Vision Transformer."""
    return {
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_hidden_layers": depth,
        "intermediate_size": 4 * width,
        "image_size": image_size,
        "patch_size": patch_size,
        "layer_norm_eps": 1e-6,
    }


PERCEIVER = {
    "num_latents": 512,
    "d_latents": 1024,
    "num_blocks": 2,
    "num_self_attends_per_block": 3,
    "num_self_attention_heads": 8,
    "num_cross_attention_heads": 1,
    "image_size": 224,
}
XLNET = {
    "vocab_size": 32_000,
    "d_model": 768,
    "n_layer": 6,
    "n_head": 12,
    "d_inner": 3072,
    "use_mems_eval": False,
}
BERT = {"vocab_size": 30_522, "num_hidden_layers": 4}
GPT2 = {"vocab_size": 50_257, "n_layer": 4, "use_cache": False}
LLAMA = {
    "vocab_size": 32_000,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "use_cache": False,
}
VIT, SWIN = ("ViTModel", "ViTConfig"), ("SwinModel", "SwinConfig")
FOURIER = ("PerceiverForImageClassificationFourier", "PerceiverConfig")
TOKENS = ("XLNetModel", "XLNetConfig")
BERTS, GPT2S, LLAMAS = ((f"{family}Model", f"{family}Config") for family in ("Bert", "GPT2", "Llama"))


TINY_SWIN = {"image_size": 16, "embed_dim": 4, "depths": [2, 1], "num_heads": [1, 2], "window_size": 2}
TINY_XLNET = {"vocab_size": 29, "d_model": 12, "n_layer": 2, "n_head": 3, "d_inner": 20}
TINY_BERT = {"vocab_size": 29, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
TINY_BERT |= {"intermediate_size": 20}
TINY_GPT2 = {"vocab_size": 29, "n_embd": 12, "n_layer": 2, "n_head": 3, "use_cache": False}
TINY_LLAMA = {
    **TINY_BERT,
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "use_cache": False,
}
TINY_PERCEIVER = {
    **PERCEIVER,
    "num_latents": 7,
    "d_latents": 12,
    "num_self_attention_heads": 4,
    "image_size": 9,
    "num_labels": 5,
}


def _case(name: str, make: Callable[..., Any], *how: Any) -> Case:
    return Case(name, partial(contestants, partial(make, *how)), EVERY)


def _cases(scale: int) -> tuple[Case, ...]:
    return (
        _case(f"ViT-S/16, {8 * scale} images", image, *VIT, 8 * scale, 224, vit(384, 6)),
        _case(f"ViT-B/16, {4 * scale} images", image, *VIT, 4 * scale, 224, vit(768, 12)),
        _case(f"Swin-T, {4 * scale} images", image, *SWIN, 4 * scale, 224, {}),
        _case(f"XLNet, 6 layers, {4 * scale} texts of 128", text, *TOKENS, 4 * scale, 128, XLNET),
        _case(f"BERT, 4 layers, {scale} text(s) of 128", text, *BERTS, scale, 128, BERT),
        _case(f"GPT-2, 4 layers, {scale} text(s) of 128", text, *GPT2S, scale, 128, GPT2),
        _case(f"Llama, 4 layers of 768, {scale} text(s) of 128", text, *LLAMAS, scale, 128, LLAMA),
        _case(f"Perceiver, 2 blocks of 3, {scale} image(s)", image, *FOURIER, scale, 224, PERCEIVER),
    )


SUITE = Suite(
    "models",
    "models, forward, both ways and steps of AdamW, against transformers with the same weights",
    {
        "usual": _cases(1),
        "tiny": (
            _case("ViT", image, *VIT, 2, 16, vit(12, 3, 2, 16, 4)),
            _case("Swin", image, *SWIN, 2, 16, TINY_SWIN),
            _case("XLNet", text, *TOKENS, 2, 7, TINY_XLNET),
            _case("BERT", text, *BERTS, 2, 7, TINY_BERT),
            _case("GPT-2", text, *GPT2S, 2, 7, TINY_GPT2),
            _case("Llama", text, *LLAMAS, 2, 7, TINY_LLAMA),
            _case("Perceiver", image, *FOURIER, 1, 9, TINY_PERCEIVER),
        ),
        "large": _cases(16),
    },
)

if __name__ == "__main__":
    run(SUITE)
