"""Role: what the queries and the keys of an attention layer (site) are. Each layer declares its role.

A pattern for sites is a name with the wildcards * and ?, or the kind of a role. For example,
"decoder.*.cross" matches names, and "cross" matches every cross-attention layer.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

__all__ = [
    "CROSS",
    "CROSS_ATTENTION",
    "DECODER_SELF",
    "ENCODER_SELF",
    "KINDS",
    "POOLING",
    "READING_SELF",
    "REVERSED_SELF",
    "BySite",
    "Role",
    "matches",
    "role_by_name",
    "sites_matching",
]

T = TypeVar("T")


class Role(NamedTuple):
    """The role of an attention layer: the kind of attention, and the sequences of its queries and keys.

    kind: "self", "cross", "memory" (a memory that the model writes to), "image", or "pool" (one learned query
        that pools the states of a sequence).
    rows: the sequence that the queries come from, for example "source", "target" (the tokens that a decoder
        generates), "input", "label" or "reversed" (the source tokens, last token first).
    columns: the sequence that the keys come from, for example "source", "input" (the tokens that a decoder
        reads: the target, shifted by one position) or "image".

    >>> import regard, torch
    >>> to_image, x = regard.Role("image", rows="target", columns="image"), torch.eye(2)
    >>> with regard.record(at="image") as seen:
    ...     _ = regard.attention(x, x, site="decoder.look", role=to_image)
    >>> list(seen), seen.roles["decoder.look"].kind
    (['decoder.look'], 'image')
    """

    kind: str
    rows: str = ""
    columns: str = ""


KINDS = ("self", "cross", "memory", "image", "pool")
"""The kinds of attention that a Role names."""

ENCODER_SELF = Role("self", "source", "source")
DECODER_SELF = Role("self", "target", "input")
READING_SELF = Role("self", "input", "input")
REVERSED_SELF = Role("self", "reversed", "reversed")
CROSS_ATTENTION = Role("cross", "target", "source")
POOLING = Role("pool", "label", "source")

CROSS = CROSS_ATTENTION.kind
"""The pattern that matches all cross-attention layers, in which a decoder attends to the source."""


class BySite(dict[str, T]):
    """A dict with a value for each site (attention layer), by site name, and with the roles of the sites.

    roles: the roles of the sites that declare a role, by the name of the site.

    In this example, the site "a" has a declared role. The role of "decoder.cross" follows from its name:

    >>> weights = BySite({"a": 1, "decoder.cross": 2}, roles={"a": CROSS_ATTENTION})
    >>> sites_matching(weights, "cross"), weights.role("decoder.cross").columns
    (['a', 'decoder.cross'], 'source')
    """

    def __init__(
        self,
        values: Mapping[str, T] | Iterable[tuple[str, T]] = (),
        roles: Mapping[str, Role] | None = None,
    ) -> None:
        super().__init__(values)
        self.roles: dict[str, Role] = dict(roles or {})

    def role(self, site: str) -> Role:
        """Return the declared role of a site, or the result of role_by_name() if no role is declared."""
        return self.roles.get(site) or role_by_name(site)


def role_by_name(name: str) -> Role:
    """Return the role of a site that declares no role, according to the naming convention of Regard.

    This function is needed for files of earlier versions, and for layers and arrays of users. By convention,
    names begin with "encoder" or "decoder". The names of cross-attention layers end in "cross", and the names
    of self-attention layers end in "self".

    >>> role_by_name("decoder.3.cross"), role_by_name("encoder.0.self").rows, role_by_name("layer").kind
    (Role(kind='cross', rows='target', columns='source'), 'source', '')
    """
    if name.endswith(CROSS):
        return CROSS_ATTENTION
    part, *_, last = f"{name}.{name}".split(".")
    if last == POOLING.kind:
        return POOLING
    known = {"encoder": ENCODER_SELF, "decoder": DECODER_SELF}.get(part, Role("", part, part))
    return known._replace(kind="self" if name.endswith("self") else "")


def matches(pattern: str, name: str, role: Role | None = None) -> bool:
    """Return whether a pattern matches the name of a site (with wildcards * and ?) or the kind of its role.

    >>> matches("*cross", "decoder.cross"), matches("self", "encoder.0.self"), matches("self", "selfish")
    (True, True, False)
    """
    return fnmatch.fnmatchcase(name, pattern) or pattern == (role or role_by_name(name)).kind != ""


def sites_matching(sites: Mapping[str, object], pattern: str) -> list[str]:
    """Return the names of the sites that match a pattern.

    A pattern such as "cross" matches the kind of a role. If `sites` is a BySite with declared roles, the
    declared role of a site is used. Otherwise, role_by_name() derives the role from the name of the site.
    """
    roles = sites.roles if isinstance(sites, BySite) else {}
    return [name for name in sites if matches(pattern, name, roles.get(name))]
