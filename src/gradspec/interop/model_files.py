"""Models and arrays as the command line names them: what kind of file a model is, and which array is for what."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Var
from gradspec.interop.array_files import NPY, ZIP, StoredArray, stored_arrays
from gradspec.interop.extras import require
from gradspec.interop.weights import bind
from gradspec.saving.files import GZIP, regular_file
from gradspec.saving.graphs import load
from gradspec.spec.errors import FormatError, ShapeError, UnsupportedError

MOST_CHARACTERS = 100
"""Of a name in an archive."""


class RequestError(ValueError):
    """The options do not fit the model or each other; the message says what to do."""


# --- models -----------------------------------------------------------------------------------------------------------


def read_model(
    path: str,
    shapes: Sequence[str] = (),
    constants: Sequence[str] = (),
    inputs: Sequence[str] = (),
    open_size: int | None = None,
) -> Graph:
    """The graph of an ONNX model, or of a file that ``graph.save`` wrote, whichever the file holds.

    ``constants`` fixes some of its inputs. Sizes that an ONNX model leaves open are those of ``shapes``, and of the
    arrays that ``inputs`` names, or else ``open_size``.
    """
    is_onnx, fixed = _is_onnx(path), _constants(constants)
    if is_onnx:
        given = {name: _sizes(text) for name, text in _pairs("--shape", shapes)}
        return _read_onnx(path, given, fixed, inputs, open_size)
    if shapes:
        raise RequestError(f"--shape is for ONNX models; {path} is a saved graph, whose shapes are settled")
    graph = load(path)
    unknown = [name for name in fixed if name not in {v.name for v in graph.inputs}]
    if unknown:
        raise RequestError(
            f"--constant: nothing is called {', '.join(unknown)}; there are {_all(described(graph.inputs))}"
        )
    return bind(graph, fixed)


ONNX_BEGINS = frozenset(b'\x08\x12\x1a"(2:Br\xa2\xca')
"""The first byte of a ModelProto: the tag of one of its fields, in protobuf's encoding."""

OTHERS = {
    NPY: "it is an .npy file, which holds an array; give it to --input",
    ZIP: "it is a zip archive, as torch.save and np.savez write; gs.from_torch reads models of PyTorch, in Python",
}


def _is_onnx(path: str) -> bool:
    """Whether a file holds an ONNX model, and not a saved graph: by what it begins with, since names may say anything.

    A saved graph begins with the length of its header in 8 bytes, of which the highest are 0, and a brace.
    """
    with regular_file(path) as file:
        begin = file.read(9)
    if begin[5:] == b"\0\0\0{":
        return False
    if begin[:1] and (begin[0] in ONNX_BEGINS or begin.startswith(GZIP)):
        return True
    what = next((said for magic, said in OTHERS.items() if begin.startswith(magic)), f"it begins with {begin!r}")
    raise FormatError(f"{path}: neither an ONNX model nor a saved graph: {what if begin else 'it is empty'}")


