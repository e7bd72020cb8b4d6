"""The page of the SDK in docs/reference: every name of `switchyard`, with its docstring and its calls."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

from msgspec import Struct

import switchyard
from switchyard.errors import ERRORS_BY_CODE
from switchyard.sdk.client import Base, JobFields

INTRODUCTION = """\
What `import switchyard` gives. These names are the SDK; anything else in the package may change in any version. The
package has types: mypy and pyright check your program against it. It needs no extra (`pip install switchyard`).

```python
from switchyard import Client, YardError

with Client() as yard:
    try:
        job = yard.submit(["python", "train.py"], cores=4, memory="8GiB", time_limit="2h")
        print(job.wait().state, job.text())
    except YardError as exc:
        print(exc.detail, exc.next_step)
```
"""


class _Unquoted(str):
    """An annotation that is shown as it is written."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def sdk_page(made: str) -> str:
    names = {name: getattr(switchyard, name) for name in switchyard.__all__}
    groups: dict[str, list[str]] = {"Calls": [], "Values": [], "Errors": []}
    for name, kind in names.items():
        groups[_group(kind)].append(name)
    parts = ["# The Python SDK\n", made, INTRODUCTION]
    for title, members in groups.items():
        parts.append(f"- {title}: {', '.join(f'[{name}](#{name.lower()})' for name in members)}")
    for name in (name for members in groups.values() for name in members):
        parts.append(f"\n## {name}\n")
        parts += _described(names[name])
    return "\n".join(parts) + "\n"


def _group(kind: Any) -> str:
    if inspect.isclass(kind) and issubclass(kind, Exception):
        return "Errors"
    return "Values" if inspect.isclass(kind) and issubclass(kind, Struct | Enum) else "Calls"


def _described(kind: Any) -> Iterator[str]:
    if not inspect.isclass(kind):
        yield f"`{kind.__name__}{_signature(kind)}`\n"
    yield _text(kind)
    if _group(kind) == "Values":
        what = "values" if issubclass(kind, Enum) else "fields"
        yield f"\nIts {what} are those of the API's [{kind.__name__}](api.md#{kind.__name__.lower()})."
    elif kind is switchyard.YardError:
        yield "\nThe base of all errors here: `detail` says what happened, `next_step` what to do about it."
    elif _group(kind) == "Errors":
        again = " It is `transient`: trying again may help." if kind.transient else ""
        children = [child for child in ERRORS_BY_CODE.values() if child is not kind and issubclass(child, kind)]
        derived = [f"[{child.code}](errors.md#{child.code})" for child in children]
        more = f" Errors with these codes are kinds of it: {', '.join(derived)}." if derived else ""
        yield f"\nIts code is [{kind.code}](errors.md#{kind.code}).{again}{more}"
    elif inspect.isclass(kind):
        yield f"\n`{kind.__name__}{_signature(kind.__init__)}`\n"
        yield from _members(kind)
    if kind is switchyard.Client:
        yield f"\nA job is given as `Base = {_plain(Base)}`, and `fields` are any of these:\n"
        yield from (f"- `{name}: {hint.__forward_arg__}`" for name, hint in JobFields.__annotations__.items())


def _members(kind: type) -> Iterator[str]:
    """The calls and properties of a class, with those that it has from classes of ours: the nearest class first."""
    seen: set[str] = set()
    for owner in (base for base in kind.__mro__ if base.__module__.startswith("switchyard.")):
        members = {
            name: member for name, member in vars(owner).items() if not name.startswith("_") and name not in seen
        }
        seen |= members.keys()
        if owner is not kind and members:
            yield f"\n{_text(owner)}\n"
        for name, member in members.items():
            if isinstance(member, property):
                shown = f"{name}: {inspect.signature(member.fget).return_annotation}"  # type: ignore[arg-type]
            elif inspect.isfunction(member):
                shown = name + _signature(member)
            else:
                continue
            about = " ".join(_text(member).split())
            yield f"- `{shown}`" + (f": {about}" if about else "")


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=_Unquoted(parameter.annotation))
        for name, parameter in signature.parameters.items()
        if name != "self"
    ]
    returned = signature.return_annotation
    shown = signature.replace(parameters=parameters, return_annotation=_Unquoted(returned))
    return str(shown).removesuffix(" -> None")


def _plain(hint: Any) -> str:
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", str(hint))


def _text(thing: Any) -> str:
    """Its docstring without the examples, which are in the code."""
    return inspect.cleandoc(thing.__doc__ or "").partition("\n>>>")[0].strip()
