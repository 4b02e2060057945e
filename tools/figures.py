"""Pictures of the verification records, docs/figures/<gpu>-{tokens,heads,accuracy}.svg: time of each path against tokens and
heads, with peers and the floor; errors from strong to slow gates. Plain SVG text, so that the same record gives the same bytes.
"""
import math
import re
from dataclasses import dataclass
from html import escape

import records

FIGURES = records.ROOT / "docs" / "figures"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 660, 340, 62, 200, 40, 52
COLOURS = {"fused": "#1f5fbf", "two_kernel": "#d2691e", "fla": "#2e8b57", "published": "#8a4fbf", "floor": "#222"}
OTHER_COLOUR = "#808080"
# The accuracy rows with their mean raw gate, from strong decay to slow; F5 mixes channels.
GATES = {"F5": "−8…8", "F1": "0", "F2": "−4", "F3": "−8", "F4": "−8", "F8": "−8", "F6": "−9", "F7": "−12"}


@dataclass
class Line:
    label: str
    owner: str  # path, peer or floor: it has one colour in all pictures
    points: dict  # x -> value
    dashed: bool = False


def ticks(low, high):
    """1, 2, 5 of each decade within the range."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [m * 10.0**e for e in exponents for m in (1, 2, 5) if low <= m * 10.0**e * (1 + 1e-9) and m * 10.0**e <= high * (1 + 1e-9)]


def chart(title, x_label, y_label, x_ticks, lines):
    """An SVG line chart with a logarithmic y axis. x_ticks: {x: (position 0 to 1, text)}."""
    values = [value for line in lines for value in line.points.values()]
    low, high = min(values) / 1.3, max(values) * 1.3
    plot_width, plot_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x_of(position):
        return LEFT + plot_width * (0.04 + 0.92 * position)

    def y_of(value):
        return TOP + plot_height * (1 - math.log(value / low) / math.log(high / low))

    def text(x, y, words, anchor="middle", extra=""):
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{escape(words)}</text>'

    middle = TOP + plot_height / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#222">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        text(LEFT, 22, title, "start", ' font-size="14" font-weight="bold"'),
        text(LEFT + plot_width / 2, HEIGHT - 12, x_label),
        text(16, middle, y_label, "middle", f' transform="rotate(-90 16 {middle:.1f})"'),
    ]
    for value in ticks(low, high):
        y = y_of(value)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>' + text(LEFT - 6, y + 4, f"{value:g}", "end"))
    for position, words in x_ticks.values():
        parts.append(f'<path d="M{x_of(position):.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#eee"/>')
        parts.append(text(x_of(position), HEIGHT - BOTTOM + 17, words))
    for index, line in enumerate(lines):
        colour, dash = COLOURS.get(line.owner, OTHER_COLOUR), ' stroke-dasharray="5 4"' if line.dashed else ""
        points = sorted((x_of(x_ticks[x][0]), y_of(value)) for x, value in line.points.items())
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        y = TOP + 14 + 20 * index
        parts.append(f'<path d="M{WIDTH - RIGHT + 12} {y - 4}h20" stroke="{colour}" stroke-width="2"{dash}/>')
        parts.append(text(WIDTH - RIGHT + 38, y, line.label, "start"))
    return "\n".join(parts) + "\n</svg>\n"


def times(record, pattern, title, x_label):
    """Time against the number that `pattern` captures in the benchmarks' names, on a logarithmic axis; "" with under two."""
    paths, peers, floor = {}, {}, {}
    for row in record["benchmarks"]:
        match = re.fullmatch(pattern, row["name"])
        if not match:
            continue
        number = int(match[1])
        paths.setdefault(row["path"], {})[number] = row["ms"]
        for peer, ms in row.get("peers_ms", {}).items():
            peers.setdefault(peer, {})[number] = ms
        if row.get("floor_ms"):
            floor[number] = row["floor_ms"]
    numbers = sorted({number for points in paths.values() for number in points})
    if len(numbers) < 2:
        return ""
    first, last = math.log(numbers[0]), math.log(numbers[-1])
    x_ticks = {number: ((math.log(number) - first) / (last - first), str(number)) for number in numbers}
    lines = [Line(f"FlashKDA, {records.title(path)}", path, paths[path])
             for path in records.known_first(records.PATHS, paths) if path in paths]
    lines += [Line(peer, peer, peers[peer]) for peer in records.known_first(records.PEERS, peers) if peer in peers]
    if floor:
        lines.append(Line("floor (memory)", "floor", floor, dashed=True))
    return chart(title, x_label, "ms", x_ticks, lines)


def accuracy(record):
    """Errors of the outputs and, dashed, of the states."""
    rows = {name.removeprefix("forward/"): by_path for name, by_path in records.by_name(record["accuracy"]).items()}
    families = [family for family in GATES if family in rows]
    if len(families) < 2:
        return ""
    x_ticks = {family: (index / (len(families) - 1), f"{family} {GATES[family]}") for index, family in enumerate(families)}
    errors = {}  # (owner, output or state) -> {family: error}
    for family in families:
        for path, row in rows[family].items():
            for owner, prefix in ((path, ""), ("fla", "fla_")):
                for key in ("output", "state"):
                    if prefix + key in row:
                        errors.setdefault((owner, key), {})[family] = row[prefix + key]
    owners = records.known_first((*records.PATHS, "fla"), (owner for owner, _ in errors))
    lines = [Line(f"{records.title(owner)}, {key}", owner, errors[owner, key], dashed=key == "state")
             for owner in owners for key in ("output", "state") if (owner, key) in errors]
    return chart(f"{record['device']}: error against fp64", "family and its mean raw gate, strong decay to slow", "relative error",
                 x_ticks, lines)


def draw(record):
    """{file name: SVG text}."""
    device = record["device"]
    stem = records.file_name(device).removesuffix(".json")
    pictures = {
        "tokens": times(record, r"forward/H12/fixed(\d+)/random", f"{device}: forward, 12 heads", "tokens of one sequence"),
        "heads": times(record, r"forward/H(\d+)/fixed8192/random", f"{device}: forward, 8192 tokens", "heads"),
        "accuracy": accuracy(record),
    }
    return {f"{stem}-{name}.svg": text for name, text in pictures.items() if text}


def draw_all(all_records):
    return {name: text for record in all_records for name, text in draw(record).items()}


def markdown(all_records):
    return "".join(f"![{name}](docs/figures/{name})\n" for name in draw_all(all_records))
