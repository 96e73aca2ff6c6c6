"""The style sheet of a page, for light and dark screens and for paper."""

STYLE = """
:root { color-scheme: light dark; --text: #1a1f27; --soft: #555e6b; --back: #ffffff; --panel: #f4f6f9; --edge: #c9d0da;
  --warn: #fff3d6; --plus: #dcf5e3; --minus: #fde4e4;
  --s0: #0b62b0; --s1: #b3420b; --s2: #0f766e; --s3: #8528c7; --s4: #b3123c; --s5: #4a6b0d; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6eaf0; --soft: #a9b3c1; --back: #14181f; --panel: #1d232c; --edge: #3a4452;
    --warn: #43361290; --plus: #173a24; --minus: #482024;
    --s0: #66abff; --s1: #ff9d57; --s2: #3bd1c0; --s3: #cb93ff; --s4: #ff8296; --s5: #b0d860; } }
* { box-sizing: border-box; }
body { margin: 0; font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.25rem 0 .5rem; border-bottom: 1px solid var(--edge); padding-bottom: .25rem; }
h3, h4, h5, h6 { font-size: 1.05rem; margin: 1.5rem 0 .5rem; }
h1, h2, h3, p, dd, td, th, figcaption, li { overflow-wrap: anywhere; }
p { max-width: 48rem; }
.note, caption { color: var(--soft); font-size: .9rem; text-align: left; }
.warning { background: var(--warn); border-left: 4px solid var(--s1); padding: .5rem .75rem; }
.table, pre { overflow-x: auto; margin: .75rem 0; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
td, th { padding: .3rem .7rem; border-bottom: 1px solid var(--edge); text-align: left; vertical-align: top; }
td, th { overflow-wrap: normal; max-width: 32rem; }
thead th { background: var(--panel); }
tbody th { font-weight: 500; }
.number { text-align: right; }
.marked td, .marked th { background: var(--panel); font-weight: 650; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.25rem; margin: .75rem 0; }
dt { color: var(--soft); } dd { margin: 0; }
pre { background: var(--panel); border: 1px solid var(--edge); border-radius: 4px; padding: .75rem; }
code { font: .86rem/1.45 ui-monospace, monospace; }
.added { background: var(--plus); } .removed { background: var(--minus); } .place { color: var(--soft); }
.added, .removed { display: inline-block; min-width: 100%; }
figure { margin: 1.25rem 0 1.75rem; }
figure > svg { display: block; width: 100%; max-width: 50rem; height: auto; margin: .4rem 0; }
svg text { fill: var(--text); font-family: system-ui, sans-serif; }
.tick { font-size: 12px; } .axis { font-size: 13px; }
.grid { stroke: var(--edge); stroke-width: 1; }
.s0 { --c: var(--s0); } .s1 { --c: var(--s1); } .s2 { --c: var(--s2); }
.s3 { --c: var(--s3); } .s4 { --c: var(--s4); } .s5 { --c: var(--s5); }
.line { stroke: var(--c); stroke-width: 2; }
.mark { fill: var(--c); stroke: var(--back); stroke-width: 1; }
.area { fill: var(--c); stroke: var(--back); stroke-width: 1; }
.band { fill: var(--c); opacity: .18; }
.whisker { stroke: var(--soft); stroke-width: 1.5; }
.limit { stroke: var(--s4); stroke-width: 1.5; stroke-dasharray: 3 3; }
.front { stroke: var(--s0); stroke-width: 1.5; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .15rem 1.25rem; padding: 0; font-size: .9rem;
  margin: .25rem 0; }
.legend svg { vertical-align: -3px; margin-right: .4rem; }
summary { cursor: pointer; font-size: .9rem; color: var(--soft); }
:focus-visible { outline: 2px solid var(--s0); outline-offset: 2px; }
@media print { main { max-width: none; } figure, table { break-inside: avoid; } }
"""
