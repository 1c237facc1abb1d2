"""A workflow's graph as a picture: where boxes stand, how routes go between them, and the SVG of it. Pure.

Steps stand in columns from left to right and in rows. Nothing stands between two columns (a gap) or between two rows (a
lane). A route to the next column crosses one gap; every other one takes a lane, on a track of its own, so that no line
runs behind a box.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from pilothouse_api.signals import END
from pilothouse_cli.views.graph import Edge, Graph, Watcher, label_of

Point = tuple[float, float]

BOX_WIDTH, BOX_HEIGHT, MARGIN, LINE = 190, 46, 24, 20
GAP, LANE, TRACK = 110, 30, 20
"""Between two columns, and between two rows: least widths, and what each route in a lane adds to it."""
LOOP = 40
"""How far the handles of a curve reach that turns back, in a gap or left of all boxes."""
LETTER, LABEL = 6, 28
"""Width of a letter on a route, about, and the most of them."""


@dataclass(frozen=True, slots=True)
class Line:
    """How one route goes: cubic curves end to end, four points each; `label` is the middle of its text's base line."""

    edges: tuple[Edge, ...]
    curves: tuple[tuple[Point, Point, Point, Point], ...]
    label: Point

    @property
    def text(self) -> str:
        """Return what is written on it."""
        return _label(self.edges)


