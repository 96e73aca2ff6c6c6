"""From the detection model's map of "how likely is this pixel text?" to boxes around lines of text.

This is the post-processing of differentiable binarisation (DB) for lines that lie straight: threshold, connected
regions, a score per region, and a margin, as the model marks only the core of a line. Needs numpy alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

IS_TEXT = 0.3  # a pixel above this probability belongs to a line
MIN_SCORE = 0.5  # mean probability that a region must reach
MARGIN = 1.6  # how far a box is grown, relative to area / circumference
MIN_SIDE = 3  # pixels


@dataclass(frozen=True)
class Box:
    """Pixels from `left` to `right` and from `top` to `bottom`, the latter two excluded."""

    left: float
    top: float
    right: float
    bottom: float
    score: float

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def height(self) -> float:
        return self.bottom - self.top

    def scaled(self, x: float, y: float) -> Box:
        return Box(self.left * x, self.top * y, self.right * x, self.bottom * y, self.score)

    def grown(self, margin: float) -> Box:
        return Box(self.left - margin, self.top - margin, self.right + margin, self.bottom + margin, self.score)


def find_boxes(probability: np.ndarray) -> list[Box]:
    """Boxes in reading order from a map FP32 [height, width], in its pixels."""
    boxes = []
    for left, top, right, bottom in connected_regions(probability > IS_TEXT):
        score = float(probability[top:bottom, left:right].mean())
        box = Box(left, top, right, bottom, score)
        if score >= MIN_SCORE and min(box.width, box.height) >= MIN_SIDE:
            boxes.append(box.grown(MARGIN * box.width * box.height / (2 * (box.width + box.height))))
    return in_reading_order(boxes)


def connected_regions(mask: np.ndarray) -> list[tuple[int, int, int, int]]:
    """The bounds (left, top, right, bottom) of regions of True in a mask [height, width], sides touching.

    Works on runs, the unbroken stretches of True within a row: a run joins the regions of the runs that it touches
    in the row above.
    """
    edges = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(edges == 1)
    ends = np.nonzero(edges == -1)[1]  # row by row, so the n-th end belongs to the n-th start
    parents = list(range(len(rows)))

    def root(run: int) -> int:
        while parents[run] != run:
            parents[run] = parents[parents[run]]
            run = parents[run]
        return run

    first_of_row = np.searchsorted(rows, np.arange(mask.shape[0] + 1)).tolist()
    for row in range(1, mask.shape[0]):
        above, here = first_of_row[row - 1], first_of_row[row]
        while above < first_of_row[row] and here < first_of_row[row + 1]:
            if starts[above] < ends[here] and starts[here] < ends[above]:
                parents[root(here)] = root(above)
            if ends[above] < ends[here]:
                above += 1
            else:
                here += 1

    regions: dict[int, list[int]] = {}
    for run, (row, start, end) in enumerate(zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)):
        bounds = regions.setdefault(root(run), [start, row, end, row + 1])
        bounds[0] = min(bounds[0], start)
        bounds[2] = max(bounds[2], end)
        bounds[3] = max(bounds[3], row + 1)
    return [(left, top, right, bottom) for left, top, right, bottom in regions.values()]


def in_reading_order(boxes: list[Box]) -> list[Box]:
    """Line by line from the top, within a line from the left. Boxes whose middles lie level make a line."""
    lines: list[list[Box]] = []
    for box in sorted(boxes, key=lambda box: box.top + box.bottom):
        line = lines[-1] if lines else []
        if line and (box.top + box.bottom) / 2 < line[0].bottom - line[0].height / 4:
            line.append(box)
        else:
            lines.append([box])
    return [box for line in lines for box in sorted(line, key=lambda box: box.left)]
