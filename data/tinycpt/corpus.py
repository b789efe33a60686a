"""English, French and Python text for `tinycpt`, from Debian's packages.

`prepare` downloads the packages with ``apt-get`` (run ``apt-get update`` first), unpacks them
with ``dpkg-deb`` (nothing is installed, no root is needed), and leaves four files of plain UTF-8
bytes: training and held-out text of the source, English, and of one target.
"""

from __future__ import annotations

import gzip
import hashlib
import html
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np

SOURCE = "english"
PACKAGES = {
    "english": "libreoffice-help-en-us gimp-help-en python3.11-doc git-doc perl-doc manpages "
    "manpages-dev",
    "french": "libreoffice-help-fr gimp-help-fr manpages-fr manpages-fr-dev",
    "python": "libpython3.11-minimal libpython3.11-stdlib mercurial-common python3-django "
    "python3-pandas python3-sqlalchemy python3-twisted",
}
HELD_OUT = 1 / 32  # share of the documents
REPEATED = 40  # characters from which a line seen before in its language is dropped
CODE = {"python"}  # domains whose indentation is kept

_HIDDEN = re.compile(r"<(head|script|style|header|nav|footer)\b.*?</\1>", re.S | re.I)
_BREAK = re.compile(
    r"<(/?(p|div|h\d|li|tr|dt|dd|pre|table|ul|ol|section)\b[^>]*|br\s*/?)>", re.I
)
_TAG = re.compile(r"<[^>]*>")
_ROFF_ESCAPE = re.compile(r"\\(f\(..|f\[[^]]*\]|f.|s[+-]?\d|[&|^/,%:)]|m\[[^]]*\])")
_ROFF_CHARACTER = {
    r"\-": "-",
    r"\ ": " ",
    r"\~": " ",
    r"\e": "\\",
    r"\(aq": "'",
    r"\(dq": '"',
}
_ROFF_CHARACTER |= {
    r"\(bu": "*",
    r"\(co": "©",
    r"\(lq": "“",
    r"\(rq": "”",
    r"\(em": "—",
}
_ROFF_CHARACTER |= {
    r"\(en": "–",
    r"\(ha": "^",
    r"\(ti": "~",
    r"\(ga": "`",
    r"\(rs": "\\",
}
_ROFF_CHARACTER |= {
    r"\(cq": "’",
    r"\(oq": "‘",
    r"\(mi": "-",
    r"\(Fo": "«",
    r"\(Fc": "»",
}
_NOT_CODE = re.compile(r"/(tests?|encodings|pydoc_data|locale)/|/test_[^/]*$")
_ROFF_PLAIN = re.compile(
    r"\.\s*(SH|SS|B|I|BR|RB|BI|IB|IR|RI|SM|SB|IP|TP|UR|MT)\b\s*(.*)"
)


def from_html(page: str) -> str:
    """Text of an HTML page, one block an output line."""
    page = _BREAK.sub("\n", _HIDDEN.sub("", page))
    return html.unescape(_TAG.sub("", page)).replace("\xa0", " ")


def from_roff(page: str) -> str:
    """Text of a manual page: comments, requests and font changes go, words stay."""
    lines, defining = [], False
    for line in page.splitlines():
        if re.match(r"[.']\s*(de|ig)\b", line):
            defining = True
        elif line.startswith(".."):
            defining = False
        elif not defining and line[:1] in (".", "'"):
            if words := _ROFF_PLAIN.match(line):
                joined = len(words[1]) == 2 and words[1] in "BRBIBRIRIB"
                parts = re.findall(r'"([^"]*)"|(\S+)', words[2])
                lines.append(("" if joined else " ").join(a or b for a, b in parts))
        elif not defining:
            lines.append(line.partition(r"\"")[0])
    text = _ROFF_ESCAPE.sub("", "\n".join(lines))
    for code, character in _ROFF_CHARACTER.items():
        text = text.replace(code, character)
    return re.sub(r"\\(\[\w+\]|\*?\(..|\*.|[a-zA-Z]|.)", "", text)


