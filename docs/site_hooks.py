"""MkDocs hooks (`hooks` in mkdocs.yml) for pages that lie outside docs/, where GitHub looks for them.

Links between docs/ and those files work on GitHub as they stand and are rewritten for the site. Links to
other files of the repository become plain text there.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {"SECURITY.md": "security.md", "CONTRIBUTING.md": "development.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"\[([^]]*)\]\(([^)\s#]+)((?:#[^)\s]*)?)\)")


def on_files(files: Files, config: Any) -> Files:
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    name = page.file.src_uri
    folder = ROOT if name in PAGES.values() else (ROOT / "docs" / name).parent

    def link(found: re.Match[str]) -> str:
        label, target, anchor = found.groups()
        if "://" in target:
            return found[0]
        path = (folder / target).resolve().relative_to(ROOT).as_posix()
        site_page = PAGES.get(path) or path.removeprefix("docs/")
        if site_page == path:
            return label
        return f"[{label}]({'../' * name.count('/')}{site_page}{anchor})"

    return LINK.sub(link, markdown)
