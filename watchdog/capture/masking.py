"""Hide secrets before anything is written: environments, command lines, logs."""

from __future__ import annotations

import functools
import re

MASK = b"****"
"""What stands in the place of a secret. Its length says nothing about the secret's."""

# Words of a NAME that make its value a secret, whatever it looks like.
_SECRET_WORD = (
    rb"TOKEN|TOKENS|SECRET|SECRETS|PASSWORD|PASSWORDS|PASSWD|PASSPHRASE|PASSCODE|PWD|PASS|"
    rb"APIKEY|API_KEY|ACCESS_KEY|ACCESS_KEY_ID|SECRET_KEY|PRIVATE_KEY|SIGNING_KEY|AUTH_KEY|"
    rb"ENCRYPTION_KEY|LICENSE_KEY|ACCOUNT_KEY|SSH_KEY|KEY|CREDENTIAL|CREDENTIALS|CREDS|"
    rb"AUTH|AUTHORIZATION|COOKIE|SESSION|BEARER|JWT|SAS|DSN|WEBHOOK|WEBHOOK_URL|CONNECTION_STRING"
)
_SECRET_NAME = re.compile(
    rb"(?:^|[_.-])(?:" + _SECRET_WORD + rb")(?:[_.-]|\d*$)|"
    rb"(?:TOKEN|SECRET|PASSWORD|PASSWD|APIKEY|CREDENTIAL)S?\d*$|"
    rb"^(?:AWS|AZURE|GOOGLE|GCP|GCLOUD)_.*(?:KEY|SECRET|TOKEN|CREDENTIAL|ID$)",
    re.IGNORECASE,
)
_CAMEL = re.compile(rb"([a-z0-9])([A-Z])")

# NAMES whose words look secret and are needed for a diagnosis, or are plainly public.
_PUBLIC_NAME = re.compile(
    rb"^(?:PWD|OLDPWD|TORCH_.*|NCCL_.*|TOKENIZERS_PARALLELISM|SSH_AUTH_SOCK|"
    rb"XDG_SESSION_.*|DESKTOP_SESSION|DBUS_SESSION_BUS_ADDRESS|PYTHON[A-Z]*|MAX_TOKENS|"
    rb"AWS_(?:DEFAULT_)?REGION|AWS_EXECUTION_ENV|AWS_OFI_.*)$",
    re.IGNORECASE,
)

