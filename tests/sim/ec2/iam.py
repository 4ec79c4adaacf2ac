"""Whether an identity-based policy allows a request, as AWS IAM decides it. Pure.

Source: IAM User Guide, "Policy evaluation logic" (an explicit Deny, else an Allow, else no) and
"IAM JSON policy elements": Action and Resource with `*` and `?`, Condition with its operators,
where all operators and keys have to hold, and one value of each suffices. What is not needed here
(NotAction, policy variables, set operators) is refused, not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Context = Mapping[str, str]
"""Condition keys of a request, with their values."""


def allows(policy: Mapping[str, Any], action: str, resource: str, context: Context) -> bool:
    """`resource` is an ARN, or `*` for an action that knows none."""
    effects = {
        statement["Effect"]
        for statement in policy["Statement"]
        if _applies(statement, action, resource, context)
    }
    return effects == {"Allow"}


def _applies(statement: Mapping[str, Any], action: str, resource: str, context: Context) -> bool:
    unknown = set(statement) - {"Sid", "Effect", "Action", "Resource", "Condition"}
    if unknown:
        raise ValueError(f"not evaluated here: {', '.join(unknown)}")
    return (
        any(_like(action.lower(), one.lower()) for one in _listed(statement["Action"]))
        and any(_like(resource, one) for one in _listed(statement["Resource"]))
        and all(
            _holds(operator, key, _listed(wanted), context)
            for operator, pairs in statement.get("Condition", {}).items()
            for key, wanted in pairs.items()
        )
    )


_OPERATORS: dict[str, Callable[[str, str], bool]] = {
    "StringEquals": lambda value, wanted: value == wanted,
    "StringLike": lambda value, wanted: _like(value, wanted),
    "Bool": lambda value, wanted: value.lower() == wanted.lower(),
    "NumericEquals": lambda value, wanted: float(value) == float(wanted),
    "NumericLessThanEquals": lambda value, wanted: float(value) <= float(wanted),
}
_NEGATED = {"StringNotEquals": "StringEquals", "StringNotLike": "StringLike"}
"""What holds where the other does not, for all values and for a key that a request lacks."""


def _holds(operator: str, key: str, wanted: Sequence[str], context: Context) -> bool:
    """Names of keys have no case. A key that a request does not have fulfils no operator but Null
    and those that end in IfExists."""
    values = {name.lower(): value for name, value in context.items()}
    value = values.get(key.lower())
    if operator == "Null":
        return str(value is None).lower() in wanted
    name = operator.removesuffix("IfExists")
    if name in _NEGATED:
        return value is None or not any(_OPERATORS[_NEGATED[name]](value, one) for one in wanted)
    if name not in _OPERATORS:
        raise ValueError(f"not evaluated here: {operator}")
    if value is None:
        return name != operator
    return any(_OPERATORS[name](value, one) for one in wanted)


def _like(text: str, pattern: str) -> bool:
    parts = (re.escape(part) for part in re.split(r"([*?])", pattern))
    expression = "".join({r"\*": ".*", r"\?": "."}.get(part, part) for part in parts)
    return re.fullmatch(expression, text, re.DOTALL) is not None


def _listed(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value
