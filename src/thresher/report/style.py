"""The frame and styles of reports: one column on a phone, two on a desktop, plain in print."""

from collections.abc import Sequence

CSS = """
:root{--ink:#1f2328;--soft:#57606a;--line:#d3d8de;--paper:#fff;--card:#f6f8fa;--good:#1a7f37;
--bad:#b3261e;--same:#0a5fb4;--open:#6e7781;--warn:#fff4d6;--warn-ink:#5c4400}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9aa6b2;--line:#3a424c;
--paper:#0f1318;--card:#181e25;--good:#4cc26a;--bad:#ff7b72;--same:#6cb6ff;--open:#9aa6b2;
--warn:#3b2f0a;--warn-ink:#f2d98b}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1120px;margin:0 auto;padding:20px 16px 48px}
h1{font-size:1.6rem;line-height:1.2;margin:.2em 0;text-wrap:balance}
h2{font-size:1.2rem;margin:2em 0 .6em;padding-bottom:.25em;border-bottom:1px solid var(--line)}
h3{font-size:1rem;margin:1.2em 0 .4em}
p{margin:.5em 0;max-width:75ch}.sub{color:var(--soft)}
code{font-size:.9em;background:var(--card);padding:.1em .3em;border-radius:4px}
.warning{background:var(--warn);color:var(--warn-ink);padding:.6em .8em;border-radius:8px}
.cards{display:grid;gap:12px;grid-template-columns:repeat(auto-fit,minmax(min(100%,320px),1fr))}
.card{background:var(--card);border-left:4px solid var(--open);border-radius:8px;padding:12px 14px}
.card p{margin:.4em 0 0}.card.better{border-color:var(--good)}.card.worse{border-color:var(--bad)}
.card:is(.equivalent,.no,.excludes){border-color:var(--same)}
.badge{font-weight:600;color:var(--open);white-space:nowrap}.badge.better{color:var(--good)}
.badge.worse{color:var(--bad)}.badge:is(.equivalent,.no,.excludes){color:var(--same)}
.figures{display:grid;gap:20px;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr))}
figure{margin:0;break-inside:avoid}figure h3{margin:.2em 0}figure svg{width:100%;height:auto;
display:block;max-width:620px}figcaption{color:var(--soft);font-size:.9rem}
svg text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif!important}
.scroll{overflow-x:auto;margin:.6em 0}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.35em .7em .35em 0;border-bottom:1px solid var(--line);
vertical-align:top;white-space:nowrap}.wrap td{white-space:normal;overflow-wrap:anywhere}
.wrap td:first-child{white-space:nowrap;overflow-wrap:normal}
th{color:var(--soft);font-weight:600;white-space:normal;vertical-align:bottom}
td.n,th.n{text-align:right}
details{margin:1.4em 0;border-top:1px solid var(--line);padding-top:.8em}
summary{cursor:pointer;font-weight:600}
@media print{:root{--ink:#000;--soft:#333;--line:#bbb;--paper:#fff;--card:#fff;--good:#000;
--bad:#000;--same:#000;--open:#000}main{max-width:none;padding:0}.card{border:1px solid #999}
.scroll{overflow:visible}h2{break-after:avoid}tr{break-inside:avoid}
.figures{grid-template-columns:1fr 1fr}details{display:block}}
"""


def html_page(title: str, parts: Sequence[str], style: str = "", head: str = "") -> str:
    """Return a page of `parts`; `title`, further styles and elements of its head are HTML."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{head}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{title}</title><style>{CSS}{style}</style></head>\n"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )
