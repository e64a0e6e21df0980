"""What mkdocs does not do by itself: generated parts of pages, and links to files outside docs/.

A page links to `../examples/deploy.py`, which works on a git host. The site has a generated page with the content of
that file, and the link leads there. So the site needs no repository URL, and shows the files of the version that it
documents.
"""

import importlib
import logging
import posixpath
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
reference = importlib.import_module("reference")

log = logging.getLogger("mkdocs.hooks.mjtrain")

PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}
"""Files outside docs/ that the site has as pages."""

GENERATED: dict[str, Callable[[], str]] = {
    "<!-- generated: command line -->": reference.make_command_line,
    "<!-- generated: configuration -->": reference.make_configuration,
    "<!-- generated: settings -->": reference.make_settings,
}
"""Marks in pages, and what takes their place."""

LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".sh": "bash", ".sbatch": "bash", ".cff": "yaml"}
"""Highlighting of files by suffix; others are shown as plain text."""

_LINK = re.compile(
    r'(\]\(|^\[[^\]\n]+\]:[ \t]+)([^)#:\s]+)((?:#[^)\s]*)?(?:[ \t]+"[^"\n]*")?(?:\)|[ \t]*$))', re.MULTILINE
)
"""A link: [text](target "title"), or its definition elsewhere, [name]: target "title"."""
_TABLE_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")
"""Code in a table, in which a git host wants `|` escaped, and Python-Markdown does not."""
_FENCE = re.compile(r"(^[ \t]*```.*?^[ \t]*```[ \t]*$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for each file outside docs/ that a page links to."""
    root = Path(config.docs_dir).parent
    linked: set[str] = set()
    for file in files.documentation_pages():
        text, base = _load(file.content_string, f"docs/{file.src_uri}", root)
        for part in _FENCE.split(text)[::2]:
            linked |= {_resolve(match[2], base) for match in _LINK.finditer(part)}
    for path in sorted(linked):
        if not _is_outside(path) or path in PAGES or not (root / path).is_file():
            continue
        content = _show_file(path, (root / path).read_text()) if _is_shown(path) else (root / path).read_bytes()
        uri = _site_uri(path)
        files.append(File.generated(config, uri, content=content, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Fill in what is generated, and turn links that leave docs/ to the site's pages of these files."""
    if page.file.src_uri.startswith("source/"):
        return markdown
    root = Path(config.docs_dir).parent
    include = page.meta.get("include")
    text, base = _include(include, page.file.src_uri, root) if include else (markdown, f"docs/{page.file.src_uri}")
    parts = _FENCE.split(text)
    for index in range(0, len(parts), 2):
        parts[index] = _LINK.sub(lambda match: _rewrite(match, base, page.file.src_uri, root), parts[index])
        parts[index] = _TABLE_ROW.sub(
            lambda row: _CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), parts[index]
        )
    text = "".join(parts)
    for mark, make in GENERATED.items():
        if mark in text:
            text = text.replace(mark, make())
    return text


def _load(markdown: str, path: str, root: Path) -> tuple[str, str]:
    """Return the text of a page and the path that its links start from; of an including page, the included one."""
    match = re.match(r"---\ninclude: (\S+)\n---\n", markdown)
    return _include(match[1], path.removeprefix("docs/"), root) if match else (markdown, path)


def _include(include: str, page: str, root: Path) -> tuple[str, str]:
    path = _resolve(include, f"docs/{page}")
    return (root / path).read_text(), path


def _rewrite(match: "re.Match[str]", base: str, page: str, root: Path) -> str:
    path = _resolve(match[2], base)
    if _is_outside(path):
        if path not in PAGES and not (root / path).is_file():
            log.warning("%s links to %s, which is not a file", base, match[2])
            return match[0]
        target = _site_uri(path)
    elif base != f"docs/{page}":  # the text of another folder
        target = path.removeprefix("docs/")
    else:
        return match[0]
    return f"{match[1]}{posixpath.relpath(target, posixpath.dirname(page) or '.')}{match[3]}"


def _resolve(target: str, base: str) -> str:
    """Return a link's target as a path from the root of the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(base), target))


def _is_outside(path: str) -> bool:
    return path.split("/")[0] != "docs"


def _is_shown(path: str) -> bool:
    """Return whether a page shows the file; a notebook is downloaded."""
    return not path.endswith(".ipynb")


def _site_uri(path: str) -> str:
    return PAGES.get(path) or f"source/{path}{'.md' if _is_shown(path) else ''}"


def _show_file(path: str, text: str) -> str:
    """Return a page with the content of a file, which the search does not find."""
    name = path.rpartition("/")[2]
    language = "dockerfile" if name == "Dockerfile" else LANGUAGES.get(Path(name).suffix, "text")
    head = f"---\ntitle: {name}\nsearch:\n  exclude: true\n---\n\n# `{path}`\n\n"
    return f"{head}````{language}\n{text.rstrip()}\n````\n"
