"""Tables and pictures of reports, as HTML, SVG, and figures of matplotlib."""

import html

COLOURS = ["#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#edc948", "#ff9da7", "#9c755f", "#bab0ac"]


def colour(rank):
    return COLOURS[rank % len(COLOURS)]


def text_of(value):
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def text_table(columns, rows):
    """Rows (dicts) as lines of aligned columns, with a head. Numbers are aligned at the right."""
    cells = [[text_of(row[name]) for name in columns] for row in rows]
    widths = [max([len(name)] + [len(line[i]) for line in cells]) for i, name in enumerate(columns)]
    right = [bool(rows) and isinstance(rows[0][name], (int, float)) for name in columns]

    def line(texts):
        padded = [t.rjust(w) if r else t.ljust(w) for t, w, r in zip(texts, widths, right)]
        return "  ".join(padded).rstrip()

    return "\n".join([line(columns)] + [line(each) for each in cells])


def html_table(columns, rows):
    head = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{html.escape(text_of(row[name]))}</td>" for name in columns) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def shards_svg(shape, shards, size=160):
    """A picture of a tensor, which the shards of ranks divide: the first dim downwards, the others together to the right.

    Args:
      shards: a list of (rank, offset, shape of the shard). Ranks that hold the same part share its rectangle.
    """
    rows, columns = _grid_shape(shape)
    parts = {}
    for rank, offset, extent in shards:
        if all(n > 0 for n in extent):
            parts.setdefault((tuple(offset), tuple(extent)), []).append(rank)
    width = size if columns > 1 else size / 2
    height = size * 0.75 if rows > 1 else size / 5
    boxes = []
    for (offset, extent), ranks in parts.items():
        for top, left, tall, wide in _rectangles(shape, offset, extent):
            boxes.append(_box(left / columns * width, top / rows * height, wide / columns * width, tall / rows * height, ranks))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 2:.0f}" height="{height + 2:.0f}" '
        f'viewBox="-1 -1 {width + 2:.0f} {height + 2:.0f}">{"".join(boxes)}</svg>'
    )


def _grid_shape(shape):
    rows = shape[0] if shape else 1
    columns = 1
    for n in shape[1:]:
        columns *= n
    return max(rows, 1), max(columns, 1)


def _rectangles(shape, offset, extent):
    """The rectangles of a box in the picture, (top, left, tall, wide): of more than two dims only the first parts of the later
    ones, at most 64."""
    if not shape:
        return [(0, 0, 1, 1)]
    runs = [(0, 1)]  # of the flattened later dims
    for n, begin, count in zip(shape[1:], offset[1:], extent[1:]):
        if begin == 0 and count == n:
            runs = [(left * n, wide * n) for left, wide in runs]
        else:
            runs = [((left + i) * n + begin, count) for left, wide in runs for i in range(min(wide, 64))]
        runs = runs[:64]
    return [(offset[0], left, extent[0], wide) for left, wide in runs]


def _box(x, y, width, height, ranks):
    names = ", ".join(str(rank) for rank in ranks[:4]) + (", ..." if len(ranks) > 4 else "")
    stripes = "".join(
        f'<rect x="{x + width * i / len(ranks[:8]):.1f}" y="{y:.1f}" width="{width / len(ranks[:8]):.1f}" height="{height:.1f}" '
        f'fill="{colour(rank)}"/>'
        for i, rank in enumerate(ranks[:8])
    )
    label = ""
    if width >= 7 * len(names) and height >= 12:
        label = (
            f'<text x="{x + width / 2:.1f}" y="{y + height / 2 + 4:.1f}" font-size="11" fill="white" '
            f'text-anchor="middle">{names}</text>'
        )
    frame = f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="none" stroke="white"/>'
    return f"<g><title>rank {names}</title>{stripes}{frame}{label}</g>"


def _pyplot():
    try:
        from matplotlib import figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install matplotlib") from error
    return figure


def dry_report_figure(report, path=None):
    """The figure of a DryReport: memory, bytes sent by mesh axis and kind, and by op."""
    figure = _pyplot().Figure(figsize=(12, 3.5), layout="constrained")
    memory, axes, ops = figure.subplots(1, 3)
    memory.bar(["live", "peak"], [report.live_bytes, report.peak_bytes], color=COLOURS[:2])
    memory.set_title(f"memory of rank {report.rank} of {report.world_size}")
    memory.set_ylabel("bytes")
    _stacked(axes, report.traffic)
    _bars(ops, report.calls)
    if path is not None:
        figure.savefig(path)
    return figure


def _stacked(axes, traffic):
    names = list(dict.fromkeys(_axis_name(row) for row in traffic))
    bottoms = dict.fromkeys(names, 0)
    for i, kind in enumerate(dict.fromkeys(row["kind"] for row in traffic)):
        heights = [sum(r["bytes_sent"] for r in traffic if r["kind"] == kind and _axis_name(r) == name) for name in names]
        axes.bar(names, heights, bottom=[bottoms[name] for name in names], label=kind, color=colour(i))
        for name, height in zip(names, heights):
            bottoms[name] += height
    axes.set_title("bytes sent by mesh axis")
    if traffic:
        axes.legend(fontsize="small")


def _axis_name(row):
    return row["axis"] or row["mesh"]


def _bars(axes, calls):
    sent = {}
    for row in calls:
        sent[row["op"]] = sent.get(row["op"], 0) + row["bytes_sent"]
    largest = sorted(((op, n) for op, n in sent.items() if n > 0), key=lambda each: -each[1])[:10]
    axes.barh([op for op, _ in reversed(largest)], [n for _, n in reversed(largest)], color=COLOURS[2])
    axes.set_title("bytes sent by op")
