"""What charts in SVG and HTML are drawn with: they are legible on light and on dark ground, name no
font and load nothing."""

from html import escape

# They differ in lightness too.
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#98df8a", "#c7e9c0", "#6baed6", "#fdbe85", "#636363",
           "#969696", "#bcbddc", "#756bb1")

STYLE = """:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; width: 100%; }
td, th { padding: .2em .7em; text-align: right; border-bottom: 1px solid #8884; }
td:first-child, th:first-child { text-align: left; }"""


def colours_of(names: list[str] | dict) -> dict[str, str]:
    """A colour for each name, in their order."""
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}


def part(x: float, y: float, width: float, height: float, colour: str, title: str) -> str:
    """A part of a bar, with a title that a viewer shows under the pointer."""
    return (f'<rect x="{x:.2f}" y="{y:.10g}" width="{width:.2f}" height="{height:.10g}" '
            f'fill="{colour}"><title>{title}</title></rect>')


def page_head(title: str, style: str) -> str:
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{STYLE}
{style}
</style>
</head>
<body>"""