@dataclass(frozen=True, slots=True)
class Layout:
    """A picture in numbers: the upper left corner of each box, by step, and the lines."""

    places: Mapping[str, tuple[int, int]]
    lines: tuple[Line, ...]
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class _Grid:
    """Columns and rows of the boxes, and for each route that takes a lane the lane's number and its track there.

    Lane n lies above row n and begins at `lanes[n]`; the last one lies below all rows.
    """

    cells: Mapping[str, tuple[int, int]]
    tracks: Mapping[int, tuple[int, int]]
    lanes: Sequence[int]
    gap: int

    def x(self, column: int) -> int:
        """Return the left side of a column; routes that turn back to the first one have room before it."""
        return MARGIN + LOOP + column * (BOX_WIDTH + self.gap)

    def y(self, row: int) -> int:
        """Return the upper side of a row."""
        return self.lanes[row + 1] - BOX_HEIGHT

    def track_y(self, number: int) -> int:
        """Return the height of the track of a route."""
        lane, track = self.tracks[number]
        return self.lanes[lane] + (LANE // 2 if lane else 0) + track * TRACK + TRACK // 2


def layout_of(graph: Graph) -> Layout:
    """Return where everything of a graph is drawn."""
    cells = _cells(graph)
    bundles = [bundle for bundle in _bundles(graph) if bundle[0].target in cells]
    widest = max((len(_label(bundle)) for bundle in bundles if _is_next(bundle, cells)), default=0)
    columns, rows = (max(cell[axis] for cell in cells.values()) + 1 for axis in (0, 1))
    tracks = _tracks(bundles, cells)
    lanes = _lanes(rows, tracks.values())
    grid = _Grid(cells, tracks, lanes, max(GAP, widest * LETTER + 24))
    places = {step: (grid.x(column), grid.y(row)) for step, (column, row) in cells.items()}
    lines: list[Line] = []
    near = _Labels()
    for number, bundle in enumerate(bundles):
        curves = _curves(number, bundle, grid)
        lines.append(Line(bundle, curves, _label_place(_label(bundle), curves, near)))
    width = grid.x(columns) - grid.gap + MARGIN
    return Layout(places, tuple(lines), width, lanes[rows + 1] - BOX_HEIGHT - LANE + MARGIN)


def _lanes(rows: int, tracks: Iterable[tuple[int, int]]) -> list[int]:
    """Return where each lane begins, and where one after the last would; the first is as high as its tracks."""
    counts = [0] * (rows + 1)
    for lane, track in tracks:
        counts[lane] = max(counts[lane], track + 1)
    begins = [MARGIN]
    for lane, count in enumerate(counts):
        begins.append(begins[-1] + count * TRACK + (LANE if lane else 0) + BOX_HEIGHT)
    return begins


def _cells(graph: Graph) -> dict[str, tuple[int, int]]:
    """Return column and row of each step, and of the end."""
    ranks = _ranks(graph)
    ranks[END] = max(ranks.values(), default=0) + 1
    rows: dict[int, int] = {}
    cells: dict[str, tuple[int, int]] = {}
    for step_id, rank in ranks.items():
        cells[step_id] = (rank, rows.get(rank, 0))
        rows[rank] = rows.get(rank, 0) + 1
    return cells


def _ranks(graph: Graph) -> dict[str, int]:
    """Return each step's column: right of every earlier step that leads to it; routes back do not count."""
    order = {step.id: position for position, step in enumerate(graph.steps)}
    ranks = dict.fromkeys(order, 0)
    for step in graph.steps:
        for edge in graph.edges:
            if edge.source == step.id and order.get(edge.target, -1) > order[step.id]:
                ranks[edge.target] = max(ranks[edge.target], ranks[step.id] + 1)
    return ranks


def _bundles(graph: Graph) -> list[tuple[Edge, ...]]:
    """Return the routes of a step to the same target together: they are drawn as one line."""
    bundles: dict[tuple[str, str], list[Edge]] = {}
    for edge in graph.edges:
        bundles.setdefault((edge.source, edge.target), []).append(edge)
    return [tuple(edges) for edges in bundles.values()]


def _is_next(bundle: Sequence[Edge], cells: Mapping[str, tuple[int, int]]) -> bool:
    return cells[bundle[0].target][0] == cells[bundle[0].source][0] + 1


def _tracks(bundles: Sequence[Sequence[Edge]], cells: Mapping[str, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """Return lane and track of each route that takes one: routes forward above the rows, routes back below them.

    Two routes share a track where they have no column or gap in common; short ones choose first, to lie inside.
    """
    spans: dict[int, tuple[int, int, int]] = {}
    for number, bundle in enumerate(bundles):
        (left, upper), (right, lower) = cells[bundle[0].source], cells[bundle[0].target]
        if right > left + 1:
            spans[number] = (min(upper, lower), left + 1, right - 1)
        elif right <= left:
            spans[number] = (max(upper, lower) + 1, right, left)
    taken: dict[tuple[int, int], int] = {}  # columns as bits
    tracks: dict[int, tuple[int, int]] = {}
    for number, (lane, first, last) in sorted(spans.items(), key=lambda item: item[1][2] - item[1][1]):
        track = 0
        columns = (1 << last + 1) - (1 << first)
        while taken.get((lane, track), 0) & (columns | columns << 1 | columns >> 1):
            track += 1
        taken[lane, track] = taken.get((lane, track), 0) | columns
        tracks[number] = (lane, track)
    return tracks


def _curves(number: int, bundle: Sequence[Edge], grid: _Grid) -> tuple[tuple[Point, Point, Point, Point], ...]:
    (column, row), (to_column, to_row) = grid.cells[bundle[0].source], grid.cells[bundle[0].target]
    start = (grid.x(column) + BOX_WIDTH, grid.y(row) + BOX_HEIGHT // 2)
    end = (grid.x(to_column), grid.y(to_row) + BOX_HEIGHT // 2)
    if number not in grid.tracks:
        return (_across(start, end),)
    y = grid.track_y(number)
    if to_column > column:
        enter, leave = (grid.x(column + 1), y), (grid.x(to_column - 1) + BOX_WIDTH, y)
        return (_across(start, enter), _across(enter, leave), _across(leave, end))
    right, left = (start[0], y), (end[0], y)
    return (_around(start, right, LOOP), _across(right, left), _around(left, end, -LOOP))


def _across(start: Point, end: Point) -> tuple[Point, Point, Point, Point]:
    """Return a curve that leaves and arrives level, and stays between the two in height and breadth."""
    middle = (start[0] + end[0]) / 2
    return start, (middle, start[1]), (middle, end[1]), end


def _around(start: Point, end: Point, reach: int) -> tuple[Point, Point, Point, Point]:
    """Return a curve that turns back: to the right, or to the left where `reach` is negative."""
    return start, (start[0] + reach, start[1]), (end[0] + reach, end[1]), end


class _Labels:
    """Labels that are placed already, found by where they are: a big graph has ten thousand."""

    def __init__(self) -> None:
        self._rows: dict[int, list[tuple[Point, float]]] = {}

    def is_free(self, place: Point, half: float) -> bool:
        """Tell whether a label there covers no other; `half` is half of its width."""
        row = int(place[1] // LINE)
        others = [other for near in (row - 1, row, row + 1) for other in self._rows.get(near, ())]
        return not any(abs(place[0] - at[0]) < half + its and abs(place[1] - at[1]) < 13 for at, its in others)

    def add(self, place: Point, half: float) -> None:
        """Keep one."""
        self._rows.setdefault(int(place[1] // LINE), []).append((place, half))


def _label_place(text: str, curves: Sequence[tuple[Point, Point, Point, Point]], labels: _Labels) -> Point:
    """Return the first place along the middle curve at which a label covers no other, and no box beside a gap."""
    curve = curves[len(curves) // 2]
    half = len(text) * LETTER / 2
    left, right = sorted((curve[0][0], curve[3][0]))
    places: list[Point] = []
    for t in (0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8):
        x, y = point_on(curve, t)
        places.append((min(max(x, left + half), max(right - half, left + half)), y - 4))
    place = next((one for one in places if labels.is_free(one, half)), places[0])
    labels.add(place, half)
    return place


def point_on(curve: tuple[Point, Point, Point, Point], t: float) -> Point:
    """Return a point of a cubic curve: its beginning at 0, its end at 1."""
    weights = ((1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t**2, t**3)
    x, y = (sum(weight * point[axis] for weight, point in zip(weights, curve, strict=True)) for axis in (0, 1))
    return x, y


def _label(edges: Sequence[Edge]) -> str:
    more = f" +{len(edges) - 1}" if len(edges) > 1 else ""
    return _short(edges[0].signal, LABEL - len(more)) + more


# ---------------------------------------------------------------- svg


def as_svg(graph: Graph) -> str:
    """Return the graph as an SVG picture: in columns from left to right."""
    layout = layout_of(graph)
    watchers = [
        _svg_watcher(watcher, layout.height + LINE * (number + 1)) for number, watcher in enumerate(graph.watchers)
    ]
    height = layout.height + (LINE * (len(watchers) + 1) if watchers else 0)
    boxes = [_box(step.id, label_of(step), layout.places[step.id]) for step in graph.steps]
    boxes.append(_box(END, "", layout.places[END]))
    lines, labels = [_svg_line(line) for line in layout.lines], [_svg_label(line) for line in layout.lines]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {layout.width} {height}" width="{layout.width}"'
        f' height="{height}" font-family="system-ui, sans-serif" role="img" aria-label="steps and routes">\n'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#667"/></marker></defs>\n'
        + "\n".join([*lines, *boxes, *labels, *watchers])
        + "\n</svg>\n"
    )


def _box(title: str, subtitle: str, place: tuple[int, int]) -> str:
    x, y = place
    middle = x + BOX_WIDTH // 2
    return (
        f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8" fill="#eef3fa" stroke="#446"/>'
        f'<text x="{middle}" y="{y + (20 if subtitle else 28)}" text-anchor="middle" font-size="14" fill="#112">'
        f"{escape(_short(title, 24))}</text>"
        f'<text x="{middle}" y="{y + 36}" text-anchor="middle" font-size="11" fill="#445">'
        f"{escape(_short(subtitle, 30))}</text>"
    )


def _svg_watcher(watcher: Watcher, y: int) -> str:
    return (
        f'<text x="{MARGIN}" y="{y}" font-size="12" fill="#112">watched by {escape(_short(watcher.line, 60))}'
        f"<title>{escape(watcher.line)}</title></text>"
    )


def _svg_line(line: Line) -> str:
    (x, y), *_ = line.curves[0]
    ways = " ".join("C" + " ".join(f"{px:g} {py:g}" for px, py in curve[1:]) for curve in line.curves)
    dash = ' stroke-dasharray="5 4"' if all(edge.is_implied for edge in line.edges) else ""
    signals = ", ".join(edge.signal for edge in line.edges)
    return (
        f'<path d="M{x:g} {y:g} {ways}" fill="none" stroke="#667"{dash} marker-end="url(#tip)">'
        f"<title>{escape(signals)}</title></path>"
    )


def _svg_label(line: Line) -> str:
    x, y = line.label
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="11" text-anchor="middle" fill="#334"'
        f' stroke="#fff" stroke-width="3" paint-order="stroke">{escape(line.text)}</text>'
    )


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
