"""Secrets in what is shown or kept: what gives them away, and `***` in their place. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from clusterctl.user_variables import SECRET

# Lines may be megabytes long (minified code, data): each part of a pattern has a greatest length
# or a character that begins it, so that the time goes with the length of the text.
_NAME = rf"[\w-]{{0,80}}(?:{SECRET.pattern})[\w-]{{0,80}}"
_ASSIGNMENT = re.compile(rf"(?:(?<![\w-])--?[\w-]{{1,80}}=)?(?<![\w-]){_NAME}=", re.IGNORECASE)
_OPTION = re.compile(rf"((?<![\w-])--{_NAME} {{1,80}})[^\s-]\S*", re.IGNORECASE)
_KNOWN = re.compile(
    r"\b(AKIA|ASIA)[0-9A-Z]{16}\b([\s,:\"'=]{1,5}[A-Za-z0-9/+=]{40}(?![\w/+=]))?"
    r"|\b(ghp|gho|hf|sk|xox[bp]|glpat)[_-][\w-]{16,}|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"
    r"|\beyJ[\w-]{8,2000}\.eyJ[\w-]{8,4000}(\.[\w-]{1,2000})?"
    r"|(?<=Bearer )[\w.~+/=-]{12,4000}|(?<=Basic )[\w+/]{12,4000}={0,2}"
)
"""What is a secret by its form: keys of AWS, tokens of well-known services, passwords in URLs, web
tokens, and what an HTTP header proves its sender with."""
_KEY_FILE = re.compile(r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)(?:(?!-----END)[\s\S]){1,20000}")
_WORD = re.compile(r"(\b(?:password|passwd|passphrase)[ \t]{0,3}:[ \t]{0,3})[^\s\"'*]\S*", re.I)
_QUOTED = re.compile(
    rf"((?<![\w-]){_NAME}[\"']?\s{{0,80}}[:=]\s{{0,80}}[rbf]?([\"']))(?:(?!\2).)+(\2)",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """`NAME=value` becomes `NAME=***` where the name speaks of a secret, and so do `--name value`
    and `"name": "value"`; private keys lose what they consist of."""
    text = _QUOTED.sub(r"\1***\3", _KEY_FILE.sub(r"\1 *** ", text))
    text = _WORD.sub(r"\1***", text)
    text = re.sub(rf"({_ASSIGNMENT.pattern})\S+", r"\1***", text, flags=re.IGNORECASE)
    return _KNOWN.sub("***", _OPTION.sub(r"\1***", text))


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """As `redact`, for words: a value may hold blanks, or be the word after `--token`."""
    shown: list[str] = []
    hide = False
    for word in arguments:
        if found := _ASSIGNMENT.match(word):
            shown.append(f"{found[0]}***")
        else:
            shown.append("***" if hide and not word.startswith("-") else _KNOWN.sub("***", word))
        hide = word.startswith("--") and "=" not in word and bool(SECRET.search(word))
    return shown


_SECRET_FILE = re.compile(
    r"(^|/)(\.env(\.[^/]*)?|[^/]*\.env|\.netrc|\.pgpass|\.pypirc|\.npmrc|id_(rsa|dsa|ecdsa|ed25519)"
    r"|[^/]*\.(pem|key|p12|pfx|jks|keystore|ppk)|[^/]*(credential|secret|passw)[^/]*|kubeconfig)$",
    re.IGNORECASE,
)
_PLAIN = re.compile(
    r"^([-+ ]\s{0,200}(?:export\s{1,80})?"
    r"[\w.-]{0,80}(?:TOKEN|_KEY|SECRET|PASSW|CREDENTIAL)[\w.-]{0,80}\s{0,80}[:=]\s{0,80})"
    r"(?![\s\"'({\[])[^\s()\[\]]{8,}\s*$",
    re.IGNORECASE,
)
_PRIVATE = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")


def redact_patch(patch: str) -> str:
    """A patch of git without files that are there to hold secrets, and without values that are
    secrets by their name or form. Code stays as it is: `sorted(rows, key=len)`."""
    parts = re.split(r"^(?=diff --git )", patch, flags=re.MULTILINE)
    return "".join(map(_redact_file, parts))


def _redact_file(part: str) -> str:
    head, newline, rest = part.partition("\n")
    names = re.findall(r"[ab]/(.+?)(?= b/|\"|$)", head)
    if any(map(_SECRET_FILE.search, names)) or _PRIVATE.search(rest):
        return f"{head}\n(left out: this file may hold secrets)\n"
    lines = (_PLAIN.sub(r"\1***", _QUOTED.sub(r"\1***\3", line)) for line in rest.split("\n"))
    return head + newline + _KNOWN.sub("***", "\n".join(lines))
