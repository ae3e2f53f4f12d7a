"""Hooks of the documentation site: generate the pages of commands and of figures, and add the changelog and a film.

Listed in mkdocs.yml.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PLACEHOLDER, GALLERY = "<!-- commands -->", "<!-- gallery -->"
FETCHED = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=["'](?:https?:)?//[^"']+["'][^>]*>""")
FIGURE = re.compile(r"!\[[^\]]*\]\((?:\.\./)?(results/figures/[\w-]+\.png)\)")
MERMAID = re.compile(r"<script type=\"module\">(?:(?!</script>).)*?mermaid.*?</script>", re.DOTALL)


def on_startup(**kwargs: Any) -> None:
    """Let notebook kernels log errors only; they would also report the local port that they use."""
    from nbclient import NotebookClient

    NotebookClient.extra_arguments.default_args = (["--log-level=ERROR"],)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Remove nbconvert's loader of diagrams, and refuse anything else that a page would fetch from the network."""
    from mkdocs.exceptions import PluginError

    output = MERMAID.sub("", output)
    for tag in FETCHED.findall(output):
        if 'rel="canonical"' not in tag:
            raise PluginError(f"{page.file.src_uri} would fetch {tag}")
    return output


def on_files(files: Any, config: Any) -> Any:
    """Add CHANGELOG.md, which is at the root of the repository, and a film to the site."""
    from mkdocs.structure.files import File

    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "changelog.md", content=text))
    files.append(File.generated(config, "film.html", content=film_page()))
    return files


def film_page() -> str:
    """Return a page with one question to two models, so that it always has the current explorer."""
    import floatlens as fl
    from floatlens.explorer.film import film
    from floatlens.explorer.page import page

    question = "On which day was the ship Golden Otter launched?"
    passages = ["The Calm Dolphin was launched on 6 March 1842.", "The Golden Otter was launched on 10 February 1847."]
    options: dict[str, Any] = {"gold": 1, "max_new_tokens": 16, "matrices": ["attention_mean"]}
    traces = [fl.load(name).trace(question, passages, **options) for name in ("tiny-mdm", "tiny-arm")]
    return page([film(trace) for trace in traces], "A diffusion model and an autoregressive one")


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """Insert the commands and the gallery into their pages, and give figures of one panel the scale of the others."""
    if page.file.src_uri == "gallery.md":
        markdown = markdown.replace(GALLERY, gallery())
    if page.file.src_uri == "cli.md":
        markdown = markdown.replace(PLACEHOLDER, commands())
    return FIGURE.sub(lambda found: f"{found[0]}{{ width={shown_width(ROOT / 'docs' / found[1])} }}", markdown)


def shown_width(picture: Path) -> int:
    """Return the width of a figure on its page, 100 pixels per inch, so that all figures have letters of one size.

    Wide pictures were reduced to 200 dots per inch (`recipes.results.draw.shrink`), the others have 300.
    """
    from PIL import Image

    with Image.open(picture) as opened:
        return opened.width // (2 if opened.width >= 1400 else 3)


def gallery() -> str:
    """Return every registered finding with the pictures of its page and the code there that draws them, as Markdown."""
    from floatlens.findings.finding import FINDINGS

    parts = []
    for name in FINDINGS.names():
        finding = FINDINGS[name]
        text = (ROOT / "docs" / "findings" / f"{name}.md").read_text(encoding="utf-8")
        title = re.search(r"^# (.+)$", text, re.MULTILINE)
        pictures = re.findall(r"^!\[(.*?)\]\(\.\./(results/(?:figures/)?[\w-]+\.png)\)$", text, re.MULTILINE)
        blocks = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "figure(" in block]
        code = f"```python\n{blocks[0]}```" if blocks else f"```sh\nfloatlens figure {name} RUN --out figures\n```"
        heading = f"## [{title[1] if title else name}](findings/{name}.md)"
        question = finding.question
        shown = "\n\n".join(f"![{about}]({place})" for about, place in pictures)
        parts.append("\n\n".join(filter(None, [heading, question, shown, code])))
    return "\n\n".join(parts)


def commands() -> str:
    """Return all commands with their arguments and options, as Markdown."""
    import typer

    from floatlens.cli.main import COMMANDS, app, load_command

    parts = [section("floatlens", typer.main.get_command(app))]
    parts += [section(f"floatlens {name}", load_command(name)) for name in COMMANDS]
    return "\n\n".join(parts)


def section(title: str, command: Any) -> str:
    """Return one command: its usage, its description, and a table of its arguments and options."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    rows = [f"| `{metavar(p)}` | {cell(p.help)} | |" for p in arguments]
    rows += [f"| {spelling(p)} | {cell(p.help)} | {default(p)} |" for p in options]
    table = "\n".join(["| | | default |", "|---|---|---|", *rows])
    usage = " ".join([title, *map(metavar, arguments), "[OPTIONS]"])
    about = re.sub(r"(?<=\S) {2,}", " ", command.help or "")
    return f"## {title}\n\n```\n{usage}\n```\n\n{about}\n\n{table}"


def metavar(parameter: Any) -> str:
    """Return the name of an argument in the usage line."""
    name = parameter.metavar or parameter.name.upper()
    return name if parameter.nargs == 1 or name.endswith("...") else f"{name}..."


def spelling(parameter: Any) -> str:
    """Return all names of an option."""
    return ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])


def default(parameter: Any) -> str:
    """Return the default of an option: empty for a flag that is off, `required` if there is none."""
    if parameter.required:
        return "required"
    value = parameter.default
    return "" if value in (None, False, ()) or callable(value) else f"`{'on' if value is True else value}`"


def cell(text: str | None) -> str:
    """Return text for a table cell.

    >>> cell("one | two")
    'one \\\\| two'
    """
    return " ".join((text or "").split()).replace("|", "\\|").replace("{", "&#123;")
