#!/usr/bin/env python3
"""Draws the panels of deploy/grafana/utxo-store.json with the data of a Prometheus, in one picture.

    scripts/dashboard.py --prometheus http://127.0.0.1:9090 --to dashboard.png [--minutes 30] [--alerts alerts.png]

One line for each panel without data, and for each expression without data of a panel that has some. Exit code 1 where
an expression fails. `--alerts` takes a picture of the page of the alerts, too. Needs Python 3.11 and Chromium, no
Grafana: the picture shows data, not the looks of Grafana. Where `pngquant` is installed, the pictures are smaller.
"""

import argparse
import html
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

DASHBOARD = Path(__file__).resolve().parent.parent / "deploy/grafana/utxo-store.json"
WIDTH = 1200
COLUMNS = 24
# Height of a row of the grid, in pixels. Grafana has 38.
ROW = 22
GAP = 6
COLORS = ["#56a64b", "#e0b400", "#3274d9", "#e02f44", "#ff780a", "#8f3bb8", "#333333", "#0a8f8f", "#c15c8d", "#a16f00"]
NAMED = {"green": "#56a64b", "red": "#e02f44", "text": "#24292e"}
# Most lines of a legend; the rest of the entries is counted.
LEGEND_LINES = 3
# Most points of a series.
POINTS = 240


def ask(prometheus, path, **parameters):
    """Returns the data of an answer of Prometheus' API. A refusal is a ValueError with the reason."""
    url = f"{prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        raise ValueError(json.load(error).get("error", str(error))) from error


def seconds_of(duration):
    """Returns the seconds of a duration of Prometheus: `5s`, `1m30s`."""
    units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+)(ms|[smhd])", duration))


class Source:
    """Asks one Prometheus for the series of a range of time."""

    def __init__(self, prometheus, minutes):
        self.prometheus = prometheus
        self.end = time.time()
        self.begin = self.end - minutes * 60
        settings = ask(prometheus, "status/config")["yaml"]
        scrape = seconds_of(re.search(r"scrape_interval: (\S+)", settings)[1])
        self.step = max(scrape, math.ceil(minutes * 60 / POINTS))
        # As Grafana: a rate needs two values at every step.
        rate = max(self.step + scrape, 4 * scrape)
        self.variables = {"__rate_interval": f"{math.ceil(rate)}s", "job": self.values("job"),
                          "instance": self.values("instance")}

    def values(self, label):
        """Returns the expression for `All` of a variable of the dashboard."""
        values = ask(self.prometheus, f"label/{label}/values", **{"match[]": "utxo_build_info"})
        if not values:
            raise ValueError(f"no instance of utxo-store has the label {label} there; scrape http.listen of each")
        # PromQL reads a backslash in a string as an escape.
        return "|".join(re.escape(value).replace("\\", "\\\\") for value in values)

    def series(self, target):
        """Returns the series of an expression with their legends: (legend, [(time, value)]), without NaN."""
        expression = re.sub(r"\$(\w+)", lambda found: self.variables[found[1]], target["expr"])
        answer = ask(self.prometheus, "query_range", query=expression, start=self.begin, end=self.end, step=self.step)
        found = []
        for result in answer["result"]:
            points = [(at, float(value)) for at, value in result["values"]]
            points = [(at, value) for at, value in points if math.isfinite(value)]
            legend = re.sub(r"{{(\w+)}}", lambda name: result["metric"].get(name[1], ""), target["legendFormat"])
            if points:
                found.append((legend, points))
        return found


def scaled(value, steps):
    """Writes a value with the largest unit that is not above the value: [(size, unit)], ascending."""
    size, unit = next(((size, unit) for size, unit in reversed(steps) if abs(value) >= size), steps[0])
    value /= size
    return f"{value:.0f}{unit}" if abs(value) >= 100 else f"{value:.3g}{unit}"


