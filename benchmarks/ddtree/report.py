"""Table and plot of results, standard library only.

    python -m benchmarks.ddtree.report --results FOLDER

Reads what is there of `train.json` (or `models/train.json`), `lossless.json` and `sweep.json`; writes `report.md` and `budgets.svg`.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

COLOURS = ("#1f5fa8", "#c2571a", "#2f7d4f", "#7a3fa0", "#8a8a8a")
WIDTH, HEIGHT = 380, 260


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a plot."""

    name: str
    points: tuple[tuple[float, float], ...]
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One plot; the horizontal axis holds the budgets at equal distances."""

    title: str
    unit: str
    lines: tuple[Line, ...]


def nice_step(top: float) -> float:
    """A step of 1, 2 or 5 times a power of ten that gives at most six marks."""
    step = 10.0**-3
    while top / step > 6:
        for factor in (2, 5, 10):
            if top / (step * factor) <= 6:
                return step * factor
        step *= 10
    return step


def draw(plots: Sequence[Plot]) -> str:
    """Plots side by side as SVG."""
    body = []
    for index, plot in enumerate(plots):
        body.append(f'<g transform="translate({index * (WIDTH + 20)},0)">{_one(plot)}</g>')
    wide = len(plots) * (WIDTH + 20)
    tall = HEIGHT + 20 * max((len(plot.lines) for plot in plots), default=0) + 16
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{tall}" font-family="sans-serif" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _one(plot: Plot) -> str:
    left, right, top, bottom = 44, 10, 26, 34
    places = sorted({x for line in plot.lines for x, _ in line.points})
    highest = max((y for line in plot.lines for _, y in line.points), default=1.0) * 1.08
    step = nice_step(highest)

    def across(x: float) -> float:
        return left + (WIDTH - left - right) * (places.index(x) + 0.5) / len(places)

    def up(y: float) -> float:
        return HEIGHT - bottom - (HEIGHT - top - bottom) * y / highest

    out = [f'<text x="{left}" y="15" font-size="12" font-weight="bold">{escape(plot.title)}</text>']
    mark = 0.0
    while mark <= highest:
        out.append(f'<line x1="{left}" x2="{WIDTH - right}" y1="{up(mark):.1f}" y2="{up(mark):.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{left - 5}" y="{up(mark) + 4:.1f}" text-anchor="end">{mark:g}</text>')
        mark += step
    out += [f'<text x="{across(x):.1f}" y="{HEIGHT - bottom + 15}" text-anchor="middle">{x:g}</text>' for x in places]
    out.append(
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 4}" text-anchor="middle">budget, nodes ({escape(plot.unit)} upwards)</text>'
    )
    for number, line in enumerate(plot.lines):
        colour = COLOURS[number % len(COLOURS)]
        dash = ' stroke-dasharray="5 3"' if line.dashed else ""
        points = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in line.points)
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        out += [
            f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="2.5" fill="{colour}"/>'
            for x, y in line.points
            if not line.dashed
        ]
        y = HEIGHT + 12 + 20 * number
        out.append(
            f'<line x1="{left}" x2="{left + 26}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" stroke-width="2"{dash}/>'
        )
        out.append(f'<text x="{left + 32}" y="{y}">{escape(line.name)}</text>')
    return "".join(out)


def offline_plot(training: dict[str, Any], title: str) -> Plot:
    """Accept lengths that were computed without SGLang, by budget."""
    lines = []
    for part, label in (("train", "prompts from text that was trained on"), ("eval", "prompts from unseen text")):
        lengths = training["offline"][part]
        trees = tuple((float(name[5:]), value) for name, value in lengths.items() if name.startswith("tree-"))
        lines.append(Line(name=f"tree, {label}", points=trees))
        lines.append(Line(name=f"chain, {label}", points=tuple((x, lengths["chain"]) for x, _ in trees), dashed=True))
    return Plot(title=title, unit="tokens a round", lines=tuple(lines))


def sweep_plots(lines: Sequence[dict[str, Any]], part: str = "both") -> list[Plot]:
    """Accept length, and speed at each batch size, by budget; AR and DFLASH as level lines."""
    mine = [line for line in lines if line["prompts"] == part]
    trees = [line for line in mine if line["engine"].startswith("DDTREE ") and line["engine"][7:].isdigit()]
    budgets = sorted({float(line["engine"][7:]) for line in trees})
    plots = []
    batches = sorted({line["batch"] for line in mine})
    for value, title, unit, some in [("accept_length", "accept length, batch 1", "tokens a round", batches[:1])] + [
        ("tokens_per_s", f"tokens per second, batch {batch}", "tokens/s", [batch]) for batch in batches
    ]:
        drawn = [
            Line(
                name="DDTREE",
                points=tuple(
                    sorted((float(line["engine"][7:]), line[value]) for line in trees if line["batch"] in some)
                ),
            )
        ]
        drawn += [
            Line(name=name, points=tuple((budget, line[value]) for budget in budgets), dashed=True)
            for name in ("DFLASH", "AR")
            for line in mine
            if line["engine"] == name and line["batch"] in some
        ]
        plots.append(Plot(title=title, unit=unit, lines=tuple(drawn)))
    return plots


def training_table(training: dict[str, Any]) -> str:
    """Markdown: accept lengths by budget, and their ratio to the chain's."""
    out = [
        "| prompts from | chain | "
        + " | ".join(f"tree of {name[5:]}" for name in training["offline"]["train"] if name != "chain")
        + " |"
    ]
    out.append("|---" * (out[0].count("|") - 1) + "|")
    for part in ("train", "eval"):
        lengths = training["offline"][part]
        cells = [
            f"{value:.2f} ({value / lengths['chain']:.2f} x)" for name, value in lengths.items() if name != "chain"
        ]
        label = "text that was trained on" if part == "train" else "unseen text"
        out.append(f"| {label} | {lengths['chain']:.2f} | " + " | ".join(cells) + " |")
    return "\n".join(out)


