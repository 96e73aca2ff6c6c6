"""Reports: one HTML file with tables and plots, read without a network or scripts.

`Page("Title", blocks).html()` is the whole file. Everything that is shown is escaped, and bounded: longer tables, texts
and lines are cut, and the page says so.
"""

from __future__ import annotations

from trioton.report.bars import Bar, StackedBars
from trioton.report.blocks import Code, Diff, Facts, Section, Text
from trioton.report.lines import Limit, Line, LinePlot, Sample
from trioton.report.markup import Markup
from trioton.report.page import Page
from trioton.report.pareto import Goal, pareto_front
from trioton.report.place import Block, Place
from trioton.report.scatter import Dot, ScatterPlot
from trioton.report.tables import Cell, Table
from trioton.report.ticks import Axis

__all__ = [
    "Axis",
    "Bar",
    "Block",
    "Cell",
    "Code",
    "Diff",
    "Dot",
    "Facts",
    "Goal",
    "Limit",
    "Line",
    "LinePlot",
    "Markup",
    "Page",
    "Place",
    "Sample",
    "ScatterPlot",
    "Section",
    "StackedBars",
    "Table",
    "Text",
    "pareto_front",
]