# Each pattern starts with a literal or at a word's beginning, and every run is bounded: a log of
# one endless line must not cost more than any other.
_URL = re.compile(rb"://([^\s/@:'\"<>]{0,256}):([^\s/'\"<>]{1,512})@")
_URL_USER = re.compile(rb"://([A-Za-z0-9_\-.]{20,256})@")
_KNOWN: tuple[tuple[bytes, re.Pattern[bytes]], ...] = tuple(
    (start, re.compile(rb"(?<![A-Za-z0-9_-])" + re.escape(start) + rest))
    for start, rest in (
        *((name, rb"[A-Z0-9]{16}\b") for name in (b"AKIA", b"ASIA", b"AROA", b"AIDA")),
        (b"hf_", rb"[A-Za-z0-9]{16,200}"),
        *((b"gh%c_" % kind, rb"[A-Za-z0-9]{20,200}") for kind in b"pousr"),
        (b"github_pat_", rb"[A-Za-z0-9_]{20,200}"),
        (b"glpat-", rb"[A-Za-z0-9_-]{16,200}"),
        (b"sk-", rb"[A-Za-z0-9_-]{20,200}"),
        *((b"xox%c-" % kind, rb"[A-Za-z0-9-]{10,200}") for kind in b"abeoprs"),
        (b"npm_", rb"[A-Za-z0-9]{30,200}"),
        (b"pypi-", rb"[A-Za-z0-9_-]{30,400}"),
        (b"AIza", rb"[A-Za-z0-9_-]{30,100}"),
        (b"ya29.", rb"[A-Za-z0-9_-]{20,400}"),
        (b"nvapi-", rb"[A-Za-z0-9_-]{20,200}"),
        (b"eyJ", rb"[A-Za-z0-9_-]{10,8192}\.[A-Za-z0-9_-]{10,8192}(?:\.[A-Za-z0-9_-]{0,8192})?"),
    )
)
_PEM = re.compile(
    rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_HEADER = re.compile(
    rb"(?i)\b((?:proxy-)?authorization|x-api-key|x-auth-token|set-cookie|cookie)"
    rb"([\"']?\s{0,3}[:=]\s{0,3}[\"']?)((?:(?:bearer|basic|token|digest)\s{1,3})?)([^\s\"',;]+)"
)
_BEARER = re.compile(rb"(?i)\b(bearer|basic)(\s{1,3})([A-Za-z0-9+/_.=-]{16,8192})")
# name=value, --name value, "name": "value". The name is judged by secret_name.
_VALUE = rb"(\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|[^\s\"',;&]+)"
_ASSIGN = re.compile(
    rb"(?<![A-Za-z0-9_.-])((?:--?)?[A-Za-z_][A-Za-z0-9_.-]{1,80})"
    rb"([\"']?\s{0,3}(?:=|:(?!:))\s{0,3})" + _VALUE
)
_OPTION = re.compile(
    rb"(?<![A-Za-z0-9_-])(--?[A-Za-z][A-Za-z0-9_-]{1,60})([ \t\x00]{1,3})(?!-)" + _VALUE
)
# Without one of these, in whatever case, no name in a text is a secret's.
_ROOTS = (
    b"token", b"secret", b"pass", b"pwd", b"key", b"cred", b"auth", b"cookie", b"session",
    b"bearer", b"jwt", b"sas", b"dsn", b"webhook", b"connection_string", b"aws_", b"azure_",
    b"google_", b"gcp_", b"gcloud_",
)  # fmt: skip
# In running text a name followed by a colon is often prose ("token: int", "Key: value").
_PROSE = re.compile(rb"none|null|true|false|int|str|bytes|bool|float|[\[{(]", re.IGNORECASE)
# ``num_tokens=8192`` is a number that one wants to read; ``password=8192`` is not.
_NUMBER = re.compile(rb"[0-9.,]{1,12}")
_COUNTABLE = re.compile(rb"(?i)tokens?|keys?|session|pass$")


@functools.lru_cache(maxsize=4096)
def secret_name(name: bytes) -> bool:
    """Whether the value of a variable, option or field of this name is a secret."""
    name = name.lstrip(b"-")
    if _PUBLIC_NAME.match(name):
        return False
    return bool(_SECRET_NAME.search(name) or _SECRET_NAME.search(_CAMEL.sub(rb"\1_\2", name)))


def mask_text(data: bytes) -> tuple[bytes, int]:
    """Mask free text (logs, command lines, messages). Returns it and how many were masked."""
    count = 0

    def hide(keep: bytes) -> bytes:
        nonlocal count
        count += 1
        return keep + MASK

    def assign(found: re.Match[bytes]) -> bytes:
        name, joint, value = found.groups()
        bare = value.strip(b"\"'")
        if not bare or bare.startswith(MASK) or not secret_name(name):
            return found[0]
        # ``key: word`` in prose is no secret; ``key=word`` and quoted values are.
        if (b":" in joint and value[:1] not in b"\"'" and len(bare) < 8) or _PROSE.fullmatch(bare):
            return found[0]
        if _NUMBER.fullmatch(bare) and _COUNTABLE.search(name):
            return found[0]
        quote = value[:1] if value[:1] in b"\"'" else b""
        return hide(name + joint + quote) + quote

    def option(found: re.Match[bytes]) -> bytes:
        name, joint, value = found.groups()
        if value.startswith(MASK) or not secret_name(name):
            return found[0]
        return hide(name + joint)

    low = data.lower()
    if b"private key-----" in low:
        data = _PEM.sub(lambda _: hide(b""), data)
    if b"://" in low:
        data = _URL.sub(lambda m: hide(b"://" + m[1] + b":") + b"@", data)
        data = _URL_USER.sub(lambda _: hide(b"://") + b"@", data)
    if any(word in low for word in (b"authorization", b"x-a", b"cookie")):
        data = _HEADER.sub(lambda m: hide(m[1] + m[2] + m[3]), data)
    if b"bearer" in low or b"basic" in low:
        data = _BEARER.sub(lambda m: hide(m[1] + m[2]), data)
    for start, pattern in _KNOWN:
        if start in data:
            data = pattern.sub(lambda _: hide(b""), data)
    if any(root in low for root in _ROOTS):
        data = _OPTION.sub(option, data)
        data = _ASSIGN.sub(assign, data)
    return data, count


def mask_environment(block: bytes) -> tuple[list[bytes], int]:
    r"""Mask a NUL-separated environment block. Returns ``NAME=value`` items and the count.

    Line feeds in values become ``\n``, so that one item is one line of text.
    """
    items: list[bytes] = []
    count = 0
    for item in block.split(b"\0"):
        if not item:
            continue
        name, equals, value = item.partition(b"=")
        if not equals:
            # A process may overwrite its block: what has no name is not an environment.
            items.append(MASK)
            count += 1
            continue
        if value and secret_name(name):
            value, masked = MASK, 1
        else:
            value, masked = mask_text(value)
        count += masked
        items.append(name + b"=" + value.replace(b"\n", b"\\n").replace(b"\r", b"\\r"))
    return items, count
