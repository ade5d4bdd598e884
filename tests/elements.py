"""HTML parsed into a tree whose elements are found by tag, class, id and attributes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser

VOID = {"meta", "link", "input", "br", "hr", "img", "wbr"}
#: End tags that HTML does not want.
LOOSE = {"th", "td", "tr", "li", "p", "option"}
#: Elements that do not part the words they stand between.
INLINE = {"a", "b", "bdi", "code", "span", "strong", "svg", "time", "use", "wbr"}
#: Elements whose content is no text of the page.
SILENT = {"script", "style", "svg", "title"}

_COMPOUND = re.compile(r"([\w-]*)((?:[.#][\w-]+|\[[\w-]+(?:=[^\]]*)?\])*)")
_CONDITION = re.compile(r"([.#])([\w-]+)|\[([\w-]+)(?:=([^\]]*))?\]")


#: A sign and the word after it, or the name and the value of an attribute.
Conditions = list[tuple[str, str, str, str]]


@cache
def _parsed(compound: str) -> tuple[str, Conditions]:
    """Return the tag of one part of a selector, and what else it demands."""
    parsed = _COMPOUND.fullmatch(compound)
    assert parsed, f"no selector: {compound}"
    return parsed[1], _CONDITION.findall(parsed[2])


class Element:
    """An element with its attributes and its content."""

    def __init__(self, tag: str, attrs: dict[str, str], parent: Element | None) -> None:
        self.tag, self.attrs, self.parent = tag, attrs, parent
        self.content: list[Element | str] = []

    def __getitem__(self, name: str) -> str:
        return self.attrs[name]

    def get(self, name: str, default: str = "") -> str:
        """The attribute ``name``."""
        return self.attrs.get(name, default)

    @property
    def classes(self) -> list[str]:
        """The classes, in their order."""
        return self.get("class").split()

    @property
    def tone(self) -> str:
        """The class of its colour: ok, info, warn, crit or mute."""
        return next((c.removeprefix("tone-") for c in self.classes if c.startswith("tone-")), "")

    @property
    def text(self) -> str:
        """The words in it, separated by single spaces."""
        return re.sub(r"\s+", " ", "".join(self._words())).strip()

    @property
    def numbers(self) -> list[float]:
        """The numbers in its text, in their order."""
        return [float(n.replace(",", "")) for n in re.findall(r"\d[\d,]*(?:\.\d+)?", self.text)]

    @property
    def links(self) -> list[str]:
        """The addresses of its links."""
        return [each["href"] for each in self.all("a[href]") if each["href"]]

    def all(self, selector: str) -> list[Element]:
        """The elements in it that fit ``selector``, as in CSS: ``dl.answers [data-code=late]``."""
        found: list[Element] = [self]
        for compound in selector.split():
            inside = (each for element in found for each in element.inside())
            tag, conditions = _parsed(compound)
            found = [
                each
                for each in (inside if len(found) == 1 else dict.fromkeys(inside))
                if tag in ("", each.tag) and (not conditions or each.meets(conditions))
            ]
        return found

    def one(self, selector: str) -> Element:
        """The only element in it that fits ``selector``."""
        found = self.all(selector)
        assert len(found) == 1, f"{len(found)} × {selector} in: {self.text[:500]}"
        return found[0]

    def inside(self) -> Iterator[Element]:
        """All elements in it, in their order."""
        left = [each for each in reversed(self.content) if isinstance(each, Element)]
        while left:
            element = left.pop()
            yield element
            left += [each for each in reversed(element.content) if isinstance(each, Element)]

    def meets(self, conditions: Conditions) -> bool:
        """Return True if it has each class, id and attribute of ``conditions``."""
        for sign, word, name, value in conditions:
            if sign == "." and word not in self.classes:
                return False
            if sign == "#" and word != self.get("id"):
                return False
            if name and (name not in self.attrs or value and self.attrs[name] != value):
                return False
        return True

    def _words(self) -> Iterator[str]:
        for each in self.content:
            if isinstance(each, str):
                yield each
            elif each.tag not in SILENT:
                parted = "" if each.tag in INLINE else " "
                yield parted
                yield from each._words()
                yield parted


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = self.open = Element("", {}, None)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == self.open.tag and tag in LOOSE:
            self._close(tag)
        elif tag in ("td", "th", "tr") and self.open.tag in ("td", "th"):
            self._close("tr" if tag == "tr" else self.open.tag)
        element = Element(tag, {name: value or "" for name, value in attrs}, self.open)
        self.open.content.append(element)
        if tag not in VOID:
            self.open = element

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._close(tag)

    def handle_endtag(self, tag: str) -> None:
        self._close(tag)

    def handle_data(self, data: str) -> None:
        self.open.content.append(data)

    def _close(self, tag: str) -> None:
        element: Element | None = self.open
        while element is not None and element.tag != tag:
            element = element.parent
        if element is not None and element.parent is not None:
            self.open = element.parent


def parse(html: str) -> Element:
    """The tree of ``html``."""
    parser = _Parser()
    parser.feed(html)
    return parser.root
