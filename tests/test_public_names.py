"""Every public name is listed, resolves, is visible to an editor, and has documented keywords."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from tests.public_interface import MODULES
from tests.support.pages import PAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAVY = {
    "aioboto3",
    "aiokafka",
    "boto3",
    "confluent_kafka",
    "moto",
    "opentelemetry",
    "pandas",
    "pyspark",
}


@pytest.mark.parametrize("name", MODULES)
def test_each_name_is_listed_and_resolves(name: str) -> None:
    module = import_module(name)
    assert set(module.__all__) <= set(dir(module))
    for exported in module.__all__:
        assert getattr(module, exported) is not None


@pytest.mark.parametrize("name", MODULES)
def test_an_editor_sees_each_name_without_running_the_module(name: str) -> None:
    module = import_module(name)
    tree = ast.parse(inspect.getsource(module))
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assert set(module.__all__) <= imported | defined


def test_listing_the_names_imports_no_library() -> None:
    code = (
        "import json, sys\nfrom importlib import import_module\n"
        f"for name in {MODULES!r}: dir(import_module(name))\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    answer = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert HEAVY.isdisjoint(json.loads(answer.stdout))


def keywords() -> Iterator[tuple[str, Any, str]]:
    """Yield each keyword-only argument of the public names, with its callable."""
    for name in MODULES:
        module = import_module(name)
        for exported in module.__all__:
            value = getattr(module, exported)
            if isinstance(value, type) and issubclass(value, (Enum, Exception)):
                continue
            methods = vars(value) if isinstance(value, type) else ()
            public = [getattr(value, each) for each in methods if not each.startswith("_")]
            for function in filter(callable, (value, *public)):
                for parameter in inspect.signature(function).parameters.values():
                    if parameter.kind is parameter.KEYWORD_ONLY:
                        yield f"{name}.{exported}", function, parameter.name


def documented(function: Any) -> set[str]:
    """Return the arguments that a docstring lists, of a class with those of its bases."""
    owners = function.__mro__ if isinstance(function, type) else (function,)
    texts = [inspect.getdoc(owner) or "" for owner in owners]
    sections = [re.search(r"^Args:\n((?: .*\n?|\n)*)", text, re.MULTILINE) for text in texts]
    return {
        name
        for section in sections
        if section is not None
        for names in re.findall(r"^    (\w+(?:, \w+)*):", section[1], re.MULTILINE)
        for name in names.split(", ")
    }


def test_each_keyword_is_in_its_docstring() -> None:
    found = [*keywords()]
    assert len(found) > 150
    missing = [(where, word) for where, function, word in found if word not in documented(function)]
    assert missing == []


def test_each_keyword_is_on_a_page() -> None:
    pages = "".join(path.read_text() for path in PAGES)
    words = set(re.findall(r"\w+", pages))
    missing = [
        (where, word)
        for where, _, word in keywords()
        if word not in words and not where.startswith("fanout.testing.")
    ]
    assert missing == []