def _read_onnx(
    path: str,
    shapes: Mapping[str, Any],
    constants: Mapping[str, Array],
    inputs: Sequence[str],
    open_size: int | None = None,
) -> Graph:
    """The graph of a model; where an error asks for an argument of ``gs.from_onnx``, it names the option as well."""
    require("onnx", "gs.from_onnx")
    from gradspec.interop.onnx.reader import read

    def sizes(stated: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        found = assigned("--input", inputs, {name: f"{name}: {type}" for name, type in stated.items()}).by_name
        return {name: array.shape for name, array in found.items()} | {
            name: tuple(dim if isinstance(dim, int) else open_size for dim in type.dims)
            for name, type in stated.items()
            if open_size is not None and type.dims is not None and name not in found
        }

    try:
        return read(path, shapes, constants, sizes)
    except (ShapeError, UnsupportedError) as error:
        options = [option for argument, option in _OPTIONS.items() if f"{argument}={{" in str(error)]
        raise type(error)("\n".join([str(error), *(f"on the command line: {option}" for option in options)])) from error


_OPTIONS = {
    "shapes": "--shape NAME=SIZE, or --input with an array of the sizes wanted",
    "constants": "--constant NAME=FILE.npy",
}
"""How the arguments of ``gs.from_onnx`` are written here."""


def _pairs(option: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [text.partition("=") for text in texts]
    for text, (name, equals, value) in zip(texts, pairs, strict=True):
        if not (name and equals and value):
            raise RequestError(f"{option} {text}: expected NAME=VALUE")
    return [(name, value) for name, _, value in pairs]


def _sizes(text: str) -> int | tuple[int, ...]:
    """``8`` is a size, or the shape of an input with one axis; ``8,3,32,32`` is a shape, and so is ``8,``."""
    try:
        sizes = tuple(int(part) for part in text.removesuffix(",").split(","))
    except ValueError:
        raise RequestError(f"--shape: {text!r} is neither a size, such as 8, nor a shape, such as 8,3,32,32") from None
    return sizes if "," in text else sizes[0]


def _constants(texts: Sequence[str]) -> dict[str, Array]:
    """``name=file``, or an archive that holds several by name."""
    found: dict[str, StoredArray] = {}
    for text in texts:
        archive = None if "=" in text and not Path(text).exists() else stored_arrays(text)
        if isinstance(archive, dict):
            entries: Iterable[tuple[str, StoredArray]] = archive.items()
        else:
            entries = [(name, _chosen("--constant", text, name, file)) for name, file in _pairs("--constant", [text])]
        for name, array in entries:
            if name in found:
                raise RequestError(f"--constant {text}: {name} was given before; give one file for each")
            found[name] = array
    return {name: array.load() for name, array in found.items()}


# --- which array is for what ------------------------------------------------------------------------------------------


def described(variables: Iterable[Var]) -> dict[str, str]:
    """What can be given an array: names, and how errors speak of them."""
    return {v.name: repr(v) for v in variables}


@dataclass(frozen=True)
class Assigned:
    """The array for each name, and whether some were given in order, without a name."""

    by_name: dict[str, StoredArray]
    in_order: bool


def assigned(option: str, texts: Sequence[str], known: Mapping[str, str]) -> Assigned:
    """``name=file`` is for what it names, and so are the arrays of an archive; the rest is for the others in order."""
    found: dict[str, StoredArray] = {}
    nameless: list[tuple[str, StoredArray]] = []
    for text in texts:
        for name, array in _entries(option, text, known):
            if name is None:
                nameless.append((text, array))
            elif name in found:
                raise RequestError(f"{option} {text}: {name} was given before; give one file for each")
            else:
                found[name] = array
    free = [name for name in known if name not in found][: len(nameless)]
    for entry, name in zip_longest(nameless, free):
        if name is None:
            raise RequestError(f"{option} {entry[0]}: there is nothing left to give this to; there are {_all(known)}")
        found[name] = entry[1]
    return Assigned(found, bool(nameless))


def _entries(option: str, text: str, known: Mapping[str, str]) -> Iterator[tuple[str | None, StoredArray]]:
    """The arrays that one option gives, with their names; None where it has none."""
    name = next((name for name in known if text.startswith(f"{name}=")), None)
    if name is not None:
        yield name, _chosen(option, text, name, text.removeprefix(f"{name}="))
        return
    stem, equals, _ = text.partition("=")
    if equals and not Path(text).exists():  # a file name may have an equals sign too
        raise RequestError(f"{option} {text}: nothing is called {stem}; there are {_all(known)}")
    stored = stored_arrays(text)
    if isinstance(stored, StoredArray):
        yield None, stored
        return
    meant = dict(zip(file_names(known), known, strict=True)) | {name: name for name in known}
    for member, array in stored.items():
        if member not in meant and not re.fullmatch(r"arr_\d+", member):  # which np.savez calls arrays without a name
            raise RequestError(f"{option} {text}: it holds {member}, and nothing is called so; there are {_all(known)}")
        yield meant.get(member), array


def _chosen(option: str, text: str, name: str, path: str) -> StoredArray:
    """The array of a file that is given for one name: of an archive the one called so, or the only one."""
    stored = stored_arrays(path)
    if isinstance(stored, StoredArray):
        return stored
    key = next((key for key in (name, *file_names([name])) if key in stored), None)
    if key is None and len(stored) != 1:
        raise RequestError(f"{option} {text}: it holds {', '.join(stored) or 'nothing'}, and not {name}")
    return next(iter(stored.values())) if key is None else stored[key]


def _all(known: Mapping[str, str]) -> str:
    return ", ".join(known.values()) or "none"


def file_names(names: Iterable[str]) -> list[str]:
    """Names that are different, short, and lead nowhere when an archive is unpacked; repeated ones are numbered."""
    stems = [re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:MOST_CHARACTERS] for name in names]
    taken, numbers = set(stems), {stem: count(2) for stem in stems}
    found: dict[str, None] = {}
    for stem in stems:
        numbered = (f"{stem}_{number}" for number in numbers[stem])
        plain = stem if stem not in found else next(name for name in numbered if name not in taken)
        taken.add(plain)
        found[plain] = None
    return list(found)