def text_of(value, unit):
    """Writes a value in a unit of Grafana."""
    if value == 0:
        return "0"
    if unit == "s":
        return scaled(value, [(1e-6, " µs"), (1e-3, " ms"), (1, " s"), (60, " min"), (3600, " h"), (86400, " d"),
                              (31557600, " y")])
    if unit in ("bytes", "Bps"):
        steps = [(1024**power, f" {name}B") for power, name in enumerate(["", "Ki", "Mi", "Gi", "Ti"])]
        return scaled(value, steps) + ("/s" if unit == "Bps" else "")
    number = scaled(value, [(1, ""), (1e3, "k"), (1e6, "M"), (1e9, "G")])
    return number + {"ops": "/s", "reqps": "/s"}.get(unit, "")


def tick_step(span, unit):
    """Returns a round distance with which a span has at most four ticks."""
    # The unit of the distance: KiB, MiB; minutes, hours.
    base = 1
    if unit in ("bytes", "Bps") and span >= 2:
        base = 1024 ** math.floor(math.log(span / 2, 1024))
    elif unit == "s" and span >= 120:
        base = next(size for size in (31557600, 86400, 3600, 60) if span >= 2 * size)
    power = 10 ** math.floor(math.log10(span / 4 / base))
    return next(base * power * factor for factor in (1, 2, 5, 10) if span / (base * power * factor) <= 4)


def stacked(series):
    """Returns the series, each on top of the one before."""
    sums, result = {}, []
    for legend, points in series:
        base = [sums.get(at, 0) for at, _ in points]
        for at, value in points:
            sums[at] = sums.get(at, 0) + value
        result.append((legend, [(at, sums[at]) for at, _ in points], base))
    return result


def draw_lines(series, defaults, source, width, height):
    """Draws the curves of a panel."""
    custom = defaults["custom"]
    is_stacked = custom["stacking"]["mode"] == "normal"
    curves = stacked(series) if is_stacked else [(legend, points, None) for legend, points in series]
    values = [value for _, points, _ in curves for _, value in points]
    low, high = min([*values, defaults.get("min", math.inf)]), max(values)
    if high == low:
        high, low = (high + 1, low) if low == 0 else (high + abs(high) / 10, low - abs(low) / 10)
    step = tick_step(high - low, defaults.get("unit"))
    high = math.ceil(high / step - 1e-9) * step
    low = max(math.floor(low / step) * step, defaults.get("min", -math.inf))
    left, bottom, top = 52, 16, 4

    def x(at):
        return left + (at - source.begin) / (source.end - source.begin) * (width - left - 4)

    def y(value):
        return top + (high - value) / (high - low) * (height - top - bottom)

    parts = []
    for number in range(round((high - low) / step) + 1):
        value = low + number * step
        parts.append(f'<path d="M{left} {y(value):.0f}H{width - 4}" class="grid"/>'
                     f'<text x="{left - 4}" y="{y(value) + 3:.0f}" text-anchor="end">'
                     f'{html.escape(text_of(0 if abs(value) < step / 1e6 else value, defaults.get("unit")))}</text>')
    minutes = (source.end - source.begin) / 60
    distance = next((size for size in (1, 2, 5, 10, 15, 30, 60, 120, 360) if minutes / size <= 5), 1440) * 60
    at = math.ceil(source.begin / distance) * distance
    while at < source.end:
        parts.append(f'<path d="M{x(at):.0f} {top}V{height - bottom}" class="grid"/>'
                     f'<text x="{x(at):.0f}" y="{height - 4}" text-anchor="middle">'
                     f'{time.strftime("%H:%M", time.localtime(at))}</text>')
        at += distance
    # The first series is drawn last: in a stack it is the lowest.
    for number, (_, points, base) in reversed(list(enumerate(curves))):
        color = COLORS[number % len(COLORS)]
        runs, before = [], -math.inf
        for index, (at, value) in enumerate(points):
            # A gap stays a gap (spanNulls is off).
            if at - before > 1.5 * source.step:
                runs.append([])
            runs[-1].append((x(at), y(value), y(base[index]) if base else y(max(low, 0))))
            before = at
        for run in runs:
            line = "L".join(f"{a:.1f} {b:.1f}" for a, b, _ in run)
            if len(run) == 1:
                parts.append(f'<circle cx="{run[0][0]:.1f}" cy="{run[0][1]:.1f}" r="1.5" fill="{color}"/>')
                continue
            if is_stacked:
                under = "L".join(f"{a:.1f} {c:.1f}" for a, _, c in reversed(run))
                parts.append(f'<path d="M{line}L{under}Z" fill="{color}" opacity="0.3"/>')
            parts.append(f'<path d="M{line}" fill="none" stroke="{color}" stroke-width="1.2"/>')
    return f'<svg width="{width}" height="{height}">{"".join(parts)}</svg>'


