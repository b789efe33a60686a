"""Read the parts of a report page back."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """Links, image sources, alternative texts and anchors of a page."""

    def __init__(self, html):
        super().__init__()
        self.links, self.sources, self.alts, self.names = [], [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.links += [found["href"]] if "href" in found else []
        self.sources += [found["src"]] if "src" in found else []
        self.alts += [found.get("alt", "")] if tag == "img" else []
        self.names += [found["id"]] if "id" in found else []


def section(page, name):
    return next(s for s in page.sections if s.name == name)


def cells(part):
    return {row[0]: row[1:] for row in part.rows}
