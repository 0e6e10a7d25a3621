# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The little of SVG that the pictures of these pages need: readable on light and on dark pages."""

import html

STYLE = """text { font: 13px system-ui, sans-serif; fill: #24292f; }
.name { font-weight: 600; font-size: 15px; }
.strong { font-weight: 600; }
.small { font-size: 12px; fill: #57606a; }
.code { font-family: ui-monospace, monospace; font-size: 12px; }
.line { stroke: #8c959f; stroke-width: 1; fill: none; }
.dash { stroke: #8c959f; stroke-width: 1; stroke-dasharray: 3 3; fill: none; }
.box { fill: #f6f8fa; stroke: #8c959f; }
.arrow { stroke: #57606a; stroke-width: 1.5; fill: none; }
.head { fill: #57606a; }
text.in { fill: #16191d; }
.a { fill: #7fb3e6; } .b { fill: #f2a365; } .c { fill: #8fd18a; } .d { fill: #d99ae0; }
.e { fill: #c3cad1; } .f { fill: #f0d264; } .g { fill: #74c9c3; }
.inside { stroke: #4a90d9; stroke-width: 2; fill: none; } .inside-head { fill: #4a90d9; }
.between { stroke: #e07b2e; stroke-width: 2; fill: none; } .between-head { fill: #e07b2e; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.small { fill: #9da7b1; }
.line, .dash { stroke: #6e7681; }
.box { fill: #21262d; stroke: #6e7681; }
.arrow { stroke: #9da7b1; }
.head { fill: #9da7b1; }
}"""


def number(value):
    return f"{value:.1f}".removesuffix(".0")


class Drawing:
    """Lines of SVG. Class "in" is for text on the fills a to g, which are light everywhere."""

    def __init__(self, width, title, source):
        self.width, self.title, self.source = width, title, source
        self.parts = []
        self.bottom = 0

    def add(self, line, bottom):
        self.parts.append(line)
        self.bottom = max(self.bottom, bottom)

    def text(self, x, y, words, style="", anchor="start"):
        attributes = f' class="{style}"' if style else ""
        attributes += "" if anchor == "start" else f' text-anchor="{anchor}"'
        self.add(f'<text x="{number(x)}" y="{number(y)}"{attributes}>{html.escape(words)}</text>',
                 y + 5)

    def rect(self, x, y, width, height, style, round_by=0, title=""):
        corner = f' rx="{round_by}"' if round_by else ""
        inner = f"><title>{html.escape(title)}</title></rect>" if title else "/>"
        self.add(f'<rect class="{style}" x="{number(x)}" y="{number(y)}" width="{number(width)}" '
                 f'height="{number(height)}"{corner}{inner}', y + height)

    def line(self, x1, y1, x2, y2, style="line"):
        self.add(f'<path class="{style}" d="M{number(x1)} {number(y1)} '
                 f'L{number(x2)} {number(y2)}"/>', max(y1, y2))

    def arrow(self, *points, style="arrow", head="head"):
        """Along points (x, y), with a head at the last."""
        (x1, y1), (x2, y2) = points[-2:]
        length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1e-9)
        dx, dy = (x2 - x1) / length, (y2 - y1) / length
        steps = " L".join(f"{number(x)} {number(y)}" for x, y in points)
        self.add(f'<path class="{style}" d="M{steps}"/>', max(y for _, y in points))
        corners = [(x2, y2), (x2 - 9 * dx - 4 * dy, y2 - 9 * dy + 4 * dx),
                   (x2 - 9 * dx + 4 * dy, y2 - 9 * dy - 4 * dx)]
        self.add(f'<path class="{head}" d="M' + " L".join(f"{number(x)} {number(y)}"
                                                       for x, y in corners) + ' Z"/>', y2)

    def write(self):
        height = number(self.bottom + 12)
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {height}" '
                f'width="{self.width}" height="{height}" role="img">\n'
                f"<title>{html.escape(self.title)}</title>\n<!-- Made by {self.source} -->\n"
                f"<style>\n{STYLE}\n</style>\n" + "\n".join(self.parts) + "\n</svg>\n")
