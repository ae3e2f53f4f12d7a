"""What the site makes while it is built: the commands from the program itself, and the list of changes.

Named in mkdocs.yml. Nothing here is copied by hand, so nothing can be out of date.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PLACE = "<!-- commands -->"
FETCHED = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=["'](?:https?:)?//[^"']+["'][^>]*>""")
MERMAID = re.compile(r"<script type=\"module\">(?:(?!</script>).)*?mermaid.*?</script>", re.DOTALL)


def on_startup(**kwargs: Any) -> None:
    """Kernels of notebooks say what goes wrong, and not that they talk to this process through a local port."""
    from nbclient import NotebookClient

    NotebookClient.extra_arguments.default_args = (["--log-level=ERROR"],)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Pages fetch nothing: nbconvert's loader of diagrams goes, and anything else that would be fetched is an error."""
    from mkdocs.exceptions import PluginError

    output = MERMAID.sub("", output)
    for tag in FETCHED.findall(output):
        if 'rel="canonical"' not in tag:
            raise PluginError(f"{page.file.src_uri} would fetch {tag}")
    return output


def on_files(files: Any, config: Any) -> Any:
    """Put CHANGELOG.md, which stands at the root of the repository, into the site."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "changelog.md", content=(ROOT / "CHANGELOG.md").read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """Fill the page of the commands."""
    return markdown.replace(PLACE, commands()) if page.file.src_uri == "cli.md" else markdown


def commands() -> str:
    """Every command of the program with its arguments and options, as Markdown."""
    import typer

    from floatlens.cli.main import COMMANDS, Commands, app

    group: Any = typer.main.get_command(app)
    before, Commands.listing = Commands.listing, False
    try:
        parts = [section("floatlens", group)]
        parts += [section(f"floatlens {name}", group.get_command(None, name)) for name in COMMANDS]
    finally:
        Commands.listing = before
    return "\n\n".join(parts)


def section(title: str, command: Any) -> str:
    """One command: what it says of itself, and a table of what it takes."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    rows = [f"| `{placeholder(p)}` | {cell(p.help)} | |" for p in arguments]
    rows += [f"| {spelling(p)} | {cell(p.help)} | {default(p)} |" for p in options]
    table = "\n".join(["| | | default |", "|---|---|---|", *rows])
    usage = " ".join([title, *map(placeholder, arguments), "[OPTIONS]"])
    about = re.sub(r"(?<=\S) {2,}", " ", command.help or "")
    return f"## {title}\n\n```\n{usage}\n```\n\n{about}\n\n{table}"


def placeholder(parameter: Any) -> str:
    """What stands for an argument in the line of usage."""
    name = parameter.metavar or parameter.name.upper()
    return name if parameter.nargs == 1 or name.endswith("...") else f"{name}..."


def spelling(parameter: Any) -> str:
    """All names of an option."""
    return ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])


def default(parameter: Any) -> str:
    """What holds when an option is left out; nothing for one that is off, and `needed` for one that must be given."""
    if parameter.required:
        return "needed"
    value = parameter.default
    return "" if value in (None, False, ()) or callable(value) else f"`{'on' if value is True else value}`"


def cell(text: str | None) -> str:
    """Text inside a table.

    >>> cell("one | two")
    'one \\\\| two'
    """
    return " ".join((text or "").split()).replace("|", "\\|").replace("{", "&#123;")
