"""Embed a figure's SVG in a page: drawing elements only, unique ids, and colours that follow light and dark mode.

Nothing in it can run or fetch anything: elements and attributes come from an allow-list, URLs are its own ids or PNG data.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from floatlens.errors import FloatLensError
from floatlens.findings.style import COLOURS, FAINT, INK, TITLE
from floatlens.findings.tokens import SHADES

SVG, XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
ELEMENTS = {
    "svg", "g", "path", "text", "tspan", "use", "defs", "clipPath", "rect", "circle", "ellipse", "line", "polyline",
    "polygon", "image", "pattern",
}  # fmt: skip
ATTRIBUTES = {
    "id", "d", "x", "y", "x1", "y1", "x2", "y2", "r", "rx", "ry", "cx", "cy", "width", "height", "points", "transform",
    "style", "clip-path", "viewBox", "preserveAspectRatio", "patternUnits", "patternContentUnits", "fill", "stroke",
    "opacity",
}  # fmt: skip
# Fixed colours of the figures by the CSS variable that replaces them in the page.
VARIABLES = {
    INK: "ink",
    "#555555": "muted",
    FAINT: "faint",
    "#ffffff": "paper",
    **{colour.lower(): f"c{place}" for place, colour in enumerate(COLOURS, 1)},
    **{colour.lower(): f"k{place}" for place, colour in enumerate(SHADES.values(), 1)},
}
ADDRESS = re.compile(r"url\(\s*['\"]?#([^)'\"]+)['\"]?\s*\)")
PNG = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=\s]+")


def inlined(svg: str, name: str, title: str, description: str) -> str:
    """Return the SVG as a page element; `name` makes its ids unique, title and description are for screen readers.

    >>> hostile = '<svg xmlns="http://www.w3.org/2000/svg"><script>1</script><g onclick="x" id="a"/></svg>'
    >>> inlined(hostile, "f", "A title", "What is seen")
    '<svg role="img" ...><title id="f-title">A title</title><desc id="f-desc">What is seen</desc><g id="f-a" /></svg>'
    """
    if "<!ENTITY" in svg:
        raise FloatLensError(f"the SVG of {name} declares entities; only figures drawn by floatlens are shown")
    try:
        root = _kept(ET.fromstring(svg), name)
    except ET.ParseError as error:
        raise FloatLensError(f"the SVG of {name} is damaged ({error}); draw the figure again") from None
    if root is None:
        raise FloatLensError(f"the SVG of {name} has no svg element; only figures drawn by floatlens are shown")
    for size in ("width", "height"):  # set by the page; the viewBox fixes the proportions
        root.attrib.pop(size, None)
    labels = [ET.Element(kind, {"id": f"{name}-{kind}"}) for kind in ("title", "desc")]
    for label, text in zip(labels, (title, description), strict=True):
        label.text, label.tail = text, None
    root[:0] = labels
    root.attrib = {"role": "img", "aria-labelledby": f"{name}-title {name}-desc", **root.attrib}
    return ET.tostring(root, encoding="unicode", short_empty_elements=True)


def _kept(element: ET.Element, name: str) -> ET.Element | None:
    tag = element.tag.removeprefix(SVG) if isinstance(element.tag, str) else ""
    if tag not in ELEMENTS or element.get("id") == TITLE:  # the page writes the title itself, in lines that wrap
        return None
    made = ET.Element(tag)
    made.text, made.tail = (text if tag in ("text", "tspan") else None for text in (element.text, element.tail))
    for key, value in element.attrib.items():
        if key in (f"{XLINK}href", "href"):
            if value.startswith("#"):
                made.set("href", f"#{name}-{value[1:]}")
            elif tag == "image" and PNG.fullmatch(value):
                made.set("href", value)
        elif key == "id":
            made.set("id", f"{name}-{value}")
        elif key in ATTRIBUTES and _harmless(value):
            made.set(key, _coloured(ADDRESS.sub(lambda match: f"url(#{name}-{match[1]})", value)))
    made.extend(child for child in (_kept(each, name) for each in element) if child is not None)
    return made


def _harmless(value: str) -> bool:
    """Allow only URLs that are the figure's own ids."""
    rest = ADDRESS.sub("", value).lower()
    return not any(word in rest for word in ("url", "expression", "javascript:", "@import", "\\"))


def _coloured(value: str) -> str:
    return re.sub(r"#[0-9a-fA-F]{6}\b", lambda match: _variable(match[0]), value)


def _variable(colour: str) -> str:
    name = VARIABLES.get(colour.lower())
    return f"var(--{name})" if name else colour
