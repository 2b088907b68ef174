"""`sparsegen explore`: the page to play with every map."""

from __future__ import annotations

from pathlib import Path

import typer

from sparsegen.cli.messages import check_file, said_plainly


def explore(
    out: Path = typer.Option(Path("sparsegen-explore.html"), help="The file to write: a page that needs nothing else."),
    scores: str = typer.Option(None, help="Scores to begin with, such as 1.2,0.9,0.5."),
    mapping: str = typer.Option(None, help="Map to begin with: sparsegen_lin, sparsehourglass, ..."),
    lam: float = typer.Option(None, help="Control of sparsegen."),
    q: float = typer.Option(None, help="Control of sparsecone and sparsehourglass."),
    temperature: float = typer.Option(None, help="Control of softmax."),
    alpha: float = typer.Option(None, help="Control of entmax."),
    show: bool = typer.Option(True, "--open/--no-open", help="Open the page in the browser."),
) -> None:
    """Write the page to play with every map, and open it in the browser."""
    with said_plainly():
        import webbrowser

        from sparsegen import explore as pages
        from sparsegen.experiments.store import write_text

        check_file(out)
        shown = pages.state(scores, mapping, lam=lam, q=q, temperature=temperature, alpha=alpha)
        write_text(out, pages.page(shown))
        link = pages.address(out, shown)
        opened = show and webbrowser.open(link)
        typer.echo(f"wrote {out}" if opened else f"wrote {out}; open it in a browser: {link}")
