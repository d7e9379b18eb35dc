"""The pages of the site in their order, as `mkdocs.yml` has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from tests.support.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("Page", "navigation")


class Page(NamedTuple):
    """A page: its section (empty for the first ones), its title, and its path in docs."""

    section: str
    title: str
    path: str


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Reads `mkdocs.yml`, whose Python objects and variables do not matter here."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
_Loader.add_constructor("!ENV", lambda *_: None)


def navigation() -> list[Page]:
    """Return the pages of the site in their order."""
    config = yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)  # noqa: S506 - a safe one
    return [*_pages(config["nav"], "")]


def _pages(entries: list[dict[str, Any]], section: str) -> Iterator[Page]:
    for entry in entries:
        for title, found in entry.items():
            if isinstance(found, list):
                yield from _pages(found, title)
            else:
                yield Page(section, title, found)
