"""Elements escape whatever is no markup."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from trioton.report.markup import Markup, element, escaped, shortened


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: dict[str, str | None] = {}
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= dict(attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def read(markup: str) -> Reader:
    reader = Reader()
    reader.feed(markup)
    reader.close()
    return reader


@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn"]), max_size=50))
def test_any_text_comes_back_from_content_and_attribute(text: str) -> None:
    found = read(element("p", text, title=text))
    assert (found.tags, found.text, found.attributes) == (["p"], text, {"title": text})


@given(st.text(max_size=50))
def test_no_text_becomes_an_element(text: str) -> None:
    assert read(element("p", text, title=text)).tags == ["p"]


def test_markup_is_not_escaped_twice() -> None:
    assert element("p", element("b", "<"), "&") == "<p><b>&lt;</b>&amp;</p>"


def test_names_of_attributes() -> None:
    assert element("p", class_="a", aria_label="b", stroke_dasharray=None) == '<p class="a" aria-label="b"></p>'


def test_void_elements_have_no_end() -> None:
    assert element("meta", charset="utf-8") == '<meta charset="utf-8">'


def test_what_no_document_may_hold_is_replaced() -> None:
    assert escaped("a\x00b\x1bc\ud800d\te\n") == Markup("a\ufffdb\ufffdc\ufffdd\te\n")


def test_long_text_is_cut() -> None:
    assert len(escaped("x" * 1_000_000)) == 20_000
    assert shortened("abcdef", 4) == "abc…"