def sweep_table(lines: Sequence[dict[str, Any]], *, part: str) -> str:
    """Markdown, one line an engine; in brackets without the time of the prefills."""
    mine = [line for line in lines if line["prompts"] == part]
    batches = sorted({line["batch"] for line in mine})
    out = ["| engine | accept length | " + " | ".join(f"tokens/s, batch {batch}" for batch in batches) + " |"]
    out.append("|---" * (len(batches) + 2) + "|")
    for name in dict.fromkeys(line["engine"] for line in mine):
        by_batch = {line["batch"]: line for line in mine if line["engine"] == name}
        cells = [
            f"{by_batch[batch]['tokens_per_s']:.0f} ({by_batch[batch]['decoded_per_s']:.0f})"
            if batch in by_batch
            else ""
            for batch in batches
        ]
        out.append(f"| {name} | {by_batch[min(by_batch)]['accept_length']:.2f} | " + " | ".join(cells) + " |")
    return "\n".join(out)


def checks_table(checks: Sequence[dict[str, Any]]) -> str:
    """Markdown, one line a check and one a row of it."""
    out = ["| check | result | screened prompts equal | all prompts equal |", "|---|---|---|---|"]
    for found in checks:
        out.append(f"| {found['check']} | {_word(found)} | {found.get('screened', '')} | {found.get('all', '')} |")
        for row in found.get("rows", []):
            name = ", ".join(
                f"{key} {row[key]}" if key == "batch" else str(row[key])
                for key in ("engine", "batch", "wave", "kind")
                if key in row
            )
            out.append(f"| &nbsp; {name} | {_word(row)} | {row.get('screened', '')} | {row.get('all', '')} |")
    return "\n".join(out)


def _word(found: dict[str, Any]) -> str:
    if "error" in found:
        return "could not run"
    if not found.get("judged", True):
        return "told"
    return "passed" if found.get("passed", True) else "not passed"


def main() -> None:
    """Reads the command line and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True)
    args = parser.parse_args()
    parts, plots = ["# Results"], []
    training = next(
        (path for path in (args.results / "train.json", args.results / "models/train.json") if path.exists()), None
    )
    if training is not None:
        told = json.loads(training.read_text(encoding="utf-8"))
        parts += ["## Accept length, computed without SGLang", training_table(told)]
        plots.append(offline_plot(told, "accept length, computed offline"))
    if (args.results / "lossless.json").exists():
        told = json.loads((args.results / "lossless.json").read_text(encoding="utf-8"))
        parts += ["## Checks", checks_table(told["checks"])]
    if (args.results / "sweep.json").exists():
        told = json.loads((args.results / "sweep.json").read_text(encoding="utf-8"))
        for part in ("both", "train", "eval"):
            parts += [f"## Speed, prompts: {part}", sweep_table(told["summary"], part=part)]
        plots += sweep_plots(told["summary"])
    (args.results / "report.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    (args.results / "budgets.svg").write_text(draw(plots), encoding="utf-8")


if __name__ == "__main__":
    main()