def documents(tree: Path) -> Iterator[str]:
    """Text of every document below an unpacked package, each document in one format only."""
    for path in sorted(
        p for p in tree.rglob("*") if p.is_file() and not p.is_symlink()
    ):
        where = path.as_posix()
        if "/_sources/" in where or "/usr/share/pod" in where or "RelNotes" in where:
            continue
        if path.suffix == ".html":
            yield from_html(path.read_text(errors="ignore"))
        elif "/share/man/" in where and path.suffix == ".gz":
            yield from_roff(gzip.decompress(path.read_bytes()).decode(errors="ignore"))
        elif path.suffix == ".txt" and not path.with_suffix(".html").exists():
            yield path.read_text(errors="ignore")


def modules(tree: Path) -> Iterator[str]:
    """Text of every Python module below an unpacked package; no tests, no tables of data."""
    for path in sorted(
        p for p in tree.rglob("*.py") if p.is_file() and not p.is_symlink()
    ):
        if not _NOT_CODE.search(path.as_posix()):
            yield path.read_text(errors="ignore")


def split(texts: Iterator[str], code: bool = False) -> dict[str, bytes]:
    """Training and held-out bytes of one language; of code the indentation is kept.

    A document is held out when its hash says so. Translated help and manual pages repeat
    whole sections, so a long line that stood in an earlier document is dropped: no such line of
    the held-out text occurs in the training text.
    """
    parts: dict[str, list[bytes]] = {"train": [], "heldout": []}
    seen: set[str] = set()
    for text in texts:
        kept = []
        for line in text.splitlines():
            words = re.sub(r"[ \t]+", " ", line).strip()
            if len(words) >= REPEATED:
                if words in seen:
                    continue
                seen.add(words)
            if words or (kept and kept[-1]):
                kept.append(line.rstrip() if code else words)
        document = "\n".join(kept).strip().encode()
        if len(document) >= 200:
            draw = int.from_bytes(hashlib.sha256(document).digest()[:4], "big") / 2**32
            parts["heldout" if draw < HELD_OUT else "train"].append(document)
    return {name: b"\n\n".join(found) + b"\n" for name, found in parts.items()}


def prepare(work: Path, domains: tuple[str, ...]) -> Path:
    """Download, extract and split the text, unless that has been done.

    Returns
    -------
    Path
        Folder with ``DOMAIN.{train,heldout}.bin`` of every domain and ``manifest.json`` (package
        versions, bytes and SHA-256 of every file), the last file written.
    """
    folder = work / "corpus"
    if (folder / "manifest.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    manifest: dict = {"packages": [], "files": {}}
    for domain in domains:
        debs = work / "packages" / domain
        debs.mkdir(parents=True, exist_ok=True)
        if not list(debs.glob("*.deb")):
            fetch = ["apt-get", "download", *PACKAGES[domain].split()]
            subprocess.run(fetch, cwd=debs, check=True)  # noqa: S603
        for deb in sorted(debs.glob("*.deb")):
            unpack = ["dpkg-deb", "-x", deb, debs / deb.stem]
            subprocess.run(unpack, check=True)  # noqa: S603
            manifest["packages"].append(deb.stem.replace("%3a", ":"))
        read = modules if domain in CODE else documents
        texts = (
            text for deb in sorted(debs.glob("*.deb")) for text in read(debs / deb.stem)
        )
        for name, data in split(texts, domain in CODE).items():
            (folder / f"{domain}.{name}.bin").write_bytes(data)
            digest = hashlib.sha256(data).hexdigest()
            manifest["files"][f"{domain}.{name}"] = {
                "bytes": len(data),
                "sha256": digest,
            }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return folder


def load(folder: Path, domain: str, part: str) -> np.ndarray:
    """Bytes of one part of the text."""
    return np.fromfile(folder / f"{domain}.{part}.bin", dtype=np.uint8)
