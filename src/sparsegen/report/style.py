"""How the report looks: on screens light and dark, wide and narrow, and on paper."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1c2227; --faint: #57616a; --line: #d5dbe0; --band: #f4f6f8; --link: #0b5cad;
  --holds: #116b34; --partly: #7a5200; --not: #a8201a; --unknown: #57616a;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14181c; --ink: #e4e8eb; --faint: #a3adb6; --line: #38414a; --band: #1c2227; --link: #82b8f2;
    --holds: #6fce91; --partly: #e6b450; --not: #ff8f86; --unknown: #a3adb6;
  }
}
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
body {
  margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 66rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  overflow-wrap: break-word;
}
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 {
  font-size: 1.35rem; line-height: 1.25; margin: 3rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--line);
}
p, ul { max-width: 46rem; }
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
.skip { position: absolute; left: -100vw; }
.skip:focus { left: 1rem; top: .5rem; padding: .5rem 1rem; background: var(--paper); z-index: 1; }
.lead, .about, .note { color: var(--faint); }
.about, .note { font-size: .9rem; }
.note { margin: .4rem 0 0; }
nav { margin: 1.5rem 0 0; padding: .75rem 1.25rem 1rem; background: var(--band); border-radius: .5rem; }
nav h2 { margin: 0 0 .25rem; padding: 0; border: 0; font-size: 1rem; }
nav ul { margin: 0; padding: 0; max-width: none; columns: 22rem; column-gap: 2rem; list-style: none; }
nav li { padding: .15rem 0; break-inside: avoid; }
.tag {
  display: inline-block; padding: 0 .5rem; border: 1px solid var(--line); border-radius: 1rem; font-size: .8rem;
  font-weight: 400; color: var(--faint); vertical-align: middle; white-space: nowrap;
}
.missing { padding: .75rem 1.25rem; border-left: 4px solid var(--partly); background: var(--band); }
.missing p { margin: 0; }
.missing ul { margin: 0; padding-left: 1.1rem; }
.scroll { overflow-x: auto; margin: 1.25rem 0 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums lining-nums; }
caption { text-align: left; font-weight: 600; padding: 0 0 .4rem; caption-side: top; }
caption span { display: inline-block; position: sticky; left: 0; max-width: calc(100vw - 2rem); }
th, td { padding: .3rem .75rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
thead th { border-bottom: 2px solid var(--faint); vertical-align: bottom; white-space: nowrap; }
tbody th { font-weight: 400; }
.name, .group, .number, .mark, .verdict { white-space: nowrap; }
.group { font-weight: 600; }
.number, .mark { text-align: right; }
.text { min-width: 11rem; }
.ledger table { width: 100%; min-width: 52rem; table-layout: fixed; }
.ledger th:nth-child(2) { width: 14%; }
.ledger th:nth-child(3) { width: 22%; }
.ledger th:last-child { width: 15%; }
.other { font-weight: 700; color: var(--not); }
tbody tr:nth-child(even) > :not(.group) { background: var(--band); }
.verdict span { font-weight: 600; }
.verdict span::before { content: ""; display: inline-block; width: .65em; height: .65em; margin-right: .45em;
  border: 2px solid currentColor; border-radius: 50%; }
.holds { color: var(--holds); } .holds::before { background: currentColor; }
.partly { color: var(--partly); }
.partly::before { background: linear-gradient(90deg, currentColor 50%, transparent 50%); }
.not { color: var(--not); }
.open, .unknown { color: var(--unknown); } .open::before { border-style: dashed !important; }
.unknown::before { border-style: dotted !important; }
figure { margin: 1.5rem 0 0; }
figure .scroll {
  width: fit-content; max-width: 100%; margin: 0; padding: .75rem; background: #ffffff; border: 1px solid var(--line);
  border-radius: .5rem;
}
img { display: block; height: auto; max-width: max(100%, 32rem); }
figcaption { margin-top: .4rem; font-size: .9rem; color: var(--faint); }
footer {
  margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); font-size: .9rem; color: var(--faint);
}
@media print {
  @page { margin: 1.6cm; }
  :root { --paper: #ffffff; --ink: #000000; --faint: #333333; --line: #999999; --band: #ffffff; --link: #000000;
    --holds: #0b4d25; --partly: #5c3d00; --not: #8a1812; --unknown: #333333; }
  :root { color-scheme: light; }
  html { font-size: 9.5pt; }
  body { max-width: none; padding: 0; line-height: 1.4; }
  .skip { display: none; }
  a { color: inherit; text-decoration: none; }
  nav { padding: 0; }
  h2, h2 + p, caption { break-after: avoid; }
  h2 { margin-top: 1.5rem; }
  .scroll { overflow: visible; }
  .scroll, figure, p, tr, .missing { break-inside: avoid; }
  .scroll:has(+ .note) { break-after: avoid; }
  figure .scroll { padding: 0; border: 0; }
  img { max-width: 100%; max-height: 22cm; width: auto; }
  table { font-size: 8pt; max-width: 100%; }
  caption span { position: static; max-width: none; }
  th, td { padding: .15rem .4rem; }
  thead th { white-space: normal; }
  .text, .ledger table { min-width: 0; }
  thead { display: table-header-group; }
}
"""
