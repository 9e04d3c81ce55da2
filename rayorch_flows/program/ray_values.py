"""Values of Ray's structured options, checked as Ray would, without Ray: runtime environments and labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeGuard

from rayorch_flows.program.values.type_guards import is_dict, is_list

_NAME: Final = r"[a-zA-Z0-9](?:[a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?"
_KEY: Final = re.compile(rf"(?:{_NAME}(?:\.{_NAME})*/)?{_NAME}")
_VALUE: Final = re.compile(rf"|!?{_NAME}|!?in\({_NAME}(?:, ?{_NAME})*\)")
_INSTALLERS: Final = ("pip", "uv", "conda")
_ARCHIVES: Final = (".zip", ".tar.gz", ".tgz", ".tar.xz", ".whl", ".jar")


def of(kind: type | tuple[type, ...], what: str) -> Callable[[Any], None]:
    """A check that a value is of this kind."""

    def check(value: Any) -> None:
        if not isinstance(value, kind):
            raise ValueError(what)

    return check


def _maps_texts(value: Any) -> TypeGuard[dict[str, str]]:
    return is_dict(value) and all(isinstance(k, str) and isinstance(v, str) for k, v in value.items())


def _lists_texts(value: Any) -> bool:
    return is_list(value) and all(isinstance(item, str) for item in value)


def check_labels(value: Any) -> None:
    """A label selector: names to values, ``!value`` or ``in(value, value)``."""
    if not _maps_texts(value):
        raise ValueError("a dict from label names to values, both strings")
    for key, wanted in value.items():
        if not _KEY.fullmatch(key):
            raise ValueError(f"label names of letters, digits, '-', '_' and '.', not {key!r}")
        if not _VALUE.fullmatch(wanted):
            raise ValueError(f"a label, '!label' or 'in(label, label)' for {key!r}, not {wanted!r}")


def check_fallbacks(value: Any) -> None:
    """A list of ``{"label_selector": {...}}``, tried one after the other."""
    if not is_list(value) or not all(is_dict(item) and set(item) == {"label_selector"} for item in value):
        raise ValueError('a list of {"label_selector": {...}}')
    for item in value:
        check_labels(item["label_selector"])


def check_placement_group(value: Any) -> None:
    """A placement group, or "default" for that of whoever creates the actors."""
    if value != "default" and type(value).__name__ != "PlacementGroup":
        raise ValueError('a PlacementGroup of ray.util.placement_group, or "default"')


def check_runtime_env(value: Any) -> None:
    """The fields that Ray knows, each of its type; local folders have to exist."""
    if not is_dict(value):
        raise ValueError("a dict")
    if unknown := sorted(str(name) for name in value if name not in _FIELDS):
        raise ValueError(f"only fields that Ray knows ({', '.join(_FIELDS)}), not {', '.join(unknown)}")
    for name, field in value.items():
        if field is not None:
            try:
                _FIELDS[name](field)
            except ValueError as error:
                raise ValueError(f"for {name!r} {error}") from None
    if len(several := [name for name in _INSTALLERS if value.get(name) is not None]) > 1:
        raise ValueError(f"one of {', '.join(_INSTALLERS)}, not {' and '.join(several)}")


def _texts(value: Any) -> None:
    if not _maps_texts(value):
        raise ValueError("a dict from strings to strings")


def _packages(value: Any) -> None:
    """Requirements as a list, in a file, or in a dict with their options."""
    if isinstance(value, str):
        if not Path(value).is_file():
            raise ValueError(f"a list of requirements, or a file with them; there is no file {value!r}")
    elif not is_dict(value) and not _lists_texts(value):
        raise ValueError("a list of requirements, a file with them, or a dict with 'packages'")


def _folder(value: Any) -> None:
    if not isinstance(value, str):
        raise ValueError("a folder or the URI of an archive, as a string")
    if "://" not in value and not Path(value).exists():
        raise ValueError(f"a folder that exists, or a URI; there is no {value!r}")
    if "://" in value and not value.partition("?")[0].endswith(_ARCHIVES):
        raise ValueError(f"the URI of an archive ({', '.join(_ARCHIVES[:4])}), not {value!r}")


def _modules(value: Any) -> None:
    if not is_list(value):
        raise ValueError("a list of folders, modules or URIs")
    for item in value:
        if isinstance(item, str):
            _folder(item)


def _list_of_texts(value: Any) -> None:
    if not _lists_texts(value):
        raise ValueError("a list of strings")


def _anything(value: Any) -> None:
    del value


_FIELDS: Final[Mapping[str, Callable[[Any], None]]] = {
    "env_vars": _texts,
    "working_dir": _folder,
    "py_modules": _modules,
    "excludes": _list_of_texts,
    "pip": _packages,
    "uv": _packages,
    "conda": of((str, dict), "the name of an environment, a YAML file, or a dict"),
    "py_executable": of(str, "a command line"),
    "image_uri": of(str, "the name of an image"),
    "container": of(dict, "a dict"),
    "java_jars": _list_of_texts,
    "config": of(dict, "a dict"),
    "worker_process_setup_hook": _anything,
    "nsight": of((str, dict), '"default" or a dict'),
}
