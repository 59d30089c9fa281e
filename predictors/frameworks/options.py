"""Options of a predictor: what a request may set, checked before a model is opened."""

from collections.abc import Mapping
from dataclasses import dataclass

from predictors.errors import UnknownOptionError

Value = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its default, which also gives its type, and the values it takes when they are few."""

    default: Value
    choices: tuple[str, ...] = ()


def resolve_options(predictor: str, known: Mapping[str, Option], given: Mapping[str, Value]) -> dict[str, Value]:
    """Return every known option with the value in force, in the order of `known`.

    An integer is taken for a float. Raises UnknownOptionError, naming the known options or the values that
    would do, for a name that is not known, a value of another type, or one that is not a choice.
    """
    for name in given:
        if name not in known:
            names = ", ".join(sorted(known)) or "none"
            raise UnknownOptionError(
                f"the {predictor} predictor has no option '{name}'", hint=f"options it has: {names}"
            )
    return {name: _value(predictor, name, option, given.get(name, option.default)) for name, option in known.items()}


def _value(predictor: str, name: str, option: Option, value: Value) -> Value:
    wanted = type(option.default)
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted:
        raise UnknownOptionError(
            f"option '{name}' of the {predictor} predictor is {wanted.__name__}, not {type(value).__name__} ({value!r})"
        )
    if option.choices and value not in option.choices:
        raise UnknownOptionError(
            f"option '{name}' of the {predictor} predictor cannot be {value!r}",
            hint=f"it is one of: {', '.join(option.choices)}",
        )
    return value