def legend_of(series, width):
    """Returns the HTML of a legend, and its height in pixels."""
    parts, lines, used = [], 1, 0
    for number, (name, _) in enumerate(series):
        # An entry has 5 pixels for each letter, a mark and a margin.
        size = 5 * len(name) + 24
        if used and used + size > width - 12:
            lines, used = lines + 1, 0
        if lines > LEGEND_LINES:
            parts.append(f"<span>and {len(series) - number} more</span>")
            break
        used += size
        parts.append(f'<span><i style="background:{COLORS[number % len(COLORS)]}"></i>{html.escape(name)}</span>')
    # The count of the rest may need a line of its own.
    return f'<div class="legend">{"".join(parts)}</div>', 12 * min(lines, LEGEND_LINES + 1)


def mapping_of(defaults):
    """Returns the texts and colours that a panel has for single values."""
    return {key: option for mapping in defaults.get("mappings", []) for key, option in mapping["options"].items()}


def draw_states(series, defaults, source, width, height):
    """Draws one bar for each series, in the colour of its value."""
    mapping, label = mapping_of(defaults), 190
    line = min(16, (height - 4) / len(series))
    parts = []
    for number, (name, points) in enumerate(sorted(series)):
        top = 2 + number * line
        parts.append(f'<text x="{label - 6}" y="{top + line / 2 + 3:.0f}" text-anchor="end">{html.escape(name)}</text>')
        for at, value in points:
            left = label + (at - source.begin) / (source.end - source.begin) * (width - label - 4)
            size = source.step / (source.end - source.begin) * (width - label - 4)
            color = NAMED[mapping.get(f"{value:g}", {"color": "text"})["color"]]
            parts.append(f'<rect x="{left:.1f}" y="{top:.1f}" width="{min(size, width - left) + 0.5:.1f}" '
                         f'height="{line * 0.85:.1f}" fill="{color}"/>')
    return f'<svg width="{width}" height="{height}">{"".join(parts)}</svg>'


def draw_values(series, panel):
    """Writes the last value of each series."""
    defaults, options = panel["fieldConfig"]["defaults"], panel["options"]
    parts = []
    for name, points in series:
        value = points[-1][1]
        color = [step["color"] for step in defaults["thresholds"]["steps"]
                 if step["value"] is None or value >= step["value"]][-1]
        mapped = mapping_of(defaults).get(f"{value:g}", {})
        text, color = mapped.get("text", text_of(value, defaults["unit"])), NAMED[mapped.get("color", color)]
        if options["textMode"] == "value_and_name":
            text = f"{name}: {text}"
        style = f"background:{color};color:#fff" if options["colorMode"] == "background" else f"color:{color}"
        parts.append(f'<b style="{style}">{html.escape(text)}</b>')
    return f'<div class="values">{"".join(parts)}</div>'


def draw(panel, series, source):
    """Returns the HTML of a panel."""
    grid = panel["gridPos"]
    width, height = grid["w"] * WIDTH // COLUMNS - GAP, grid["h"] * ROW - GAP
    place = f'left:{grid["x"] * WIDTH // COLUMNS + GAP // 2}px;top:{grid["y"] * ROW}px;' \
            f"width:{width}px;height:{height}px"
    title = html.escape(panel["title"])
    if panel["type"] == "row":
        return f'<h2 style="{place}">{title}</h2>'
    defaults = panel["fieldConfig"]["defaults"]
    if not series:
        content = '<div class="values none">no data</div>'
    elif panel["type"] == "stat":
        content = draw_values(series, panel)
    elif panel["type"] == "state-timeline":
        content = draw_states(series, defaults, source, width, height - 20)
    elif panel["type"] == "timeseries":
        legend, used = legend_of(series, width)
        content = draw_lines(series, defaults, source, width, height - 24 - used) + legend
    else:
        sys.exit(f"dashboard: cannot draw {panel['title']}: its type {panel['type']} is new; add it to draw()")
    return f'<div class="panel" style="{place}"><h3>{title}</h3>{content}</div>'


