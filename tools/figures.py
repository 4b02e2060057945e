"""Pictures of the verification records, docs/figures/<gpu>-{tokens,heads,accuracy}.svg: time against tokens and heads, with
peers and the floor; errors from strong to slow gates. Plain SVG text, so that the same record gives the same bytes.
"""
import math
import re
from html import escape

import records

FIGURES = records.ROOT / "docs" / "figures"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 660, 340, 62, 200, 40, 52
COLOURS = ("#1f5fbf", "#d2691e", "#2e8b57", "#8a4fbf", "#b03060", "#808080")
FLOOR = "floor (memory)"
# The accuracy rows with their mean raw gate, from strong decay to slow; F5 mixes channels.
GATES = {"F5": "−8…8", "F1": "0", "F2": "−4", "F3": "−8", "F4": "−8", "F8": "−8", "F6": "−9", "F7": "−12"}


def ticks(low, high):
    """1, 2, 5 of each decade within the range."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [m * 10.0**e for e in exponents for m in (1, 2, 5) if low <= m * 10.0**e * (1 + 1e-9) and m * 10.0**e <= high * (1 + 1e-9)]


def chart(title, x_label, y_label, x_ticks, series):
    """An SVG line chart with a logarithmic y axis. x_ticks: [(position 0 to 1, text)]; series: {name: [(position, value)]}."""
    values = [value for points in series.values() for _, value in points]
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
    for position, words in x_ticks:
        parts.append(f'<path d="M{x_of(position):.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#eee"/>')
        parts.append(text(x_of(position), HEIGHT - BOTTOM + 17, words))
    for index, (name, points) in enumerate(series.items()):
        colour, dash = ("#222", ' stroke-dasharray="5 4"') if name == FLOOR else (COLOURS[index % len(COLOURS)], "")
        line = " ".join(f"{x_of(position):.1f},{y_of(value):.1f}" for position, value in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        parts += [f'<circle cx="{x_of(position):.1f}" cy="{y_of(value):.1f}" r="3" fill="{colour}"/>' for position, value in points]
        y = TOP + 14 + 20 * index
        parts.append(f'<path d="M{WIDTH - RIGHT + 12} {y - 4}h20" stroke="{colour}" stroke-width="2"{dash}/>')
        parts.append(text(WIDTH - RIGHT + 38, y, name, "start"))
    return "\n".join(parts) + "\n</svg>\n"


def times(record, pattern, title, x_label):
    """Time against the number that `pattern` captures in the benchmarks' names, on a logarithmic axis; "" with under two."""
    series, numbers = {}, set()
    for row in record["benchmarks"]:
        match = re.fullmatch(pattern, row["name"])
        if not match:
            continue
        number = int(match[1])
        numbers.add(number)
        figures = {f"flash_kda {row['path']}": row["ms"], **row["peers_ms"], FLOOR: row["floor_ms"]}
        for name, ms in figures.items():
            series.setdefault(name, {})[number] = ms
    if len(numbers) < 2:
        return ""
    first, last = math.log(min(numbers)), math.log(max(numbers))

    def position(number):
        return (math.log(number) - first) / (last - first)

    order = sorted(series, key=lambda name: (name == FLOOR, not name.startswith("flash_kda"), name))
    lines = {name: [(position(number), ms) for number, ms in sorted(series[name].items())] for name in order}
    return chart(title, x_label, "ms", [(position(number), str(number)) for number in sorted(numbers)], lines)


def accuracy(record):
    rows = {}
    for row in record["accuracy"]:
        rows.setdefault(row["name"].removeprefix("forward/"), {})[row["path"]] = row
    families = [family for family in GATES if family in rows]
    if len(families) < 2:
        return ""
    positions = {family: index / (len(families) - 1) for index, family in enumerate(families)}
    series = {}
    for family in families:
        for path, row in sorted(rows[family].items()):
            for name, key in ((f"{path} output", "output"), (f"{path} state", "state"), ("fla output", "fla_output"), ("fla state", "fla_state")):
                if key in row:
                    series.setdefault(name, {})[positions[family]] = row[key]
    order = sorted(series, key=lambda name: (name.startswith("fla "), name))
    return chart(f"{record['device']}: error against fp64", "family and its mean raw gate, strong decay to slow", "relative error",
                 [(positions[family], f"{family} {GATES[family]}") for family in families],
                 {name: sorted(series[name].items()) for name in order})


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
