"""JSON that is read as if it came from an enemy: nothing in it can be meant in two ways, and errors say where."""

from __future__ import annotations

import json
from collections.abc import Collection
from itertools import islice
from typing import Any, NoReturn

from gradspec.spec.errors import FormatError

LARGEST_INT = 2**63 - 1
MAX_NESTED = 10_000_000  # lists and objects in one JSON text


def strict_json(text: str, where: str) -> Any:
    """JSON with nothing that could be read in two ways: no key twice, no NaN, no number beyond its type."""
    if text.count("[") + text.count("{") > MAX_NESTED:
        raise FormatError(f"{where}: more than {MAX_NESTED} lists and objects")
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_int=_int, parse_float=_float)
    except RecursionError:
        raise FormatError(f"{where}: lists or objects are nested too deeply") from None
    except ValueError as error:
        raise FormatError(f"{where}: {error}") from None


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise FormatError(f"the key {brief(key)} appears twice in one object")
        found[key] = value
    return found


def _constant(text: str) -> NoReturn:
    raise FormatError(f"{text} is not JSON")


def _int(text: str) -> int:
    number = int(text) if len(text) <= 20 else LARGEST_INT + 1
    if abs(number) > LARGEST_INT:
        raise FormatError(f"the integer {brief(text)} does not fit in 64 bits")
    return number


def _float(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise FormatError(f"the number {brief(text)} is too large for a float")
    return number


def require_keys(data: object, keys: Collection[str], where: str, optional: Collection[str] = ()) -> None:
    """Refuse what is not an object with exactly these keys, of which the optional ones may be missing."""
    if not isinstance(data, dict):
        raise FormatError(f"{where}: expected an object, not {brief(data)}")
    missing, unknown = [k for k in keys if k not in data and k not in optional], [k for k in data if k not in keys]
    if missing or unknown:
        what = [f"{listed(names)} {is_}" for names, is_ in ((missing, "is missing"), (unknown, "is unknown")) if names]
        raise FormatError(f"{where}: {' and '.join(what)}; the keys are {', '.join(keys) or 'none'}")


def brief(data: object) -> str:
    """What was found, in a few characters."""
    if isinstance(data, dict):
        return f"an object with {listed(data)}"
    if isinstance(data, list):
        is_short = len(data) <= 8 and all(type(entry) in (int, float) for entry in data)
        return str(data) if is_short else f"a list of {len(data)}"
    if isinstance(data, str) and len(data) > 60:
        return ascii(data[:57]) + "..."
    return ascii(data)


def listed(names: Collection[str]) -> str:
    """At most a few names."""
    some = [brief(name) for name in islice(names, 8)]
    return f"{', '.join(some) or 'nothing'}{', ...' * (len(names) > 8)}"