STYLE = """
body { margin: 0; font: 10px sans-serif; color: #24292e; background: #f4f5f5 }
.panel { position: absolute; background: #fff; border: 1px solid #dde; box-sizing: border-box; overflow: hidden }
h2 { position: absolute; font-size: 13px; margin: 0; line-height: 22px }
h3 { font-size: 11px; font-weight: 600; margin: 2px 6px 2px }
svg { display: block } svg text { font-size: 9px; fill: #555 } .grid { stroke: #e4e5e8; stroke-width: 1 }
.legend { padding: 0 6px; line-height: 12px; font-size: 9px } .legend span { margin-right: 8px; white-space: nowrap }
.legend i { display: inline-block; width: 8px; height: 3px; margin: 0 3px 2px 0 }
.values { display: flex; height: calc(100% - 20px); gap: 2px } .values b { flex: 1; font-size: 20px; display: flex;
align-items: center; justify-content: center } .none { color: #999; align-items: center; justify-content: center }
"""


def take_picture(url, file, size):
    """Takes a picture of a page of that size in pixels."""
    browser = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))),
                   None) or sys.exit("dashboard: missing: chromium (e.g. apt-get install chromium)")
    with tempfile.TemporaryDirectory() as profile:
        taken = subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}",
             "--virtual-time-budget=5000", f"--window-size={size[0]},{size[1]}",
             f"--screenshot={Path(file).resolve()}", url], capture_output=True, text=True, timeout=120)
    if taken.returncode or not Path(file).exists():
        sys.exit(f"dashboard: cannot take a picture of {url}: {taken.stderr.strip()[-300:]}")
    if shutil.which("pngquant"):
        subprocess.run(["pngquant", "--force", "--speed=1", "--strip", f"--output={file}", "64", file], check=True)


def alerts_page(prometheus):
    """Returns the address of the page of the alerts, which the build of Debian has elsewhere."""
    try:
        urllib.request.urlopen(f"{prometheus}/alerts", timeout=10).close()
        return f"{prometheus}/alerts"
    except urllib.error.HTTPError:
        return f"{prometheus}/classic/alerts"


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--prometheus", default="http://127.0.0.1:9090", help="URL of Prometheus")
    arguments.add_argument("--minutes", type=float, default=30, help="length of the range of time, which ends now")
    arguments.add_argument("--to", required=True, help="file of the picture (PNG)")
    arguments.add_argument("--alerts", help="file of a picture of the alerts")
    options = arguments.parse_args()
    options.prometheus = options.prometheus.rstrip("/")
    try:
        source = Source(options.prometheus, options.minutes)
    except (OSError, ValueError) as error:
        sys.exit(f"dashboard: cannot ask {options.prometheus}: {error}")
    panels, failed, row, counts = [], False, "", [0, 0]
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        row = panel["title"] if panel["type"] == "row" else row
        series, empty = [], []
        for target in panel.get("targets", []):
            try:
                found = source.series(target)
            except ValueError as error:
                print(f"failed   {row} / {panel['title']}: {target['expr']}: {error}")
                found, failed = [], True
            series.extend(found)
            empty.extend([] if found else [target["expr"]])
        if panel["type"] != "row":
            counts[0] += 1
            counts[1] += not series
            for expression in empty:
                print(f"{'in part' if series else 'no data'}  {row} / {panel['title']}: {expression}")
        panels.append(draw(panel, series, source))
    print(f"{counts[0]} panels, {counts[1]} without data")
    height = max(grid["y"] + grid["h"] for panel in json.loads(DASHBOARD.read_text())["panels"]
                 for grid in [panel["gridPos"]]) * ROW
    with tempfile.NamedTemporaryFile("w", suffix=".html") as page:
        page.write(f'<!DOCTYPE html><meta charset="utf-8"><style>{STYLE}</style>{"".join(panels)}')
        page.flush()
        take_picture(f"file://{page.name}", options.to, (WIDTH, height))
    if options.alerts:
        take_picture(alerts_page(options.prometheus), options.alerts, (1000, 2080))
    sys.exit(failed)


if __name__ == "__main__":
    main()
