"""Secrets in what is shown or kept: what gives them away, and `***` in their place. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from clusterctl.user_variables import SECRET

# These are compiled when they are first used: every command loads this module, and few need it.
# Lines may be megabytes long (minified code, data): each part of a pattern has a greatest length
# or a character that begins it, so that the time goes with the length of the text.
_NAME = rf"[\w-]{{0,80}}(?:{SECRET.pattern})[\w-]{{0,80}}"
_ASSIGNMENT = rf"(?:(?<![\w-])--?[\w-]{{1,80}}=)?(?<![\w-]){_NAME}="
_OPTION = rf"(?i)((?<![\w-])--{_NAME} {{1,80}})[^\s-]\S*"
_KNOWN = (
    r"\b(AKIA|ASIA)[0-9A-Z]{16}\b([\s,:\"'=]{1,5}[A-Za-z0-9/+=]{40}(?![\w/+=]))?"
    r"|\b(ghp|gho|hf|sk|xox[bp]|glpat)[_-][\w-]{16,}|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"
    r"|\beyJ[\w-]{8,2000}\.eyJ[\w-]{8,4000}(\.[\w-]{1,2000})?"
    r"|(?<=Bearer )[\w.~+/=-]{12,4000}|(?<=Basic )[\w+/]{12,4000}={0,2}"
)
"""What is a secret by its form: keys of AWS, tokens of well-known services, passwords in URLs, web
tokens, and what an HTTP header proves its sender with."""
_KEY_FILE = r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)(?:(?!-----END)[\s\S]){1,20000}"
_WORD = r"(?i)(\b(?:password|passwd|passphrase)[ \t]{0,3}:[ \t]{0,3})[^\s\"'*]\S*"
_QUOTED = rf"(?i)((?<![\w-]){_NAME}[\"']?\s{{0,80}}[:=]\s{{0,80}}[rbf]?([\"']))(?:(?!\2).)+(\2)"


def may_see_secrets(url: str) -> bool:
    """Whether what is sent to that URL is encrypted, or stays on its machine."""
    return re.match(r"(?i)https://|http://(localhost|127\.[\d.]+|\[::1\])([:/]|$)", url) is not None


def redact(text: str) -> str:
    """`NAME=value` becomes `NAME=***` where the name speaks of a secret, and so do `--name value`
    and `"name": "value"`; private keys lose what they consist of."""
    text = re.sub(_QUOTED, r"\1***\3", re.sub(_KEY_FILE, r"\1 *** ", text))
    text = re.sub(_WORD, r"\1***", text)
    text = re.sub(rf"(?i)({_ASSIGNMENT})\S+", r"\1***", text)
    return re.sub(_KNOWN, "***", re.sub(_OPTION, r"\1***", text))


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """As `redact`, for words: a value may hold blanks, or be the word after `--token`."""
    shown: list[str] = []
    hide = False
    for word in arguments:
        if found := re.match(_ASSIGNMENT, word, re.IGNORECASE):
            shown.append(f"{found[0]}***")
        else:
            shown.append(
                "***" if hide and not word.startswith("-") else re.sub(_KNOWN, "***", word)
            )
        hide = word.startswith("--") and "=" not in word and bool(SECRET.search(word))
    return shown


_SECRET_FILE = (
    r"(?i)(^|/)(\.env(\.[^/]*)?|[^/]*\.env|\.netrc|\.pgpass|\.pypirc|\.npmrc|id_(rsa|dsa|ecdsa|ed25519)"
    r"|[^/]*\.(pem|key|p12|pfx|jks|keystore|ppk)|[^/]*(credential|secret|passw)[^/]*|kubeconfig)$"
)
_PLAIN = (
    r"(?i)^([-+ ]\s{0,200}(?:export\s{1,80})?"
    r"[\w.-]{0,80}(?:TOKEN|_KEY|SECRET|PASSW|CREDENTIAL)[\w.-]{0,80}\s{0,80}[:=]\s{0,80})"
    r"(?![\s\"'({\[])[^\s()\[\]]{8,}\s*$"
)
_PRIVATE = r"-----BEGIN [A-Z ]*PRIVATE KEY-----"


def redact_patch(patch: str) -> str:
    """A patch of git without files that are there to hold secrets, and without values that are
    secrets by their name or form. Code stays as it is: `sorted(rows, key=len)`."""
    parts = re.split(r"^(?=diff --git )", patch, flags=re.MULTILINE)
    return "".join(map(_redact_file, parts))


def _redact_file(part: str) -> str:
    head, newline, rest = part.partition("\n")
    names = re.findall(r"[ab]/(.+?)(?= b/|\"|$)", head)
    if any(re.search(_SECRET_FILE, name) for name in names) or re.search(_PRIVATE, rest):
        return f"{head}\n(left out: this file may hold secrets)\n"
    hidden = (re.sub(_QUOTED, r"\1***\3", line) for line in rest.split("\n"))
    lines = (re.sub(_PLAIN, r"\1***", line) for line in hidden)
    return head + newline + re.sub(_KNOWN, "***", "\n".join(lines))
